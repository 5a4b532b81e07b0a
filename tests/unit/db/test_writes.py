"""Writes to SQLite files, told by a real kernel; time is virtual, so that nothing but a write wakes who waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.db.sqlite import writes as module
from lapse.db.sqlite.file import Schema, SQLiteFile, open_writer
from lapse.db.sqlite.writes import Writes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import apsw

SCHEMA: Final = Schema(1, ["CREATE TABLE notes (text TEXT)"])
INSERT: Final = "import apsw, sys; apsw.Connection(sys.argv[1]).execute(\"INSERT INTO notes VALUES ('a')\")"
FOR_EVER: Final = 1e9
PATIENCE_SECONDS: Final = 30
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify; elsewhere files are polled")


@pytest.fixture
def file(tmp_path: Path) -> SQLiteFile:
    return SQLiteFile(tmp_path / "notes.db")


@pytest.fixture
def db(file: SQLiteFile) -> apsw.Connection:
    return open_writer(file, SCHEMA)


@pytest.fixture
async def writes(file: SQLiteFile, db: apsw.Connection) -> AsyncIterator[Writes]:
    """Watch a file that is there; the first pause, which waits for nothing, is over."""
    watched = Writes([file.path])
    await watched.pause(VirtualClock(), least=0, most=FOR_EVER)
    yield watched
    watched.close()


def waiting(writes: Writes, *, least: float = 0) -> tuple[asyncio.Task[None], VirtualClock]:
    clock = VirtualClock()
    return asyncio.create_task(writes.pause(clock, least=least, most=FOR_EVER)), clock


async def settle() -> None:
    """Let what the kernel has told so far be read."""
    for _ in range(20):
        await SystemClock().sleep(0)


async def soon(task: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    assert done, "the write was not told"
    task.result()


async def test_a_commit_ends_the_pause(writes: Writes, db: apsw.Connection) -> None:
    assert writes.is_told
    task, _ = waiting(writes)
    await settle()
    assert not task.done()
    db.execute("INSERT INTO notes VALUES ('a')")
    await soon(task)


@pytest.mark.process
async def test_a_commit_of_another_process_ends_the_pause(writes: Writes, file: SQLiteFile) -> None:
    task, _ = waiting(writes)
    await settle()
    command = [sys.executable, "-c", INSERT, str(file.path)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    await soon(task)


async def test_what_was_written_while_nobody_waited_ends_the_next_pause_and_only_that(
    writes: Writes, db: apsw.Connection
) -> None:
    db.execute("INSERT INTO notes VALUES ('a')")
    await settle()
    await soon(waiting(writes)[0])
    task, _ = waiting(writes)
    await settle()
    assert not task.done()
    task.cancel()


async def test_a_pause_takes_its_least_time_however_much_is_written(writes: Writes, db: apsw.Connection) -> None:
    task, clock = waiting(writes, least=0.25)
    for _ in range(5):
        db.execute("INSERT INTO notes VALUES ('a')")
        await settle()
    assert not task.done()
    clock.advance(0.25)
    await soon(task)


async def test_a_pause_ends_without_a_write_and_the_next_one_does_not_end_for_that(writes: Writes) -> None:
    task, clock = waiting(writes)
    await settle()
    clock.advance(FOR_EVER)
    await soon(task)
    task, _ = waiting(writes)
    await settle()
    assert not task.done()
    task.cancel()


async def test_a_cancelled_pause_leaves_no_wakeup_behind(writes: Writes) -> None:
    first, _ = waiting(writes)
    await settle()
    first.cancel()
    await settle()
    task, _ = waiting(writes)
    await settle()
    assert not task.done()
    task.cancel()


async def test_other_files_of_the_folder_and_reading_wake_nobody(
    writes: Writes, file: SQLiteFile, db: apsw.Connection
) -> None:
    task, _ = waiting(writes)
    await settle()
    (file.path.parent / "other").write_text("a")
    db.execute("SELECT * FROM notes").fetchall()
    await settle()
    assert not task.done()
    task.cancel()


async def test_a_log_that_was_removed_and_made_anew_is_still_watched(
    writes: Writes, file: SQLiteFile, db: apsw.Connection
) -> None:
    db.close()  # the last connection removes the log
    await settle()
    await soon(waiting(writes)[0])
    task, _ = waiting(writes)
    await settle()
    open_writer(file, SCHEMA).execute("INSERT INTO notes VALUES ('a')")
    await soon(task)


async def test_a_folder_that_goes_away_is_polled_from_then_on(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    writes = Writes([folder / "notes.db"])
    await writes.pause(VirtualClock(), least=0, most=FOR_EVER)
    task, _ = waiting(writes)
    await settle()
    folder.rmdir()
    await soon(task)
    assert not writes.is_told
    task, clock = waiting(writes, least=0.25)
    await settle()
    assert not task.done()
    clock.advance(0.25)
    await soon(task)


async def test_a_kernel_that_has_no_watches_left_is_polled(file: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> int:
        raise OSError

    monkeypatch.setattr(module, "_watch", refuse)
    writes = Writes([file.path])
    for _ in range(3):
        task, clock = waiting(writes, least=0.25)
        await settle()
        assert not task.done()
        clock.advance(0.25)
        await soon(task)
    assert not writes.is_told


async def test_closing_gives_the_descriptor_back_and_a_later_pause_begins_anew(
    writes: Writes, db: apsw.Connection
) -> None:
    for _ in range(2):
        writes.close()
    await soon(waiting(writes)[0])  # what was missed meanwhile is seen at once
    task, _ = waiting(writes)
    await settle()
    db.execute("INSERT INTO notes VALUES ('a')")
    await soon(task)
