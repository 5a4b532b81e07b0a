"""Keys on Redis or Valkey: ``redis://[user:password@]host[:port][/db]``, with TLS ``rediss://``.

A record is a plain string under ``namespace:{tag}:key`` with the server's own expiry; ``tag`` is the partition key in
hexadecimal, so that all keys of a partition share a slot of a cluster. Two sorted sets per partition, ``#names`` and
``#ends``, serve `scan` and shrink as records expire. There is no schema; only the number of buckets is recorded, under
``namespace:buckets``, when a store is opened for the first time.

Guarantees: every operation is one command or one Lua script, and one round trip; the server's clock decides, so a
client's clock does not matter. Not guaranteed: that an acknowledged write survives a failover, because replication is
asynchronous; that live keys stay where the server may evict them (``maxmemory-policy`` other than ``noeviction``);
anything about Redis Cluster, whose redirections this client does not follow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lapse.db.redis.address import OPTIONS as ADDRESS_OPTIONS
from lapse.db.redis.address import RedisAddress
from lapse.db.urls import Option
from lapse.keys.backends.layout import BUCKETS, CACHE
from lapse.keys.backends.redis.backend import RedisBackend
from lapse.keys.errors import KeysURLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.db.urls import StoreURL

__all__ = ["OPTIONS", "RedisBackend", "init_store", "open_backend"]

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ValueError(text)
    return text


OPTIONS: Final[Mapping[str, Option]] = {
    "buckets": BUCKETS,
    "namespace": Option(_namespace, "lapse", "1 to 64 letters, digits, dots, dashes or underscores"),
    **ADDRESS_OPTIONS,
    **CACHE,
}


def open_backend(url: StoreURL, clock: Clock) -> RedisBackend:  # noqa: ARG001 - the server has a clock of its own
    """Prepare a store; no connection is made before the first use."""
    address = RedisAddress.of(url, KeysURLError)
    return RedisBackend(address, namespace=url.options["namespace"], buckets=url.options["buckets"])


def init_store(url: StoreURL, clock: Clock) -> str:
    """Record the number of buckets, and say so; also say when the server is set up to lose live keys."""
    backend = open_backend(url, clock)
    try:
        backend.check()
        policy = backend.eviction_policy()
    finally:
        backend.close()
    said = f"redis needs no schema; {url} is used with buckets={url.options['buckets']}"
    if policy not in {None, "noeviction"}:
        said += f"; warning: its maxmemory-policy is {policy}, which removes live keys: set it to noeviction"
    return said
