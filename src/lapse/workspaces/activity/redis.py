"""Activity on Redis or Valkey: any number of proxies, and a TTL manager anywhere.

The names of the keys and their meaning stand in ``redis.lua``, one script per operation. The server's clock
decides, so the clocks of proxies do not matter. All scripts may be repeated, so a lost connection is made again once,
without anybody noticing; what does not come to an end within the time-outs of the URL is an `ActivityUnavailableError`.

Not guaranteed: that what a connection wrote survives a failover to a replica that lags behind; it is back with its next
heartbeat, which finds it lost. Nor that leases stay where the server may evict them (``maxmemory-policy`` other than
``noeviction``), or when its clock jumps ahead by more than a lease.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeVar

from lapse.db.redis.address import OPTIONS, SCHEMES, RedisAddress
from lapse.db.redis.client import RedisClient, ScriptCall, load_scripts
from lapse.db.redis.failures import Errors, impossible
from lapse.db.urls import take_apart
from lapse.workspaces.activity.port import (
    BATCH,
    DEFAULT_LEASE_SECONDS,
    ActivityClosedError,
    ActivityDoubt,
    ActivityUnavailableError,
    ActivityUnknown,
    ActivityURLError,
    Connected,
    Quiet,
    Timer,
    milliseconds_of_lease,
    milliseconds_of_timer,
    settling_milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lapse.workspaces.activity.port import ConnectionId, Signal
    from lapse.workspaces.model import WorkspaceId

T = TypeVar("T")

_SCRIPTS: Final = load_scripts(
    "lapse.workspaces.activity", "redis.lua", repeatable={"check", "connect", "disconnect", "read", "renew"}
)
_ERRORS: Final = Errors(
    unavailable=ActivityUnavailableError,
    outcome_unknown=ActivityUnavailableError,  # never: every script may be repeated
    misfit=ActivityUnavailableError,
    closed=ActivityClosedError,
    foreign="ws_leases: of this workspace holds data of another program; delete it, or use another database number",
)
_BEGINNING: Final = (ActivityDoubt.EPOCH_ABSENT, ActivityDoubt.EPOCH_YOUNG)


class RedisActivity:
    """See the module."""

    def __init__(self, address: RedisAddress, *, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        """Connect nothing yet. ``lease_seconds`` must be the same for all that share the server."""
        self.lease_seconds = lease_seconds
        self._settling = settling_milliseconds(lease_seconds)
        self._client = RedisClient(address, _ERRORS)

    @classmethod
    def at(cls, url: str, *, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> RedisActivity:
        """Prepare what a URL names, as in ``redis://localhost:6379/0?timeout=2s``; connects nothing yet."""
        parts = take_apart(url, schemes=SCHEMES, options_of=lambda _: OPTIONS, refusal=ActivityURLError)
        return cls(RedisAddress.of(parts, ActivityURLError), lease_seconds=lease_seconds)

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        """See `Activity`."""
        lease = milliseconds_of_lease(lease_seconds, self.lease_seconds)
        return bool(await self._client.run(ScriptCall(_SCRIPTS["connect"], (), (workspace, connection, lease))))

    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        """See `Activity`. After a failure some may be renewed and others not; none is shortened by trying again."""
        lease = milliseconds_of_lease(lease_seconds, self.lease_seconds)
        lost: set[ConnectionId] = set()
        for batch in _batches(connections.items()):
            numbers = await self._client.run(ScriptCall(_SCRIPTS["renew"], (), (lease, *chain.from_iterable(batch))))
            lost.update(batch[number - 1][0] for number in numbers)
        return lost

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        """See `Activity`."""
        idle = milliseconds_of_timer(idle_seconds)
        return bool(await self._client.run(ScriptCall(_SCRIPTS["disconnect"], (), (workspace, connection, idle))))

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        """See `Activity`. One round trip for a thousand."""
        signals: dict[WorkspaceId, Signal] = {}
        for batch in _batches(workspaces):
            kind, *answers = await self._client.run(ScriptCall(_SCRIPTS["read"], (), (self._settling, *batch)))
            if kind < len(_BEGINNING):
                signals |= dict.fromkeys(batch, ActivityUnknown(_BEGINNING[kind]))
            else:
                signals |= zip(batch, _signals(answers), strict=True)
        return signals

    async def check(self) -> None:
        """See `Activity`. Also finds what the server's access rules forbid."""
        unable = await self._client.run(ScriptCall(_SCRIPTS["check"], (), ()))
        if unable:
            command, reason = unable
            raise impossible(command, reason, self._client.name, _ERRORS)

    async def close(self) -> None:
        """See `Activity`."""
        await self._client.close()


def _signals(answers: Sequence[int]) -> Iterator[Signal]:
    pairs = iter(answers)
    for kind, number in zip(pairs, pairs, strict=True):
        match kind:
            case 0:
                yield Quiet()
            case 1:
                yield Connected(number)
            case 2:
                yield Timer(number / 1000)
            case _:
                yield ActivityUnknown(ActivityDoubt.UNREADABLE)


def _batches(things: Iterable[T]) -> Iterator[tuple[T, ...]]:
    rest = iter(things)
    while batch := tuple(islice(rest, BATCH)):
        yield batch
