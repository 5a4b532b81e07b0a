"""The whole contract on a SQLite file, and what it says about indexes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.workspaces.store.sql import load_sql
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore
from tests.conformance.workspaces.cases import CASES
from tests.conformance.workspaces.worlds import sqlite_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_the_sqlite_store_keeps_the_contract(name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path) as world:
        await CASES[name](world)


async def test_no_index_names_what_an_access_writes(tmp_path: Path) -> None:
    async with sqlite_world(tmp_path) as world:
        store = world.store
        assert isinstance(store, SqliteWorkspaceStore)
        indexes = store.database.read("SELECT name, sql FROM sqlite_schema WHERE type = 'index'")
        columns = store.database.read(
            "SELECT indexes.name, columns.name FROM pragma_index_list('workspaces') AS indexes"
            " JOIN pragma_index_xinfo(indexes.name) AS columns"
        )

    assert len(indexes) >= 5, "looked in the wrong place"
    assert ("workspaces_to_standby", "check_after") in columns
    for often_written in ("last_access_at", "observed_at"):
        assert often_written not in {column for _, column in columns}
        assert [name for name, sql in indexes if often_written in (sql or "")] == []


async def test_no_row_is_without_an_access_time_or_a_time_to_look(tmp_path: Path) -> None:
    async with sqlite_world(tmp_path) as world:
        store = world.store
        assert isinstance(store, SqliteWorkspaceStore)
        found = store.database.read("SELECT name, type FROM pragma_table_info('workspaces') WHERE \"notnull\"")
    times = ("last_access_at", "status_changed_at", "check_after", "created_at")
    assert [dict(found)[column] for column in times] == ["INTEGER"] * len(times)


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("standby_candidates", "workspaces_to_standby"),
        ("archive_candidates", "workspaces_to_archive"),
        ("pending_work", "workspaces_with_work"),
        ("list", "workspaces_by_name"),
        ("list_of_owner", "workspaces_by_owner"),
        ("by_name", "workspaces_by_name"),
    ],
)
async def test_a_question_is_answered_by_its_index_in_order(statement: str, index: str, tmp_path: Path) -> None:
    values = {"now": 1, "limit": 1, "after_check": 0, "after_id": "", "after": "", "owner": "ada", "name": "notes"}
    async with sqlite_world(tmp_path) as world:
        store = world.store
        assert isinstance(store, SqliteWorkspaceStore)
        sql = f"EXPLAIN QUERY PLAN {load_sql('sqlite.sql')[statement]}"
        (step,) = store.database.read_together(lambda cursor: cursor.execute(sql, values).fetchall())

    assert str(step[3]).startswith(f"SEARCH workspaces USING INDEX {index} ("), step
