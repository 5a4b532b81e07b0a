"""Databases: opened, migrated, shared between threads. What the tables mean is the business of whoever asks.

`sqlite` opens files and says in plain words what is wrong with them, `readers` hands out connections for reading and
`anchor` spares them system calls, `group_commit` lets concurrent writers share one commit, `statements` reads named SQL
blocks, `forks` guards against use after a fork, `urls` takes the URLs of stores apart.
The package `redis` is the same for servers of that kind.
"""
