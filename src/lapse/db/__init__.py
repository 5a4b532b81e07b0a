"""Databases: connections, commits and migrations. The tables' meaning is the business of the modules that own them.

`sqlite` is files on this machine: `sqlite.database` for most users, `sqlite.group_commit` (concurrent writers share one
commit), `sqlite.readers` (lent read connections), `sqlite.forks` (no use after a fork). `postgres` is a pool of
connections to a server and the migrations of its tables. `redis` is the same for Redis and Valkey. `statements` reads
named SQL blocks, `urls` takes the URLs of stores apart.
"""
