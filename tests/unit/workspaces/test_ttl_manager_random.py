"""Users, connections, proxies that crash, a store that is lost and time, in any order: who is there stays, who is idle
goes in time."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lapse.core.clock import VirtualClock
from lapse.db.sqlite import Synchronous
from lapse.engine.journal import SQLiteJournal
from lapse.engine.metrics import Metrics
from lapse.workspaces.activity import ConnectionId
from lapse.workspaces.in_process import InProcessActivity
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, NewWorkspace, ObservedStatus, Workspace
from lapse.workspaces.sqlite_store import open_sqlite_store
from lapse.workspaces.ttl_manager import TtlManager

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
LEASE, HEARTBEAT, ARCHIVE_TTL = 30, 10, 500
STATUS = {state: ObservedStatus(state.value) for state in DesiredState}


class World:
    """A workspace that became RUNNING just now, the proxies in front of it, and a manager that ticks by the clock."""

    def __init__(self, folder: Path, *, ttl: int, idle: int, interval: float) -> None:
        self.clock, self.ttl, self.idle, self.interval = VirtualClock(), ttl, idle, interval
        self.store = open_sqlite_store(folder / "workspaces.db", synchronous=Synchronous.NORMAL)
        self.journal, self.metrics = SQLiteJournal(self.store.database), Metrics("test")
        self.alive: set[ConnectionId] = set()
        self.next_tick = interval
        self.lose_activity()

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    def lose_activity(self) -> None:
        """Start the activity store, empty."""
        self.activity = InProcessActivity(self.clock, lease_seconds=LEASE)
        self.known_from = self.now + 2 * LEASE * 1000
        self.manager = TtlManager(self.store, self.activity, self.journal, clock=self.clock, metrics=self.metrics)

    async def begin(self) -> None:
        asked = NewWorkspace(
            name="notes",
            owner="ada",
            command=("serve",),
            port=1,
            standby_ttl_seconds=self.ttl,
            archive_ttl_seconds=ARCHIVE_TTL,
        )
        self.id = (await self.store.create(asked, now=self.now)).id
        await self.converge()
        self.last_seen = self.now
        """When somebody was there for the last time: came, went, crashed, or asked for something."""

    async def row(self) -> Workspace:
        return await self.store.get(self.id)

    async def converge(self) -> None:
        """Do at once what the reconciler and the health monitor do in their time."""
        await self.store.observe({self.id: STATUS[(await self.row()).desired_state]}, now=self.now)

    async def connect(self, name: ConnectionId) -> None:
        await self.activity.connect(self.id, name, lease_seconds=LEASE)
        await self.store.connected(self.id, now=self.now)
        self.alive.add(name)
        self.last_seen = self.now
        await self.converge()

    async def disconnect(self, name: ConnectionId) -> None:
        await self.store.flush_access({self.id: self.now})
        await self.activity.disconnect(self.id, name, idle_seconds=self.idle)
        self.alive.discard(name)
        self.last_seen = self.now

    async def ask_for_a_page(self) -> None:
        await self.store.flush_access({self.id: self.now})
        self.last_seen = self.now

    async def want(self, state: DesiredState) -> None:
        await self.store.set_desired(self.id, state, DesiredBy.USER, now=self.now)
        self.last_seen = self.now
        await self.converge()

    async def heartbeat(self) -> None:
        """What a proxy does for those that live: renew, and connect anew what was lost."""
        for name in await self.activity.renew(dict.fromkeys(self.alive, self.id), LEASE):
            await self.connect(name)

    async def wait(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, HEARTBEAT, self.next_tick)
            self.clock.advance(step)
            seconds, self.next_tick = seconds - step, self.next_tick - step
            if self.alive:
                await self.heartbeat()
            if self.next_tick <= 0:
                self.next_tick = self.interval
                await self.tick()

    async def tick(self) -> None:
        before = await self.row()
        await self.manager.tick(self.now)
        after = await self.row()
        idle_ms = self.now - max(before.last_access_at, before.status_changed_at)
        if before.observed_status is ObservedStatus.RUNNING:
            self.check_standby(before, after, idle_ms)
        elif before.observed_status is ObservedStatus.STANDBY:
            self.check_archive(before, after, idle_ms)
        if after.desired_state is not before.desired_state:
            await self.converge()

    def check_standby(self, before: Workspace, after: Workspace, idle_ms: int) -> None:
        if after.desired_state is DesiredState.STANDBY and before.desired_state is DesiredState.RUNNING:
            assert not self.alive, "somebody is there"
            assert idle_ms > self.ttl * 1000, "within its TTL"
            assert self.now >= self.known_from, "nobody knows whether somebody is there"
        longest = max(self.ttl, self.idle, LEASE) * 1000
        over = max(self.last_seen + longest, before.status_changed_at + longest, self.known_from)
        if not self.alive and before.desired_state is DesiredState.RUNNING and self.now > over + self.interval * 1000:
            assert after.desired_state is DesiredState.STANDBY, "idle for too long"

    def check_archive(self, before: Workspace, after: Workspace, idle_ms: int) -> None:
        archived = after.desired_state is DesiredState.PENDING and before.desired_state is DesiredState.STANDBY
        assert not archived or idle_ms > ARCHIVE_TTL * 1000
        if before.desired_state is DesiredState.STANDBY and idle_ms > (ARCHIVE_TTL + self.interval) * 1000:
            assert archived, "forgotten for too long, whatever is known of connections"


class Flow(RuleBasedStateMachine):
    """Anything in any order; the world checks itself at every tick."""

    names = st.sampled_from([ConnectionId(name) for name in "abc"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world: World | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if self.world is not None:
            self.run(self.world.wait(2 * max(self.world.ttl, ARCHIVE_TTL)))
            self.run(self.world.store.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    @property
    def here(self) -> World:
        assert self.world is not None
        return self.world

    @initialize(
        ttl=st.sampled_from([1, 7, 25, 40, 300]), idle=st.sampled_from([0, 5, 300]), interval=st.sampled_from([7, 60])
    )
    def begin(self, ttl: int, idle: int, interval: int) -> None:
        self.world = World(Path(self.folder.name), ttl=ttl, idle=idle, interval=interval)
        self.run(self.world.begin())

    @rule(name=names)
    def somebody_comes(self, name: ConnectionId) -> None:
        self.run(self.here.connect(name))

    @rule(name=names)
    def somebody_goes(self, name: ConnectionId) -> None:
        if name in self.here.alive:
            self.run(self.here.disconnect(name))

    @rule()
    def somebody_asks_for_a_page(self) -> None:
        self.run(self.here.ask_for_a_page())

    @rule(state=st.sampled_from(DesiredState))
    def a_user_wants_something(self, state: DesiredState) -> None:
        self.run(self.here.want(state))

    @rule()
    def all_proxies_crash(self) -> None:
        if self.here.alive:
            self.here.last_seen = self.here.now
        self.here.alive.clear()

    @rule()
    def the_activity_store_is_lost(self) -> None:
        self.here.lose_activity()

    @rule(seconds=st.sampled_from([0.001, 1, 4.999, 10, 29.999, 60, 301]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.here.wait(seconds))


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
