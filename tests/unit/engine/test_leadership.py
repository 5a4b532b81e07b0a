from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.running.coordinator import Coordinator, LeadershipMissingError, ServiceEndedError, Turn
from lapse.engine.running.election import Leadership, SoleLeader, Term
from lapse.engine.running.metrics import Metrics
from lapse.keys.aio import open_keys_async
from lapse.keys.election import Election
from tests.unit.engine.harness import NS, series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from lapse.core.clock import VirtualClock


async def settle() -> None:
    for _ in range(50):
        await asyncio.get_running_loop().run_in_executor(None, int)


async def pass_time(clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        await settle()


@dataclass
class Ticking:
    """A loop that works on items for as long as it may, one a second."""

    clock: VirtualClock
    items: int = 0
    name: str = "ticking"
    domain: str = "test"
    interval: float = 10.0
    leader_only: bool = True
    seen: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def begin(self, turn: Turn) -> None:
        self.turns.append(turn)

    async def tick(self) -> float | None:
        self.seen.append(self.clock.monotonic_ns() / NS)
        for _ in range(self.items):
            if not self.turns[-1].proceed():
                break
            await self.clock.sleep(0.5)
            self.done.append(self.clock.monotonic_ns() / NS)
        return None


@dataclass
class Serving:
    """A leader's service that notes how it began and ended."""

    name: str = "serving"
    notes: list[str] = field(default_factory=list)

    async def run(self, stopping: asyncio.Event) -> None:
        self.notes.append("began")
        try:
            await stopping.wait()
        except asyncio.CancelledError:
            self.notes.append("cancelled")
            raise
        self.notes.append("finished")


class Appointed:
    """A leadership that a test gives and takes."""

    def __init__(self) -> None:
        self.appointed = asyncio.Event()
        self.work: asyncio.Task[None] | None = None
        self.released = 0
        self.fence = 0
        self.lost = True

    @property
    def leading(self) -> bool:
        return not self.lost

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        while True:
            await self.appointed.wait()
            self.lost = False
            self.work = asyncio.create_task(work(self))
            try:
                await asyncio.wait({self.work})
            finally:
                self.work.cancel()
                await asyncio.wait({self.work})
                self.lost = True
                self.released += 1
            if not self.work.cancelled():
                self.work.result()
                return

    def take_away(self) -> None:
        assert self.work is not None
        self.lost = True
        self.appointed.clear()
        self.work.cancel()


@asynccontextmanager
async def running(
    clock: VirtualClock, metrics: Metrics, leadership: Leadership, loop: Ticking, *services: Serving
) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(
        clock=clock, metrics=metrics, loops=[loop], leadership=leadership, chance=lambda: 0.5, grace_seconds=5
    )
    task = asyncio.create_task(coordinator.run(leader_services=services))
    await settle()
    yield coordinator
    coordinator.stop()
    await task


# --- one process -----------------------------------------------------------------------------------------------------


async def test_a_sole_leader_leads_at_once_and_until_it_stops(clock: VirtualClock, metrics: Metrics) -> None:
    leadership, loop, service = SoleLeader(clock), Ticking(clock), Serving()
    assert "lapse_leader" not in series(metrics)
    async with running(clock, metrics, leadership, loop, service) as coordinator:
        await pass_time(clock, 15)
        assert [leadership.leading, coordinator.leading] == [True, True]
        assert series(metrics)["lapse_leader"] == 1

    assert loop.seen == [0, 10]
    assert service.notes == ["began", "finished"]
    assert [leadership.leading, coordinator.leading] == [False, False]
    assert series(metrics)["lapse_leader"] == 0


async def test_fences_of_a_sole_leader_grow_over_restarts(clock: VirtualClock) -> None:
    fences = []

    async def work(term: Term) -> None:
        fences.append(term.fence)

    for _ in range(2):
        await SoleLeader(clock).campaign(work)
        clock.advance(1)

    assert fences[0] < fences[1]


async def test_the_error_of_a_sole_leaders_work_is_raised(clock: VirtualClock) -> None:
    async def work(_term: Term) -> None:
        raise OSError("no more sockets")

    leadership = SoleLeader(clock)
    with pytest.raises(OSError, match="no more sockets"):
        await leadership.campaign(work)

    assert not leadership.leading


async def test_a_service_for_a_leader_is_refused_while_nothing_decides_who_leads(
    clock: VirtualClock, metrics: Metrics
) -> None:
    with pytest.raises(LeadershipMissingError, match="serving"):
        await Coordinator(clock=clock, metrics=metrics).run(leader_services=[Serving()])


# --- terms -----------------------------------------------------------------------------------------------------------


async def test_a_candidate_does_nothing_and_stops_at_once(clock: VirtualClock, metrics: Metrics) -> None:
    loop, service = Ticking(clock), Serving()
    async with running(clock, metrics, Appointed(), loop, service) as coordinator:
        await pass_time(clock, 15)
        (status,) = coordinator.loops()
        assert status.next_run_ns is None

    assert loop.seen == []
    assert service.notes == []


async def test_always_on_loops_run_whoever_leads(clock: VirtualClock, metrics: Metrics) -> None:
    loop = Ticking(clock, leader_only=False)
    async with running(clock, metrics, Appointed(), loop):
        await pass_time(clock, 15)
        assert loop.turns[0].proceed()

    assert loop.seen == [0, 10]
    assert not loop.turns[0].proceed()


async def test_losing_leadership_cancels_the_services_and_ends_the_loops_until_the_next_term(
    clock: VirtualClock, metrics: Metrics
) -> None:
    leadership, loop, service = Appointed(), Ticking(clock), Serving()
    async with running(clock, metrics, leadership, loop, service) as coordinator:
        leadership.appointed.set()
        await settle()
        await pass_time(clock, 5)
        leadership.take_away()
        await settle()
        assert service.notes == ["began", "cancelled"]
        assert series(metrics)["lapse_leader"] == 0
        assert coordinator.loops()[0].next_run_ns is None
        success = 'lapse_loop_last_success_timestamp_seconds{loop="ticking"}'
        assert series(metrics)[success] == 0, "an alert on it is about loops that run here"
        await pass_time(clock, 20)
        assert loop.seen == [0]
        leadership.appointed.set()
        await settle()
        await pass_time(clock, 5)

    assert loop.seen == [0, 25]
    assert len(loop.turns) == 2, "each term is a turn of its own"
    assert service.notes == ["began", "cancelled", "began", "finished"]


async def test_losing_leadership_stops_a_loop_between_items_and_the_item_at_hand_is_finished(
    clock: VirtualClock, metrics: Metrics
) -> None:
    leadership, loop = Appointed(), Ticking(clock, items=100)
    async with running(clock, metrics, leadership, loop):
        leadership.appointed.set()
        await pass_time(clock, 3)
        leadership.take_away()
        await settle()
        assert leadership.released == 0, "nobody else may lead while an item is at hand"
        done = len(loop.done)
        clock.advance(0.5)
        await settle()
        assert len(loop.done) == done + 1
        assert leadership.released == 1
        await pass_time(clock, 5)

    assert len(loop.done) == done + 1


async def test_an_item_that_does_not_end_after_leadership_was_lost_is_cancelled(
    clock: VirtualClock, metrics: Metrics
) -> None:
    class Stuck(Ticking):
        async def tick(self) -> float | None:
            await asyncio.Event().wait()
            return None

    leadership = Appointed()
    async with running(clock, metrics, leadership, Stuck(clock)):
        leadership.appointed.set()
        await settle()
        leadership.take_away()
        await settle()
        assert leadership.released == 0
        await pass_time(clock, 1)
        assert leadership.released == 1


async def test_a_stop_finishes_the_item_at_hand_before_leadership_is_released(
    clock: VirtualClock, metrics: Metrics
) -> None:
    leadership, loop, service = Appointed(), Ticking(clock, items=100), Serving()
    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[loop], leadership=leadership)
    task = asyncio.create_task(coordinator.run(leader_services=[service]))
    leadership.appointed.set()
    await settle()
    coordinator.stop()
    await settle()
    assert service.notes == ["began", "finished"]
    assert leadership.released == 0
    assert not task.done()
    clock.advance(0.5)
    await task

    assert loop.done == [0.5]
    assert leadership.released == 1


async def test_a_stop_ends_leaders_work_by_force_after_the_grace(clock: VirtualClock, metrics: Metrics) -> None:
    class Stuck(Ticking):
        async def tick(self) -> float | None:
            await asyncio.Event().wait()
            return None

    leadership = Appointed()
    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Stuck(clock)], leadership=leadership)
    task = asyncio.create_task(coordinator.run())
    leadership.appointed.set()
    await settle()
    coordinator.stop()
    await settle()
    await pass_time(clock, 4)
    assert not task.done()
    await pass_time(clock, 1)
    await task

    assert leadership.released == 1


async def test_a_leaders_service_that_ends_by_itself_ends_everything_with_an_error(
    clock: VirtualClock, metrics: Metrics
) -> None:
    class Ending(Serving):
        async def run(self, stopping: asyncio.Event) -> None:
            return

    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Ticking(clock)], leadership=SoleLeader(clock))
    with pytest.raises(ServiceEndedError, match="serving"):
        await coordinator.run(leader_services=[Ending()])


async def test_a_leaders_service_that_fails_to_clean_up_after_a_lost_term_does_not_end_the_process(
    clock: VirtualClock, metrics: Metrics
) -> None:
    class Clumsy(Serving):
        async def run(self, stopping: asyncio.Event) -> None:
            try:
                await super().run(stopping)
            except asyncio.CancelledError:
                raise OSError("while closing") from None

    leadership, service = Appointed(), Clumsy()
    async with running(clock, metrics, leadership, Ticking(clock), service) as coordinator:
        leadership.appointed.set()
        await settle()
        leadership.take_away()
        await settle()
        assert not coordinator.stopping
        leadership.appointed.set()
        await settle()

    assert service.notes == ["began", "cancelled", "began", "finished"]


async def test_an_election_that_fails_ends_everything_with_its_error(clock: VirtualClock, metrics: Metrics) -> None:
    class Hopeless(Appointed):
        async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
            raise OSError("no such election")

    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Ticking(clock)], leadership=Hopeless())
    with pytest.raises(OSError, match="no such election"):
        await coordinator.run()


async def test_a_loop_can_be_woken_by_its_turn_and_by_the_coordinator(clock: VirtualClock, metrics: Metrics) -> None:
    loop = Ticking(clock)
    async with running(clock, metrics, SoleLeader(clock), loop) as coordinator:
        await pass_time(clock, 3)
        loop.turns[0].wake()
        await settle()
        await pass_time(clock, 2)
        coordinator.wake("ticking")
        await settle()

    assert loop.seen == [0, 3, 5]


async def test_a_loop_that_is_woken_during_its_tick_ticks_once_more(clock: VirtualClock, metrics: Metrics) -> None:
    loop = Ticking(clock, items=2)
    async with running(clock, metrics, SoleLeader(clock), loop):
        loop.turns[0].wake()
        loop.turns[0].wake()
        await pass_time(clock, 8)

    assert len(loop.seen) == 2


# --- two processes ---------------------------------------------------------------------------------------------------


async def test_of_two_coordinators_one_works_and_the_other_takes_over(clock: VirtualClock) -> None:
    async with AsyncExitStack() as stack:
        keys = await stack.enter_async_context(open_keys_async("memory://", clock=clock, sweep=False))
        loops = [Ticking(clock, interval=1), Ticking(clock, interval=1)]
        services = [Serving(), Serving()]
        coordinators, runs = [], []
        for loop, service in zip(loops, services, strict=True):
            leadership = Election(keys, "test", ttl_seconds=8, clock=clock)
            coordinator = Coordinator(clock=clock, metrics=Metrics("test"), loops=[loop], leadership=leadership)
            coordinators.append(coordinator)
            runs.append(asyncio.create_task(coordinator.run(leader_services=[service])))
            await settle()
        await pass_time(clock, 20)
        assert [coordinator.leading for coordinator in coordinators] == [True, False]
        assert loops[1].seen == []

        coordinators[0].stop()
        await settle()
        await runs[0]
        last = loops[0].seen[-1]
        await pass_time(clock, 3)
        assert coordinators[1].leading
        assert loops[1].seen[0] >= last
        assert loops[1].seen[0] <= last + 3, "it need not wait for the end of the lease"
        assert [service.notes[0] for service in services] == ["began", "began"]
        coordinators[1].stop()
        await settle()
        await runs[1]

    assert services[0].notes == services[1].notes == ["began", "finished"]
