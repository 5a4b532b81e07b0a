"""The size of a run: all of it, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench import expiry, file, keys_cassandra, keys_dynamodb, keys_redis, memory, servers, startup, writers

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVERS: Final = {
    "redis": keys_redis.REDIS,
    "valkey": keys_redis.VALKEY,
    "cassandra": keys_cassandra.PART,
    "dynamodb": keys_dynamodb.PART,
}


@dataclass(frozen=True, slots=True)
class Plans:
    """One plan per part."""

    memory: memory.Plan
    expiry: expiry.Plan
    file: file.Plan
    writers: writers.Plan
    startup: startup.Plan
    servers: Mapping[str, servers.Plan]


FULL: Final = Plans(
    memory.Plan(),
    expiry.Plan(),
    file.Plan(),
    writers.Plan(),
    startup.Plan(),
    {
        "redis": keys_redis.PLAN,
        "valkey": keys_redis.PLAN,
        "cassandra": keys_cassandra.PLAN,
        "dynamodb": keys_dynamodb.PLAN,
    },
)
QUICK: Final = Plans(
    memory.QUICK,
    expiry.QUICK,
    file.QUICK,
    writers.QUICK,
    startup.QUICK,
    {
        "redis": keys_redis.QUICK,
        "valkey": keys_redis.QUICK,
        "cassandra": keys_cassandra.QUICK,
        "dynamodb": keys_dynamodb.QUICK,
    },
)
