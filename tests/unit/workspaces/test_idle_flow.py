"""Activity and decision together: the flow of a workspace that is opened, left and forgotten, and any other."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse.core.clock import VirtualClock
from lapse.core.decision import Due, Keep, KeepReason, Unknown
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.port import ActivityDoubt, ConnectionId
from lapse.workspaces.expiry import StayReason, decide_standby
from lapse.workspaces.model import Ms
from tests.examples import examples
from tests.unit.workspaces.test_eligibility import RUNNING

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lapse.core.decision import Verdict

T = TypeVar("T")
LEASE, HEARTBEAT = 30, 10
A = ConnectionId("a")


class Scene:
    """A workspace that became RUNNING just now, and the proxies in front of it."""

    def __init__(self, *, ttl: int = 300, idle: int = 300) -> None:
        self.clock = VirtualClock()
        self.idle = idle
        self.row = msgspec.structs.replace(
            RUNNING, standby_ttl_seconds=ttl, status_changed_at=self.now, last_access_at=Ms(self.now - 10**9)
        )
        self.alive: set[ConnectionId] = set()
        self.begin()

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    def begin(self) -> None:
        """Start the activity store, empty."""
        self.activity = InProcessActivity(self.clock, lease_seconds=LEASE)
        self.began = self.now

    def access(self) -> None:
        self.row = msgspec.structs.replace(self.row, last_access_at=self.now)

    async def connect(self, connection: ConnectionId) -> None:
        await self.activity.connect(self.row.id, connection, lease_seconds=LEASE)
        self.alive.add(connection)
        self.access()

    async def disconnect(self, connection: ConnectionId) -> None:
        await self.activity.disconnect(self.row.id, connection, idle_seconds=self.idle)
        self.alive.discard(connection)
        self.access()

    async def heartbeat(self) -> None:
        """What a proxy does for those that live: renew, and connect anew what was lost."""
        for connection in await self.activity.renew(dict.fromkeys(self.alive, self.row.id), LEASE):
            await self.connect(connection)

    async def wait(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, HEARTBEAT)
            self.clock.advance(step)
            await self.heartbeat()
            seconds -= step

    async def verdict(self) -> Verdict:
        signals = await self.activity.read([self.row.id])
        return decide_standby(self.row, signals[self.row.id], self.now).verdict


def reason(verdict: Verdict) -> object:
    assert isinstance(verdict, Keep)
    return verdict.reason


async def test_opened_left_and_forgotten() -> None:
    scene = Scene(ttl=60, idle=300)
    await scene.wait(60)
    assert reason(await scene.verdict()) is KeepReason.NOT_YET, "one that was never opened is not stopped at once"
    await scene.connect(A)
    await scene.wait(3600)
    assert reason(await scene.verdict()) is StayReason.CONNECTED, "for an hour nobody typed, and somebody is there"
    await scene.disconnect(A)
    await scene.wait(60.001)
    assert reason(await scene.verdict()) is StayReason.IDLE_TIMER
    await scene.connect(A)
    await scene.disconnect(A)
    await scene.wait(299.999)
    assert reason(await scene.verdict()) is StayReason.IDLE_TIMER, "the timer began anew"
    await scene.wait(0.001)
    assert isinstance(await scene.verdict(), Due)


async def test_a_proxy_that_was_killed_stops_counting_after_its_lease() -> None:
    scene = Scene(ttl=1)
    await scene.connect(A)
    await scene.wait(3600)
    scene.alive.clear()
    await scene.wait(LEASE - 0.001)
    assert reason(await scene.verdict()) is StayReason.CONNECTED
    await scene.wait(0.001)
    assert isinstance(await scene.verdict(), Due)


async def test_an_activity_store_that_was_lost_stops_nobody() -> None:
    scene = Scene(ttl=1)
    await scene.wait(3600)
    assert isinstance(await scene.verdict(), Due)
    await scene.connect(A)
    await scene.wait(3600)
    scene.begin()
    assert await scene.verdict() == Unknown(ActivityDoubt.EPOCH_YOUNG), "nobody has come back yet"
    await scene.wait(2 * LEASE)
    assert reason(await scene.verdict()) is StayReason.CONNECTED


# --- any other --------------------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, T]) -> T:
    with closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(work)


class Flow(RuleBasedStateMachine):
    """Users, proxies that crash, a store that is lost and time, in any order."""

    names = st.sampled_from([ConnectionId(name) for name in "abc"])

    @initialize(ttl=st.sampled_from([1, 7, 40, 300]), idle=st.sampled_from([0, 5, 300]))
    def begin(self, ttl: int, idle: int) -> None:
        self.scene = Scene(ttl=ttl, idle=idle)
        self.left_at = self.scene.now
        """When the last one was there: closed, crashed, or asked for something."""

    @rule(name=names)
    def somebody_comes(self, name: ConnectionId) -> None:
        run(self.scene.connect(name))

    @rule(name=names)
    def somebody_goes(self, name: ConnectionId) -> None:
        if name in self.scene.alive:
            run(self.scene.disconnect(name))
            self.left_at = self.scene.now

    @rule()
    def somebody_asks_for_a_page(self) -> None:
        self.scene.access()
        self.left_at = self.scene.now

    @rule()
    def all_proxies_crash(self) -> None:
        if self.scene.alive:
            self.left_at = self.scene.now
        self.scene.alive.clear()

    @rule()
    def the_store_is_lost(self) -> None:
        self.scene.begin()

    @rule(seconds=st.sampled_from([0.001, 1, 4.999, 10, 29.999, 60, 301]))
    def time_passes(self, seconds: float) -> None:
        run(self.scene.wait(seconds))

    @invariant()
    def nobody_who_is_there_is_stopped_and_who_is_idle_is(self) -> None:
        if not hasattr(self, "scene"):
            return
        scene = self.scene
        is_due = isinstance(run(scene.verdict()), Due)
        ttl = scene.row.standby_ttl_seconds * 1000
        if scene.alive or scene.now - scene.row.last_access_at <= ttl or scene.now - scene.row.status_changed_at <= ttl:
            assert not is_due
        known = scene.now - scene.began >= 2 * LEASE * 1000
        idle_for = scene.now - max(self.left_at, scene.row.last_access_at)
        if not scene.alive and known and idle_for > max(ttl, scene.idle * 1000, LEASE * 1000):
            assert is_due


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)
