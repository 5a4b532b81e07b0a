"""A full disk: a clear error, nothing lost, and work goes on when there is room again."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import SQLiteFile
from lapse.keys.backends.file import FileBackend, FileSpace
from lapse.keys.backends.layout import Prefix
from lapse.keys.errors import BackendUnavailableError, OutcomeUnknownError
from lapse.keys.port import NewItem
from tests.sqlite_disks import disk, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUE = "v" * 1000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[FileBackend]:
    """Give a store whose file cannot grow beyond 60 pages: SQLite then says the disk is full."""
    file = SQLiteFile(tmp_path / "keys.db", pragmas={"max_page_count": "60"})
    backend = FileBackend(file, name="file:///keys.db", clock=VirtualClock())
    yield backend
    backend.close()


def space_of(backend: FileBackend) -> FileSpace:
    return backend.space(Prefix.APPLICATION_TTL, 7)


def fill(space: FileSpace) -> list[str]:
    """Insert until the disk is full; return what was acknowledged."""
    stored: list[str] = []
    for number in range(1000):
        try:
            space.insert(f"key:{number}", VALUE, 3600)
        except BackendUnavailableError:
            return stored
        stored.append(f"key:{number}")
    pytest.fail("the disk never got full")


def test_a_write_that_finds_the_disk_full_says_so(small: FileBackend) -> None:
    space = space_of(small)
    fill(space)

    with pytest.raises(
        BackendUnavailableError, match=r"file:///keys.db cannot be used now: the disk is full\."
    ) as error:
        space.insert("one more", VALUE, 3600)

    assert isinstance(error.value.__cause__, apsw.FullError)


def test_nothing_acknowledged_is_lost_and_reads_go_on(small: FileBackend) -> None:
    space = space_of(small)
    stored = fill(space)

    assert len(stored) > 10
    assert space.get_many(stored) == dict.fromkeys(stored, VALUE)
    assert [item.key for item in space.scan("", None, 1000)] == sorted(stored)


def test_writes_work_again_once_there_is_room(small: FileBackend) -> None:
    space = space_of(small)
    stored = fill(space)
    for key in stored[:10]:
        assert space.delete(key) is True

    assert space.insert("one more", VALUE, 3600) is True
    assert space.get("one more") == VALUE


def test_many_writers_on_a_full_disk_each_get_a_true_answer(small: FileBackend) -> None:
    space = space_of(small)
    told: list[str] = []
    refused: list[BaseException] = []

    def work(name: int) -> None:
        for number in range(20):
            try:
                space.insert(f"{name}:{number}", VALUE, 3600)
                told.append(f"{name}:{number}")
            except BackendUnavailableError as error:
                refused.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refused
    assert len(told) + len(refused) == 160
    assert sorted(item.key for item in space.scan("", None, 1000)) == sorted(told)


def test_a_list_of_inserts_that_fills_the_disk_says_how_far_it_came(small: FileBackend) -> None:
    items = [NewItem(f"key:{number:04}", "v" * 20, 3600) for number in range(10_000)]

    with pytest.raises(OutcomeUnknownError, match=r"the first (\d+)00 of 10000 items .* the disk is full") as error:
        space_of(small).insert_many(items)

    reached = int(str(error.value).partition("the first ")[2].split()[0])
    assert [item.key for item in space_of(small).scan("", None, 10_000)] == [item.key for item in items[:reached]]


def test_a_full_disk_met_while_committing_fails_the_write_and_leaves_the_store_usable(tmp_path: Path) -> None:
    def full(_path: str, _offset: int, _data: bytes) -> None:
        raise apsw.exception_for(apsw.SQLITE_FULL)

    with disk() as failing:
        backend = FileBackend(failing.file(tmp_path / "keys.db"), name="file:///keys.db", clock=VirtualClock())
        space = space_of(backend)
        assert space.insert("before", VALUE, 3600) is True
        failing.on_write = full
        for _ in range(3):
            with pytest.raises(BackendUnavailableError, match="the disk is full"):
                space.insert("during", VALUE, 3600)
        failing.on_write = nothing

        assert space.insert("before", VALUE, 3600) is False
        assert space.insert("during", VALUE, 3600) is True
        backend.close()


def test_a_sync_that_fails_is_an_unknown_outcome_and_leaves_the_store_usable(tmp_path: Path) -> None:
    def broken(_: str) -> None:
        raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)

    with disk() as failing:
        backend = FileBackend(failing.file(tmp_path / "keys.db"), name="file:///keys.db", clock=VirtualClock())
        space = space_of(backend)
        failing.on_sync = broken
        with pytest.raises(OutcomeUnknownError, match="SQLITE_IOERR_FSYNC"):
            space.insert("key", VALUE, 3600)
        failing.on_sync = nothing

        assert space.insert("key", VALUE, 3600) is True  # in this process it was taken back
        backend.close()


def test_a_disk_that_keys_filled_is_usable_again_when_they_have_expired(tmp_path: Path) -> None:
    """On a file system of its own, because it is the log, too, that must not find room."""
    mount = 'mount -t tmpfs -o size=8m tmpfs "$1" && '
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*command, f"{mount} true", "sh", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    program = 'exec "$2" -m tests.integration.keys_file.full_disk "$1"'

    done = subprocess.run(
        [*command, mount + program, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
