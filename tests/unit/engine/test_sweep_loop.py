from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import UnixNs, VirtualClock
from lapse.engine.executor import Executor
from lapse.engine.running.coordinator import Coordinator
from lapse.engine.running.election import SoleLeader
from lapse.engine.sweep import Sweep, SweepLoop
from lapse.objects.target import ObjectTarget
from tests.unit.engine.harness import NS, START, Things, key, play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics
    from lapse.objects.embedded import EmbeddedStore


async def settle() -> None:
    """Let every task run as far as it can without time passing, commits included."""
    for _ in range(60):
        await asyncio.get_running_loop().run_in_executor(None, int)


async def count_becomes(things: Things, number: int) -> bool:
    """Wait until so many things are left; commits happen in a thread, in real time."""
    for _ in range(500):
        if len(await things.left()) == number:
            await settle()  # whatever is wrongly on its way arrives
            return len(await things.left()) == number
        await asyncio.to_thread(threading.Event().wait, 0.01)
    return False


async def pass_time(clock: VirtualClock, seconds: float, *, step: float = 1.0) -> None:
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await settle()


@pytest.fixture
def loop(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> SweepLoop:
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="things-sweep")
    sweep = Sweep(things, executor, journal=journal, clock=clock, metrics=metrics)
    made = SweepLoop(sweep, name="things-sweep", interval=60, overdue_per_second=50, chance=lambda: 0.5)
    things.deadlines.on_earlier = made.wake
    return made


@asynccontextmanager
async def running(loop: SweepLoop, clock: VirtualClock, metrics: Metrics) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(
        clock=clock, metrics=metrics, loops=[loop], leadership=SoleLeader(clock), chance=lambda: 0.5
    )
    task = asyncio.create_task(coordinator.run())
    await settle()
    yield coordinator
    coordinator.stop()
    await task


def next_run(coordinator: Coordinator) -> float:
    (status,) = coordinator.loops()
    assert status.next_run_ns is not None
    return status.next_run_ns / NS - START


async def test_a_loop_sleeps_until_the_next_deadline(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    await things.add("a", expires=17)
    async with running(loop, clock, metrics) as coordinator:
        assert next_run(coordinator) == 17
        await pass_time(clock, 16)
        assert await things.left() == ["a"]
        await pass_time(clock, 1)
        assert await count_becomes(things, 0)
        assert next_run(coordinator) == 17 + 60


async def test_a_loop_sleeps_no_longer_than_its_interval(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    await things.add("a", expires=1000)
    async with running(loop, clock, metrics) as coordinator:
        assert next_run(coordinator) == 60


async def test_an_earlier_deadline_wakes_the_loop(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    async with running(loop, clock, metrics) as coordinator:
        await pass_time(clock, 2)
        assert next_run(coordinator) == 60
        await things.add("a", expires=5)
        await settle()
        assert next_run(coordinator) == 5
        await pass_time(clock, 3)
        assert await count_becomes(things, 0)


def test_without_a_turn_there_is_nothing_to_wake(loop: SweepLoop) -> None:
    loop.wake()


async def test_what_cannot_be_settled_does_not_make_the_loop_spin(
    things: Things, loop: SweepLoop, clock: VirtualClock
) -> None:
    play(things, settle=lambda *_: None)
    await things.add("a", expires=None)

    assert await loop.tick() == pytest.approx(0.1)


async def test_what_is_overdue_when_a_term_begins_is_spread(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    for number in range(20):
        await things.add(f"n{number}", expires=-number)
    async with running(loop, clock, metrics):
        for left in (15, 10, 5, 0):  # fifty a second: five every tenth
            assert await count_becomes(things, left)
            loop.wake()  # being woken does not help
            assert await count_becomes(things, left)
            await pass_time(clock, 0.1, step=0.1)


async def test_what_was_overdue_is_spread_also_when_it_becomes_known_later_in_the_term(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    made = [await things.add(f"n{number}", expires=-number) for number in range(10)]
    for thing in made:  # as if the cache was still empty
        things.deadlines.discard(thing.metadata.key)
    async with running(loop, clock, metrics):
        await pass_time(clock, 3)
        for thing in made:
            things.learn(thing)
        for left in (5, 0):
            assert await count_becomes(things, left)
            await pass_time(clock, 0.1, step=0.1)


async def test_what_becomes_due_later_in_a_term_is_not_slowed_down(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    for number in range(20):
        await things.add(f"n{number}", expires=10)
    async with running(loop, clock, metrics):
        await pass_time(clock, 10)

        assert await count_becomes(things, 0)


async def test_after_its_turn_a_loop_begins_nothing(
    things: Things, loop: SweepLoop, clock: VirtualClock, metrics: Metrics
) -> None:
    for number in range(3):
        await things.add(f"n{number}", expires=-number)
    async with running(loop, clock, metrics):
        assert await count_becomes(things, 0)
    things.deadlines.set(key("n0"), UnixNs(0))
    things.looked.clear()
    await loop.tick()

    assert things.looked == [], "its turn is over"
