"""The harness of the cases about the TTL manager: a store, activity, a journal and a clock, in one of two worlds.

A case is a coroutine function that takes a `Harness` and asserts; `case` puts it into the registry. Time passes only by
`Harness.elapse`, for rows and for connections alike.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.gate import OpenGate
from lapse.engine.sweep import SweepReport
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.model import (
    DOMAIN,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceId,
)
from lapse.workspaces.ttl_manager import ttl_sweeps
from tests.conformance.activity.registry import LEASE

if TYPE_CHECKING:
    from lapse.core.clock import VirtualClock
    from lapse.core.decision import Reason
    from lapse.engine.journal.port import Journal, Row
    from lapse.engine.safety.gate import Gate
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.store.port import WorkspaceStore
    from tests.conformance.activity.registry import World as ActivityWorld
    from tests.conformance.workspaces.registry import World as StoreWorld

STANDBY_TTL, ARCHIVE_TTL, IDLE = 700, 86_400, 300
"""The first is longer than a lease, so that it is the one which decides where nothing else is said."""
SETTLED: Final = 2 * LEASE
NOTHING: Final = SweepReport()
A, B = ConnectionId("a"), ConnectionId("b")


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """What one tick did, by rule."""

    standby: SweepReport = NOTHING
    archive: SweepReport = NOTHING
    activity_up: bool | None = None
    """Whether who is there was known."""
    refusal: Reason | None = None
    """Why nothing was looked at."""

    @property
    def more(self) -> bool:
        return self.standby.more or self.archive.more


class Manager:
    """Both rules; a tick is what the loop does, without its waits."""

    def __init__(
        self,
        store: WorkspaceStore,
        activity: Activity,
        journal: Journal,
        *,
        metrics: Metrics,
        **how: Any,  # noqa: ANN401
    ) -> None:
        self.sweeps = ttl_sweeps(store, activity, journal, metrics=metrics, **how)
        self.executor = self.sweeps[0]._executor
        self.activity, self._metrics = activity, metrics

    async def tick(self, *, proceed: Callable[[], bool] = lambda: True) -> TickReport:
        """Sweep by both rules; the first error is raised after both."""
        refusal = await self.executor.gate.objection(DOMAIN)
        if refusal is not None:
            return TickReport(refusal=refusal)
        reports: list[SweepReport] = []
        errors: list[Exception] = []
        for sweep in self.sweeps:
            try:
                reports.append(await sweep.run(proceed=proceed))
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        standby, archive, _ = reports
        up = metric(self._metrics, 'lapse_signal_up{source="activity"}') == 1
        return TickReport(standby=standby, archive=archive, activity_up=up)


def metric(metrics: Metrics, line: str) -> float:
    """Return a value of the exposition."""
    found = [text for text in metrics.exposition().decode().splitlines() if text.startswith(f"{line} ")]
    assert len(found) == 1, line
    return float(found[0].rpartition(" ")[2])


class Harness:
    """A world at work."""

    def __init__(
        self, stores: StoreWorld, activities: ActivityWorld, journal: Journal, *, clock: VirtualClock, rounds: int
    ) -> None:
        self.stores, self.activities, self.journal, self.clock, self.rounds = stores, activities, journal, clock, rounds
        self.metrics = Metrics("test")

    @property
    def store(self) -> WorkspaceStore:
        return self.stores.store

    @property
    def activity(self) -> Activity:
        return self.activities.one

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    def manager(
        self,
        *,
        store: WorkspaceStore | None = None,
        activity: Activity | None = None,
        journal: Journal | None = None,
        gate: Gate | None = None,
        dry_run: bool = False,
        batch: int = 1000,
    ) -> Manager:
        return Manager(
            store or self.store,
            activity or self.activity,
            journal or self.journal,
            clock=self.clock,
            metrics=self.metrics,
            gate=gate or OpenGate(),
            dry_run=dry_run,
            batch=batch,
        )

    async def tick(self, **how: Any) -> TickReport:  # noqa: ANN401 - what `manager` takes
        return await self.manager(**how).tick()

    async def elapse(self, seconds: float) -> None:
        """Let time pass for everything."""
        await self.activities.elapse(seconds)
        if getattr(self.activities, "clock", None) is not self.clock:
            self.clock.advance(seconds)

    async def settle(self) -> None:
        """Wait until silence is believed."""
        await self.activity.read([WorkspaceId("nobody")])  # from now on there is an epoch
        await self.elapse(SETTLED)

    async def running(
        self, name: str = "notes", *, standby: int = STANDBY_TTL, archive: int = ARCHIVE_TTL
    ) -> Workspace:
        """Make a workspace that becomes RUNNING now."""
        asked = NewWorkspace(
            name=name,
            owner="ada",
            command=("serve",),
            port=8080,
            standby_ttl_seconds=standby,
            archive_ttl_seconds=archive,
        )
        made = await self.store.create(asked, now=self.now)
        await self.store.observe({made.id: ObservedStatus.RUNNING}, now=self.now)
        return await self.store.get(made.id)

    async def idle(self, name: str = "notes", **ttls: int) -> Workspace:
        """Make one that is due for standby."""
        made = await self.running(name, **ttls)
        await self.elapse(made.standby_ttl_seconds + 0.001)
        return made

    async def stopped(self, one: Workspace) -> None:
        """Do what the reconciler and the health monitor do about one whose STANDBY is wanted."""
        op = OpId("stopping")
        assert await self.store.claim(one.id, Operation.STOPPING, op, now=self.now)
        assert await self.store.complete(one.id, op, now=self.now)
        await self.store.observe({one.id: ObservedStatus.STANDBY}, now=self.now)

    async def connect(self, one: Workspace, connection: ConnectionId = A) -> None:
        """Do what a proxy does before it lets somebody in."""
        await self.activity.connect(one.id, connection, lease_seconds=LEASE)
        await self.store.connected(one.id, now=self.now)

    async def disconnect(self, one: Workspace, connection: ConnectionId = A, *, idle: float = IDLE) -> None:
        """Do what a proxy does when somebody has gone."""
        await self.store.flush_access({one.id: self.now})
        await self.activity.disconnect(one.id, connection, idle_seconds=idle)

    async def desired(self, one: Workspace) -> DesiredState:
        return (await self.store.get(one.id)).desired_state

    async def rows(self, one: Workspace) -> list[Row]:
        """Return what the journal tells about it, oldest first."""
        return (await self.journal.entries(uid=one.id))[::-1]

    async def told(self, one: Workspace) -> list[tuple[str, str]]:
        """Return the outcomes and reasons of it."""
        return [(row.outcome.value, row.reason) for row in await self.rows(one)]

    def metric(self, line: str) -> float:
        """Return a value of the exposition."""
        return metric(self.metrics, line)


Case = Callable[[Harness], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}
"""Every case by its name."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    assert function.__name__ not in REGISTRY, f"two cases are called {function.__name__}"
    REGISTRY[function.__name__] = function
    return function
