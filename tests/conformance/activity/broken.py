"""Deliberately broken activities, each wrong in one way, around the real ones.

They know nothing of the inside: they stand between a case and the port, and spoil what goes through.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lapse.workspaces.activity.port import (
    ActivityDoubt,
    ActivityUnavailableError,
    ActivityUnknown,
    Connected,
    ConnectionId,
    Quiet,
    Timer,
)
from tests.conformance.activity.registry import IDLE, LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import redis

    from lapse.workspaces.activity.port import Activity, Signal
    from lapse.workspaces.model import WorkspaceId


class Passing:
    """Passes everything on. Subclasses spoil one thing."""

    lease_seconds = LEASE

    def __init__(self, inner: Activity) -> None:
        self.inner = inner

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        return await self.inner.connect(workspace, connection, lease_seconds=lease_seconds)

    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        return await self.inner.renew(connections, lease_seconds)

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        return await self.inner.disconnect(workspace, connection, idle_seconds=idle_seconds)

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        return {workspace: self.seen(signal) for workspace, signal in (await self.inner.read(workspaces)).items()}

    def seen(self, signal: Signal) -> Signal:
        """What a caller sees instead of a signal."""
        return signal

    async def check(self) -> None:
        await self.inner.check()

    async def close(self) -> None:
        await self.inner.close()


# --- connecting -------------------------------------------------------------------------------------------------------


class NeverFirst(Passing):
    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        await super().connect(workspace, connection, lease_seconds=lease_seconds)
        return False


class AlwaysFirst(Passing):
    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        await super().connect(workspace, connection, lease_seconds=lease_seconds)
        return True


class FirstOnlyOnce(Passing):
    """The answer of a plain counter: who asks again because no answer came is not told that it is the first."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.known: set[ConnectionId] = set()

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        again, first = (
            connection in self.known,
            await super().connect(workspace, connection, lease_seconds=lease_seconds),
        )
        self.known.add(connection)
        return first and not again


class CountsAgain(Passing):
    """A counter: the same connection twice is two."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.calls = 0

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        self.calls += 1
        first = await super().connect(workspace, connection, lease_seconds=lease_seconds)
        await super().connect(workspace, _renamed(connection, str(self.calls)), lease_seconds=lease_seconds)
        return first


class KeepsTheTimer(Passing):
    """A connection hides the timer, which is there again when the connection ends by its lease."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.timers: set[WorkspaceId] = set()

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        last = await super().disconnect(workspace, connection, idle_seconds=idle_seconds)
        if last and idle_seconds:
            self.timers.add(workspace)
        return last

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found = await super().read(workspaces)
        kept = {w: Timer(IDLE) for w, signal in found.items() if w in self.timers and signal == Quiet()}
        return found | kept


class NoLeases(Passing):
    """The seed's counter: who does not say goodbye is there for ever."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.there: dict[WorkspaceId, set[ConnectionId]] = {}

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        self.there.setdefault(workspace, set()).add(connection)
        return await super().connect(workspace, connection, lease_seconds=lease_seconds)

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        self.there.get(workspace, set()).discard(connection)
        return await super().disconnect(workspace, connection, idle_seconds=idle_seconds)

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found = await super().read(workspaces)
        return found | {w: Connected(len(there)) for w, there in self.there.items() if there and w in found}


class EndlessLeases(Passing):
    """Takes any lease for the longest."""

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        longest = LEASE if lease_seconds > 0 else lease_seconds
        return await super().connect(workspace, connection, lease_seconds=min(longest, LEASE))


# --- renewing ---------------------------------------------------------------------------------------------------------


class LosesNothing(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        await super().renew(connections, lease_seconds)
        return set()


class LosesEverything(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        await super().renew(connections, lease_seconds)
        return set(connections)


class RenewsNothing(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        return await super().renew(connections, min(lease_seconds, 0.001))


class RevivesTheLost(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        lost = await super().renew(connections, lease_seconds)
        for connection in lost:
            await self.connect(connections[connection], connection, lease_seconds=lease_seconds)
        return lost


class RenewsOnlyOneBatch(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        return await super().renew(dict(list(connections.items())[:1000]), lease_seconds)


class RenewalShortens(Passing):
    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        lost = await super().renew(connections, lease_seconds)
        for connection in connections.keys() - lost:
            await self.inner.disconnect(connections[connection], connection, idle_seconds=0)
            await self.inner.connect(connections[connection], connection, lease_seconds=lease_seconds)
        return lost


# --- disconnecting ----------------------------------------------------------------------------------------------------


class SetsNoTimer(Passing):
    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        return await super().disconnect(workspace, connection, idle_seconds=min(idle_seconds, 0))


class AlwaysLast(Passing):
    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        await super().disconnect(workspace, connection, idle_seconds=idle_seconds)
        return True


class NeverLast(Passing):
    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        await super().disconnect(workspace, connection, idle_seconds=idle_seconds)
        return False


class DisconnectsEverybody(Passing):
    """One closes, and all of the workspace are forgotten."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.known: list[tuple[WorkspaceId, ConnectionId]] = []

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        self.known.append((workspace, connection))
        return await super().connect(workspace, connection, lease_seconds=lease_seconds)

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        for where, who in self.known:
            if where == workspace:
                await super().disconnect(workspace, who, idle_seconds=idle_seconds)
        return await super().disconnect(workspace, connection, idle_seconds=idle_seconds)


class OneWorkspaceForAll(Passing):
    """Connection ids are thought to be enough."""

    def __init__(self, inner: Activity) -> None:
        super().__init__(inner)
        self.of: dict[ConnectionId, WorkspaceId] = {}

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        return await super().connect(self.of.setdefault(connection, workspace), connection, lease_seconds=lease_seconds)


# --- reading ----------------------------------------------------------------------------------------------------------


class BelievesAtOnce(Passing):
    """Unknown is idle."""

    def seen(self, signal: Signal) -> Signal:
        return Quiet() if isinstance(signal, ActivityUnknown) else signal


class NeverBelieves(Passing):
    def seen(self, signal: Signal) -> Signal:
        return ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)


class HidesTimers(Passing):
    def seen(self, signal: Signal) -> Signal:
        return Quiet() if isinstance(signal, Timer) else signal


class TimersInMilliseconds(Passing):
    def seen(self, signal: Signal) -> Signal:
        return Timer(signal.seconds_left * 1000) if isinstance(signal, Timer) else signal


class ReadsOnlyOneBatch(Passing):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        asked = list(workspaces)
        return dict.fromkeys(asked, Quiet()) | await super().read(asked[:1000])


class DiesOfNothing(Passing):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        asked = list(workspaces)
        if not asked:
            raise ActivityUnavailableError(backend="broken", problem="nothing was asked")
        return await super().read(asked)


class ForgetsToClose(Passing):
    async def close(self) -> None:
        """Do nothing."""


# --- not atomic -------------------------------------------------------------------------------------------------------


class ConnectsInTwoSteps(Passing):
    """Looks who is there, then connects: two who come at once are both, or neither, first."""

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        probe = _renamed(connection, "probe")
        first = await super().connect(workspace, probe, lease_seconds=lease_seconds)
        await super().disconnect(workspace, probe, idle_seconds=0)
        await _window()
        again = await super().connect(workspace, connection, lease_seconds=lease_seconds)
        return first or again


class DisconnectsInTwoSteps(Passing):
    """Goes, then sets the timer for whoever may have come meanwhile."""

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        last = await super().disconnect(workspace, connection, idle_seconds=idle_seconds)
        await _window()
        return last and await super().disconnect(workspace, connection, idle_seconds=idle_seconds)


BROKEN: tuple[type[Passing], ...] = (
    NeverFirst,
    AlwaysFirst,
    FirstOnlyOnce,
    CountsAgain,
    KeepsTheTimer,
    NoLeases,
    EndlessLeases,
    LosesNothing,
    LosesEverything,
    RenewsNothing,
    RevivesTheLost,
    RenewsOnlyOneBatch,
    RenewalShortens,
    SetsNoTimer,
    AlwaysLast,
    NeverLast,
    DisconnectsEverybody,
    OneWorkspaceForAll,
    BelievesAtOnce,
    NeverBelieves,
    HidesTimers,
    TimersInMilliseconds,
    ReadsOnlyOneBatch,
    DiesOfNothing,
    ForgetsToClose,
    ConnectsInTwoSteps,
    DisconnectsInTwoSteps,
)


# --- on servers -------------------------------------------------------------------------------------------------------


class OnServer(Passing):
    """Passes everything on, and can look past the port."""

    def __init__(self, inner: Activity, raw: redis.Redis) -> None:
        super().__init__(inner)
        self.raw = raw


class IgnoresCounters(OnServer):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        for key in self.raw.scan_iter("ws_conn:*"):
            self.raw.delete(key)
        return await super().read(workspaces)


class ReadsGarbageAsNothing(OnServer):
    def seen(self, signal: Signal) -> Signal:
        return Quiet() if signal == ActivityUnknown(ActivityDoubt.UNREADABLE) else signal


class OneBreaksAll(OnServer):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found = await super().read(workspaces)
        if ActivityUnknown(ActivityDoubt.UNREADABLE) in found.values():
            return dict.fromkeys(found, ActivityUnknown(ActivityDoubt.UNREADABLE))
        return found


class BelievesAnyEpoch(OnServer):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        if self.raw.type("activity:epoch") == b"none":
            return await super().read(workspaces)
        self.raw.set("activity:epoch", "1")
        return await super().read(workspaces)


class ForgetsTheServer(OnServer):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        self.raw.delete("activity:server")
        return await super().read(workspaces)


BROKEN_ON_SERVERS: tuple[type[OnServer], ...] = (
    IgnoresCounters,
    ReadsGarbageAsNothing,
    OneBreaksAll,
    BelievesAnyEpoch,
    ForgetsTheServer,
)


def _renamed(connection: ConnectionId, suffix: str) -> ConnectionId:
    return ConnectionId(f"{connection}-{suffix}")


async def _window() -> None:
    """Let every other task run: where a step is not atomic, this is where it breaks."""
    for _ in range(20):
        await asyncio.get_running_loop().run_in_executor(None, int)
