"""Cases of holds and extensions that the engine keeps, for any store of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.safety.holds import (
    AnotherHoldError,
    Hold,
    LegalHoldError,
    LegalReleaseError,
    PlacedExtension,
    PlacedHold,
    SecondPersonError,
    UnnamedPersonError,
    WeakerHoldError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.engine.safety.holds import HoldStore

    Case = Callable[[HoldStore], Awaitable[None]]

CASES: dict[str, Case] = {}
NOON = UnixNs(1_700_000_000 * 10**9)
HOUR = 3600 * 10**9
LEGAL = Hold("case 7", None, "ann", is_legal=True)


def case(test: Case) -> Case:
    CASES[test.__name__] = test
    return test


def placed(hold: Hold, uid: str = "u-1", domain: str = "scratch", since: int = NOON) -> PlacedHold:
    return PlacedHold(domain, uid, f"{domain}/{uid}", hold, UnixNs(since))


def until(hours: int) -> UnixNs:
    return UnixNs(NOON + hours * HOUR)


@case
async def a_hold_is_kept_as_it_was_placed_and_by_domain_and_uid(store: HoldStore) -> None:
    holds = {"u-1": Hold("audit", until(2), "ann"), "u-2": Hold("", None), "u-3": LEGAL}
    for uid, hold in holds.items():
        assert await store.hold(placed(hold, uid)) is None
    await store.hold(placed(Hold("other", None), "u-1", domain="other"))
    assert await store.held("scratch", ["u-1", "u-2", "u-3", "u-4"]) == holds
    assert await store.held("scratch", []) == {}
    assert await store.release("scratch", "u-1", by="bob") == holds["u-1"]
    assert await store.release("scratch", "u-1", by="bob") is None
    assert await store.held("scratch", ["u-1"]) == {}
    assert await store.held("other", ["u-1"]) == {"u-1": Hold("other", None)}


@case
async def a_weaker_hold_is_refused_unless_it_replaces_the_other(store: HoldStore) -> None:
    long, short = Hold("long", until(9), "ann"), Hold("short", until(1), "bob")
    await store.hold(placed(long))
    with pytest.raises(WeakerHoldError):
        await store.hold(placed(short))
    assert await store.held("scratch", ["u-1"]) == {"u-1": long}
    assert await store.hold(placed(short), replace=True) == long
    assert await store.held("scratch", ["u-1"]) == {"u-1": short}
    later = placed(Hold("much later", until(3), "ann"), since=until(2))
    assert await store.hold(later) == short, "one whose end has passed is in nobody's way"


@case
async def a_legal_hold_is_weakened_by_nobody_and_released_by_another_person(store: HoldStore) -> None:
    with pytest.raises(UnnamedPersonError):
        await store.hold(placed(Hold("case", None, is_legal=True)))
    await store.hold(placed(Hold("before", None, "bob")))
    await store.hold(placed(LEGAL))
    for weaker in (Hold("plain", None, "bob"), Hold("case 8", None, "bob", is_legal=True)):
        with pytest.raises(LegalHoldError):
            await store.hold(placed(weaker), replace=True)
    for by, error in (("ann", SecondPersonError), ("", UnnamedPersonError)):
        with pytest.raises(error):
            await store.release("scratch", "u-1", by=by)
    with pytest.raises(LegalReleaseError, match="scratch/a is under a legal hold"):
        await store.release("scratch", "u-1", by="bob", legal=False, address="scratch/a")
    assert await store.held("scratch", ["u-1"]) == {"u-1": LEGAL}
    assert await store.release("scratch", "u-1", by="bob") == LEGAL


@case
async def another_hold_than_the_one_that_was_seen_is_not_released(store: HoldStore) -> None:
    seen, now = Hold("mine", until(9), "ann"), Hold("evidence", None, "bob")
    await store.hold(placed(seen))
    await store.hold(placed(now))
    with pytest.raises(AnotherHoldError, match="scratch/a is under another hold now: evidence, by bob"):
        await store.release("scratch", "u-1", by="ann", only=seen.hash, address="scratch/a")
    assert await store.held("scratch", ["u-1"]) == {"u-1": now}
    assert await store.release("scratch", "u-1", by="ann", only=now.hash) == now
    assert await store.release("scratch", "u-1", by="ann", only=now.hash) is None


@case
async def of_many_who_hold_a_thing_at_the_same_moment_the_longest_hold_stays(store: HoldStore) -> None:
    found = await asyncio.gather(
        *[store.hold(placed(Hold(str(hours), until(hours)))) for hours in (3, 9, 1, 7, 5)], return_exceptions=True
    )
    assert all(one is None or isinstance(one, Hold | WeakerHoldError) for one in found)
    assert await store.held("scratch", ["u-1"]) == {"u-1": Hold("9", until(9))}


@case
async def an_extension_is_never_shortened(store: HoldStore) -> None:
    def extension(hours: int) -> PlacedExtension:
        return PlacedExtension("scratch", "u-1", "scratch/u-1", until(hours), NOON, "ann")

    assert await store.extended("scratch", ["u-1"]) == {}
    assert await store.extend(extension(2)) == until(2)
    assert await store.extend(extension(1)) == until(2)
    await asyncio.gather(*[store.extend(extension(hours)) for hours in (5, 9, 3)])
    assert await store.extended("scratch", ["u-1", "u-2"]) == {"u-1": until(9)}
    assert await store.extended("other", ["u-1"]) == {}
