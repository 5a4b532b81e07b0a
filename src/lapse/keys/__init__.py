"""Keys: expiring application storage with atomic insert, swap and delete, on embedded and distributed backends.

`store` is the blocking API and `aio` the awaitable one, `port` is what a backend implements, `backends` implement it,
`conformance` proves it.
"""
