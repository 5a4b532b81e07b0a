from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import DELETE, Candidate
from lapse.engine.executor import Executor, RefusedError
from lapse.engine.journal.port import Outcome
from lapse.engine.sweep import HELD_SECONDS, REFUSED_SECONDS, Sweep, SweepReport
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import Document
from lapse.objects.target import ObjectTarget
from tests.unit.engine.harness import NS, START, THING, Against, Things, candidate_of, key, play, series

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics
    from lapse.objects.embedded import EmbeddedStore


@pytest.fixture
def executor(store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics) -> Executor:
    return Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="things-sweep")


@pytest.fixture
def sweep(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> Sweep[Any]:
    return make_sweep(things, executor, journal, clock=clock, metrics=metrics)


def make_sweep(
    things: Things,
    executor: Executor,
    journal: SQLiteJournal,
    *,
    clock: VirtualClock,
    metrics: Metrics,
    width: int = 64,
    is_pass: bool = False,
) -> Sweep[Any]:
    return Sweep(
        things,
        executor,
        journal=journal,
        clock=clock,
        metrics=metrics,
        width=width,
        is_pass=is_pass,
        chance=lambda: 1.0,
    )


def always() -> bool:
    return True


async def told(journal: SQLiteJournal) -> list[tuple[str, str, Outcome]]:
    """Return what was journalled, oldest first."""
    rows = reversed(await journal.entries())
    return [(row.address.rpartition("/")[2], str(row.reason), row.outcome) for row in rows]


# --- what is due -----------------------------------------------------------------------------------------------------


async def test_what_is_due_is_ended_and_the_rest_stays(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal, metrics: Metrics
) -> None:
    await things.add("over", expires=0)
    await things.add("later", expires=60)
    report = await sweep.run(proceed=always)

    assert await things.left() == ["later"]
    assert report == SweepReport(looked=1, ended=1)
    assert await told(journal) == [("over", "ttl_expired", Outcome.ENDED)]
    assert things.settlements == {"over": (Outcome.ENDED, None)}
    found = series(metrics)
    assert found['lapse_decisions_total{domain="things",verdict="due"}'] == 1
    assert found['lapse_next_expiry_timestamp_seconds{domain="things"}'] == START + 60


async def test_every_series_of_a_domain_stands_at_zero_before_the_first_run(
    sweep: Sweep[Any], metrics: Metrics
) -> None:
    found = series(metrics)

    for verdict in ("due", "keep", "unknown"):
        assert found[f'lapse_decisions_total{{domain="things",verdict="{verdict}"}}'] == 0
    assert found['lapse_deletions_total{domain="things",reason="ttl_expired"}'] == 0
    assert found['lapse_expiry_lag_seconds_count{domain="things"}'] == 0
    assert found['lapse_held{domain="things"}'] == 0
    assert found['lapse_next_expiry_timestamp_seconds{domain="things"}'] == 0


async def test_what_was_deleted_by_somebody_else_is_a_success(
    things: Things, sweep: Sweep[Any], store: EmbeddedStore
) -> None:
    await things.add("a")
    await store.delete(THING, key("a"))

    assert await sweep.run(proceed=always) == SweepReport(looked=1, gone=1)
    assert things.settlements["a"] == (Outcome.GONE, None)


# --- the recheck -----------------------------------------------------------------------------------------------------


async def test_what_is_no_longer_due_when_it_is_read_fresh_stays(things: Things, sweep: Sweep[Any]) -> None:
    await things.add("a")
    await things.patch("a", {"spec": {"expires": (START + 60) * NS}})

    assert await sweep.run(proceed=always) == SweepReport(looked=1, kept=1)
    assert await things.left() == ["a"]
    assert things.settlements["a"] == (Outcome.NOTED, (START + 60) * NS)


async def test_what_is_held_when_it_is_read_fresh_stays(things: Things, sweep: Sweep[Any]) -> None:
    await things.add("a")
    await things.patch("a", {"metadata": {"annotations": {"lapse.dev/hold": "true"}}})

    assert await sweep.run(proceed=always) == SweepReport(looked=1, held=1)
    assert await things.left() == ["a"]


async def test_the_second_decision_is_taken_at_a_fresh_moment(
    things: Things, sweep: Sweep[Any], clock: VirtualClock
) -> None:
    moments: list[int] = []
    decide = things.decide

    def noting(candidate: Candidate[Document], now: UnixNs) -> Decision:
        moments.append(now - START * NS)
        return decide(candidate, now)

    play(things, decide=noting)
    things.during_refresh = lambda _name: clock.jump_wall(-5)
    await things.add("a", expires=0)
    report = await sweep.run(proceed=always)

    assert moments == [0, -5 * NS]
    assert report.kept == 1, "the clock was set back meanwhile: not due any more"


async def test_what_refresh_read_into_the_candidate_itself_is_decided_on(things: Things, sweep: Sweep[Any]) -> None:
    async def into_its_state(candidates: Sequence[Candidate[Document]]) -> Sequence[Candidate[Document]]:
        for one in candidates:
            one.state.body["spec"]["expires"] = (START + 60) * NS
        return candidates

    await things.add("a")
    play(things, refresh=into_its_state)

    assert await sweep.run(proceed=always) == SweepReport(looked=1, kept=1)
    assert await things.left() == ["a"]


async def test_what_is_held_is_read_again_too_because_its_hold_may_end_meanwhile(
    things: Things, sweep: Sweep[Any], clock: VirtualClock
) -> None:
    await things.add("held", hold="true", until=to_timestamp((START + 1) * NS))
    await things.add("other")
    await things.patch("held", {"spec": {"expires": (START + 60) * NS}})

    def the_hold_ends(name: str) -> None:
        if name == "other":
            clock.jump_wall(2)

    things.during_refresh = the_hold_ends
    await sweep.run(proceed=always)

    assert await things.left() == ["held"]


async def test_what_changes_between_the_recheck_and_the_act_is_decided_again_later(
    things: Things, sweep: Sweep[Any]
) -> None:
    async def covered_by_the_compare(candidate: Candidate[Document]) -> Candidate[Document]:
        return candidate

    play(things, refresh=covered_by_the_compare)
    await things.add("a")
    await things.patch("a", {"spec": {"expires": (START + 60) * NS}})

    assert await sweep.run(proceed=always) == SweepReport(looked=1, changed=1)
    assert await things.left() == ["a"]
    assert things.settlements["a"] == (Outcome.CHANGED, (START + 1) * NS)


# --- what stays ------------------------------------------------------------------------------------------------------


async def test_an_unknown_never_acts_and_is_journalled_once(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal, clock: VirtualClock
) -> None:
    await things.add("a", expires=None)
    reports = []
    for _ in range(3):
        reports.append(await sweep.run(proceed=always))
        clock.advance(30)

    assert reports == [SweepReport(looked=1, unknown=1)] * 3
    assert await things.left() == ["a"]
    assert await told(journal) == [("a", "missing_anchor", Outcome.NOTED)]


@pytest.mark.parametrize("anchor", [0, -1, 2**63])
async def test_nothing_is_due_since_a_time_that_means_not_set_whatever_the_domain_says(
    anchor: int, things: Things, sweep: Sweep[Any], journal: SQLiteJournal
) -> None:
    def decide(candidate: Candidate[Any], now: UnixNs) -> Decision:
        return Decision(Due(DELETE, DueReason.TTL_EXPIRED, now), UnixNs(anchor), now)

    await things.add("a")
    play(things, decide=decide)
    assert await sweep.run(proceed=always) == SweepReport(looked=1, unknown=1)
    assert await things.left() == ["a"]
    assert await told(journal) == [("a", "missing_anchor", Outcome.NOTED)]


async def test_what_is_due_without_an_anchor_goes(things: Things, sweep: Sweep[Any]) -> None:
    def decide(candidate: Candidate[Any], now: UnixNs) -> Decision:
        return Decision(Due(DELETE, DueReason.TTL_EXPIRED, now))

    await things.add("a")
    play(things, decide=decide)
    assert await sweep.run(proceed=always) == SweepReport(looked=1, ended=1)


async def test_every_change_of_a_verdict_is_journalled_once_but_not_a_first_not_yet(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal, clock: VirtualClock
) -> None:
    await things.add("a", expires=100)
    things.deadlines.set(key("a"), UnixNs(START * NS))
    await sweep.run(proceed=always)
    assert await told(journal) == []

    for changes in ({"spec": {"expires": None}}, {"spec": {"expires": (START + 100) * NS}}):
        things.learn(await things.patch("a", changes))
        things.deadlines.set(key("a"), UnixNs(clock.wall_ns()))
        await sweep.run(proceed=always)
        clock.advance(30)
    clock.advance(100)
    await sweep.run(proceed=always)

    assert await told(journal) == [
        ("a", "missing_anchor", Outcome.NOTED),
        ("a", "not_yet", Outcome.NOTED),
        ("a", "ttl_expired", Outcome.ENDED),
    ]


async def test_what_is_held_is_counted_journalled_once_and_ended_when_it_is_released(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    await things.add("a", hold="true")
    for _ in range(2):
        assert (await sweep.run(proceed=always)).held == 1
        assert series(metrics)['lapse_held{domain="things"}'] == 1
        clock.advance(HELD_SECONDS)
    things.learn(await things.patch("a", {"metadata": {"annotations": None}}))
    await sweep.run(proceed=always)

    assert await things.left() == []
    assert series(metrics)['lapse_held{domain="things"}'] == 0
    assert await told(journal) == [("a", "held", Outcome.HELD), ("a", "ttl_expired", Outcome.ENDED)]


async def test_what_is_held_is_looked_at_again_when_its_hold_ends(things: Things, sweep: Sweep[Any]) -> None:
    await things.add("soon", hold="true", until="2023-11-14T22:14:20Z")
    await things.add("never", hold="true")
    await sweep.run(proceed=always)

    assert things.settlements["soon"] == (Outcome.HELD, (START + 60) * NS)
    assert things.settlements["never"] == (Outcome.HELD, (START + HELD_SECONDS) * NS)


async def test_what_was_held_and_deleted_by_somebody_else_is_not_counted_for_ever(
    things: Things, sweep: Sweep[Any], clock: VirtualClock, metrics: Metrics
) -> None:
    await things.add("a", hold="true")
    await sweep.run(proceed=always)
    things.deadlines.discard(key("a"))
    clock.advance(3 * HELD_SECONDS)
    await sweep.run(proceed=always)

    assert series(metrics)['lapse_held{domain="things"}'] == 0


async def test_a_domain_may_know_holds_of_its_own(things: Things, sweep: Sweep[Any], journal: SQLiteJournal) -> None:
    play(things, decide=lambda _candidate, _now: Decision(Keep(KeepReason.HELD)))
    await things.add("a")

    assert await sweep.run(proceed=always) == SweepReport(looked=1, held=1)
    assert await told(journal) == [("a", "held", Outcome.HELD)]


async def test_a_moment_that_is_already_over_is_not_looked_at_again_at_once(things: Things, sweep: Sweep[Any]) -> None:
    play(things, decide=lambda _candidate, now: Decision(Keep(KeepReason.NOT_YET, now)))
    await things.add("a")
    await sweep.run(proceed=always)

    next_deadline = things.next_deadline()
    assert next_deadline is not None
    assert next_deadline > START * NS


async def test_what_a_gate_refuses_is_tried_again(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test", gate=Against())
    await things.add("a")
    report = await make_sweep(things, executor, journal, clock=clock, metrics=metrics).run(proceed=always)

    assert report == SweepReport(looked=1, refused=1)
    assert things.settlements["a"] == (Outcome.REFUSED, (START + REFUSED_SECONDS) * NS)


async def test_a_dry_run_ends_nothing(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test", dry_run=True)
    await things.add("a")
    report = await make_sweep(things, executor, journal, clock=clock, metrics=metrics).run(proceed=always)

    assert report == SweepReport(looked=1, would_end=1)
    assert await things.left() == ["a"]


# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_pass", "refused"), [(True, 5), (False, 2)])
async def test_only_a_pass_goes_on_to_its_end_while_the_domain_stands_still(
    is_pass: bool,  # noqa: FBT001 - a parameter of the test
    refused: int,
    things: Things,
    store: EmbeddedStore,
    journal: SQLiteJournal,
    clock: VirtualClock,
    metrics: Metrics,
) -> None:
    target = ObjectTarget(store, store)
    target.batch = 2
    executor = Executor(target, journal, clock=clock, metrics=metrics, actor="test", gate=Against())
    for number in range(5):
        await things.add(f"t{number}")
    sweep = make_sweep(things, executor, journal, clock=clock, metrics=metrics, width=2, is_pass=is_pass)
    assert (await sweep.run(proceed=always)).refused == refused
    assert {type(problem) for problem in things.problems.values()} == {RefusedError}
    (said,) = {str(problem).partition(" is kept: ")[2] for problem in things.problems.values()}
    assert said == "the clock is in doubt; lapse status tells what stands still."


async def test_a_pass_knows_what_came_of_a_page_before_it_makes_the_next(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    for number in range(5):
        await things.add(f"t{number}")
    known: list[int] = []
    pages = things.due

    async def due(now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Document]], None]:
        async for page in pages(now, size=size):
            known.append(len(things.settlements))
            yield page

    play(things, due=due)
    sweep = make_sweep(things, executor, journal, clock=clock, metrics=metrics, width=2, is_pass=True)
    assert (await sweep.run(proceed=always)).ended == 5
    assert known == [0, 2, 4]


async def test_a_pass_leaves_it_to_the_domain_to_tell_how_much_is_held(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    await things.add("a", hold="audit")
    metrics.holding("things", 7)
    sweep = make_sweep(things, executor, journal, clock=clock, metrics=metrics, is_pass=True)
    assert (await sweep.run(proceed=always)).held == 1
    assert series(metrics)['lapse_held{domain="things"}'] == 7


# --- failures --------------------------------------------------------------------------------------------------------


def fail(place: str, error: Exception, things: Things) -> None:
    """Make one part of the domain fail for the thing called bad."""
    real = getattr(things, place)

    def broken(asked: Candidate[Document] | Sequence[Candidate[Document]], *more: object) -> object:
        if any(one.handle.key.name == "bad" for one in ([asked] if isinstance(asked, Candidate) else asked)):
            raise error
        return real(asked, *more)

    play(things, **{place: broken})


@pytest.mark.parametrize("place", ["decide", "refresh", "details", "policy"])
@pytest.mark.parametrize("error", [StoreUnavailableError(problem="it restarts"), ZeroDivisionError("a defect")])
async def test_one_failing_item_is_counted_and_journalled_and_never_stops_the_rest(
    things: Things,
    sweep: Sweep[Any],
    executor: Executor,
    journal: SQLiteJournal,
    metrics: Metrics,
    place: str,
    error: Exception,
) -> None:
    for name in ("a", "bad", "z"):
        await things.add(name)
    fail(place, error, things)
    report = await sweep.run(proceed=always)

    assert report == SweepReport(looked=3, ended=2, failed=1)
    assert await things.left() == ["bad"]
    failed = [row for row in await journal.entries() if row.outcome is Outcome.FAILED]
    assert [(row.verdict, row.details) for row in failed] == [("unknown", {"error": type(error).__name__})]
    assert series(metrics)['lapse_errors_total{domain="things",kind="item"}'] == 1
    assert things.settlements["bad"] == (Outcome.FAILED, (START + 1) * NS)


class OddDue(Due, frozen=True):
    """A verdict that the engine does not know."""


@pytest.mark.parametrize(
    "answer",
    [None, Decision(None), Decision(OddDue(DELETE, DueReason.TTL_EXPIRED, UnixNs(1)))],  # type: ignore[arg-type]
    ids=["none", "no verdict", "a verdict of its own"],
)
async def test_a_decision_that_is_none_is_a_failure_of_one_item(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal, answer: Decision
) -> None:
    decide = things.decide

    def odd(candidate: Candidate[Document], now: UnixNs) -> Decision:
        return answer if candidate.handle.key.name == "b" else decide(candidate, now)

    play(things, decide=odd)
    for name in ("a", "b", "c"):
        await things.add(name)
    report = await sweep.run(proceed=always)

    assert (report.ended, report.failed) == (2, 1)
    assert await things.left() == ["b"]
    assert await journal.unfinished() == []


@pytest.mark.parametrize("answer", ["too few", "none", "another thing"])
async def test_an_answer_that_is_not_about_what_was_asked_is_a_failure_and_ends_nothing_else(
    things: Things, sweep: Sweep[Any], answer: str
) -> None:
    refresh = things.refresh

    async def odd(candidates: Sequence[Candidate[Document]]) -> Any:  # noqa: ANN401 - that is the point
        found = await refresh(candidates)
        if all(one.handle.key.name != "b" for one in candidates):
            return found
        other = candidate_of(things.known[key("d")])
        return {"too few": found[1:], "none": None, "another thing": [other] * len(found)}[answer]

    play(things, refresh=odd)
    for name in ("a", "b", "c"):
        await things.add(name)
    await things.add("d", expires=60)
    report = await sweep.run(proceed=always)

    assert (report.ended, report.failed) == (2, 1)
    assert await things.left() == ["b", "d"]


async def test_a_candidate_with_an_address_of_another_domain_is_not_believed(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    sweep = Sweep(things, executor, journal=journal, clock=clock, metrics=metrics, kinds=["workspace"])
    await things.add("a")

    assert await sweep.run(proceed=always) == SweepReport(looked=1, failed=1)
    assert await things.left() == ["a"]


async def test_a_defect_in_ending_is_journalled_for_each_item_and_the_sweep_goes_on(
    things: Things, sweep: Sweep[Any], executor: Executor, journal: SQLiteJournal, clock: VirtualClock
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for name in ("a", "b"):
        await things.add(name)
    real = executor.execute
    play(executor, execute=broken)
    assert await sweep.run(proceed=always) == SweepReport(looked=2, failed=2)
    assert [row.outcome for row in await journal.entries()] == [Outcome.FAILED, Outcome.FAILED]

    play(executor, execute=real)
    clock.advance(1)
    assert await sweep.run(proceed=always) == SweepReport(looked=2, ended=2)


async def test_items_that_share_a_transaction_are_ended_or_not_each_on_its_own(
    things: Things, sweep: Sweep[Any], journal: SQLiteJournal
) -> None:
    things.covered = True
    for name in ("a", "changed", "gone", "z"):
        await things.add(name)
    await things.patch("changed", {"spec": {"colour": "red"}})
    await things.store.delete(THING, key("gone"))
    report = await sweep.run(proceed=always)

    assert report == SweepReport(looked=4, ended=2, changed=1, gone=1)
    assert await things.left() == ["changed"]
    assert {row.address.rpartition("/")[2]: row.outcome for row in await journal.entries()} == {
        "a": Outcome.ENDED,
        "z": Outcome.ENDED,
        "changed": Outcome.CHANGED,
    }


async def test_what_is_read_fresh_is_ended_before_the_next_page_is_read(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    left_at_refresh: list[int] = []

    async def look(_name: str) -> None:
        left_at_refresh.append(len(await things.left()))

    things.during_refresh = look
    for name in ("a", "b", "c"):
        await things.add(name)
    await make_sweep(things, executor, journal, clock=clock, metrics=metrics, width=1).run(proceed=always)

    assert left_at_refresh == [3, 2, 1]


async def test_what_keeps_failing_is_tried_at_growing_intervals_and_journalled_once(
    things: Things, sweep: Sweep[Any], executor: Executor, journal: SQLiteJournal, clock: VirtualClock
) -> None:
    fail("decide", ZeroDivisionError(), things)
    await things.add("bad")
    tried = []
    for second in range(60):
        if (await sweep.run(proceed=always)).failed:
            tried.append(second)
        clock.advance(1)

    assert tried == [0, 1, 3, 7, 15, 31]
    assert len(await journal.entries()) == 1


async def test_a_domain_that_cannot_settle_loses_nothing(things: Things, sweep: Sweep[Any], metrics: Metrics) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    await things.add("a")
    settle = things.settle
    play(things, settle=broken)
    assert (await sweep.run(proceed=always)).ended == 1

    play(things, settle=settle)
    assert await sweep.run(proceed=always) == SweepReport(looked=1, gone=1), "it was still in the index"


async def test_a_journal_that_fails_does_not_stop_the_rest(
    things: Things, store: EmbeddedStore, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    executor = Executor(ObjectTarget(store, store), far_journal, clock=clock, metrics=metrics, actor="test")
    await things.add("a", expires=None)
    await things.add("b", expires=None)
    far_journal.database.close()
    report = await make_sweep(things, executor, far_journal, clock=clock, metrics=metrics).run(proceed=always)

    assert report == SweepReport(looked=2, failed=2)


async def test_an_index_that_fails_is_raised_after_the_items_in_flight_have_ended(
    things: Things, sweep: Sweep[Any]
) -> None:
    due = things.due

    async def broken(now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Document]], None]:
        async for page in due(now, size=size):
            yield page
        raise ZeroDivisionError

    play(things, due=broken)
    await things.add("a")
    with pytest.raises(ZeroDivisionError):
        await sweep.run(proceed=always)

    assert await things.left() == []


# --- going on and stopping -------------------------------------------------------------------------------------------


def times(number: int) -> Callable[[], bool]:
    """Say yes this many times."""
    left = iter([True] * number)
    return lambda: next(left, False)


async def test_a_sweep_that_may_not_go_on_begins_nothing(things: Things, sweep: Sweep[Any]) -> None:
    await things.add("a")
    report = await sweep.run(proceed=lambda: False)

    assert report == SweepReport(more=True)
    assert things.looked == []
    assert (await sweep.run(proceed=always)).ended == 1, "it was left where it was"


async def test_a_sweep_that_may_no_longer_go_on_stops_between_items(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    for name in "abcde":
        await things.add(name)
    sweep = make_sweep(things, executor, journal, clock=clock, metrics=metrics, width=1)
    report = await sweep.run(proceed=times(4))  # asked before each item, and again before its act

    assert report == SweepReport(looked=2, ended=2, more=True)
    assert await things.left() == ["c", "d", "e"]


async def test_leadership_that_is_lost_while_an_item_is_read_prevents_its_act(
    things: Things, sweep: Sweep[Any]
) -> None:
    leading = True

    def lose(_name: str) -> None:
        nonlocal leading
        leading = False

    things.during_refresh = lose
    await things.add("a")
    report = await sweep.run(proceed=lambda: leading)

    assert report == SweepReport(looked=1, more=True)
    assert await things.left() == ["a"]
    things.during_refresh = lambda _name: None
    assert (await sweep.run(proceed=always)).ended == 1, "it was given back"


async def test_a_limit_bounds_a_run_and_says_that_there_is_more(things: Things, sweep: Sweep[Any]) -> None:
    for name in "abcde":
        await things.add(name)
    reports = [await sweep.run(proceed=always, limit=3) for _ in range(2)]

    assert reports == [SweepReport(looked=3, ended=3, more=True), SweepReport(looked=2, ended=2)]


async def test_not_more_than_the_width_are_in_flight_and_the_width_is_used(
    things: Things, store: EmbeddedStore, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    executor = Executor(ObjectTarget(store, store), far_journal, clock=clock, metrics=metrics, actor="test")
    flying, most, gate = 0, 0, asyncio.Event()

    async def fly(_name: str) -> None:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        if most == 4:
            gate.set()
        await gate.wait()
        flying -= 1

    things.during_refresh = fly
    for number in range(20):
        await things.add(f"n{number}")
    report = await make_sweep(things, executor, far_journal, clock=clock, metrics=metrics, width=4).run(proceed=always)

    assert report.ended == 20
    assert most == 4


class Listed(Things):
    """Things that exist in the index only: a hundred thousand of them cost no store."""

    def list_many(self, number: int, *, expires: float) -> None:
        when = round((START + expires) * NS)
        for index in range(number):
            meta = {"name": f"n{index}", "namespace": "default", "uid": f"u{index}", "resourceVersion": "1"}
            self.learn(Document({"metadata": meta, "spec": {"expires": when}}))


class Untouched:
    """A store and a journal that nobody may call."""

    database = None

    def shares(self, _store: object) -> bool:
        return False

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was called")


async def test_with_a_hundred_thousand_deadlines_and_nothing_due_nothing_is_called_or_looked_at(
    clock: VirtualClock, metrics: Metrics
) -> None:
    nobody: Any = Untouched()
    things = Listed(nobody, clock)
    things.list_many(100_000, expires=60)
    executor = Executor(ObjectTarget(nobody, nobody), nobody, clock=clock, metrics=metrics, actor="test")
    before = set(asyncio.all_tasks())
    report = await make_sweep(things, executor, nobody, clock=clock, metrics=metrics).run(proceed=always)

    assert report == SweepReport()
    assert things.looked == []
    assert set(asyncio.all_tasks()) == before


async def test_a_long_list_is_worked_on_without_a_task_per_item_and_others_get_their_turn(
    clock: VirtualClock, metrics: Metrics, journal: SQLiteJournal
) -> None:
    nobody: Any = Untouched()
    things = Listed(nobody, clock)
    things.list_many(10_000, expires=0)
    most_tasks, turns = 0, 0

    def decide(_candidate: Candidate[Document], now: UnixNs) -> Decision:
        nonlocal most_tasks
        if turns % 100 == 0:
            most_tasks = max(most_tasks, len(asyncio.all_tasks()))
        return Decision(Keep(KeepReason.NOT_YET, UnixNs(now + NS)))

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.to_thread(int)

    play(things, decide=decide)
    executor = Executor(ObjectTarget(nobody, nobody), journal, clock=clock, metrics=metrics, actor="test")
    meanwhile = asyncio.create_task(other())
    report = await make_sweep(things, executor, journal, clock=clock, metrics=metrics).run(proceed=always)
    meanwhile.cancel()

    assert report.kept == 10_000
    assert most_tasks < 100
    assert turns > 10


async def test_two_sweeps_of_one_store_end_each_thing_once(
    things: Things, executor: Executor, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    other = Things(things.store, clock)
    for number in range(50):
        other.learn(await things.add(f"n{number}"))
    sweeps = [make_sweep(domain, executor, journal, clock=clock, metrics=metrics) for domain in (things, other)]
    one, two = await asyncio.gather(*(sweep.run(proceed=always) for sweep in sweeps))

    assert one.ended + two.ended == 50
    assert one.gone + two.gone == 50
    ended = [row.uid for row in await journal.entries(limit=1000) if row.outcome is Outcome.ENDED]
    assert len(ended) == len(set(ended)) == 50
    assert candidate_of(other.known[key("n0")]).uid in ended
