"""One module per URL scheme. Each is imported only when its scheme is used, so that its driver stays optional."""
