"""Databases: opened, migrated, shared between threads. What the tables mean is the business of whoever asks.

`sqlite` opens files and says in plain words what is wrong with them, `readers` hands out connections for reading and
`anchor` spares them system calls, `group_commit` lets concurrent writers share one commit, `statements` reads named SQL
blocks, `forks` guards against use after a fork, `urls` takes the URLs of stores apart.

`postgres` is a pool of connections to a server, with the words of `postgres_errors`; `migrating` makes the tables
there, by the numbered steps of `migrations`. The package `redis` is the same for servers of that kind.
"""
