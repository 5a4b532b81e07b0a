"""Expiry: the very instant on a virtual clock, a bracket in real time, and what a TTL (re)starts with.

The bracket has no false alarm on a slow machine. A write was applied between the moment it was sent and the moment it
was answered, and so was a read. A key is gone too early only if the answer came before the TTL could be over at the
earliest, and seen too late only if the question was asked after it must have been over at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapse.keys.conformance.case import CaseKind, CaseRegistry, ContractRule, expect, expect_that
from lapse.keys.conformance.cases.operations import expect_absent, expect_present, record
from lapse.keys.conformance.fixture import LONG, CaseFixture, now_ns, wait
from lapse.keys.store import AppKeys
from lapse.keys.validation import MAX_TTL_SECONDS

REGISTRY: Final = CaseRegistry(both_styles=True)
case = REGISTRY.case

_NS: Final = 1_000_000_000
_MS: Final = 1_000_000
_TTL: Final = 10
_SECOND_MS: Final = 1000

_EXACT_INSTEAD: Final = "there the bracketed cases hold the instant"
_DRIFT_NS: Final = 2 * _MS  # per second of TTL: how much faster the clock that decides may run than ours
_ROUNDING: Final = 0.02  # seconds: an expiry is a whole millisecond, and a clock may be slewed

Ask = Callable[[AppKeys, str], object]

_QUESTIONS: Final[dict[str, tuple[Ask, object, object]]] = {
    # question: how it is asked, the answer while "v" is live, the answer when it is gone
    "ttl_get": (lambda keys, key: keys.ttl_get(key), "v", None),
    "get_item": (lambda keys, key: keys.get_item(key) is not None, True, False),
    "query_ttl": (lambda keys, key: keys.query_ttl(key) is not None, True, False),
    "get_many": (lambda keys, key: key in keys.get_many([key]), True, False),
    "scan": (lambda keys, key: [item.key for item in keys.scan(key)] == [key], True, False),
    "insert_if_not_exists": (lambda keys, key: keys.insert_if_not_exists(key, "w", LONG), False, True),
    "insert_many": (lambda keys, key: keys.insert_many([(key, "w", LONG)]), [False], [True]),
    "compare_and_swap": (lambda keys, key: keys.compare_and_swap(key, "v", "w", LONG), True, False),
    "compare_and_delete": (lambda keys, key: keys.compare_and_delete(key, "v"), True, False),
    "delete": (lambda keys, key: keys.delete(key), True, False),
    "touch": (lambda keys, key: keys.touch(key, LONG), True, False),
}


def _written(fixture: CaseFixture) -> AppKeys:
    """Return keys in which each question has a record of its own; the names are no prefixes of each other."""
    keys = fixture.app()
    for number, question in enumerate(_QUESTIONS):
        keys.put(f"{number:02}:{question}", "v", _TTL)
    return keys


def _ask_all(keys: AppKeys, which: int, when: str) -> None:
    for number, (question, entry) in enumerate(_QUESTIONS.items()):
        expect(entry[0](keys, f"{number:02}:{question}"), entry[which], f"{question} {when}")


@case(ContractRule.INSTANT)
def alive_until_the_last_nanosecond(fixture: CaseFixture) -> None:
    """One nanosecond before its expiry a key is alive for every operation."""
    clock = fixture.only_exact(_EXACT_INSTEAD)
    keys = _written(fixture)
    clock.advance(_TTL, ns=-1)
    _ask_all(keys, 1, "one nanosecond before the expiry")


@case(ContractRule.INSTANT)
def gone_at_the_instant_of_expiry(fixture: CaseFixture) -> None:
    """At the instant of its expiry a key is gone for every operation."""
    clock = fixture.only_exact(_EXACT_INSTEAD)
    keys = _written(fixture)
    clock.advance(_TTL)
    _ask_all(keys, 2, "at the instant of the expiry")


@case(ContractRule.INSTANT)
def written_between_two_milliseconds(fixture: CaseFixture) -> None:
    """A key written between two milliseconds lives its whole TTL, and goes at the expiry that it shows."""
    clock = fixture.only_exact(_EXACT_INSTEAD)
    keys = fixture.app()
    clock.advance(ns=1)
    written_ns = clock.wall_ns()
    keys.insert_if_not_exists("k", "v", 1)
    over_ns = record(keys).expires_ms * _MS
    fits = written_ns + _NS <= over_ns < written_ns + _NS + _MS
    expect_that(
        fits, "the lifetime of a TTL of 1", wanted="1 s, and less than 1 ms more", saw=f"{over_ns - written_ns} ns"
    )
    clock.advance(ns=over_ns - written_ns - 1)
    expect(keys.ttl_get("k"), "v", "ttl_get one nanosecond before the shown expiry")
    clock.advance(ns=1)
    expect(keys.ttl_get("k"), None, "ttl_get at the shown expiry")


@case(ContractRule.INSTANT)
def ttl_of_one_lives_one_second(fixture: CaseFixture) -> None:
    """A TTL of 1 lives at least one second."""
    if fixture.clock is None:
        _bracket(fixture, 1, "ttl_get")
        return
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", 1)
    fixture.clock.advance(ns=_NS - 1)
    expect(keys.ttl_get("k"), "v", "ttl_get of a TTL of 1 after 0.999999999 s")


@case(ContractRule.INSTANT, kind=CaseKind.REAL)
def readers_never_early_and_late_within_the_bound(fixture: CaseFixture) -> None:
    """No reader loses a key before its TTL is over, and none sees it later than the stated bound after."""
    _bracket(fixture, 1, "ttl_get", "get_item", "query_ttl", "get_many", "scan")


@case(ContractRule.INSTANT, kind=CaseKind.REAL)
def inserts_never_early_and_late_within_the_bound(fixture: CaseFixture) -> None:
    """No insert takes a key before its TTL is over, and none is refused later than the stated bound after."""
    _bracket(fixture, 2, "insert_if_not_exists")


@case(ContractRule.INSTANT, kind=CaseKind.REAL)
def swapped_key_never_early_and_late_within_the_bound(fixture: CaseFixture) -> None:
    """A key whose TTL was shortened by a swap goes when the new TTL is over, not early and not late."""
    _bracket(fixture, 1, "ttl_get", swapped=True)


def _bracket(fixture: CaseFixture, ttl: int, *questions: str, swapped: bool = False) -> None:
    """Ask until all say that the key is gone: none too early, none too late."""
    keys = fixture.app()
    if swapped:
        keys.insert_if_not_exists("k", "u", LONG)
    sent_ns = now_ns()
    if swapped:
        keys.compare_and_swap("k", "u", "v", ttl)
    else:
        keys.insert_if_not_exists("k", "v", ttl)
    bound = fixture.target.late_by_seconds + _ROUNDING
    earliest_ns = sent_ns + ttl * (_NS - _DRIFT_NS)
    latest_ns = now_ns() + ttl * _NS + round(bound * _NS)
    seeing = list(questions)
    while seeing:
        for question in tuple(seeing):
            what = f"the end of a TTL of {ttl}, asked by {question}"
            ask, alive, gone = _QUESTIONS[question]
            asked_ns = now_ns()
            answer = ask(keys, "k")
            early, late = (earliest_ns - now_ns()) / _NS, (asked_ns - latest_ns) / _NS
            if answer == gone:
                expect_that(early <= 0, what, wanted="not early", saw=f"{early:.3f} s early")
                seeing.remove(question)
                continue
            expect(answer, alive, f"{question} while the key is live")
            expect_that(late <= 0, what, wanted=f"at most {bound:.3f} s late", saw=f"{late + bound:.3f} s late")
        wait(0.01)


# --- what a TTL starts and restarts with -----------------------------------------------------------------------------


@case(ContractRule.TTL)
def insert_long_swap_short_expire_insert_again(fixture: CaseFixture) -> None:
    """A key inserted with a long TTL and swapped to a short one is free for an insert when the short one is over."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", LONG)
    expect(keys.compare_and_swap("k", "v", "short", 1), True, "a swap to a short TTL")
    fixture.pass_ttl(1)
    expect_absent(keys, "after the short TTL")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after the short TTL")
    expect_present(keys, "next", "after that insert")


@case(ContractRule.TTL)
def insert_long_touch_short_expire_insert_again(fixture: CaseFixture) -> None:
    """A key inserted with a long TTL and touched with a short one is free for an insert when the short one is over."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", LONG)
    expect(keys.touch("k", 1), True, "a touch with a short TTL")
    fixture.pass_ttl(1)
    expect_absent(keys, "after the short TTL")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after the short TTL")
    expect_present(keys, "next", "after that insert")


@case(ContractRule.TTL)
def put_long_put_short_expire_insert_again(fixture: CaseFixture) -> None:
    """A key put with a long TTL and then with a short one is free for an insert when the short one is over."""
    keys = fixture.app()
    keys.put("k", "v", LONG)
    keys.put("k", "short", 1)
    fixture.pass_ttl(1)
    expect_absent(keys, "after the short TTL")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after the short TTL")
    expect_present(keys, "next", "after that insert")


def _renewed(fixture: CaseFixture, renew: Callable[[AppKeys], object], by: str, *, value: str) -> None:
    keys = fixture.app()
    with fixture.within(2):
        keys.insert_if_not_exists("k", "v", 2)
        renew(keys)
    fixture.pass_ttl(2)
    expect_present(keys, value, f"when the first TTL is over and the key was renewed by {by}")
    expect(keys.insert_if_not_exists("k", "other", LONG), False, f"an insert when the key was renewed by {by}")


@case(ContractRule.TTL)
def swap_restarts_the_ttl(fixture: CaseFixture) -> None:
    """A key that was swapped lives on when its first TTL is over."""
    _renewed(fixture, lambda keys: keys.compare_and_swap("k", "v", "new", LONG), "a swap", value="new")


@case(ContractRule.TTL)
def touch_restarts_the_ttl(fixture: CaseFixture) -> None:
    """A key that was touched lives on when its first TTL is over."""
    _renewed(fixture, lambda keys: keys.touch("k", LONG), "a touch", value="v")


@case(ContractRule.TTL)
def put_restarts_the_ttl(fixture: CaseFixture) -> None:
    """A key that was put again lives on when its first TTL is over."""
    _renewed(fixture, lambda keys: keys.put("k", "new", LONG), "a put", value="new")


@case(ContractRule.TTL)
def delete_and_insert_start_a_new_life(fixture: CaseFixture) -> None:
    """A key that was deleted and inserted again lives on when its first TTL is over."""

    def again(keys: AppKeys) -> None:
        expect(keys.delete("k"), True, "a delete of a live key")
        expect(keys.insert_if_not_exists("k", "new", LONG), True, "an insert after a delete")

    _renewed(fixture, again, "delete and insert", value="new")


@case(ContractRule.TTL)
def second_life_is_as_good_as_the_first(fixture: CaseFixture) -> None:
    """A key that expired and was inserted again expires again, after its own TTL."""
    keys = fixture.app()
    for life in ("first", "second", "third"):
        with fixture.within(1):
            expect(keys.insert_if_not_exists("k", life, 1), True, f"the insert of the {life} life")
            expect(keys.ttl_get("k"), life, f"ttl_get in the {life} life")
        fixture.pass_ttl(1)
        expect_absent(keys, f"after the {life} life")


@case(ContractRule.TTL)
def refused_writes_and_reads_prolong_nothing(fixture: CaseFixture) -> None:
    """Refused inserts, swaps and deletes, and reads of any kind, leave the expiry where it is."""
    keys = fixture.app()
    with fixture.within(2):
        keys.insert_if_not_exists("k", "v", 2)
        before = record(keys)
        keys.insert_if_not_exists("k", "other", LONG)
        keys.insert_many([("k", "other", LONG)])
        keys.compare_and_swap("k", "wrong", "other", LONG)
        keys.compare_and_delete("k", "wrong")
        expect_present(keys, "v", "after refused writes")
        expect(record(keys), before, "the record after refused writes and reads")
    fixture.pass_ttl(2)
    expect_absent(keys, "when the TTL is over, after refused writes and reads")


@case(ContractRule.TTL)
def each_key_has_its_own_ttl(fixture: CaseFixture) -> None:
    """Keys written together with different TTLs go one after the other."""
    keys = fixture.app()
    with fixture.within(2):
        expect(
            keys.insert_many([("a", "v", 2), ("b", "v", LONG), ("c", "v", 2), ("d", "v", 2 * LONG)]),
            [True] * 4,
            "insert_many",
        )
        expect(len(keys.scan()), 4, "the number of keys in a scan before any TTL is over")
    fixture.pass_ttl(2)
    expect([item.key for item in keys.scan()], ["b", "d"], "a scan when the short TTLs are over")
    left = [item.expires_ms for item in keys.scan()]
    expect_that(left[1] - left[0] >= (LONG - 1) * 1000, "two expiries", wanted="10 minutes apart", saw=left)


@case(ContractRule.TTL)
def longest_ttl(fixture: CaseFixture) -> None:
    """A TTL of 365 days is stored as it is; on an exact clock it ends after 365 days to the nanosecond."""
    keys = fixture.app()
    expect(keys.insert_if_not_exists("k", "v", MAX_TTL_SECONDS), True, "an insert with the longest TTL")
    left = keys.query_ttl("k")
    fits = left is not None and MAX_TTL_SECONDS - 60 < left <= MAX_TTL_SECONDS + 1
    expect_that(fits, "query_ttl of the longest TTL", wanted=f"{MAX_TTL_SECONDS} or a little less", saw=left)
    if fixture.clock is not None:
        fixture.clock.advance(MAX_TTL_SECONDS, ns=-1)
        expect(keys.ttl_get("k"), "v", "ttl_get one nanosecond before the end of 365 days")
        fixture.clock.advance(ns=1)
        expect(keys.ttl_get("k"), None, "ttl_get at the end of 365 days")


# --- what is told about it -------------------------------------------------------------------------------------------


@case(ContractRule.QUERY_TTL)
def query_ttl_is_never_zero_nor_more_than_the_ttl(fixture: CaseFixture) -> None:
    """The TTL that is left is told in milliseconds: never more than was given, never 0 for a live key."""
    clock = fixture.only_exact("there query-ttl-is-plausible holds what can be seen")
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", 1)
    for passed_ns, left in (
        (0, 1.0),
        (1, 0.999),
        (_MS, 0.999),
        (_MS + 1, 0.998),
        (_NS - _MS, 0.001),
        (_NS - 1, 0.001),
        (_NS, None),
    ):
        clock.advance(ns=passed_ns - _since(fixture))
        expect(keys.query_ttl("k"), left, f"query_ttl of a TTL of 1 after {passed_ns} ns")


def _since(fixture: CaseFixture) -> int:
    return fixture.clock.monotonic_ns() if fixture.clock is not None else 0


@case(ContractRule.QUERY_TTL)
def query_ttl_is_plausible(fixture: CaseFixture) -> None:
    """The TTL that is left lies between what must be left and what can be left, and is never 0 up to the end."""
    keys = fixture.app()
    ttl = 1
    sent_ns = now_ns()
    keys.insert_if_not_exists("k", "v", ttl)
    slack = fixture.target.late_by_seconds + 0.001
    for step in range(10):
        left = keys.query_ttl("k")
        elapsed = step / 10 if fixture.clock is not None else (now_ns() - sent_ns) / _NS
        if left is None:
            expect_that(elapsed >= ttl, "query_ttl", wanted="a number while the key is live", saw=None)
            return
        fits = max(0, ttl - elapsed - 0.001) < left + 1e-9 and 0 < left <= ttl + slack
        expect_that(fits, f"query_ttl of a TTL of {ttl} after {elapsed:.3f} s", wanted="what is left", saw=left)
        if fixture.clock is not None:
            fixture.clock.advance(0.1)
        else:
            wait(0.1)


@case(ContractRule.QUERY_TTL)
def expires_at_is_plausible(fixture: CaseFixture) -> None:
    """The expiry of an item is an aware UTC time, now plus the TTL, and the same in get_item and scan."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", LONG)
    item = record(keys)
    scanned = keys.scan()
    expect([found.expires_ms for found in scanned], [item.expires_ms], "expires_ms in scan, compared with get_item")
    expect(str(item.expires_at.tzinfo), "UTC", "the time zone of expires_at")
    left = keys.query_ttl("k")
    if fixture.clock is not None:
        expect(
            item.expires_ms * _MS,
            fixture.clock.wall_ns() + LONG * _NS,
            "expires_ms of a record written now, in nanoseconds",
        )
        expect(left, float(LONG), "query_ttl of a record written now")


@case(ContractRule.QUERY_TTL)
def touch_with_the_same_ttl_moves_the_expiry(fixture: CaseFixture) -> None:
    """A touch later in a key's life moves its expiry by the time that has passed."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", LONG)
    before = record(keys)
    fixture.pass_ttl(1)
    expect(keys.touch("k", LONG), True, "a touch of a live key")
    moved = record(keys).expires_ms - before.expires_ms
    expect_that(
        moved >= _SECOND_MS,
        "the expiry after a touch one second later",
        wanted="at least 1000 ms later",
        saw=f"{moved} ms",
    )
