"""Locks: one holder at a time, fencing numbers that grow, and a holder that learns when it lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from lapse.core.clock import Clock, SystemClock
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CaseRegistry, ContractRule, Violation, expect, expect_that
from lapse.keys.conformance.fixture import LONG, CaseFixture, Handle, Stalled
from lapse.keys.errors import LockHeldError, LockLostError
from lapse.keys.store import AppKeys

if TYPE_CHECKING:
    from lapse.keys.lock import KeyLock

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_TURNS: Final = 24
"""So many turns of an event loop after its start an acquire is cancelled at the latest: each may be in another step."""


def _is_free(lock: KeyLock) -> bool:
    try:
        with lock:
            return True
    except LockHeldError:
        return False


@case(ContractRule.LOCK)
def lock_is_exclusive_and_released(fixture: CaseFixture) -> None:
    """A lock that is held is refused to everybody else, and free when it was released."""
    keys = fixture.app()
    with keys.lock("job", LONG) as lock:
        expect(lock.lost, False, "lost while the lock is held")
        expect(_is_free(keys.lock("job", LONG)), False, "a second lock of the same name while the first is held")
        expect(_is_free(keys.lock("other", LONG)), True, "a lock of another name meanwhile")
    expect(_is_free(keys.lock("job", LONG)), True, "a lock of the same name after the release")


@case(ContractRule.LOCK)
def lock_is_released_when_its_block_fails(fixture: CaseFixture) -> None:
    """A lock whose block raised an error is free again."""
    keys = fixture.app()
    with suppress(ArithmeticError), keys.lock("job", LONG):
        raise ArithmeticError
    expect(_is_free(keys.lock("job", LONG)), True, "a lock after its holder's block failed")


@case(ContractRule.LOCK)
def fencing_numbers_grow(fixture: CaseFixture) -> None:
    """Every holder's fencing number is greater than that of every holder before."""
    keys = fixture.app()
    fences = []
    for _ in range(5):
        with keys.lock("job", LONG) as lock:
            fences.append(lock.fence)
    grows = all(one < next_one for one, next_one in pairwise(fences))
    expect_that(grows, "the fencing numbers of five holders", wanted="each greater than the one before", saw=fences)


@case(ContractRule.LOCK)
def lock_is_lost_after_its_expiry(fixture: CaseFixture) -> None:
    """A holder that stalls beyond the TTL has lost the lock and says so; the next one has a greater fencing number."""
    clock: Clock = fixture.clock or SystemClock()
    keys = fixture.app()
    number = keys.app_id
    backend = fixture.keys.backend
    space = backend.space(Prefix.APPLICATION_TTL, number)
    stalled = Handle.on(AppKeys(number, space, backend=backend, clock=Stalled(clock)), fixture.note)
    second = keys.lock("job", LONG)
    try:
        with stalled.lock("job", 2) as first:
            fixture.pass_ttl(2)
            expect(first.lost, True, "lost of a lock whose TTL is over")
            second.__enter__()
            grows = second.fence > first.fence
            expect_that(grows, "the next fencing number", wanted=f"greater than {first.fence}", saw=second.fence)
    except LockLostError:
        pass
    else:
        raise Violation("the end of a block whose lock was lost: expected LockLostError, saw no error")
    expect(_is_free(keys.lock("job", LONG)), False, "a lock after a holder that had lost it left")
    second.__exit__(None, None, None)
    expect(_is_free(keys.lock("job", LONG)), True, "a lock after its second holder left")


@case(ContractRule.LOCK)
def lock_taken_away_is_noticed(fixture: CaseFixture) -> None:
    """A holder whose record was removed learns it at the latest when it releases."""
    keys = fixture.app()
    try:
        with keys.lock("job", LONG):
            expect(
                fixture.keys.backend.space(Prefix.LEADER_ELECTION, keys.app_id).delete("lock:job"),
                True,
                "a delete of its record",
            )
    except LockLostError:
        return
    raise Violation("the end of a block whose lock was removed: expected LockLostError, saw no error")


@case(ContractRule.LOCK)
def cancelled_acquire_leaves_nothing_held(fixture: CaseFixture) -> None:
    """An acquire that is cancelled, in whatever step, leaves the lock free, or is done and holds it."""
    clock = SystemClock()

    async def cancel_after(turns: int, lock: KeyLock) -> None:
        acquiring = asyncio.create_task(lock.__aenter__())
        for _ in range(turns):
            await clock.sleep(0)
        acquiring.cancel()
        await asyncio.wait({acquiring})
        if not acquiring.cancelled():
            await lock.__aexit__(None, None, None)

    keys = fixture.app()
    for turns in range(_TURNS):
        lock = keys.lock("job", LONG)
        run_blocking(cancel_after(turns, lock))
        expect(_is_free(keys.lock("job", LONG)), True, f"a lock whose acquire was cancelled after {turns} turns")
