"""Races: many processes with many threads at the same key at the same time.

A write whose outcome the backend could not tell (`OutcomeUnknownError`) counts as neither won nor lost: it may have
been applied, so it widens what may be seen by one, and no more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lapse.core.identity import owner_token
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CaseKind, CaseRegistry, ContractRule, Violation, expect, expect_that
from lapse.keys.conformance.fixture import LONG, CaseFixture, now_ns
from lapse.keys.conformance.worker import START, TTL_SECONDS, UNKNOWN, Order, WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_ROUNDS: Final = 30
_COUNTS: Final = 6
_FEWEST_ROUNDS: Final = 2
_SECONDS: Final = 1.5
"""A race is repeated until this much time is over: a slow store gets fewer rounds, never less than a few."""
_TASKS: Final = 50


class _Race:
    """Rounds of one race, each on a key of its own."""

    def __init__(self, fixture: CaseFixture) -> None:
        self.fixture = fixture
        self.keys: AppKeys = fixture.app()
        self.workers = fixture.session.workers
        self.rounds = 0

    def each_round(self, most: int = _ROUNDS) -> Iterator[str]:
        """Give the keys to race on, until there were enough."""
        started_ns = now_ns()
        while self.rounds < _FEWEST_ROUNDS or (self.rounds < most and now_ns() - started_ns < _SECONDS * 1e9):
            self.rounds += 1
            yield f"race:{self.rounds}"

    def run(self, act: str, key: str, *, times: int = 1, seconds: float = _SECONDS) -> list[WorkerReport]:
        self.fixture.note(Prefix.APPLICATION_TTL, self.keys.app_id, key)
        order = Order(act, self.keys.app_id, key, turn=self.rounds, times=times, seconds=seconds)
        return self.workers.run(order)

    def read(self, key: str) -> str | None:
        """Read what is stored, past any cache: a compare-and-delete of either outcome invalidates it."""
        self.keys.compare_and_delete(key, owner_token())
        return self.keys.ttl_get(key)

    def told(self) -> str:
        rounds = f"{self.rounds} rounds" if self.rounds > 1 else "one round"
        return f"{rounds}, {self.workers.description}"


def _expect_one(reports: list[WorkerReport], what: str) -> tuple[list[str], list[str]]:
    """Exactly one won, or it is among those who do not know. Return both."""
    winners = [report.who for report in reports if report.answer is True]
    undecided = [report.who for report in reports if report.answer == UNKNOWN]
    fits = len(winners) == 1 or (not winners and bool(undecided))
    expect_that(fits, f"winners of {what} among {len(reports)}", wanted="exactly one", saw=winners)
    return winners, undecided


def _expect_one_winner(reports: list[WorkerReport], stored: str | None, what: str) -> None:
    """Exactly one won, and the stored value is the winner's."""
    winners, undecided = _expect_one(reports, what)
    expect_that(stored in (winners or undecided), f"the stored value after {what}", wanted="the winner's", saw=stored)


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_inserts_have_one_winner(fixture: CaseFixture) -> str:
    """Of many who insert the same absent key exactly one wins, and the stored value is the winner's."""
    race = _Race(fixture)
    for key in race.each_round():
        _expect_one_winner(race.run("insert", key), race.read(key), "racing inserts")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_inserts_on_an_expired_key_have_one_winner(fixture: CaseFixture) -> str:
    """Of many who insert the same expired key exactly one wins, and the stored value is the winner's."""
    race = _Race(fixture)
    names = list(race.each_round()) if fixture.target.exact_clock else [f"race:{number}" for number in range(1, 6)]
    race.rounds = len(names)
    race.keys.insert_many([(name, START, 1) for name in names])
    fixture.pass_ttl(1)
    for key in names:
        _expect_one_winner(race.run("insert", key), race.read(key), "racing inserts on an expired key")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def key_that_expires_during_a_race_has_one_next_owner(fixture: CaseFixture) -> str:
    """Of many who insert again and again while a key expires exactly one takes it over."""
    race = _Race(fixture)
    race.rounds = 1
    race.keys.insert_if_not_exists("race", START, 1)
    reports = race.run("insert-until-taken", "race", seconds=3 + fixture.target.late_by_seconds)
    _expect_one_winner(reports, race.read("race"), "inserts while a key expires")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_insert_many_have_one_winner_per_key(fixture: CaseFixture) -> str:
    """Of many who insert the same keys in one call each, every key has exactly one winner."""
    race = _Race(fixture)
    race.rounds, width = 1, 25
    for number in range(width):
        fixture.note(Prefix.APPLICATION_TTL, race.keys.app_id, f"race:{number}")
    reports = race.run("insert-many", "race", times=width)
    stored = race.keys.get_many([f"race:{number}" for number in range(width)])
    for number in range(width):
        per_key = [WorkerReport(report.who, report.answer[number]) for report in reports]
        _expect_one_winner(per_key, stored.get(f"race:{number}"), "racing insert_many")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_swaps_have_one_winner(fixture: CaseFixture) -> str:
    """Of many who swap the same value exactly one wins, and the stored value is the winner's."""
    race = _Race(fixture)
    for key in race.each_round():
        race.keys.put(key, START, TTL_SECONDS)
        _expect_one_winner(race.run("swap", key), race.read(key), "racing swaps")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_compare_and_deletes_have_one_winner(fixture: CaseFixture) -> str:
    """Of many who compare and delete the same record exactly one wins, and the record is gone."""
    _race_of_deletes(race := _Race(fixture), "delete-if", "racing compare-and-deletes")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def racing_deletes_have_one_winner(fixture: CaseFixture) -> str:
    """Of many who delete the same record exactly one is told that it was there, and the record is gone."""
    _race_of_deletes(race := _Race(fixture), "delete", "racing deletes")
    return race.told()


def _race_of_deletes(race: _Race, act: str, what: str) -> None:
    for key in race.each_round():
        race.keys.put(key, START, TTL_SECONDS)
        reports = race.run(act, key)
        _expect_one(reports, what)
        expect(race.read(key), None, f"ttl_get after {what}")


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def swap_and_compare_and_delete_exclude_each_other(fixture: CaseFixture) -> str:
    """Of many who swap or compare and delete the same value exactly one wins, and leaves what it should."""
    race = _Race(fixture)
    for key in race.each_round():
        race.keys.put(key, START, TTL_SECONDS)
        reports = race.run("swap-or-delete-if", key)
        answers = [WorkerReport(report.who, report.answer[1]) for report in reports]
        left = {report.who: report.who if report.answer[0] == "swap" else None for report in reports}
        winners, undecided = _expect_one(answers, "racing swaps and compare-and-deletes")
        wanted = {left[who] for who in winners or undecided}
        stored = race.read(key)
        expect_that(stored in wanted, "ttl_get after the race", wanted="what the winner left", saw=stored)
    return race.told()


def _counted(race: _Race, act: str) -> str:
    total = 0
    for key in race.each_round(most=_COUNTS):
        race.keys.put(key, "0", TTL_SECONDS)
        reports = race.run(act, key, times=25, seconds=1)
        done = sum(report.answer[0] for report in reports)
        unknown = sum(report.answer[1] for report in reports)
        saw = race.read(key)
        fits = saw is not None and done <= int(saw) <= done + unknown
        expect_that(fits, f"a counter after {done} successful swaps", wanted=str(done), saw=saw)
        expect_that(done > 0, "successful swaps", wanted="some", saw=done)
        total += done
    return f"{total} swaps, {race.told()}"


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def no_update_of_a_counter_is_lost(fixture: CaseFixture) -> str:
    """A counter that many raise by compare-and-swap ends at the number of successful swaps."""
    return _counted(_Race(fixture), "count")


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def touch_loses_no_update(fixture: CaseFixture) -> str:
    """A counter that many raise while many touch it ends at the number of successful swaps."""
    return _counted(_Race(fixture), "count-or-touch")


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def touch_revives_no_deleted_key(fixture: CaseFixture) -> str:
    """A key that is deleted while many touch it is gone for every reader."""
    race = _Race(fixture)
    for key in race.each_round():
        race.keys.put(key, START, TTL_SECONDS)
        reports = race.run("touch-or-delete", key)
        deletes = [report.answer[1] for report in reports if report.answer[0] == "delete"]
        if True not in deletes and UNKNOWN in deletes:
            continue
        expect(deletes.count(True) + deletes.count(UNKNOWN) > 0, True, "one delete finds the record")
        expect(race.read(key), None, "ttl_get after a delete that raced with touches")
        expect([item.key for item in race.keys.scan(key)], [], "a scan after a delete that raced with touches")
    return race.told()


@case(ContractRule.ATOMIC, kind=CaseKind.RACE)
def puts_and_deletes_leave_what_somebody_wrote(fixture: CaseFixture) -> str:
    """After many puts and deletes a key is absent or has a value that somebody wrote, and every reader agrees."""
    race = _Race(fixture)
    times = 10
    for key in ("mixed:1", "mixed:2", "mixed:3"):
        race.rounds += 1
        reports = race.run("put-or-delete", key, times=times)
        value = race.read(key)
        written = {None} | {f"{report.who}:{number}" for report in reports for number in range(times)}
        expect_that(
            value in written, "ttl_get after puts and deletes", wanted="None or a value that a worker wrote", saw=value
        )
        keys = race.keys
        expect(
            [item.value for item in keys.scan(key)], [] if value is None else [value], "a scan, compared with ttl_get"
        )
        expect(keys.get_many([key]), {} if value is None else {key: value}, "get_many, compared with ttl_get")
        expect(keys.query_ttl(key) is None, value is None, "query_ttl is None, compared with ttl_get")
        expect(keys.insert_if_not_exists(key, "next", LONG), value is None, "an insert, compared with ttl_get")
    return race.told()


@case(ContractRule.LOCK, kind=CaseKind.RACE)
def racing_locks_have_one_holder_at_a_time(fixture: CaseFixture) -> str:
    """Of many who take the same lock again and again never two hold it at once, and no fencing number comes twice."""
    race = _Race(fixture)
    number = race.keys.app_id
    for record in ("lock:race", "fence:race"):
        fixture.note(Prefix.LEADER_ELECTION, number, record)
    fixture.note(Prefix.APPLICATION_TTL, number, "race:inside")
    reports = race.run("hold-lock", "race", times=3)
    expect(sum(report.answer[1] for report in reports), 0, "holders that found another holder inside")
    expect(sum(report.answer[2] for report in reports), 0, "holders that lost the lock long before its TTL was over")
    fences = [fence for report in reports for fence in report.answer[0]]
    expect(len(fences), len(set(fences)), "fencing numbers, all different")
    expect_that(bool(fences), "holders of the lock", wanted="some", saw=0)
    for report in reports:
        expect(report.answer[0], sorted(report.answer[0]), "the fencing numbers that one worker drew")
    return f"{len(fences)} holders, {race.workers.description}"


# --- tasks of one event loop -----------------------------------------------------------------------------------------


def _gather(fixture: CaseFixture, act: Callable[[int], object]) -> list[object]:
    async def all_at_once() -> list[object]:
        return list(await asyncio.gather(*(act(number) for number in range(_TASKS))))  # type: ignore[call-overload]  # one type for all

    return fixture.session.loop.run(all_at_once())


@case(ContractRule.ATOMIC)
def racing_tasks_have_one_winner(fixture: CaseFixture) -> str:
    """Of many tasks of one event loop that insert the same key exactly one wins."""
    number = fixture.session.draw_app()
    app = fixture.awaited.app(number)
    fixture.note(Prefix.APPLICATION_TTL, number, "k")
    answers = _gather(fixture, lambda task: app.insert_if_not_exists("k", str(task), LONG))
    winners = [task for task, answer in enumerate(answers) if answer is True]
    expect(len(winners), 1, f"winners among {_TASKS} tasks")
    expect(fixture.session.loop.run(app.ttl_get("k")), str(winners[0]), "the stored value")
    return f"{_TASKS} tasks of one event loop"


@case(ContractRule.ATOMIC)
def no_update_by_tasks_is_lost(fixture: CaseFixture) -> str:
    """A counter that many tasks of one event loop raise by compare-and-swap ends at the number of successful swaps."""
    number = fixture.session.draw_app()
    app = fixture.awaited.app(number)
    fixture.note(Prefix.APPLICATION_TTL, number, "k")

    async def raise_once(_: int) -> bool:
        seen = await app.ttl_get("k")
        if seen is None:
            raise Violation("ttl_get of a counter: expected a number, saw None")
        return await app.compare_and_swap("k", seen, str(int(seen) + 1), LONG)

    loop = fixture.session.loop
    loop.run(app.put("k", "0", LONG))
    done = sum(answer is True for _ in range(3) for answer in _gather(fixture, raise_once))
    expect(loop.run(app.ttl_get("k")), str(done), f"a counter after {done} successful swaps")
    return f"{done} swaps by {_TASKS} tasks of one event loop"
