"""HTTP/1.1 codec of the proxy and the Kubernetes client, with cookies, client sockets and connection limits."""
