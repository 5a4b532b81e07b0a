"""Redis and Valkey: addresses, connections, scripts and errors. The keys' meaning is the business of their users.

`connections` exchanges bytes with a server (`address`) within bounded time, `scripts` calls Lua by digest, and `client`
puts these together, one per event loop. `failures` says in plain words what a server's errors mean; each user names the
errors that it wants raised, so that nothing has to be caught and worded again on the way.
"""
