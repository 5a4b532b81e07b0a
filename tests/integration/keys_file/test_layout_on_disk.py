"""What lies in the file, seen without our own code: the layout is a promise to whoever has to read it without Lapse."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import lapse

if TYPE_CHECKING:
    from pathlib import Path


def records(path: Path) -> list[tuple[bytes, bytes, bytes]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT partition, key, value FROM records ORDER BY partition, key").fetchall()


def test_a_record_lies_under_eight_bytes_and_its_keys_own_bytes(tmp_path: Path) -> None:
    with lapse.open_keys(f"file://{tmp_path}/keys.db") as keys:
        keys.app(7).put("käy\0", "välue", 900)
        keys.app(4_294_967_295).put("key", "", 900)

    assert records(tmp_path / "keys.db") == [
        (bytes.fromhex("00000004 00000007"), "käy\0".encode(), "välue".encode()),
        (bytes.fromhex("00000004 ffffffff"), b"key", b""),
    ]


def test_with_buckets_two_bytes_follow(tmp_path: Path) -> None:
    with lapse.open_keys(f"file://{tmp_path}/keys.db?buckets=300") as keys:
        keys.app(7).put("a", "1", 900)

    [(partition, _, _)] = records(tmp_path / "keys.db")
    assert partition[:8] == bytes.fromhex("00000004 00000007")
    assert len(partition) == 10


def test_locks_lie_under_the_prefix_of_elections(tmp_path: Path) -> None:
    with lapse.open_keys(f"file://{tmp_path}/keys.db") as keys, keys.app(7).lock("job", ttl_seconds=60):
        found = records(tmp_path / "keys.db")

    assert {partition for partition, _, _ in found} == {bytes.fromhex("00000001 00000007")}
