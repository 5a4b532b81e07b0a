"""The loop of the TTL manager: by time alone, on the leader alone, and two coordinators share the work in turn."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from lapse.core.believed_clock import BelievedClock
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.coordinator import Coordinator, Turn
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.clock_guard import ClockGuard, GuardedGate
from lapse.engine.safety.freeze import FreezeReason
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.engine.sweep import SweepReport
from lapse.keys.aio import open_keys_async
from lapse.keys.election import Election
from lapse.workspaces.model import DOMAIN, DesiredState
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore
from lapse.workspaces.ttl_manager import ttl_loop, ttl_sweeps
from tests.conformance.ttl_manager.harness import STANDBY_TTL, Harness
from tests.conformance.ttl_manager.worlds import embedded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.keys.aio import AsyncKeys
    from lapse.workspaces.model import Workspace

INTERVAL = 60


async def settle() -> None:
    for _ in range(10):
        await asyncio.get_running_loop().run_in_executor(None, int)


async def rests(harness: Harness, one: Workspace) -> int:
    """Let time pass until a workspace is to rest; return how many seconds it took."""
    for seconds in range(0, 10 * STANDBY_TTL, 5):
        if await harness.desired(one) is DesiredState.STANDBY:
            return seconds
        harness.clock.advance(5)
        await settle()
    raise AssertionError("it still runs")


@asynccontextmanager
async def coordinating(harness: Harness, keys: AsyncKeys, metrics: Metrics) -> AsyncIterator[Coordinator]:
    """A coordinator as that of a process, with the loop and an election."""
    sweeps = ttl_sweeps(harness.store, harness.activity, harness.journal, clock=harness.clock, metrics=metrics)
    coordinator = Coordinator(
        clock=harness.clock,
        metrics=metrics,
        loops=[ttl_loop(sweeps, interval=INTERVAL)],
        leadership=Election(keys, "ttl-manager", ttl_seconds=15, clock=harness.clock),
        chance=lambda: 0.5,
    )
    task = asyncio.create_task(coordinator.run())
    try:
        yield coordinator
    finally:
        coordinator.stop()
        while not task.done():
            harness.clock.advance(1)
            await settle()
        await task


async def test_of_two_coordinators_the_leader_ticks_by_time_and_the_other_goes_on_when_it_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(embedded(tmp_path))
        keys = await stack.enter_async_context(open_keys_async("memory://", clock=harness.clock, sweep=False))
        await harness.settle()
        one = await harness.running("one")
        other = await stack.enter_async_context(AsyncExitStack())
        first = await other.enter_async_context(coordinating(harness, keys, Metrics("first")))
        await settle()
        second = await stack.enter_async_context(coordinating(harness, keys, Metrics("second")))
        took = await rests(harness, one)
        assert took > STANDBY_TTL
        assert [len(await harness.rows(one)), first.leading, second.leading] == [1, True, False]
        ((ticks,), (none,)) = ([each.ticks for each in side.loops()] for side in (first, second))
        assert 1 <= ticks <= took / INTERVAL + 2
        assert none == 0

        again = await harness.running("again")
        await other.aclose()
        assert await rests(harness, again) > 0


def real_gate(harness: Harness, budgets: Budgets) -> GuardedGate:
    assert isinstance(harness.store, SqliteWorkspaceStore)
    clock = BelievedClock(harness.clock)
    store = SQLiteGateStore(SQLiteJournal(harness.store.database), budgets=budgets, domains=[DOMAIN])
    gate = SafetyGate(store, budgets=budgets, domains=[DOMAIN], clock=clock, metrics=harness.metrics, actor="lapse")
    return GuardedGate(gate, ClockGuard(clock, notes=store))


async def test_a_clock_that_is_a_year_ahead_archives_nothing_and_stops_nobody(tmp_path: Path) -> None:
    async with embedded(tmp_path) as harness:
        await harness.settle()
        running, asleep = await harness.running("running"), await harness.idle("asleep")
        await harness.store.flush_access({running.id: harness.now})
        guard = real_gate(harness, Budgets())
        assert (await harness.tick(gate=guard)).standby.ended == 1
        await harness.stopped(asleep)
        harness.clock.jump_wall(365 * 86_400)
        report = await harness.tick(gate=guard)

        assert (report.refusal, report.archive) == (FreezeReason.CLOCK_JUMPED, SweepReport())
        assert await harness.desired(running) is DesiredState.RUNNING
        assert await harness.desired(asleep) is DesiredState.STANDBY
        assert harness.metric('lapse_frozen{domain="workspaces"}') == 1


async def test_the_real_gate_freezes_the_domain_when_its_budget_is_spent(tmp_path: Path) -> None:
    async with embedded(tmp_path) as harness:
        gate = real_gate(harness, Budgets(domains={DOMAIN: Budget.parse("3/1h")}))
        await harness.settle()
        for number in range(5):
            await harness.running(f"w{number}")
        await harness.elapse(STANDBY_TTL + 1)
        assert (await harness.tick(gate=gate)).standby == SweepReport(looked=5, ended=3, refused=2)
        assert harness.metric('lapse_frozen{domain="workspaces"}') == 1
        await harness.elapse(60)
        report = await harness.tick(gate=gate)
        assert (report.standby, report.refusal) == (SweepReport(), FreezeReason.FROZEN)


async def overdue(harness: Harness, count: int) -> list[Workspace]:
    await harness.settle()
    made = [await harness.running(f"old{number}") for number in range(count)]
    await harness.elapse(STANDBY_TTL + 3600)
    return made


async def asleep(harness: Harness, made: list[Workspace]) -> int:
    return sum([await harness.desired(one) is DesiredState.STANDBY for one in made])


async def test_what_was_overdue_when_a_term_began_is_spread_and_what_comes_later_is_not(tmp_path: Path) -> None:
    async with embedded(tmp_path) as harness:
        made = await overdue(harness, 12)
        loop = ttl_loop(harness.manager().sweeps, interval=INTERVAL, overdue_per_second=50)
        loop.begin(Turn(lambda: True, lambda: None))
        for ended in (5, 10):
            assert await loop.tick() == pytest.approx(0.1)
            assert await asleep(harness, made) == ended
            await loop.tick()
            assert await asleep(harness, made) == ended, "to wake it does not make it faster"
            harness.clock.advance(0.1)
        assert await loop.tick() != pytest.approx(0.1)
        assert await asleep(harness, made) == 12

        later = [await harness.running(f"new{number}") for number in range(12)]
        await harness.elapse(STANDBY_TTL + 1)
        await loop.tick()
        assert await asleep(harness, later) == 12


async def test_who_loses_the_right_to_act_stops_between_two_pauses(tmp_path: Path) -> None:
    async with embedded(tmp_path) as harness:
        made = await overdue(harness, 12)
        loop = ttl_loop(harness.manager().sweeps, interval=INTERVAL, overdue_per_second=50)
        asked = 0

        def proceed() -> bool:
            nonlocal asked
            asked += 1
            return asked <= 2  # once for the look, once for the act

        loop.begin(Turn(proceed, lambda: None))
        for _ in range(3):
            await loop.tick()
            harness.clock.advance(1)

        assert await asleep(harness, made) == 5
