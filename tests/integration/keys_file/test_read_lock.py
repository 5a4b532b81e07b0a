"""The shared read lock: held while there are many reads, never seen in what they answer, gone when they end."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.db.sqlite.readers import ReadLock
    from tests.integration.keys_file.conftest import Store

SECONDS = 20


def read_lock_of(store: Store) -> ReadLock:
    read_lock: ReadLock = store.keys.backend.readers.read_lock  # type: ignore[attr-defined]
    return read_lock


def until(condition: Callable[[], bool], *, meanwhile: Callable[[], object] = lambda: None) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 1000):
        if condition():
            return
        for _ in range(50):
            meanwhile()
        pause.wait(0.001)
    pytest.fail("that never came true")


def read_until_held(store: Store) -> None:
    until(lambda: read_lock_of(store).held, meanwhile=lambda: store.app.ttl_get("key"))


def test_a_few_reads_start_no_thread(store: Store) -> None:
    for _ in range(20):
        store.app.ttl_get("key")

    assert read_lock_of(store)._ticker is None


def test_many_reads_hold_the_read_lock_and_it_goes_when_they_end(store: Store) -> None:
    store.app.put("key", "value", 60)

    read_until_held(store)
    ticker = read_lock_of(store)._ticker
    assert ticker is not None
    until(lambda: not ticker.is_alive())

    assert not read_lock_of(store).held
    read_until_held(store)  # and comes back with the next ones


def test_a_reader_under_the_read_lock_sees_every_commit_of_others_at_once(store: Store) -> None:
    store.app.put("key", "0", 3600)
    other = apsw.Connection(str(store.path))
    seen_while_held = 0
    for number in range(1, 40):
        read_until_held(store)
        other.execute("UPDATE records SET value = ?", (str(number).encode(),))

        seen_while_held += read_lock_of(store).held
        assert store.app.ttl_get("key") == str(number)
    other.close()

    assert seen_while_held > 20


def test_the_log_can_be_reset_after_the_read_lock_has_gone(store: Store) -> None:
    store.app.put("key", "value", 3600)
    read_until_held(store)
    until(lambda: read_lock_of(store)._ticker is None)
    other = apsw.Connection(str(store.path))

    busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    other.close()

    assert busy == 0
    assert Path(f"{store.path}-wal").stat().st_size == 0


def test_a_store_is_closed_while_its_read_lock_is_held(store: Store) -> None:
    store.app.put("key", "value", 60)
    read_until_held(store)
    ticker = read_lock_of(store)._ticker

    store.keys.close()

    assert ticker is None or not ticker.is_alive()
    assert [file.name for file in store.path.parent.iterdir()] == ["keys.db"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_the_read_lock_is_held_harms_neither_side(store: Store) -> None:
    store.app.put("key", "value", 60)
    read_until_held(store)
    child = os.fork()
    if child == 0:
        store.keys.close()
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.app.ttl_get("key") == "value"
    read_until_held(store)
    store.app.put("key", "after", 60)
    assert store.app.ttl_get("key") == "after"
