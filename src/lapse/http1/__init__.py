"""HTTP/1.1: heads, bodies, cookies and connection limits, for everything that speaks it by itself."""
