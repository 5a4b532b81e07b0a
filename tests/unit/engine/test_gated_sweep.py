"""A sweep with a safety gate, over the real embedded store: how much is ended, and what is not even looked at."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.freeze import ALL, Freeze, FreezeReason, freeze_row, resume_row
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.sqlite import TRUST_SECONDS, SQLiteGateStore
from lapse.engine.sweep import Sweep, SweepLoop
from lapse.kube.errors import StoreUnavailableError
from lapse.objects.target import ObjectTarget
from tests.unit.engine.harness import NS, Things, action_of, end, key, play, series

if TYPE_CHECKING:
    from lapse.core.clock import VirtualClock
    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics
    from lapse.objects.embedded import EmbeddedStore

BUDGETS = Budgets(domains={"things": Budget(20, 3600 * NS)})


class Process:
    """What one process has in memory; another one on the same file begins without it."""

    def __init__(self, things: Things, journal: SQLiteJournal, *, clock: VirtualClock, metrics: Metrics) -> None:
        self.store = SQLiteGateStore(journal, budgets=BUDGETS, domains=["things"])
        self.gate = SafetyGate(
            self.store,
            budgets=BUDGETS,
            domains=["things"],
            clock=clock,
            metrics=metrics,
            actor="lapse",
            trust_seconds=TRUST_SECONDS,
        )
        self.executor = Executor(
            ObjectTarget(things.store, things.store),
            journal,
            clock=clock,
            metrics=metrics,
            actor="lapse",
            gate=self.gate,
        )
        sweep = Sweep(things, self.executor, journal=journal, clock=clock, metrics=metrics)
        self.loop = SweepLoop(sweep, name="things", interval=60, chance=lambda: 0.5)


@pytest.fixture
def process(things: Things, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics) -> Process:
    return Process(things, journal, clock=clock, metrics=metrics)


async def outcomes(journal: SQLiteJournal, *wanted: Outcome) -> list[Outcome]:
    rows = await journal.entries(limit=2_000)
    return [row.outcome for row in reversed(rows) if row.outcome in wanted]


async def test_a_sweep_stops_at_the_budget_and_goes_on_when_it_is_resumed(
    things: Things, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics, process: Process
) -> None:
    for number in range(600):
        await things.add(f"t{number:03}")
    while not series(metrics)['lapse_frozen{domain="things"}']:
        await process.loop.tick()
    assert len(await things.left()) == 580
    assert await outcomes(journal, Outcome.ENDED, Outcome.FROZEN) == [Outcome.ENDED] * 20 + [Outcome.FROZEN]
    # What was begun is refused, one row each; what was not begun is not even looked at.
    refused = len(await outcomes(journal, Outcome.REFUSED))
    assert 0 < refused <= 256

    clock.advance(5_000)
    again = Process(things, journal, clock=clock, metrics=metrics)
    looked = len(things.looked)
    assert await again.loop.tick() == 1
    assert len(things.looked) == looked
    await again.store.resume(ALL, resume_row(ALL, by="cli", now=clock.wall_ns()))
    clock.advance(TRUST_SECONDS)
    for _ in range(5):
        await again.loop.tick()

    assert len(await things.left()) == 560
    frozen = await outcomes(journal, Outcome.ENDED, Outcome.FROZEN, Outcome.RESUMED)
    assert frozen[20:] == [Outcome.FROZEN, Outcome.RESUMED, *[Outcome.ENDED] * 20, Outcome.FROZEN]


async def test_who_is_cancelled_between_the_right_and_the_act_keeps_nothing_from_others(
    things: Things, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics, process: Process
) -> None:
    async def waits(*_: object, **__: object) -> Any:  # noqa: ANN401 - returns nothing
        await clock.sleep(3600)

    for number in range(21):
        await things.add(f"t{number:03}")
    play(process.executor.target, apply=waits)
    cancelled = asyncio.create_task(process.loop.tick())
    while not process.gate._any_under_way:
        await SystemClock().sleep(0)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    await process.gate.close()
    other = Process(things, journal, clock=clock, metrics=metrics)
    while not series(metrics)['lapse_frozen{domain="things"}']:
        await other.loop.tick()

    assert len(await things.left()) == 1, "the journal tells that nothing was ended before"


async def test_a_sweep_ends_nothing_while_it_cannot_be_read_what_is_frozen(
    things: Things, journal: SQLiteJournal, clock: VirtualClock, process: Process
) -> None:
    async def unreadable(_now: int) -> Any:  # noqa: ANN401 - returns nothing
        raise StoreUnavailableError(problem="it restarts")

    load = process.store.load
    await things.add("a")
    play(process.store, load=unreadable)
    waits = []
    for _ in range(6):
        wait = await process.loop.tick()
        assert wait is not None
        waits.append(wait)
        clock.advance(wait)
    assert await things.left() == ["a"]
    assert things.looked == []
    assert waits == sorted(waits)
    assert 1 <= waits[0] < waits[-1] <= 60

    play(process.store, load=load)
    clock.advance(60)
    await process.loop.tick()
    assert await things.left() == []


async def test_with_nothing_due_nobody_asks_what_is_frozen(things: Things, process: Process) -> None:
    async def asked(_now: int) -> Any:  # noqa: ANN401 - returns nothing
        raise AssertionError

    play(process.store, load=asked)
    await things.add("a", expires=3600)

    assert await process.loop.tick() == pytest.approx(60)


async def test_an_item_that_is_refused_says_why_and_is_tried_again(
    things: Things, journal: SQLiteJournal, clock: VirtualClock, process: Process
) -> None:
    freeze = Freeze(None, "look first", "cli")
    row = freeze_row("things", freeze, reason=FreezeReason.BY_PERSON, now=clock.wall_ns())
    await process.store.freeze("things", freeze, row)
    await things.add("a")
    report = await process.loop.sweeps[0].run(proceed=lambda: True)

    assert (report.refused, report.ended) == (1, 0)
    assert things.settlements["a"] == (Outcome.REFUSED, clock.wall_ns() + round(TRUST_SECONDS * NS))
    (told,) = await journal.entries(uid=things.known[key("a")].metadata.uid)
    assert (told.verdict, told.reason, told.outcome) == ("unknown", "frozen", Outcome.REFUSED)


async def test_what_changed_meanwhile_does_not_spend_the_budget(things: Things, process: Process) -> None:
    stale = await things.add("a")
    fresh = await things.patch("a", {"spec": {"expires": 1}})
    for _ in range(50):
        assert await end(process.executor, action_of(stale)) is Outcome.CHANGED

    assert await end(process.executor, action_of(fresh)) is Outcome.ENDED


async def test_a_failure_spends_the_budget_only_until_the_journal_is_counted(
    things: Things, store: EmbeddedStore, process: Process
) -> None:
    async def silent(*_args: object, **_more: object) -> None:
        raise StoreUnavailableError(problem="no answer")

    thing = await things.add("a")
    real = store.delete_all
    play(store, delete_all=silent)
    for _ in range(50):
        assert await end(process.executor, action_of(thing)) is Outcome.FAILED
    play(store, delete_all=real)

    assert await end(process.executor, action_of(thing)) is Outcome.ENDED
