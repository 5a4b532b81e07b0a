"""The object store: one port, an embedded backend for one machine and Kubernetes beyond it.

`port` says what a store does; `tests/conformance/objects` proves that the backends do the same.
"""
