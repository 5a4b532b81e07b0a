"""A file that an older Lapse has written: everything in it is found by labels, counted and kept as it was."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import apsw

from lapse.core.clock import UnixNs
from lapse.db.sqlite.file import Synchronous
from lapse.engine.safety.holds import Hold
from lapse.objects.embedded import SCHEMA, open_embedded
from lapse.objects.port import Deletion
from tests.unit.objects.kinds import BOX, KINDS, box, key

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.core.clock import VirtualClock
    from lapse.objects.embedded import EmbeddedStore

LABELS = {"app": "shop", "lapse.dev/status": "success"}


def opened(path: Path, clock: VirtualClock) -> EmbeddedStore:
    return open_embedded(path, kinds=KINDS, clock=clock, synchronous=Synchronous.NORMAL)


def make_older(path: Path) -> None:
    """Take back what the last scripts did, so that the file is one that they were never run on."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP INDEX objects_held")
        connection.execute("DROP INDEX journal_intents")
        for column in ("labels", "created", "hold"):
            connection.execute(f"ALTER TABLE objects DROP COLUMN {column}")
        for table in ("safety_notes", "holds", "leases", "extensions", "plans"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {len(SCHEMA.scripts) - 8}")


async def test_what_an_older_lapse_has_stored_is_found_by_labels_and_counted(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "o.db"
    store = opened(path, clock)
    first = await store.create(BOX, box("first", labels=LABELS))
    clock.advance(60)
    await store.create(BOX, box("second", labels=LABELS))
    await store.create(BOX, box("plain"))
    await store.patch(BOX, key("second"), {"metadata": {"labels": {"app": "bank"}}})
    await store.close()
    make_older(path)

    store = opened(path, clock)
    try:
        assert (await store.list(BOX)).items[0] == first
        by_label = await store.list(BOX, labels={"app": "shop"})
        assert [one.metadata.name for one in by_label.items] == ["first"]
        found = await store.summary(BOX, at_most=10)
        assert found is not None
        told = {(one.labels.get("app"), one.how_many, one.oldest) for one in found}
        made = {one.metadata.name: one.metadata.creation_timestamp for one in (await store.list(BOX)).items}
        assert told == {("shop", 1, made["first"]), ("bank", 1, made["second"]), (None, 1, made["plain"])}

        await store.create(BOX, box("third", labels=LABELS))
        assert [one.metadata.name for one in (await store.list(BOX, labels=LABELS)).items] == ["first", "third"]
    finally:
        await store.close()


async def test_what_an_older_lapse_has_stored_is_held_by_what_holds_it(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "o.db"
    store = opened(path, clock)
    held = box("held")
    held["metadata"]["annotations"] = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit", "other": "x"}
    named = box("named")
    named["metadata"]["annotations"] = {"example.org/note": '"lapse.dev/hold" is not set'}
    made = {one["metadata"]["name"]: await store.create(BOX, one) for one in (held, named, box("free"))}
    await store.close()
    make_older(path)

    store = opened(path, clock)
    try:
        deletions = [Deletion(BOX, key(name), one.metadata.uid, "") for name, one in made.items()]
        found = await store.holds_over(deletions, UnixNs(clock.wall_ns()))
        assert found == [Hold("audit", None), None, None]
    finally:
        await store.close()
