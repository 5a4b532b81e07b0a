"""Access to a cluster: configuration, credentials, TLS, rights and admission reviews."""
