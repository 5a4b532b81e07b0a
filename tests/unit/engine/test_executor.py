from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.log import current_work, piece_of_work
from lapse.engine.domain import Result
from lapse.engine.executor import Executor, MissingAnchorError, NotDueYetError
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.holds import Hold
from lapse.kube.errors import StoreUnavailableError
from lapse.objects.target import ObjectTarget
from tests.unit.engine.harness import NS, START, THING, Against, Things, action_of, end, end_all, key, play, series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.db.sqlite.database import Database
    from lapse.engine.domain import Action, Also
    from lapse.engine.journal.port import Entry, Row, Writer
    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics
    from lapse.kube.resources import Kind, ObjectKey
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.port import Deletion

FAR = UnixNs((START + 3600) * NS)


@pytest.fixture(params=["one database", "two databases"])
def any_journal(request: pytest.FixtureRequest, journal: SQLiteJournal, far_journal: SQLiteJournal) -> SQLiteJournal:
    return journal if request.param == "one database" else far_journal


@pytest.fixture
def executor(store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics) -> Executor:
    return Executor(ObjectTarget(store, store), any_journal, clock=clock, metrics=metrics, actor="test")


async def outcomes(journal: SQLiteJournal) -> list[Outcome]:
    """Return what was journalled, oldest first, without intents."""
    rows = await journal.entries()
    return [row.outcome for row in reversed(rows) if row.outcome is not Outcome.INTENT]


async def test_what_is_due_is_removed_and_journalled_with_all_that_decided(
    things: Things, executor: Executor, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    clock.advance(3)
    with piece_of_work("tick"):
        tick = current_work()
        assert await end(executor, action_of(thing)) is Outcome.ENDED

    assert await things.left() == []
    row: Row = (await any_journal.entries())[0]
    assert (row.domain, row.address, row.uid) == ("things", "Thing.test.lapse.dev/default/a", thing.metadata.uid)
    assert (row.version, row.verdict, row.reason) == (thing.metadata.resource_version, "due", "ttl_expired")
    assert (row.anchor_ns, row.policy, row.actor) == ((START - 60) * NS, "p1", "test")
    assert (row.outcome, row.details, row.tick) == (Outcome.ENDED, {"shelf": 7}, tick)
    assert row.time_ns == (START + 3) * NS
    found = series(metrics)
    assert found['lapse_deletions_total{domain="things",reason="ttl_expired"}'] == 1
    assert found['lapse_expiry_lag_seconds_sum{domain="things"}'] == 3


@pytest.mark.parametrize("anchor", [0, -1, -(2**62), 2**63, 10**30])
async def test_what_is_counted_from_a_time_that_means_not_set_is_kept_whoever_asks(
    anchor: int, things: Things, executor: Executor, any_journal: SQLiteJournal
) -> None:
    thing = await things.add("a")
    for _ in range(3):
        (result,) = await executor.execute([replace(action_of(thing), anchor_ns=anchor)])
        assert (result.outcome, type(result.problem)) == (Outcome.REFUSED, MissingAnchorError)

    assert await things.left() == ["a"]
    (row,) = await any_journal.entries()
    assert (row.verdict, row.reason, row.outcome, row.anchor_ns) == ("unknown", "missing_anchor", "refused", None)


async def test_what_is_due_since_a_moment_that_is_still_to_come_is_kept(
    things: Things, executor: Executor, any_journal: SQLiteJournal, clock: VirtualClock
) -> None:
    thing = await things.add("a")
    later = UnixNs(clock.wall_ns() + 1)
    (result,) = await executor.execute([replace(action_of(thing), since=later)])

    assert (result.outcome, type(result.problem)) == (Outcome.REFUSED, NotDueYetError)
    assert await things.left() == ["a"]
    (row,) = await any_journal.entries()
    assert (row.verdict, row.reason, row.outcome) == ("unknown", "clock_jumped", "refused")
    clock.advance(1)
    assert await end(executor, replace(action_of(thing), since=later)) is Outcome.ENDED


async def test_a_hold_whose_end_is_no_time_keeps(things: Things, executor: Executor) -> None:
    odd = Hold("audit", "2030-01-01T00:00:00Z")  # type: ignore[arg-type]
    things_ = [await things.add("a"), await things.add("b")]
    outcomes = await end_all(executor, [action_of(things_[0], hold=odd), action_of(things_[1])])

    assert outcomes == [Outcome.REFUSED, Outcome.ENDED]
    assert await things.left() == ["a"]


async def test_what_is_held_is_not_touched_and_journalled_once(
    things: Things, executor: Executor, any_journal: SQLiteJournal
) -> None:
    thing = await things.add("a")
    for _ in range(3):
        assert await end(executor, action_of(thing, hold=Hold("audit", FAR))) is Outcome.HELD

    assert await things.left() == ["a"]
    (row,) = await any_journal.entries()
    assert (row.verdict, row.reason, row.outcome) == ("keep", "held", Outcome.HELD)
    assert row.details == {"hold": "audit", "until_ns": FAR}


async def test_a_hold_that_is_over_holds_nothing(things: Things, executor: Executor, clock: VirtualClock) -> None:
    thing = await things.add("a")
    clock.advance(3600)

    assert await end(executor, action_of(thing, hold=Hold("audit", FAR))) is Outcome.ENDED


async def test_a_dry_run_says_once_what_it_would_end(
    things: Things, store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    executor = Executor(
        ObjectTarget(store, store), any_journal, clock=clock, metrics=metrics, actor="test", dry_run=True
    )
    for _ in range(2):
        assert await end(executor, action_of(thing)) is Outcome.WOULD_END

    assert await things.left() == ["a"]
    assert await outcomes(any_journal) == [Outcome.WOULD_END]
    assert series(metrics).get('lapse_deletions_total{domain="things",reason="ttl_expired"}', 0) == 0


async def test_one_act_may_be_a_dry_run_among_others_that_are_not(
    things: Things, store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    dry, real = await things.add("a"), await things.add("b")
    executor = Executor(ObjectTarget(store, store), any_journal, clock=clock, metrics=metrics, actor="test")
    found = await end_all(executor, [replace(action_of(dry), dry_run=True), action_of(real)])

    assert found == [Outcome.WOULD_END, Outcome.ENDED]
    assert await things.left() == ["a"]


async def test_what_is_gone_already_is_a_success(
    things: Things, store: EmbeddedStore, executor: Executor, any_journal: SQLiteJournal, metrics: Metrics
) -> None:
    thing = await things.add("a")
    await store.delete(THING, key("a"))

    assert await end(executor, action_of(thing)) is Outcome.GONE
    # Whoever was quicker has written the row; an intent, though, is never left without its outcome.
    shared = any_journal.shares(store)
    assert await outcomes(any_journal) == ([] if shared else [Outcome.GONE])
    assert series(metrics).get('lapse_deletions_total{domain="things",reason="ttl_expired"}', 0) == 0


async def test_what_changed_since_the_decision_stays(
    things: Things, executor: Executor, any_journal: SQLiteJournal
) -> None:
    thing = await things.add("a")
    await things.patch("a", {"spec": {"expires": 0}})

    assert await end(executor, action_of(thing)) is Outcome.CHANGED
    assert await things.left() == ["a"]
    assert await outcomes(any_journal) == [Outcome.CHANGED]


async def test_another_object_of_the_same_name_stays(
    things: Things, store: EmbeddedStore, executor: Executor, any_journal: SQLiteJournal
) -> None:
    thing = await things.add("a")
    await store.delete(THING, key("a"))
    await things.add("a")

    assert await end(executor, action_of(thing)) is Outcome.CHANGED
    assert await things.left() == ["a"]


# --- gate -----------------------------------------------------------------------------------------------------------


async def test_a_gate_that_refuses_prevents_the_act(
    things: Things, store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    target = ObjectTarget(store, store)
    executor = Executor(target, any_journal, clock=clock, metrics=metrics, actor="test", gate=Against())

    assert await end(executor, action_of(thing)) is Outcome.REFUSED
    assert await things.left() == ["a"]
    (row,) = await any_journal.entries()
    assert (row.verdict, row.reason, row.outcome) == ("unknown", "clock_jumped", Outcome.REFUSED)


# --- failures --------------------------------------------------------------------------------------------------------


class Broken:
    """The real store, except that deletions fail as they are told to: before they happen, or after."""

    def __init__(self, store: EmbeddedStore, error: BaseException, *, after: bool = False) -> None:
        self._store, self._error, self._after = store, error, after

    @property
    def database(self) -> Database:
        return self._store.database

    async def delete(self, kind: Kind[Any], key: ObjectKey, *, uid: str, version: str) -> None:
        if self._after:
            await self._store.delete(kind, key, uid=uid, version=version)
        raise self._error

    async def delete_all(self, deletions: Sequence[Deletion], *, also: Writer) -> None:
        if self._after:
            await self._store.delete_all(deletions, also=also)
        raise self._error


@pytest.mark.parametrize("error", [StoreUnavailableError(problem="it restarts"), RuntimeError("a defect, token=hush")])
async def test_a_failure_is_an_outcome_and_never_raised(
    things: Things,
    store: EmbeddedStore,
    any_journal: SQLiteJournal,
    clock: VirtualClock,
    metrics: Metrics,
    error: Exception,
) -> None:
    thing = await things.add("a")
    broken: Any = Broken(store, error)
    executor = Executor(ObjectTarget(broken, store), any_journal, clock=clock, metrics=metrics, actor="test")

    assert await end(executor, action_of(thing)) is Outcome.FAILED
    assert await outcomes(any_journal) == [Outcome.FAILED]
    row = (await any_journal.entries())[0]
    assert row.details is not None
    assert row.details["error"] == type(error).__name__
    assert "hush" not in str(row.details)
    assert series(metrics)['lapse_errors_total{domain="things",kind="item"}'] == 1


async def test_in_one_database_there_is_no_act_without_its_row(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    def crash(_cursor: object, _which: object) -> None:
        raise RuntimeError("between the act and its row")

    thing = await things.add("a")
    play(journal, writer=lambda _entry: crash)
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test")

    assert await end(executor, action_of(thing)) is Outcome.FAILED
    assert await things.left() == ["a"]


async def test_of_several_in_one_transaction_one_that_fails_does_not_stop_the_others(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    real = journal.writer

    def writer(*entries: Entry) -> Writer:
        def write(cursor: object, which: Sequence[int] | None = None) -> None:
            real(*entries)(cursor, which)
            if any(entry.address.endswith("/bad") and entry.outcome is Outcome.ENDED for entry in entries):
                raise RuntimeError("after the rows")

        return write

    play(journal, writer=writer)
    all_of_them = [action_of(await things.add(name)) for name in ("a", "bad", "z")]
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test")

    assert await end_all(executor, all_of_them) == [Outcome.ENDED, Outcome.FAILED, Outcome.ENDED]
    assert await things.left() == ["bad"]
    assert sorted(await outcomes(journal)) == [Outcome.ENDED, Outcome.ENDED, Outcome.FAILED]


async def test_when_the_store_does_not_answer_several_fail_at_once_and_each_is_told(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    broken: Any = Broken(store, StoreUnavailableError(problem="it restarts"))
    all_of_them = [action_of(await things.add(name)) for name in ("a", "b")]
    executor = Executor(ObjectTarget(broken, store), journal, clock=clock, metrics=metrics, actor="test")

    assert await end_all(executor, all_of_them) == [Outcome.FAILED, Outcome.FAILED]
    assert await things.left() == ["a", "b"]
    assert await outcomes(journal) == [Outcome.FAILED, Outcome.FAILED]


async def test_in_one_database_there_is_no_row_without_its_act(
    things: Things, store: EmbeddedStore, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    await things.patch("a", {"spec": {"expires": 0}})
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test")
    await end(executor, action_of(thing))

    assert await outcomes(journal) == [Outcome.CHANGED], "and not ENDED"


async def test_in_two_databases_the_intent_comes_before_the_act_and_the_outcome_after_it(
    things: Things, store: EmbeddedStore, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    executor = Executor(ObjectTarget(store, store), far_journal, clock=clock, metrics=metrics, actor="test")
    await end(executor, action_of(thing))
    outcome, intent = await far_journal.entries()

    assert (intent.outcome, outcome.outcome) == (Outcome.INTENT, Outcome.ENDED)
    assert intent.attempt == outcome.attempt
    assert intent.details == {"shelf": 7}, "what must be remembered is written before the act"
    assert await far_journal.unfinished() == []


async def test_a_crash_after_the_act_leaves_an_intent_that_is_found(
    things: Things, store: EmbeddedStore, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    dying: Any = Broken(store, asyncio.CancelledError(), after=True)  # the nearest to a kill that a test survives
    executor = Executor(ObjectTarget(dying, store), far_journal, clock=clock, metrics=metrics, actor="test")
    with suppress(asyncio.CancelledError):
        await end(executor, action_of(thing))

    assert await things.left() == []
    (row,) = await far_journal.unfinished()
    assert (row.uid, row.outcome) == (thing.metadata.uid, Outcome.INTENT)


async def test_an_intent_that_cannot_be_written_prevents_the_act(
    things: Things, store: EmbeddedStore, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    thing = await things.add("a")
    far_journal.database.close()
    executor = Executor(ObjectTarget(store, store), far_journal, clock=clock, metrics=metrics, actor="test")

    assert await end(executor, action_of(thing)) is Outcome.FAILED
    assert await things.left() == ["a"]
    assert series(metrics)['lapse_errors_total{domain="things",kind="journal"}'] == 1


async def test_a_row_that_cannot_be_written_keeps_one_thing_and_not_the_others(
    things: Things, executor: Executor, any_journal: SQLiteJournal
) -> None:
    actions = [action_of(await things.add(f"thing-{number}")) for number in range(10)]
    actions[3] = replace(actions[3], details={"an object": object()})
    came = await end_all(executor, actions)

    assert [number for number, outcome in enumerate(came) if outcome is Outcome.FAILED] == [3]
    assert came.count(Outcome.ENDED) == 9
    assert await things.left() == ["thing-3"]
    assert await any_journal.unfinished() == []


@pytest.mark.parametrize(
    "answer",
    [None, "ended", [], [Outcome.ENDED] * 3, [Result(Outcome.ENDED)] * 4, [Result(Outcome.INTENT)] * 3],
    ids=["none", "text", "too few", "no results", "too many", "no outcome of an act"],
)
async def test_a_target_that_does_not_say_what_it_did_is_not_asked_to_do_it_again(
    things: Things,
    store: EmbeddedStore,
    far_journal: SQLiteJournal,
    clock: VirtualClock,
    metrics: Metrics,
    answer: Any,  # noqa: ANN401 - that is the point
) -> None:
    target, calls = ObjectTarget(store, store), []

    async def apply(actions: Sequence[Action], *, also: Also | None) -> Any:  # noqa: ANN401 - that is the point
        calls.append(len(actions))
        return answer

    play(target, apply=apply)
    executor = Executor(target, far_journal, clock=clock, metrics=metrics, actor="test")
    results = await executor.execute([action_of(await things.add(name)) for name in ("a", "b", "c")])

    assert [one.outcome for one in results] == [Outcome.FAILED] * 3
    assert "expected" in str(results[0].problem)
    assert calls == [3]


async def test_what_is_ended_is_told_in_the_log_line_by_line_and_of_a_wave_by_number(
    things: Things,
    store: EmbeddedStore,
    journal: SQLiteJournal,
    clock: VirtualClock,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="test")
    with caplog.at_level("INFO"):
        await end(executor, action_of(await things.add("one")))
        await end_all(executor, [action_of(await things.add(f"wave-{number}")) for number in range(25)])
    lines = [record.__dict__ for record in caplog.records if record.message == "lapsed"]
    assert lines[0]["address"] == "Thing.test.lapse.dev/default/one"
    assert lines[0]["reason"] == "ttl_expired"
    assert len(lines) == 1 + 10 + 1
    assert lines[-1]["more"] == 15


async def test_when_holds_cannot_be_looked_for_nothing_is_ended(
    things: Things, store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    class Silent:
        async def holds_over(self, _deletions: object, _now: object) -> Any:  # noqa: ANN401 - never answers
            raise StoreUnavailableError(problem="it restarts")

    thing = await things.add("a")
    executor = Executor(ObjectTarget(store, Silent()), any_journal, clock=clock, metrics=metrics, actor="test")

    (result,) = await executor.execute([action_of(thing)])

    assert result.outcome is Outcome.REFUSED
    assert "whether it is held" in str(result.problem)
    assert await things.left() == ["a"]
    (row,) = await any_journal.entries()
    assert (row.verdict, row.reason) == ("unknown", "unreadable_signal")
    assert "it restarts" in str(row.details)


async def test_a_dry_run_tells_what_another_object_holds(
    things: Things, store: EmbeddedStore, any_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics
) -> None:
    owner, thing = await things.add("owner", hold="true"), await things.add("a")
    reference = {"apiVersion": THING.api_version, "kind": THING.kind, "name": "owner", "uid": owner.metadata.uid}
    owned = await store.patch(THING, thing.metadata.key, {"metadata": {"ownerReferences": [reference]}})
    executor = Executor(
        ObjectTarget(store, store), any_journal, clock=clock, metrics=metrics, actor="test", dry_run=True
    )

    assert await end(executor, action_of(owned)) is Outcome.HELD
