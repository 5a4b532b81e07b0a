"""Kubernetes API: its vocabulary, a client, and the machinery of controllers on top of it.

`resources`, `conditions` and `errors` are the vocabulary. `controller` (informer, work queue, Lease) works on anything
that lists and watches, so it serves the embedded object store as well. `api` is the client of a real API server, `auth`
finds the server and our credentials, and asks about the rights of others. `crd` makes CustomResourceDefinitions of our
types and rules, installs them, and validates documents by the same. `events` writes Events for people.
Knows no domain and no database.
"""
