"""Waiting for another process that holds the write lock: bounded, harmless to readers, and not taken from a TTL."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

from lapse.keys.errors import BackendUnavailableError
from tests.integration.keys_file.conftest import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD_THE_LOCK = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
print("free", flush=True)
"""


@contextmanager
def lock_held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the file's write lock until it gets a line."""
    program = [sys.executable, "-c", HOLD_THE_LOCK, str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        if holder.poll() is None:
            holder.communicate("\n")


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "keys.db", "?timeout=150ms")
    yield made
    made.keys.close()


def test_a_write_gives_up_after_the_timeout_and_changes_nothing(hasty: Store) -> None:
    with lock_held(hasty.path):
        with pytest.raises(BackendUnavailableError, match="locked by another process for more than 150ms") as error:
            hasty.app.insert_if_not_exists("key", "value", 60)
        assert isinstance(error.value.__cause__, apsw.BusyError)
        assert "Nothing was changed" in str(error.value)

    assert hasty.stored_keys() == []
    assert hasty.app.insert_if_not_exists("key", "value", 60) is True


def test_readers_do_not_wait_for_a_writer(hasty: Store) -> None:
    hasty.app.put("key", "value", 60)

    with lock_held(hasty.path):
        assert hasty.app.ttl_get("key") == "value"
        assert hasty.app.query_ttl("key") == 60.0
        assert hasty.app.get_many(["key"]) == {"key": "value"}
        assert [item.key for item in hasty.app.scan()] == ["key"]


def test_a_sweep_with_nothing_to_do_does_not_wait_for_a_writer(hasty: Store) -> None:
    hasty.app.put("key", "value", 60)

    with lock_held(hasty.path):
        assert hasty.keys.sweep().removed == 0


def test_opening_an_existing_store_does_not_wait_for_a_writer(hasty: Store) -> None:
    hasty.app.put("key", "value", 60)

    with lock_held(hasty.path):
        other = Store(hasty.path, "?timeout=150ms")
        assert other.app.ttl_get("key") == "value"
        other.keys.close()


def test_time_spent_waiting_for_the_lock_does_not_shorten_a_ttl(store: Store) -> None:
    store.app.put("old", "value", 5)
    writers = [
        threading.Thread(target=store.app.insert_if_not_exists, args=("new", "value", 60)),
        threading.Thread(target=store.app.touch, args=("old", 60)),
    ]
    with lock_held(store.path) as holder:
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(0.1)
            assert writer.is_alive()
        store.clock.advance(30)
        holder.communicate("\n")
        for writer in writers:
            writer.join()

    assert store.app.query_ttl("new") == 60.0
    assert store.app.ttl_get("old") is None  # it expired while the lock was waited for, so it was not renewed
