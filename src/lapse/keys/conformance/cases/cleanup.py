"""Physical cleanup: what is over goes, what was renewed or rewritten stays.

Seen in the number of stored records, not through the reads that would hide an expired one anyway. On servers, which
clean up in their own time, only the second half can be shown here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CaseBook, CaseKind, ContractRule, expect, expect_that
from lapse.keys.conformance.cases.operations import expect_present
from lapse.keys.conformance.fixture import LONG, Stage, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys

BOOK: Final = CaseBook()
case = BOOK.case

_SLICES: Final = 100
_SLICE: Final = 7
_SERVER_NOTE: Final = "the server cleans up in its own time: shown is that the record outlives its first TTL"
_LATER: Final = 60  # virtual seconds: a cleanup may be coarse, a read may not


def _stored(stage: Stage, keys: AppKeys) -> int:
    """Return the number of records stored for an application, expired ones included."""
    counts = stage.keys.backend.counts()
    return sum(number for prefix, app_id, number in counts if (prefix, app_id) == (Prefix.APPLICATION_TTL, keys.app_id))


def _sweep(stage: Stage) -> None:
    for _ in range(_SLICES):
        if not stage.keys.sweep().more:
            return


def _pass(stage: Stage, ttl: int) -> None:
    """Let a TTL be over by so much that any cleanup must see it."""
    if stage.clock is not None:
        stage.clock.advance(ttl + _LATER)
    else:
        stage.pass_ttl(ttl)
        wait(0.2)


def _ttls(stage: Stage) -> tuple[int, int]:
    """Return a first and a second TTL: as short as can be where both are waited for in real time."""
    if stage.clock is not None:
        return 1, 2 * _LATER
    return (1, 3) if stage.target.exact_clock else (2, LONG)


def _renewed_then_swept(stage: Stage, renew: Callable[[AppKeys, int], object], by: str, *, value: str) -> str | None:
    keys = stage.app()
    first, second = _ttls(stage)
    with stage.within(first):
        keys.insert_if_not_exists("k", "v", first)
        renew(keys, second)
    with stage.within(second):
        _pass(stage, first)
        _sweep(stage)
        expect_present(keys, value, f"after a sweep at the first expiry of a key renewed by {by}")
        if not stage.target.exact_clock:
            return _SERVER_NOTE
        expect(_stored(stage, keys), 1, "the number of stored records after that sweep")
    _pass(stage, second)
    _sweep(stage)
    expect(_stored(stage, keys), 0, "the number of stored records after a sweep at the second expiry")
    return None


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def touched_then_swept(stage: Stage) -> str | None:
    """A sweep at the first expiry leaves a record that was touched; a sweep at the second removes it."""
    return _renewed_then_swept(stage, lambda keys, ttl: keys.touch("k", ttl), "a touch", value="v")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def swapped_then_swept(stage: Stage) -> str | None:
    """A sweep at the first expiry leaves a record that was swapped; a sweep at the second removes it."""
    return _renewed_then_swept(stage, lambda keys, ttl: keys.compare_and_swap("k", "v", "w", ttl), "a swap", value="w")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def put_again_then_swept(stage: Stage) -> str | None:
    """A sweep at the first expiry leaves a record that was put again; a sweep at the second removes it."""
    return _renewed_then_swept(stage, lambda keys, ttl: keys.put("k", "w", ttl), "a put", value="w")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def deleted_inserted_then_swept(stage: Stage) -> str | None:
    """A sweep at the first expiry leaves a record deleted and inserted again; a sweep at the second removes it."""

    def again(keys: AppKeys, ttl: int) -> None:
        expect(keys.delete("k"), True, "a delete of a live key")
        expect(keys.insert_if_not_exists("k", "w", ttl), True, "an insert after a delete")

    return _renewed_then_swept(stage, again, "delete and insert", value="w")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def expired_inserted_then_swept(stage: Stage) -> str | None:
    """A sweep leaves a record that was inserted over an expired one that nobody had swept yet."""
    keys = stage.app()
    keys.insert_if_not_exists("k", "v", 1)
    stage.pass_ttl(1)
    expect(keys.insert_if_not_exists("k", "w", LONG), True, "an insert on an expired key")
    _pass(stage, 1)
    _sweep(stage)
    expect_present(keys, "w", "after a sweep beyond the expiry of the record before")
    if not stage.target.exact_clock:
        return _SERVER_NOTE
    expect(_stored(stage, keys), 1, "the number of stored records after that sweep")
    return None


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def expired_records_are_removed(stage: Stage) -> None:
    """A sweep removes every expired record physically and leaves every live one."""
    if not stage.target.exact_clock:
        stage.not_applicable("the server cleans up in its own time")
    keys = stage.app()
    with stage.within(1):
        keys.insert_many([(f"short:{number}", "v", 1) for number in range(50)])
        keys.insert_many([(f"long:{number}", "v", LONG) for number in range(10)])
        expect(_stored(stage, keys), 60, "the number of stored records")
    _pass(stage, 1)
    _sweep(stage)
    expect(_stored(stage, keys), 10, "the number of stored records after a sweep")
    expect(len(keys.scan()), 10, "the number of keys in a scan after a sweep")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def sweeps_come_in_slices(stage: Stage) -> None:
    """A sweep removes at most as many records as it was allowed to, says whether more are left, and comes to an end."""
    if not stage.target.exact_clock:
        stage.not_applicable("the server cleans up in its own time")
    keys = stage.app()
    keys.insert_many([(f"key:{number}", "v", 1) for number in range(20)])
    _pass(stage, 1)
    for _ in range(_SLICES):
        before = _stored(stage, keys)
        report = stage.keys.sweep(_SLICE)
        expect_that(report.removed <= _SLICE, "a sweep of at most 7", wanted="at most 7 removed", saw=report.removed)
        gone = before - _stored(stage, keys)
        alone = stage.clock is not None  # where the store is shared, others sweep it at the same time
        expect_that(gone <= _SLICE or not alone, "records gone in a sweep of at most 7", wanted="at most 7", saw=gone)
        if not report.more:
            break
    expect(_stored(stage, keys), 0, "the number of stored records when a sweep says that no more are left")


@case(ContractRule.CLEANUP, kind=CaseKind.SWEEP)
def deleted_records_are_removed(stage: Stage) -> None:
    """A delete removes a record physically, or leaves it to the next sweep."""
    if not stage.target.exact_clock:
        stage.not_applicable("the server cleans up in its own time")
    keys = stage.app()
    for name in ("a", "b"):
        keys.put(name, "v", 1)
    keys.delete("a")
    keys.compare_and_delete("b", "v")
    _pass(stage, 1)
    _sweep(stage)
    expect(_stored(stage, keys), 0, "the number of stored records after deletes and a sweep")
