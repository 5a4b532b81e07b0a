from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import UNREADABLE_EXTENSION, Due, DueReason, Keep, KeepReason, Unknown, UnknownReason, Verdict
from lapse.engine.domain import Candidate
from lapse.engine.safety.holds import Hold
from lapse.history.retention.grouping import GroupCounts, Unjudged, judge
from lapse.history.retention.passes import PassDomain
from lapse.history.retention.policy_set import DueObject
from lapse.history.retention.rules import (
    DoubtReason,
    Judgement,
    LimitReason,
    Protection,
    RetainedObject,
    RetainReason,
    RetentionLimits,
    Standing,
    combine,
    decide,
)

NOW = UnixNs(1_000_000)
HOLD = Hold("audit", None)
OVER = Hold("audit", UnixNs(NOW - 1))
TTL, COUNT = DueReason.TTL_EXPIRED, LimitReason.RETENTION_LIMIT
DELETED = {TTL, COUNT}


def entry(
    name: str,
    age: int | None,
    *,
    group: tuple[str, ...] | None = ("g",),
    is_kept: bool = False,
    hold: Hold | None = None,
    namespace: str | None = "chaos-system",
) -> RetainedObject:
    anchor = None if age is None else UnixNs(NOW - age)
    return RetainedObject(namespace, name, f"uid-{name}", "1", anchor, group, is_kept, hold)


def verdicts(entries: list[RetainedObject], limits: RetentionLimits) -> dict[str, Verdict]:
    return {one.entry.name: one.verdict for one in judge(entries, limits, NOW)}


def reasons(entries: list[RetainedObject], limits: RetentionLimits) -> dict[str, str]:
    return {name: verdict.reason for name, verdict in verdicts(entries, limits).items()}


def gone(entries: list[RetainedObject], limits: RetentionLimits) -> dict[str, str]:
    return {name: reason for name, reason in reasons(entries, limits).items() if reason in DELETED}


def records(*ages: int) -> list[RetainedObject]:
    return [entry(f"r{age}", age) for age in ages]


# --- one limit, both, none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (RetentionLimits(), {}),
        (RetentionLimits(max_age=25), {"r30": TTL, "r40": TTL}),
        (RetentionLimits(max_age=30), {"r40": TTL}),
        (RetentionLimits(max_age=1), {"r10": TTL, "r20": TTL, "r30": TTL, "r40": TTL}),
        (RetentionLimits(max_age=2**62), {}),
        (RetentionLimits(max_count=3), {"r40": COUNT}),
        (RetentionLimits(max_count=1), {"r20": COUNT, "r30": COUNT, "r40": COUNT}),
        (RetentionLimits(max_count=4), {}),
        (RetentionLimits(max_count=10**9), {}),
        (RetentionLimits(max_age=35, max_count=2), {"r30": COUNT, "r40": TTL}),
        (RetentionLimits(max_age=15, max_count=3), {"r20": TTL, "r30": TTL, "r40": TTL}),
        (RetentionLimits(max_age=100, max_count=2), {"r30": COUNT, "r40": COUNT}),
    ],
    ids=str,
)
def test_who_violates_either_limit_goes_once_and_by_age_first(
    limits: RetentionLimits, expected: dict[str, str]
) -> None:
    assert gone(records(30, 10, 40, 20), limits) == expected


def test_the_age_must_exceed_the_limit_to_the_nanosecond() -> None:
    assert gone([entry("at", 25), entry("past", 26)], RetentionLimits(max_age=25)) == {"past": TTL}


def test_it_is_due_since_its_age_or_since_one_too_many_came() -> None:
    found = verdicts(records(10, 20, 30, 40, 50), RetentionLimits(max_age=45, max_count=2))
    assert found["r50"] == Due("delete", TTL, UnixNs(NOW - 5))
    assert found["r40"] == Due("delete", COUNT, UnixNs(NOW - 20))
    assert found["r30"] == Due("delete", COUNT, UnixNs(NOW - 10))


def test_what_stays_is_looked_at_when_its_age_will_be_too_much() -> None:
    assert verdicts([entry("a", 10)], RetentionLimits(max_age=25)) == {"a": Keep(KeepReason.NOT_YET, UnixNs(NOW + 16))}
    assert verdicts([entry("a", 10)], RetentionLimits(max_count=1)) == {"a": Keep(KeepReason.NOT_YET)}
    assert verdicts([entry("a", 10)], RetentionLimits()) == {"a": Keep(KeepReason.NO_LIMIT)}


@pytest.mark.parametrize(
    "wrong", [{"max_age": 0}, {"max_age": -1}, {"max_count": 0}, {"max_count": -1}, {"keep_last": -1}]
)
def test_a_limit_that_would_wipe_everything_cannot_be_made(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RetentionLimits(**wrong)


# --- order ------------------------------------------------------------------------------------------------------------


def test_of_the_same_second_the_greater_name_is_the_newer_one() -> None:
    same = [entry(name, 10) for name in ("b", "d", "a", "c")]
    assert (
        gone(same, RetentionLimits(max_count=2))
        == gone(same[::-1], RetentionLimits(max_count=2))
        == {"a": COUNT, "b": COUNT}
    )


def test_a_record_created_during_the_pass_is_not_counted_as_old() -> None:
    found = [*records(10, 20), entry("new", -5)]
    assert gone(found, RetentionLimits(max_age=1_000, max_count=2)) == {"r20": COUNT}
    assert gone([entry("new", -5)], RetentionLimits(max_age=1)) == {}


# --- groups -----------------------------------------------------------------------------------------------------------


def test_two_experiments_of_the_same_name_in_two_namespaces_do_not_share_a_budget() -> None:
    found = [
        entry("a1", 10, group=("shop", "kill", "u1")),
        entry("a2", 20, group=("shop", "kill", "u1")),
        entry("b1", 30, group=("bank", "kill", "u2")),
        entry("b2", 40, group=("bank", "kill", "u2")),
        entry("c1", 50, group=("shop", "kill", "u3")),  # made again under the same name
    ]
    assert gone(found, RetentionLimits(max_count=2)) == {}
    assert gone(found, RetentionLimits(max_count=1)) == {"a2": COUNT, "b2": COUNT}


def test_what_has_no_group_goes_by_age_but_never_by_count() -> None:
    found = [entry(f"r{age}", age, group=None) for age in (10, 20, 30)]
    assert gone(found, RetentionLimits(max_count=1)) == {}
    assert gone(found, RetentionLimits(max_age=25, max_count=1)) == {"r30": TTL}


def test_what_has_no_group_may_be_the_last_good_one() -> None:
    found = reasons(
        [entry("old", 30, group=None), entry("new", 10, group=None)], RetentionLimits(max_age=25, keep_last=1)
    )
    assert found == {"old": DoubtReason.UNKNOWN_GROUP, "new": KeepReason.NOT_YET}


# --- what stays nevertheless ------------------------------------------------------------------------------------------


def test_the_last_good_ones_stay_whatever_the_limits_say() -> None:
    found = [
        entry("bad-new", 10),
        entry("good-new", 20, is_kept=True),
        entry("good", 30, is_kept=True),
        entry("bad-old", 40),
        entry("good-old", 50, is_kept=True),
    ]
    by_age = reasons(found, RetentionLimits(max_age=15, keep_last=2))
    assert by_age["good-new"] == by_age["good"] == RetainReason.KEEP_LAST
    assert [name for name, reason in by_age.items() if reason in DELETED] == ["bad-old", "good-old"]
    assert gone(found, RetentionLimits(max_count=1, keep_last=1)) == {
        "good": COUNT,
        "bad-old": COUNT,
        "good-old": COUNT,
    }
    assert gone(found, RetentionLimits(max_age=45, max_count=1, keep_last=5)) == {"bad-old": COUNT}


def test_the_last_good_ones_are_those_of_each_group() -> None:
    found = [entry("a", 30, group=("a",), is_kept=True), entry("b", 40, group=("b",), is_kept=True)]
    assert gone(found, RetentionLimits(max_age=15, keep_last=1)) == {}


def test_what_is_held_stays_and_the_others_are_judged_as_if_it_were_not_there() -> None:
    free = records(10, 20, 30, 40)
    for held in free:
        found = [entry(one.name, NOW - (one.anchor or 0), hold=HOLD if one is held else None) for one in free]
        for limits in (
            RetentionLimits(max_count=2),
            RetentionLimits(max_age=25),
            RetentionLimits(max_age=35, max_count=1),
            RetentionLimits(max_age=5, keep_last=2),
        ):
            others = [one for one in free if one is not held]
            assert gone(found, limits) == gone(others, limits)
            assert held.name not in gone(found, limits)


def test_what_is_held_and_would_go_otherwise_is_told() -> None:
    found = [entry("held", 40, hold=HOLD), *records(10, 20)]
    for limits in (RetentionLimits(max_count=2), RetentionLimits(max_age=25)):
        assert reasons(found, limits)["held"] == KeepReason.HELD
    assert reasons(found, RetentionLimits(max_count=3))["held"] == KeepReason.NOT_YET


NOON = UnixNs(1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("extended", "limits", "expected"),
    [
        (NOON, RetentionLimits(max_age=25), KeepReason.EXTENDED),
        (NOON, RetentionLimits(max_count=1), KeepReason.EXTENDED),
        (NOON - 1, RetentionLimits(max_age=25), TTL),
        (NOON - 1, RetentionLimits(max_count=1), COUNT),
        (UNREADABLE_EXTENSION, RetentionLimits(max_age=25), UnknownReason.UNREADABLE_SIGNAL),
        (UNREADABLE_EXTENSION, RetentionLimits(max_count=1), UnknownReason.UNREADABLE_SIGNAL),
        (NOON + 9, RetentionLimits(max_age=99), KeepReason.NOT_YET),
    ],
)
def test_what_is_extended_stays_until_then(extended: int, limits: RetentionLimits, expected: str) -> None:
    ages = {"old": 30, "new": 20}
    old, new = (RetainedObject("n", name, "u", "1", UnixNs(NOON - age), ("g",)) for name, age in ages.items())
    judged = judge([replace(old, extended=UnixNs(extended)), new], limits, NOON)
    assert judged[0].verdict.reason == expected


def test_what_is_extended_counts_as_any_other() -> None:
    names = ("a", "b", "c")
    found = [RetainedObject("n", one, "u", "1", UnixNs(NOON - 9), ("g",)) for one in names]
    judged = judge([*found[:2], replace(found[2], extended=UnixNs(NOON + 1))], RetentionLimits(max_count=1), NOON)
    assert [one.verdict.reason for one in judged] == [COUNT, COUNT, KeepReason.NOT_YET]


def test_a_hold_that_is_over_holds_nothing() -> None:
    assert gone([entry("a", 30, hold=OVER)], RetentionLimits(max_age=25)) == {"a": TTL}


# --- doubt ------------------------------------------------------------------------------------------------------------


def test_without_an_anchor_nothing_goes_and_no_place_is_taken() -> None:
    found = [entry("x", None), entry("y", None), *records(10, 20, 30)]
    for limits in (
        RetentionLimits(max_age=1),
        RetentionLimits(max_count=1),
        RetentionLimits(max_age=1, max_count=1, keep_last=1),
    ):
        assert verdicts(found, limits)["x"] == Unknown(UnknownReason.MISSING_ANCHOR)
    assert gone(found, RetentionLimits(max_count=2)) == {"r30": COUNT}


# --- several policies -------------------------------------------------------------------------------------------------

ONE = entry("one", 30, is_kept=True)
AGE_DUE = Judgement(ONE, Due("delete", TTL, UnixNs(NOW - 5)))
COUNT_DUE = Judgement(ONE, Due("delete", COUNT, UnixNs(NOW - 9)))
NOT_YET = Judgement(ONE, Keep(KeepReason.NOT_YET, UnixNs(NOW + 5)))
LATER = Judgement(ONE, Keep(KeepReason.NOT_YET))
LAST = Judgement(ONE, Keep(RetainReason.KEEP_LAST), Protection.CERTAIN)
LAST_NOT_DUE = Judgement(ONE, Keep(KeepReason.NOT_YET), Protection.CERTAIN)
MAYBE_LAST = Judgement(ONE, Unknown(UnknownReason.MISSING_ANCHOR), Protection.POSSIBLE)
NOT_KNOWN = Judgement(ONE, Unknown(UnknownReason.MISSING_ANCHOR))
HELD = Judgement(ONE, Keep(KeepReason.HELD))


@pytest.mark.parametrize(
    ("winner", "losers"),
    [
        (HELD, [LAST, AGE_DUE, NOT_KNOWN]),
        (LAST, [AGE_DUE, COUNT_DUE, NOT_KNOWN, LAST_NOT_DUE, MAYBE_LAST]),
        (LAST_NOT_DUE, [AGE_DUE, COUNT_DUE, NOT_YET]),
        (MAYBE_LAST, [AGE_DUE, COUNT_DUE]),
        (AGE_DUE, [COUNT_DUE, NOT_YET, NOT_KNOWN]),
        (COUNT_DUE, [NOT_YET, NOT_KNOWN]),
        (NOT_KNOWN, [NOT_YET, LATER]),
        (NOT_YET, [LATER]),
    ],
)
def test_a_hold_or_the_last_ones_win_over_any_limit_and_a_limit_over_doubt(
    winner: Judgement, losers: list[Judgement]
) -> None:
    for loser in losers:
        assert combine([winner, loser]) is combine([loser, winner]) is winner
    assert combine([*losers, winner]) is winner


# --- the model --------------------------------------------------------------------------------------------------------


def model(entries: list[RetainedObject], limits: RetentionLimits) -> dict[str, str]:
    """The rules again, as slow and as short as they can be said."""
    found: dict[str, str] = {}
    for one in entries:
        newer = [
            other for other in entries
            if other.group == one.group and other.hold is not HOLD
            and (other.anchor or -9**9, other.name) > (one.anchor or -9**9, one.name)
        ]  # fmt: skip
        too_old = bool(limits.max_age) and one.anchor is not None and NOW - one.anchor > (limits.max_age or 0)
        too_many = bool(limits.max_count) and one.group is not None and len(newer) >= (limits.max_count or 0)
        is_last = (one.is_kept and sum(other.is_kept for other in newer) < limits.keep_last) or (
            one.group is None and limits.keep_last > 0
        )
        if one.anchor is not None and one.hold is not HOLD and not is_last and (too_old or too_many):
            found[one.name] = TTL if too_old else COUNT
    return found


@dataclass(frozen=True)
class World:
    entries: list[RetainedObject]
    limits: RetentionLimits


@st.composite
def worlds(draw: st.DrawFn) -> World:
    limits = RetentionLimits(
        max_age=draw(st.none() | st.integers(1, 10)),
        max_count=draw(st.none() | st.integers(1, 5)),
        keep_last=draw(st.integers(0, 3)),
    )
    ages = st.none() | st.integers(-3, 12)
    groups = st.none() | st.sampled_from([("a",), ("b",), ("a", "b")])
    entries = [
        entry(
            f"r{number:02}",
            draw(ages),
            group=draw(groups),
            is_kept=limits.keep_last > 0 and draw(st.booleans()),
            hold=draw(st.sampled_from([None, None, HOLD, OVER])),
        )
        for number in range(draw(st.integers(0, 15)))
    ]
    return World(draw(st.permutations(entries)), limits)


@given(worlds())
def test_for_any_records_the_result_is_that_of_the_model(world: World) -> None:
    assert gone(world.entries, world.limits) == model(world.entries, world.limits)


@given(worlds())
def test_counts_of_groups_and_a_look_at_the_groups_that_they_name_find_the_same(world: World) -> None:
    counts = GroupCounts(world.limits, NOW)
    alone = [judged for one in world.entries if not isinstance(judged := counts.look(one), Unjudged)]
    read_again = [one for one in world.entries if counts.concerns(one)]
    assert not {one.entry.name for one in alone} & {one.name for one in read_again}, "judged twice"
    found = {one.entry.name: one.verdict.reason for one in [*alone, *judge(read_again, world.limits, NOW)]}
    assert {name: reason for name, reason in found.items() if reason in DELETED} == gone(world.entries, world.limits)
    assert counts.is_settled is not any(map(counts.concerns, world.entries))


@given(worlds())
def test_a_second_pass_finds_nothing_more(world: World) -> None:
    first = gone(world.entries, world.limits)
    assert gone([one for one in world.entries if one.name not in first], world.limits) == {}


@given(worlds())
def test_nothing_goes_below_the_limit(world: World) -> None:
    if world.limits.max_age is None and world.limits.max_count is not None:
        left = [one for one in world.entries if one.name not in gone(world.entries, world.limits)]
        for group in {one.group for one in world.entries if one.group is not None}:
            before = sum(one.group == group and one.anchor is not None for one in world.entries)
            after = sum(one.group == group and one.anchor is not None for one in left)
            assert after >= min(before, world.limits.max_count)


# --- what several policies decide on ----------------------------------------------------------------------------------

HOUR = 1_000
OLD = RetainedObject("n", "a", "u", "1", UnixNs(NOW - 2 * HOUR), ("g",))
AGED = RetentionLimits(max_age=HOUR)


@pytest.mark.parametrize(
    ("standings", "reason"),
    [
        ([Standing(OLD, AGED)], "ttl_expired"),
        ([Standing(OLD, RetentionLimits(max_age=3 * HOUR))], "not_yet"),
        ([Standing(OLD, RetentionLimits(max_count=1), over_since=UnixNs(NOW - HOUR))], "retention_limit"),
        ([Standing(OLD, RetentionLimits(max_count=1))], "not_yet"),
        ([Standing(OLD, RetentionLimits(max_age=HOUR, keep_last=1), is_last=True)], "keep_last"),
        ([Standing(OLD, AGED), Standing(OLD, RetentionLimits(keep_last=1), is_last=True)], "no_limit"),
        ([Standing(OLD, AGED, dry_run=True)], "ttl_expired"),
        (
            [Standing(OLD, AGED, dry_run=True), Standing(OLD, RetentionLimits(max_count=1), UnixNs(NOW - HOUR))],
            "retention_limit",
        ),
    ],
)
def test_a_decision_is_a_function_of_the_object_the_limits_and_the_rank(standings: list[Standing], reason: str) -> None:
    once, again = decide(standings, NOW), decide(standings, NOW)

    assert (once, once.verdict.reason) == (again, reason)


@pytest.mark.parametrize(("began", "reason"), [(NOW, "ttl_expired"), (UnixNs(NOW - HOUR), "not_yet")])
def test_a_pass_decides_on_the_state_and_not_by_what_was_said_before(began: UnixNs, reason: str) -> None:
    before = Due("delete", DueReason.TTL_EXPIRED, NOW)
    state = DueObject((Standing(OLD, AGED),), began, OLD, before, (), dry_run=False)
    seen: Any = Candidate(address=Address("history", "n", "a"), uid="u", version="1", state=state, handle=None)
    found = PassDomain.decide(cast("PassDomain", None), seen, UnixNs(NOW + 9 * HOUR))

    assert (found.verdict.reason, found.anchor) == (reason, OLD.anchor)
