"""A SQLite file of an older version is brought up to date when it is opened, and keeps its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile
from lapse.workspaces.expiry import anchor, due_after
from lapse.workspaces.store.sqlite import SCHEMA, open_sqlite_store

if TYPE_CHECKING:
    from pathlib import Path

OLD = 4
"""How many scripts a file of the first version has."""
ROW = """
INSERT INTO workspaces (
    id, name, owner, command, port, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
) VALUES (
    '0a0a0a0a-0000-4000-8000-000000000000', 'old', 'ada', '["serve"]', 9, 'RUNNING', 'user', 3, 'RUNNING',
    1700000000007, 'NONE', 0, 10, 20, 1700000000005, 1700000000006, 1700000000001
)
"""


async def test_rows_of_an_older_version_are_kept_and_count_from_the_same_moment(tmp_path: Path) -> None:
    path = tmp_path / "workspaces.db"
    old = Database(SQLiteFile(path), Schema(SCHEMA.application_id, SCHEMA.scripts[:OLD]))
    await old.write(lambda cursor: cursor.execute(ROW).fetchall())
    old.close()
    store = open_sqlite_store(path)
    try:
        found = await store.by_name("old")
        assert (found.version, found.restarts, found.running_since, found.op_note) == (3, 0, 0, None)
        assert (anchor(found), due_after(found)) == (1_700_000_000_007, 1_700_000_010_007)
        assert [one.name for one in await store.standby_candidates(found.check_after)] == ["old"]
    finally:
        await store.close()
