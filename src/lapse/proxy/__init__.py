"""Workspace proxy: each workspace on a host name of its own, HTTP and websockets, for its owner only.

`server.Proxy` is the whole; `ports` says what it needs of others. Bytes are read and written by protocols of our own
(`client_connection` towards the client, `upstream` towards the workspace, `tunnel` after an upgrade) on the codec of
`lapse.http1`; `router` decides which request goes where, `exchange` carries it out.
"""
