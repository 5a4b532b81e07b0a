"""Redis and Valkey: reached, asked and understood. What the keys there mean is the business of whoever asks.

`address` says where a server is, `connections` exchanges bytes with it within bounded time, `failures` says in plain
words what its errors mean, `scripts` calls Lua by digest, and `client` puts these together, one per event loop. Each
user names the errors that it wants raised (`errors`), so that nothing has to be caught and worded again on the way.
"""
