from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lapse.app.demo.running import DemoLoop
from lapse.app.process import DecidingLoop
from lapse.app.service import process_facts
from lapse.core.clock import VirtualClock
from lapse.core.errors import LapseError
from lapse.engine.journal.lines import JournalLines
from lapse.engine.journal.retention import JournalRetention
from lapse.engine.running.coordinator import Coordinator, LeadershipMissingError, Loop, ServiceEndedError
from lapse.engine.running.logins import LoginAudit
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.clock_guard import ClockLoop
from lapse.engine.safety.gate import GateLoop
from lapse.objects.holds.upkeep import HoldUpkeep
from lapse.web.server.listener import Certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

START = 1_700_000_000
NS = 1_000_000_000


@dataclass
class Ticking:
    """A loop that notes when it ran, and does what it is told."""

    clock: VirtualClock
    name: str = "ticking"
    domain: str = "test"
    interval: float = 10.0
    leader_only: bool = False
    answers: list[float | Exception | None] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    async def tick(self) -> float | None:
        self.seen.append(self.clock.monotonic_ns() / NS)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Serving:
    """A service that does what it is told once it is asked to stop."""

    finish: Callable[[], object] = lambda: None
    name: str = "serving"

    async def run(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self.finish()


async def settle() -> None:
    """Let every task run as far as it can without time passing."""
    for _ in range(50):
        await asyncio.get_running_loop().run_in_executor(None, int)


async def pass_time(clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        await settle()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics("test")
    metrics.expect_domain("test", reasons=[])
    return metrics


@asynccontextmanager
async def running(clock: VirtualClock, metrics: Metrics, *loops: Loop) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(clock=clock, metrics=metrics, loops=loops, chance=lambda: 0.5)
    task = asyncio.create_task(coordinator.run())
    await settle()
    yield coordinator
    coordinator.stop()
    await task


async def test_a_loop_runs_at_once_and_then_at_its_interval(clock: VirtualClock, metrics: Metrics) -> None:
    loop = Ticking(clock)
    async with running(clock, metrics, loop):
        await pass_time(clock, 25)

    assert loop.seen == [0, 10, 20]


async def test_a_tick_may_ask_for_its_own_next_time(clock: VirtualClock, metrics: Metrics) -> None:
    loop = Ticking(clock, answers=[2.0, 3.0, None])
    async with running(clock, metrics, loop):
        await pass_time(clock, 16)

    assert loop.seen == [0, 2, 5, 15]


async def test_intervals_are_spread_by_jitter_so_that_processes_do_not_wake_together(metrics: Metrics) -> None:
    second_runs = []
    for chance in (0.0, 0.999):
        clock = VirtualClock()
        loop = Ticking(clock, interval=100.0)
        coordinator = Coordinator(clock=clock, metrics=metrics, loops=[loop], chance=partial(float, chance))
        task = asyncio.create_task(coordinator.run())
        await settle()
        await pass_time(clock, 115)
        coordinator.stop()
        await task
        second_runs.append(loop.seen[1])

    assert second_runs == [90, 110]


async def test_a_loop_of_the_engine_is_of_no_domain_and_its_failures_keep_their_label(
    clock: VirtualClock, metrics: Metrics
) -> None:
    class Own(Ticking):
        of_engine = True

    own, other = Own(clock, answers=[LapseError()], name="own"), Ticking(clock, name="other")
    async with running(clock, metrics, own, other) as coordinator:
        told = {one.name: (one.domain, one.errors) for one in coordinator.loops()}

    assert told == {"own": (None, 1), "other": ("test", 0)}
    assert b'lapse_errors_total{domain="test",kind="tick"} 1.0' in metrics.exposition()


def test_what_no_domain_has_is_the_engines_own() -> None:
    own = (DemoLoop, DecidingLoop, JournalLines, JournalRetention, LoginAudit, ClockLoop, GateLoop)
    assert all(loop.of_engine for loop in (*own, HoldUpkeep, Certificate))


@pytest.mark.parametrize("error", [LapseError(), RuntimeError("a defect")])
async def test_a_failing_tick_is_counted_and_the_loop_runs_again(
    clock: VirtualClock, metrics: Metrics, error: Exception
) -> None:
    loop = Ticking(clock, answers=[error, None])
    async with running(clock, metrics, loop) as coordinator:
        (failed,) = coordinator.loops()
        await pass_time(clock, 12)
        (recovered,) = coordinator.loops()

    assert (failed.ticks, failed.errors, failed.last_error) == (1, 1, type(error).__name__)
    assert failed.last_success_ns is None
    assert (recovered.ticks, recovered.errors, recovered.last_error) == (2, 1, None)
    assert recovered.last_success_ns == (START + 10) * NS
    assert recovered.next_run_ns == (START + 20) * NS
    assert b'lapse_errors_total{domain="test",kind="tick"} 1.0' in metrics.exposition()
    assert b'lapse_loop_last_success_timestamp_seconds{loop="ticking"} 1.70000001e+09' in metrics.exposition()


async def test_the_lag_of_a_loop_grows_while_its_run_is_due_and_not_done(clock: VirtualClock, metrics: Metrics) -> None:
    class Slow(Ticking):
        async def tick(self) -> float | None:
            if self.seen:
                await self.clock.sleep(5)
            return await super().tick()

    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Slow(clock)], chance=lambda: 0.5)
    facts, lags = process_facts(coordinator, metrics, clock), []
    lags.append(facts().loops[0].lag_seconds)
    task = asyncio.create_task(coordinator.run())
    await settle()
    for seconds in (9, 4, 2):
        await pass_time(clock, seconds)
        lags.append(facts().loops[0].lag_seconds)
    coordinator.stop()
    await task

    assert lags == [None, 0, 3, 0]


async def test_a_failing_loop_does_not_disturb_another(clock: VirtualClock, metrics: Metrics) -> None:
    bad = Ticking(clock, name="bad", answers=[RuntimeError() for _ in range(9)])
    good = Ticking(clock, name="good")
    async with running(clock, metrics, bad, good):
        await pass_time(clock, 25)

    assert good.seen == bad.seen == [0, 10, 20]


async def test_stopping_wakes_a_loop_that_waits_and_starts_no_further_tick(
    clock: VirtualClock, metrics: Metrics
) -> None:
    loop = Ticking(clock, interval=3600.0)
    async with running(clock, metrics, loop):
        pass

    assert loop.seen == [0]


async def test_stopping_lets_the_tick_at_hand_finish(clock: VirtualClock, metrics: Metrics) -> None:
    finished = []

    class Slow(Ticking):
        async def tick(self) -> float | None:
            await self.clock.sleep(4)
            finished.append(self.clock.monotonic_ns() / NS)
            return None

    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Slow(clock)])
    task = asyncio.create_task(coordinator.run())
    await settle()
    coordinator.stop()
    await pass_time(clock, 4)
    await task

    assert finished == [4]


async def test_a_tick_that_does_not_finish_is_cancelled_after_the_grace(clock: VirtualClock, metrics: Metrics) -> None:
    class Stuck(Ticking):
        async def tick(self) -> float | None:
            await asyncio.Event().wait()
            return None

    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Stuck(clock)], grace_seconds=5)
    task = asyncio.create_task(coordinator.run())
    await settle()
    coordinator.stop()
    await settle()
    await pass_time(clock, 4)
    assert not task.done()

    await pass_time(clock, 1)
    await task


async def test_a_service_that_ends_by_itself_ends_everything_with_an_error(
    clock: VirtualClock, metrics: Metrics
) -> None:
    class Ending(Serving):
        async def run(self, stopping: asyncio.Event) -> None:
            return

    ended: list[str] = []
    other = Serving(finish=lambda: ended.append("in order"))
    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[Ticking(clock)])
    with pytest.raises(ServiceEndedError, match="serving"):
        await coordinator.run([Ending(), other])

    assert ended == ["in order"]


async def test_the_error_of_a_service_is_raised_after_the_rest_has_ended(clock: VirtualClock, metrics: Metrics) -> None:
    class Failing(Serving):
        async def run(self, stopping: asyncio.Event) -> None:
            raise OSError("no more sockets")

    loop = Ticking(clock)
    coordinator = Coordinator(clock=clock, metrics=metrics, loops=[loop])
    with pytest.raises(OSError, match="no more sockets"):
        await coordinator.run([Failing()])

    assert coordinator.stopping


def test_a_loop_for_one_leader_is_refused_while_nothing_decides_who_leads(
    clock: VirtualClock, metrics: Metrics
) -> None:
    with pytest.raises(LeadershipMissingError, match="ticking"):
        Coordinator(clock=clock, metrics=metrics, loops=[Ticking(clock, leader_only=True)])
