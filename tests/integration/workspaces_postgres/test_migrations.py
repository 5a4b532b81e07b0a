"""Tables are made by one function, once, whoever else makes them at the same moment; a misfit names the command."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from lapse.core.identity import secret_bytes
from lapse.db.errors import DatabaseUnavailableError
from lapse.db.postgres import migrations
from lapse.db.postgres.migration import migrate
from lapse.db.postgres.migrations import REVISIONS
from lapse.db.postgres.url import PostgresURLError
from lapse.workspaces.errors import StoreMisfitError, WorkspaceStoreUnavailableError
from lapse.workspaces.expiry import anchor
from lapse.workspaces.store.postgres import open_postgres_store
from lapse.workspaces.store.sql import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

MIGRATE = """
import sys
from lapse.db.postgres.migration import migrate
from lapse.workspaces.store import postgres as postgres_store
from lapse.workspaces.store import sqlite as sqlite_store
migrate(sys.argv[1])
print(*sorted(name for name in sys.modules if "sqlite3" in name or "pysqlite" in name))
"""


@pytest.fixture
def empty(shared_postgres: Server) -> Iterator[str]:
    """A database without tables, for one test."""
    name = f"empty_{secret_bytes(5).hex()}"
    with psycopg.connect(shared_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{shared_postgres.url.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def run(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql)


async def test_a_database_without_tables_is_refused_with_the_command_that_makes_them(empty: str) -> None:
    with pytest.raises(StoreMisfitError, match="lapse db init"):
        await open_postgres_store(empty)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("UPDATE lapse_schema SET version_num = '9999'", "upgrade Lapse"),
        ("DELETE FROM lapse_schema", "lapse db init"),
        ("DROP TABLE lapse_schema", "lapse db init"),
    ],
)
async def test_tables_of_another_version_are_refused_with_what_to_do(database: str, change: str, advice: str) -> None:
    run(database, change)

    with pytest.raises(StoreMisfitError, match=advice):
        await open_postgres_store(database)


async def test_tables_of_an_older_version_are_refused_with_the_command_that_brings_them_up_to_date(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.db.postgres.pool.REVISIONS", (*REVISIONS, "9998"))

    with pytest.raises(StoreMisfitError, match=f"older version of Lapse .{REVISIONS[-1]}.*9998.*lapse db init"):
        await open_postgres_store(database)


async def test_a_table_that_goes_while_a_store_is_open_is_a_misfit(database: str) -> None:
    store = await open_postgres_store(database)
    try:
        run(database, "DROP TABLE workspaces")
        with pytest.raises(StoreMisfitError, match="lapse db init"):
            await store.check()
    finally:
        await store.close()


async def test_making_tables_again_keeps_what_is_in_them(database: str) -> None:
    run(database, "INSERT INTO beside VALUES ('mine')")
    await asyncio.to_thread(migrate, database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT text FROM beside").fetchall() == [("mine",)]
    await (await open_postgres_store(database)).close()


OLD_ROW = """
INSERT INTO workspaces (
    id, name, owner, command, port, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at
) VALUES (
    '0a0a0a0a-0000-4000-8000-000000000000', 'old', 'ada', {command}, 9, 'RUNNING', 'user', 3, 'RUNNING', 7, 'NONE',
    0, 10, 20, 5, 6, 1
)
"""


async def test_rows_of_an_older_version_are_kept_and_count_from_the_same_moment(empty: str) -> None:
    older = Path(migrations.__file__).parent / "versions"
    for step in ("v0001_workspaces.sql", "v0002_journal.sql"):
        run(empty, (older / step).read_text())
    run(empty, "CREATE TABLE lapse_schema (version_num varchar(32) PRIMARY KEY)")
    run(empty, "INSERT INTO lapse_schema VALUES ('0002')")
    run(empty, OLD_ROW.format(command="ARRAY['serve']"))
    await asyncio.to_thread(migrate, empty)
    store = await open_postgres_store(empty)
    try:
        found = await store.by_name("old")
        assert (found.version, found.restarts, found.running_since, anchor(found)) == (3, 0, 0, 7)
    finally:
        await store.close()


async def test_several_who_make_tables_at_the_same_moment_make_them_once(empty: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(migrate, empty) for _ in range(4)))

    await (await open_postgres_store(empty)).close()


def test_a_step_that_fails_leaves_nothing(empty: str) -> None:
    run(empty, "CREATE TABLE workspaces_by_owner (in_the_way text)")
    with pytest.raises(DatabaseUnavailableError, match="42P07"):
        migrate(empty)
    with psycopg.connect(empty) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert tables == [("workspaces_by_owner",)]


def test_tables_live_where_the_search_path_says(empty: str) -> None:
    run(empty, "CREATE SCHEMA mine")
    migrate(f"{empty}?options=-csearch_path%3Dmine")
    with psycopg.connect(empty) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'mine' ORDER BY 1").fetchall()
    of_the_record = ["brakes", "extensions", "holds", "journal", "lapse_schema", "leases", "plans", "safety_notes"]
    assert [name for (name,) in tables] == [*of_the_record, "workspaces"]


def test_the_table_has_the_columns_of_the_model(database: str) -> None:
    with psycopg.connect(database) as connection:
        cursor = connection.execute("SELECT * FROM workspaces")
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == list(COLUMNS)


def test_no_row_is_without_an_access_time_or_a_time_to_look(database: str) -> None:
    asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_nullable = 'NO'"
    with psycopg.connect(database) as connection:
        found: dict[str, str] = dict(connection.execute(asked, ("workspaces",)).fetchall())
    times = ("last_access_at", "status_changed_at", "check_after", "created_at")
    assert [found[column] for column in times] == ["bigint"] * len(times)


def test_the_steps_are_those_that_are_named_in_order() -> None:
    config = Config()
    config.set_main_option("script_location", migrations.__path__[0])
    steps = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(step.revision for step in steps)[::-1] == REVISIONS


def test_making_tables_loads_no_second_sqlite_library(empty: str) -> None:
    done = subprocess.run([sys.executable, "-c", MIGRATE, empty], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


# --- what is wrong with an address ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["mysql://a:secret@b/c", "postgresql://a:se%zzcret@b/c", "postgresql://a:secret@b:x y/c"]
)
async def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    for attempt in (lambda: migrate(url), lambda: asyncio.run(_open(url))):
        with pytest.raises(PostgresURLError) as caught:
            await asyncio.to_thread(attempt)
        assert "secret" not in f"{caught.value!r} {caught.value.__cause__}"
        assert "secret" not in str(caught.value)


async def _open(url: str) -> None:
    await open_postgres_store(url)


async def test_a_database_that_is_not_there_or_a_server_that_is_not_is_said_in_words(shared_postgres: Server) -> None:
    nowhere = f"{shared_postgres.url.rpartition('/')[0]}/nowhere"
    with pytest.raises(WorkspaceStoreUnavailableError, match='database "nowhere" does not exist'):
        await open_postgres_store(nowhere)
    with pytest.raises(DatabaseUnavailableError, match='database "nowhere" does not exist'):
        await asyncio.to_thread(migrate, nowhere)
    with pytest.raises(WorkspaceStoreUnavailableError, match=r"127\.0\.0\.1:1/x.*cannot be reached") as caught:
        await open_postgres_store("postgresql://ada:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
