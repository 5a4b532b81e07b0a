"""The client of the Kubernetes API: calls, watches, the wire format and its failures."""
