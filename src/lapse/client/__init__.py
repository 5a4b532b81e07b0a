"""Typed client of the HTTP API: what people ask of a running Lapse, from Python, awaited or not.

`AsyncClient` is `lapse.engine.verbs.contract.Verbs` over HTTP, and `Client` the same without await. What is asked and
answered are the structs of that module. See docs/reference/client.md.
"""

from __future__ import annotations

from lapse.client.aio import AsyncClient
from lapse.client.errors import (
    AnswerMissingError,
    NotLapseError,
    RemoteError,
    ServerAddressError,
    ServerUnreachableError,
    TokenFormError,
    TokenInTheClearError,
)
from lapse.client.sync import Client

__all__ = [
    "AnswerMissingError",
    "AsyncClient",
    "Client",
    "NotLapseError",
    "RemoteError",
    "ServerAddressError",
    "ServerUnreachableError",
    "TokenFormError",
    "TokenInTheClearError",
]
