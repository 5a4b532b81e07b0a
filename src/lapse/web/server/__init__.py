"""The HTTP server: listeners, connections, certificates, probes and the guard before every route."""
