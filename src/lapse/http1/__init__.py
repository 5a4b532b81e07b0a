"""HTTP/1.1: what clients of several servers have in common."""
