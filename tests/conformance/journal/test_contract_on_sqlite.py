"""The whole contract on a SQLite file, and by which indexes rows are found there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.engine.journal.port import RowPosition
from tests.conformance.journal.cases import CASES
from tests.conformance.journal.worlds import sqlite_world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_the_sqlite_journal_keeps_the_contract(name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path) as world:
        await CASES[name](world)


@pytest.mark.parametrize(
    ("asked", "plan"),
    [
        ({}, "SCAN journal USING INDEX journal_by_time"),
        ({"since_ns": 1, "until_ns": 5}, "SEARCH journal USING INDEX journal_by_time (time_ns>? AND time_ns<?)"),
        ({"address": "keeper/a"}, "SEARCH journal USING INDEX journal_by_address (address=?)"),
        ({"search": "a"}, "SCAN journal USING INDEX journal_by_time"),
        ({"search": "a", "after": RowPosition(0, 5)}, "SEARCH journal USING INTEGER PRIMARY KEY (rowid>?)"),
        ({"uid": "a"}, "SEARCH journal USING INDEX journal_by_uid (uid=?)"),
        ({"after": RowPosition(0, 5)}, "SEARCH journal USING INTEGER PRIMARY KEY (rowid>?)"),
        ({"after": RowPosition(0, 5), "domain": "a"}, "SEARCH journal USING INTEGER PRIMARY KEY (rowid>?)"),
    ],
    ids=str,
)
async def test_rows_are_found_by_an_index_in_their_order(asked: dict[str, object], plan: str, tmp_path: Path) -> None:
    steps: list[tuple[object, ...]] = []
    async with sqlite_world(tmp_path) as world:
        database = world.journal.database
        read = database.read

        def explained(sql: str, values: Sequence[object] = ()) -> list[object]:
            steps.extend(read(f"EXPLAIN QUERY PLAN {sql}", values))
            return []

        database.read = explained
        await world.journal.entries(**asked)
        del database.read

    assert [step[3] for step in steps] == [plan]
