"""Counts of what expires until a moment, which people see in place of names.

For stores that can tell and whose clock can be moved; a store that answers None gives no occasion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CaseRegistry, ContractRule, expect, expect_that
from lapse.keys.conformance.fixture import LONG, CaseFixture
from lapse.keys.validation import MAX_TTL_SECONDS

if TYPE_CHECKING:
    from lapse.core.clock import VirtualClock
    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_NS: Final = 1_000_000_000
_MINUTE: Final = 60


def _clock(fixture: CaseFixture) -> VirtualClock:
    """Return the clock of a store that can tell what expires; otherwise the case does not apply."""
    if fixture.keys.backend.expiring(0) is None:
        fixture.not_applicable("the store cannot tell what expires")
    return fixture.only_exact("there nothing is counted")


def _expiring(fixture: CaseFixture, keys: AppKeys, until_ns: int) -> tuple[int, int | None]:
    """Return how many records of an application expire until then, and when the first of them does."""
    told = fixture.keys.backend.expiring(until_ns) or ()
    of_app = [one for one in told if one.app_id == keys.app_id and one.prefix is Prefix.APPLICATION_TTL]
    expect_that(len(of_app) <= 1, "the counts of one application", wanted="at most one", saw=len(of_app))
    return (of_app[0].number, of_app[0].first_ns) if of_app else (0, None)


@case(ContractRule.COUNT)
def expiring_is_counted_to_the_instant(fixture: CaseFixture) -> None:
    """A record is counted until a moment if its expiry is that moment or earlier, in its own application alone."""
    clock = _clock(fixture)
    keys, others = fixture.app(), fixture.app()
    started = clock.wall_ns()
    for name, ttl in (("a", 10), ("b", 20), ("c", 20)):
        keys.put(name, "v", ttl)
    others.put("a", "v", 15)
    first, second = started + 10 * _NS, started + 20 * _NS
    expect(_expiring(fixture, keys, first - 1), (0, None), "one nanosecond before the first expiry")
    expect(_expiring(fixture, keys, first), (1, first), "until the first expiry")
    expect(_expiring(fixture, keys, second - 1), (1, first), "one nanosecond before the second expiry")
    expect(_expiring(fixture, keys, second), (3, first), "until the second expiry")
    expect(_expiring(fixture, others, second), (1, started + 15 * _NS), "of another application")


@case(ContractRule.COUNT)
def expiring_is_counted_apart_between_edges(fixture: CaseFixture) -> None:
    """With edges each part has what is over at its end and not at the edge before; one that has passed has none."""
    clock = _clock(fixture)
    keys = fixture.app()
    started = clock.wall_ns()
    for name, ttl in (("a", 10), ("b", 20), ("c", 20), ("d", _MINUTE)):
        keys.put(name, "v", ttl)
    first, second, until = started + 10 * _NS, started + 20 * _NS, started + _MINUTE * _NS
    for edges, wanted in (
        ((first, second), (1, 2, 1)),
        ((first - 1, second - 1), (0, 1, 3)),
        ((started - _NS, started), (0, 0, 4)),
    ):
        told = fixture.keys.backend.expiring(until, edges) or ()
        parts = [one.parts for one in told if one.app_id == keys.app_id and one.prefix is Prefix.APPLICATION_TTL]
        expect(parts, [wanted], "the numbers between edges")


@case(ContractRule.COUNT)
def expired_records_are_not_counted(fixture: CaseFixture) -> None:
    """A record that is over is not counted, swept or not, from the instant of its expiry on."""
    clock = _clock(fixture)
    keys = fixture.app()
    started = clock.wall_ns()
    keys.put("short", "v", 10)
    keys.put("long", "v", _MINUTE)
    until, last = started + LONG * _NS, started + _MINUTE * _NS
    clock.advance(10, ns=-1)
    expect(_expiring(fixture, keys, until), (2, started + 10 * _NS), "one nanosecond before an expiry")
    clock.advance(ns=1)
    expect(_expiring(fixture, keys, until), (1, last), "at the instant of an expiry")
    clock.advance(_MINUTE)
    expect(_expiring(fixture, keys, until), (0, None), "when all are over")


@case(ContractRule.COUNT)
def renewed_records_are_counted_once_at_their_new_expiry(fixture: CaseFixture) -> None:
    """A record that was touched, swapped, put or inserted again counts once, at its new expiry, later or earlier."""
    clock = _clock(fixture)
    keys = fixture.app()
    started = clock.wall_ns()
    for before, after in ((10, LONG), (LONG, 10)):
        touched, swapped, put, inserted = (f"{before}:{number}" for number in range(4))
        keys.insert_many([(name, "v", before) for name in (touched, swapped, put, inserted)])
        keys.touch(touched, after)
        keys.compare_and_swap(swapped, "v", "w", after)
        keys.put(put, "v", after)
        keys.delete(inserted)
        keys.insert_if_not_exists(inserted, "v", after)
    expect(_expiring(fixture, keys, started + 10 * _NS), (4, started + 10 * _NS), "until the earlier expiry")
    expect(_expiring(fixture, keys, started + LONG * _NS), (8, started + 10 * _NS), "until the later expiry")


@case(ContractRule.COUNT)
def deleted_records_are_not_counted(fixture: CaseFixture) -> None:
    """A record that was deleted is not counted."""
    clock = _clock(fixture)
    keys = fixture.app()
    started = clock.wall_ns()
    for name in "abc":
        keys.put(name, "v", 10)
    keys.delete("a")
    keys.compare_and_delete("b", "v")
    expect(_expiring(fixture, keys, started + LONG * _NS), (1, started + 10 * _NS), "after two of three were deleted")


@case(ContractRule.COUNT)
def expiries_near_and_far_are_counted(fixture: CaseFixture) -> None:
    """Until any moment from a second to the longest TTL, as many are counted as expire by then."""
    clock = _clock(fixture)
    keys = fixture.app()
    clock.advance(ns=123_456_789)
    started = clock.wall_ns()
    ttls = [*(4**power for power in range(13)), MAX_TTL_SECONDS]
    for ttl in ttls:
        keys.put(f"{ttl}", "v", ttl)
    for passed in (0, _MINUTE):
        clock.advance(passed)
        left = [ttl for ttl in ttls if ttl > passed]
        for number, ttl in enumerate(left, start=1):
            until = started + (ttl + 1) * _NS
            counted, _ = _expiring(fixture, keys, until)
            expect(counted, number, f"after {passed} s, until {ttl + 1} s after the writes")


@case(ContractRule.COUNT)
def counting_changes_nothing(fixture: CaseFixture) -> None:
    """A count removes and renews nothing, and gives the same answer again."""
    clock = _clock(fixture)
    keys = fixture.app()
    for name, ttl in (("a", 10), ("b", LONG)):
        keys.put(name, "v", ttl)
    until = clock.wall_ns() + 2 * LONG * _NS
    before = keys.scan()
    expect(_expiring(fixture, keys, until), _expiring(fixture, keys, until), "a second count")
    expect(keys.scan(), before, "the records after it")
