"""The workspace proxy: each workspace on a host name of its own, HTTP and websockets, for its owner only.

`server.Proxy` is the whole; `ports` says what it needs of others. Bytes are read and written by protocols of our own
(`front` towards the client, `upstream` towards the workspace, `tunnel` after an upgrade); what is decided about a head
is pure and stands in `heads`, `bodies`, `rewriting`, `hosts` and `origins`.
"""
