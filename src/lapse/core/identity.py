"""Identities that nobody can guess: the only place of the product that draws secrets.

An owner token proves who holds a lock; a bearer token proves who may call the API. Both must be unguessable, so both
come from the operating system's generator and never from `random`.
"""

from __future__ import annotations

import secrets
from uuid import uuid4


def owner_token() -> str:
    """Return a fresh identity of 128 bits, as 22 URL-safe characters."""
    return secrets.token_urlsafe(16)


def secret_token() -> str:
    """Return a fresh credential of 256 bits, as 43 URL-safe characters."""
    return secrets.token_urlsafe(32)


def secret_bytes(size: int = 32) -> bytes:
    """Return fresh key material."""
    return secrets.token_bytes(size)


def uuid() -> str:
    """Return a fresh identity of an object, in the form that Kubernetes gives its own."""
    return str(uuid4())
