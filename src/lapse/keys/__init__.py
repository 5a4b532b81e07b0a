"""Keys: expiring application storage with atomic insert, swap and delete, on embedded and distributed backends.

`store` and `aio` are the two faces, `port` is what a backend implements, `backends` implement it, `conformance` proves
it.
"""
