"""Physical cleanup, seen in the file itself: what expired goes, what was renewed stays, space returns."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from lapse.keys.port import CleanupReport

if TYPE_CHECKING:
    from tests.integration.keys_file.conftest import Store


def test_an_expired_record_is_absent_at_once_and_gone_from_the_file_after_a_sweep(store: Store) -> None:
    store.app.put("short", "value", 10)
    store.app.put("long", "value", 100)
    store.clock.advance(10)

    assert store.app.ttl_get("short") is None
    assert store.stored_keys() == ["long", "short"]
    assert store.keys.sweep() == CleanupReport(removed=1, more=False, lag_seconds=0.0)
    assert store.stored_keys() == ["long"]


def test_a_record_is_swept_at_the_millisecond_of_its_expiry_and_not_before(store: Store) -> None:
    store.app.put("key", "value", 10)
    store.clock.advance(10, ns=-1)
    assert store.keys.sweep().removed == 0

    store.clock.advance(ns=1)
    assert store.keys.sweep().removed == 1


@pytest.mark.parametrize("renewal", ["touch", "put", "swap", "insert again"])
def test_a_record_that_was_renewed_is_not_swept_by_its_old_expiry(store: Store, renewal: str) -> None:
    store.app.put("key", "value", 10)
    if renewal == "touch":
        assert store.app.touch("key", 100) is True
    elif renewal == "put":
        store.app.put("key", "value", 100)
    elif renewal == "swap":
        assert store.app.compare_and_swap("key", "value", "other", 100) is True
    else:
        store.clock.advance(10)
        assert store.app.insert_if_not_exists("key", "value", 100) is True
    store.clock.advance(50)

    assert store.keys.sweep() == CleanupReport(removed=0, more=False)
    assert store.stored_keys() == ["key"]
    assert store.app.query_ttl("key") is not None


def test_a_sweep_removes_the_oldest_first_up_to_its_limit_and_says_whether_more_is_left(store: Store) -> None:
    store.app.insert_many([(f"key:{number}", "value", 10 + number) for number in range(10)])
    store.clock.advance(100)

    assert store.keys.sweep(4) == CleanupReport(removed=4, more=True, lag_seconds=90.0)
    assert store.stored_keys() == [f"key:{number}" for number in range(4, 10)]
    assert store.keys.sweep(6) == CleanupReport(removed=6, more=False, lag_seconds=86.0)


def test_a_sweep_of_many_leaves_nothing_and_touches_no_other_application(store: Store) -> None:
    store.app.insert_many([(f"key:{number}", "value", 10) for number in range(5000)])
    store.keys.app(8).insert_many([(f"key:{number}", "value", 100) for number in range(100)])
    store.clock.advance(20)

    assert store.keys.sweep(10_000) == CleanupReport(removed=5000, more=False, lag_seconds=10.0)
    assert list(store.keys.backend.counts()) == [(4, 8, 100)]


def test_the_file_shrinks_after_its_records_have_expired(store: Store) -> None:
    store.app.insert_many([(f"key:{number}", "v" * 1000, 10) for number in range(5000)])
    store.app.insert_many([(f"kept:{number}", "v" * 1000, 1000) for number in range(50)])
    (pages_before,) = store.query("PRAGMA page_count")[0]
    store.clock.advance(20)

    for _ in range(10):
        store.keys.sweep()
    store.query("PRAGMA wal_checkpoint(TRUNCATE)")

    (pages_after,) = store.query("PRAGMA page_count")[0]
    assert pages_before > 1500
    assert pages_after < 200
    assert store.path.stat().st_size == pages_after * 4096
    assert store.query("PRAGMA integrity_check") == [("ok",)]
    assert len(store.app.scan()) == 50


def test_some_free_pages_are_kept_for_the_next_inserts(store: Store) -> None:
    store.app.insert_many([(f"key:{number}", "v" * 1000, 10) for number in range(300)])
    store.clock.advance(20)
    for _ in range(10):
        store.keys.sweep()

    (free,) = store.query("PRAGMA freelist_count")[0]
    assert 16 <= free <= 64


def test_the_log_stays_bounded_while_readers_never_pause(store: Store) -> None:
    store.app.put("key", "value", 3600)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            store.app.scan(limit=10)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    largest = 0
    for number in range(25):
        store.app.insert_many([(f"key:{number}:{item}", "v" * 16_000, 3600) for item in range(100)])
        store.keys.sweep()
        largest = max(largest, Path(f"{store.path}-wal").stat().st_size)
    stop.set()
    for reader in readers:
        reader.join()

    assert store.path.stat().st_size > 32_000_000
    assert largest < 24_000_000


def test_a_log_that_a_long_reader_made_grow_is_cut_back_by_the_sweep(store: Store) -> None:
    log = Path(f"{store.path}-wal")
    store.app.put("key", "value", 3600)
    reader = apsw.Connection(str(store.path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchall()
    for number in range(12):
        store.app.insert_many([(f"key:{number}:{item}", "v" * 4000, 3600) for item in range(400)])
    grown = log.stat().st_size
    store.keys.sweep()
    assert log.stat().st_size == grown > 16_000_000  # it cannot, and nobody waits long for it
    reader.execute("COMMIT")
    reader.close()
    store.keys.sweep()

    assert log.stat().st_size == 0
