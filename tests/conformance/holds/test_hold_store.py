"""Holds and extensions that the engine keeps in the state folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import UnixNs, VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.engine.safety.holds import Hold, PlacedExtension
from lapse.engine.safety.sqlite import SQLiteHolds
from lapse.objects.embedded import open_embedded
from tests.conformance.holds.hold_store_cases import CASES, LEGAL, NOON, placed, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def opened(path: Path) -> AsyncIterator[SQLiteHolds]:
    store = open_embedded(path, kinds=(), clock=VirtualClock(), synchronous=Synchronous.NORMAL)
    yield SQLiteHolds(store.database)
    await store.close()


@pytest.fixture
async def holds(tmp_path: Path) -> AsyncIterator[SQLiteHolds]:
    async for one in opened(tmp_path / "one.db"):
        yield one


@pytest.fixture
async def others(tmp_path: Path) -> AsyncIterator[SQLiteHolds]:
    async for one in opened(tmp_path / "other.db"):
        yield one


@pytest.mark.parametrize("name", CASES)
async def test_the_engine_keeps_holds_in_a_state_folder(name: str, holds: SQLiteHolds) -> None:
    await CASES[name](holds)


async def test_what_is_moved_is_held_there_and_of_two_holds_the_stronger_stays(
    holds: SQLiteHolds, others: SQLiteHolds
) -> None:
    await holds.hold(placed(LEGAL, "u-1"))
    await holds.hold(placed(Hold("short", until(1)), "u-2"))
    await holds.extend(PlacedExtension("scratch", "u-3", "scratch/u-3", until(1), NOON, "ann"))
    await others.hold(placed(Hold("plain", None, "bob"), "u-1"))
    await others.hold(placed(Hold("long", until(9)), "u-2"))
    assert not holds.is_empty()
    await holds.move(others)
    await holds.move(others)
    assert holds.is_empty()
    assert await others.held("scratch", ["u-1", "u-2"]) == {"u-1": LEGAL, "u-2": Hold("long", until(9))}
    assert await others.extended("scratch", ["u-3"]) == {"u-3": UnixNs(until(1))}
