"""State of the version before the one record: the first start brings all of its rows into the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest

from lapse.core.identity import secret_bytes
from tests.servers.lapse_server import LapseServer, lapse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server

BEFORE = Path(__file__).parent / "before"
ROWS = "SELECT time_ns, domain, address, uid, version, reason, actor, outcome, details, tick, attempt FROM journal"
OF_THE_FOLDER, OF_WORKSPACES, OF_POSTGRES = 9, 3, 6
"""How many rows each journal has."""


def restore(name: str, folder: Path) -> Path:
    """Make a database of the version before."""
    path = folder / f"{name}.db"
    db = apsw.Connection(str(path))
    db.execute((BEFORE / f"{name}.sql").read_text()).fetchall()
    db.close()
    return path


def look(path: Path, sql: str) -> list[tuple[Any, ...]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def tables(path: Path) -> set[str]:
    named = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return {name for (name,) in look(path, named)}


def contains(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> bool:
    """Whether every row is there, as often as it was."""
    return all(found.count(row) == wanted.count(row) for row in wanted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder of the version before."""
    for name in ("objects", "workspaces"):
        restore(name, tmp_path)
    return tmp_path


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    """A database of the version before."""
    name = f"before_{secret_bytes(5).hex()}"
    with psycopg.connect(shared_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        url = f"{shared_postgres.url.rpartition('/')[0]}/{name}"
        with psycopg.connect(url) as empty:
            empty.execute((BEFORE / "postgres.sql").read_text())
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def start_and_stop(folder: Path, **settings: str) -> LapseServer:
    server = LapseServer.start(folder, settings=settings)
    assert server.stop()[0] == 0
    return server


def test_a_state_folder_has_one_record_after_the_first_start_and_no_row_is_lost(folder: Path) -> None:
    objects, workspaces = folder / "objects.db", folder / "workspaces.db"
    wanted = look(objects, ROWS) + look(workspaces, ROWS)
    assert len(wanted) == OF_THE_FOLDER + OF_WORKSPACES
    kept = look(workspaces, "SELECT * FROM workspaces")

    start_and_stop(folder)
    found = look(objects, ROWS)
    assert contains(found, wanted)
    frozen = {
        name: (since, reason, by)
        for name, since, reason, by in look(objects, "SELECT name, since_ns, reason, by FROM brakes")
        if since is not None
    }
    assert frozen == {
        "history": (1780000008000000000, "audit", "cli (ada)"),
        "workspaces": (1780000013000000000, "old habits", "cli (ada)"),
    }
    counted = dict(look(objects, "SELECT name, counted_after FROM brakes"))
    assert (counted["keepers"], counted["all"], counted["history"]) == (4, 4, 0)
    assert dict(look(objects, "SELECT name, text FROM safety_notes"))["first-seen/default"] == "2026-05-01T00:00:00Z"
    assert look(objects, "SELECT name FROM objects WHERE name = 'kept'")
    assert [row[:2] for row in look(workspaces, "SELECT * FROM workspaces")] == [row[:2] for row in kept]
    assert tables(workspaces) == {"workspaces", "leases"}

    start_and_stop(folder)
    assert contains(look(objects, ROWS), wanted), "and the next start moves nothing again"


def test_a_command_that_opens_an_older_file_of_workspaces_moves_its_record_as_well(folder: Path) -> None:
    wanted = look(folder / "workspaces.db", ROWS)
    shown = lapse("workspaces", "list", f"--state-dir={folder}", state_dir=folder)

    assert (shown.returncode, "lab" in shown.stdout) == (0, True), shown.stderr
    assert contains(look(folder / "objects.db", ROWS), wanted)
    assert tables(folder / "workspaces.db") == {"workspaces", "leases"}


@pytest.mark.server("postgres")
def test_a_database_has_the_one_record_after_the_first_start_and_no_row_is_lost(folder: Path, database: str) -> None:
    with psycopg.connect(database) as connection:
        there = connection.execute(ROWS).fetchall()
    here = look(folder / "objects.db", ROWS)
    assert (len(here), len(there)) == (OF_THE_FOLDER, OF_POSTGRES)

    server = start_and_stop(folder, LAPSE_WORKSPACES_URL=database)
    moved = server.event("record_moved")
    assert moved is not None
    assert moved["rows"] == OF_THE_FOLDER
    with psycopg.connect(database) as connection:
        found = connection.execute(ROWS).fetchall()
        assert contains(found, here + there)
        rows = connection.execute("SELECT store = '', name, reason FROM brakes WHERE since_ns IS NOT NULL").fetchall()
        assert set(rows) == {(True, "workspaces", "mine"), (False, "history", "audit")}
        stores = connection.execute(
            "SELECT DISTINCT store = '', domain FROM journal WHERE outcome = 'ended'"
        ).fetchall()
        assert {domain for is_here, domain in stores if is_here} == {"workspaces"}
        assert [one for (one,) in connection.execute("SELECT name FROM workspaces")] == ["far"]
        (clock,) = connection.execute("SELECT text FROM safety_notes WHERE name = 'clock'").fetchall()
        assert clock
    assert contains(look(folder / "objects.db", ROWS), here), "and the folder still has them"
    notes = dict(look(folder / "objects.db", "SELECT name, text FROM safety_notes"))
    assert notes["first-seen/default"] == "2026-05-01T00:00:00Z", "what is noted about objects stays with them"

    again = start_and_stop(folder, LAPSE_DATABASE_URL=database)
    assert again.event("record_moved") is None
    with psycopg.connect(database) as connection:
        assert contains(connection.execute(ROWS).fetchall(), here + there)


@pytest.mark.server("postgres")
def test_a_database_without_tables_or_of_a_newer_version_is_refused(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE lapse_schema SET version_num = '9999'")
        newer = lapse(
            "up",
            f"--state-dir={tmp_path}",
            f"--database-url={database}",
            "--http-port=0",
            "--probes-port=0",
            state_dir=tmp_path,
        )
        connection.execute("DROP TABLE lapse_schema")
        none = lapse(
            "up",
            f"--state-dir={tmp_path}",
            f"--database-url={database}",
            "--http-port=0",
            "--probes-port=0",
            state_dir=tmp_path,
        )
    for done, advice in ((newer, "upgrade Lapse"), (none, "lapse db init")):
        assert done.returncode == 1
        assert advice in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_a_folder_of_a_newer_version_is_refused(folder: Path) -> None:
    db = apsw.Connection(str(folder / "objects.db"))
    db.execute("PRAGMA user_version = 99").fetchall()
    db.close()
    done = lapse("up", f"--state-dir={folder}", "--http-port=0", "--probes-port=0", state_dir=folder)

    assert done.returncode == 1
    assert "it was made by a newer version of Lapse" in " ".join(done.stderr.split())
