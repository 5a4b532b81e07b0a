"""The worlds that the cases run in: one process on virtual time, and a server on which time is moved by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.core.clock import VirtualClock
from lapse.workspaces.activity.in_process import InProcessActivity
from tests.conformance.activity.registry import LEASE

if TYPE_CHECKING:
    import redis

    from lapse.workspaces.activity.port import Activity
    from tests.servers import Server


class InProcessWorld:
    """One process: both proxies are one object."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.one: Activity = InProcessActivity(self.clock, lease_seconds=LEASE)
        self.other: Activity = self.one

    async def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def lose_everything(self) -> None:
        self.one = self.other = InProcessActivity(self.clock, lease_seconds=LEASE)

    async def put(self, key: str, *, text: str | None = None, items: list[str] | None = None) -> None:
        raise NotImplementedError("nobody else can write to a process")


class ServerWorld:
    """A server of our own, emptied, and two clients of it. Time passes when everything in it becomes older."""

    def __init__(self, server: Server, raw: redis.Redis) -> None:
        from lapse.workspaces.activity.redis import RedisActivity  # `make test` has no driver

        self.raw = raw
        self.raw.flushall()
        self.one: Activity = RedisActivity.at(server.url, lease_seconds=LEASE)
        self.other: Activity = RedisActivity.at(server.url, lease_seconds=LEASE)

    async def elapse(self, seconds: float) -> None:
        past = int(seconds * 1000)
        for key in self.raw.scan_iter("ws_leases:*", _type="zset"):
            members: list[Any] = list(self.raw.zrange(key, 0, -1))
            for member in members:
                self.raw.zincrby(key, -past, member)
            self._age(key, past)
        for key in self.raw.scan_iter("idle_timer:*"):
            self._age(key, past)
        self.raw.decr("activity:epoch", past)

    async def lose_everything(self) -> None:
        self.raw.flushall()

    async def put(self, key: str, *, text: str | None = None, items: list[str] | None = None) -> None:
        self.raw.delete(key)
        if text is not None:
            self.raw.set(key, text)
        if items is not None:
            self.raw.rpush(key, *items)

    async def close(self) -> None:
        await self.one.close()
        await self.other.close()

    def _age(self, key: bytes, past: int) -> None:
        left = self.raw.pttl(key)
        if left > past:
            self.raw.pexpire(key, left - past)
        elif left >= 0:
            self.raw.delete(key)
