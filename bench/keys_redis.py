"""Redis and Valkey: ours beside redis-py's asyncio client with hiredis, as it comes, with as many connections.

It sends the very commands that Lapse sends: GET, and EVALSHA of Lapse's own scripts. Lapse uses the connections of the
same driver, without the driver's client and pool around them; that is what it can be quicker by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import redis.asyncio

from bench.contest import APP_ID, TTL_SECONDS
from bench.servers import CALLERS, Part, Plan, Tasks
from lapse.keys.backends.layout import Prefix, partition_keys
from lapse.keys.backends.redis.backend import SCRIPTS, Partition
from tests.servers import redis_server, valkey_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from tests.servers import Server

PLAN: Final = Plan(rounds=21, operations=1_280, warm_up=640, many_calls=100)
QUICK: Final = Plan(rounds=3, operations=256, warm_up=64, many_calls=10)


def _part(name: str, start: Callable[[], AbstractContextManager[Server]]) -> Part:
    return Part(
        name,
        start=start,
        ours_url=lambda server: f"{server.keys_url()}?connections={CALLERS[-1]}",
        raw="bench.keys_redis:Driver",
        raw_url=lambda server: server.url,
    )


REDIS: Final = _part("Redis", redis_server)
VALKEY: Final = _part("Valkey", valkey_server)


class Driver(Tasks):
    """The plain driver."""

    def __init__(self, name: str, url: str) -> None:
        """Connect, and load the scripts."""
        super().__init__(name)
        self._driver = redis.asyncio.Redis.from_url(url, max_connections=CALLERS[-1])
        self._names, self._ends, self._records = Partition.of(
            "lapse", partition_keys(Prefix.APPLICATION_TTL, APP_ID)[0]
        )
        self._scripts = {
            kind: self.loop.run_until_complete(self._driver.script_load(SCRIPTS[kind].source))
            for kind in ("insert", "swap")
        }
        self._ttl_ms = str(TTL_SECONDS * 1000)

    def call(self, kind: str, key: str, value: str) -> Awaitable[object]:
        """See `Tasks`."""
        record = self._records + key
        if kind == "get":
            return self._driver.get(record)
        places = (self._names, self._ends, record)
        last = () if kind == "insert" else (value,)
        return self._driver.evalsha(self._scripts[kind], len(places), *places, value, self._ttl_ms, *last)

    def expected(self, kind: str, value: str) -> object:
        """See `Bench`. A get of the plain driver answers bytes."""
        return value.encode() if kind == "get" else 1

    async def disconnect(self) -> None:
        """See `Tasks`."""
        await self._driver.aclose()
