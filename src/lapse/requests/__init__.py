"""Requests: one-shot operations with an ownership anchor and a TTL after completion.

`api` says which kinds of objects there are and which reasons an outcome can have.
"""
