"""Physical cleanup: expired records go, renewed or rewritten ones stay, and the kit leaves nothing behind.

Seen in the number of stored records, not through the reads that would hide an expired one anyway. On servers, which
clean up in their own time, only the second half can be shown here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CaseKind, CaseRegistry, ContractRule, expect, expect_that
from lapse.keys.conformance.cases.operations import expect_present
from lapse.keys.conformance.fixture import LONG, CaseFixture, is_empty, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_SLICES: Final = 100
_LAST_SLICES: Final = 20
_SLICE: Final = 7
_SERVER_NOTE: Final = "the server cleans up in its own time: shown is that the record outlives its first TTL"
_LATER: Final = 60  # virtual seconds: a cleanup may be coarse, a read may not


def _stored(fixture: CaseFixture, keys: AppKeys) -> int:
    """Return the number of records stored for an application, expired ones included."""
    counts = fixture.keys.backend.counts()
    return sum(number for prefix, app_id, number in counts if (prefix, app_id) == (Prefix.APPLICATION_TTL, keys.app_id))


def _sweep(fixture: CaseFixture) -> None:
    for _ in range(_SLICES):
        if not fixture.keys.sweep().more:
            return


def _pass(fixture: CaseFixture, ttl: int) -> None:
    """Let a TTL be over by so much that any cleanup must see it."""
    if fixture.clock is not None:
        fixture.clock.advance(ttl + _LATER)
    else:
        fixture.pass_ttl(ttl)
        wait(0.2)


def _ttls(fixture: CaseFixture) -> tuple[int, int]:
    """Return a first and a second TTL: as short as can be where both are waited for in real time."""
    if fixture.clock is not None:
        return 1, 2 * _LATER
    return (1, 3) if fixture.target.exact_clock else (2, LONG)


def _renewed_then_swept(
    fixture: CaseFixture, renew: Callable[[AppKeys, int], object], by: str, *, value: str
) -> str | None:
    keys = fixture.app()
    first, second = _ttls(fixture)
    with fixture.within(first):
        keys.insert_if_not_exists("k", "v", first)
        renew(keys, second)
    with fixture.within(second):
        _pass(fixture, first)
        _sweep(fixture)
        expect_present(keys, value, f"after a sweep at the first expiry of a key renewed by {by}")
        if not fixture.target.exact_clock:
            return _SERVER_NOTE
        expect(_stored(fixture, keys), 1, "the number of stored records after that sweep")
    _pass(fixture, second)
    _sweep(fixture)
    expect(_stored(fixture, keys), 0, "the number of stored records after a sweep at the second expiry")
    return None


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def touched_then_swept(fixture: CaseFixture) -> str | None:
    """A sweep at the first expiry leaves a record that was touched; a sweep at the second removes it."""
    return _renewed_then_swept(fixture, lambda keys, ttl: keys.touch("k", ttl), "a touch", value="v")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def swapped_then_swept(fixture: CaseFixture) -> str | None:
    """A sweep at the first expiry leaves a record that was swapped; a sweep at the second removes it."""
    return _renewed_then_swept(
        fixture, lambda keys, ttl: keys.compare_and_swap("k", "v", "w", ttl), "a swap", value="w"
    )


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def put_again_then_swept(fixture: CaseFixture) -> str | None:
    """A sweep at the first expiry leaves a record that was put again; a sweep at the second removes it."""
    return _renewed_then_swept(fixture, lambda keys, ttl: keys.put("k", "w", ttl), "a put", value="w")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def deleted_inserted_then_swept(fixture: CaseFixture) -> str | None:
    """A sweep at the first expiry leaves a record deleted and inserted again; a sweep at the second removes it."""

    def again(keys: AppKeys, ttl: int) -> None:
        expect(keys.delete("k"), True, "a delete of a live key")
        expect(keys.insert_if_not_exists("k", "w", ttl), True, "an insert after a delete")

    return _renewed_then_swept(fixture, again, "delete and insert", value="w")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def expired_inserted_then_swept(fixture: CaseFixture) -> str | None:
    """A sweep leaves a record that was inserted over an expired one that nobody had swept yet."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", 1)
    fixture.pass_ttl(1)
    expect(keys.insert_if_not_exists("k", "w", LONG), True, "an insert on an expired key")
    _pass(fixture, 1)
    _sweep(fixture)
    expect_present(keys, "w", "after a sweep beyond the expiry of the record before")
    if not fixture.target.exact_clock:
        return _SERVER_NOTE
    expect(_stored(fixture, keys), 1, "the number of stored records after that sweep")
    return None


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def expired_records_are_removed(fixture: CaseFixture) -> None:
    """A sweep removes every expired record physically and leaves every live one."""
    if not fixture.target.exact_clock:
        fixture.not_applicable("the server cleans up in its own time")
    keys = fixture.app()
    with fixture.within(1):
        keys.insert_many([(f"short:{number}", "v", 1) for number in range(50)])
        keys.insert_many([(f"long:{number}", "v", LONG) for number in range(10)])
        expect(_stored(fixture, keys), 60, "the number of stored records")
    _pass(fixture, 1)
    _sweep(fixture)
    expect(_stored(fixture, keys), 10, "the number of stored records after a sweep")
    expect(len(keys.scan()), 10, "the number of keys in a scan after a sweep")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def sweeps_come_in_slices(fixture: CaseFixture) -> None:
    """A sweep removes at most as many records as it was allowed to, says whether more are left, and comes to an end."""
    if not fixture.target.exact_clock:
        fixture.not_applicable("the server cleans up in its own time")
    keys = fixture.app()
    keys.insert_many([(f"key:{number}", "v", 1) for number in range(20)])
    _pass(fixture, 1)
    for _ in range(_SLICES):
        before = _stored(fixture, keys)
        report = fixture.keys.sweep(_SLICE)
        expect_that(report.removed <= _SLICE, "a sweep of at most 7", wanted="at most 7 removed", saw=report.removed)
        gone = before - _stored(fixture, keys)
        alone = fixture.clock is not None  # where the store is shared, others sweep it at the same time
        expect_that(gone <= _SLICE or not alone, "records gone in a sweep of at most 7", wanted="at most 7", saw=gone)
        if not report.more:
            break
    expect(_stored(fixture, keys), 0, "the number of stored records when a sweep says that no more are left")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def deleted_records_are_removed(fixture: CaseFixture) -> None:
    """A delete removes a record physically, or leaves it to the next sweep."""
    if not fixture.target.exact_clock:
        fixture.not_applicable("the server cleans up in its own time")
    keys = fixture.app()
    for name in ("a", "b"):
        keys.put(name, "v", 1)
    keys.delete("a")
    keys.compare_and_delete("b", "v")
    _pass(fixture, 1)
    _sweep(fixture)
    expect(_stored(fixture, keys), 0, "the number of stored records after deletes and a sweep")


@case(ContractRule.NOTHING_LEFT, kind=CaseKind.LAST)
def nothing_left_behind(fixture: CaseFixture) -> str:
    """Every application that the kit used is empty again."""
    session = fixture.session
    backend = session.keys.backend
    left = sorted(app_id for app_id in session.drawn if not is_empty(backend, app_id))
    expect(left, [], "applications of the kit that still show records")
    if fixture.target.exact_clock:
        for _ in range(_LAST_SLICES):  # expired ones may still be stored
            if not session.keys.sweep().more:
                break
        stored = sorted(app_id for _, app_id, number in backend.counts() if app_id in session.drawn and number)
        expect(stored, [], "applications of the kit in which records are stored")
    return f"looked into {len(session.drawn)} applications"
