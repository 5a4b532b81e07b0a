"""Physical cleanup, seen in the server's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.core.identity import owner_token
from tests.servers import Server, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.keys.store import AppKeys
    from tests.integration.keys_cassandra.conftest import Raw


def files_with(folder: Path, marks: list[str]) -> set[str]:
    """Which of the marks are in the table's files."""
    found: set[str] = set()
    for file in folder.glob("*-Data.db"):
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # compacted away in this very moment
            continue
        found |= {mark for mark in marks if mark.encode() in content}
    return found


def test_expired_and_deleted_records_leave_the_files_after_flush_and_compaction(
    auth: AppKeys, raw: Raw, keyspace_url: str, shared_cassandra: Server
) -> None:
    keyspace = keyspace_url.rpartition("/")[2]
    # The table as it is made with gc_grace=0s. Uncompressed, so that values can be found; flushed every second, and
    # compacted for the sake of tombstones without the usual day of waiting: nobody is there to run nodetool.
    raw(
        f"ALTER TABLE {keyspace}.lapse_keys WITH compression = {{'enabled': false}} "
        "AND memtable_flush_period_in_ms = 1000 "
        "AND compaction = {'class': 'LeveledCompactionStrategy', 'unchecked_tombstone_compaction': 'true', "
        "'tombstone_compaction_interval': '1', 'tombstone_threshold': '0.01'}"
    )
    [folder] = (shared_cassandra.folder / "data" / keyspace).glob("lapse_keys-*")
    expiring, deleted, kept = (owner_token() for _ in range(3))
    auth.insert_many([(f"expiring {number}", f"{expiring} {number}", 2) for number in range(50)])
    auth.put("deleted", deleted, 600)
    auth.put("kept", kept, 600)
    wait_until(lambda: len(files_with(folder, [expiring, deleted, kept])) == 3, seconds=30, what="the flush")

    auth.delete("deleted")

    def only_the_live_one_is_left() -> bool:
        auth.put("kept", kept, 600)  # every flush asks whether there is something to compact
        return files_with(folder, [expiring, deleted, kept]) == {kept}

    wait_until(only_the_live_one_is_left, seconds=60, what="the compaction")
    assert auth.ttl_get("kept") == kept
