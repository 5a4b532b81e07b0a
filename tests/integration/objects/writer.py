"""A process that works on a store until it is killed, and says what it was told.

Run as ``python -m tests.integration.objects.writer FILE NAME``; says ``made SHELF``, ``deleted SHELF``, ``counted N``.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lapse.core.clock import SystemClock
from lapse.kube.errors import AlreadyExistsError, ConflictError
from lapse.kube.resources import ObjectKey, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

SHELF: Final = untyped("test.lapse.dev/v1", "Shelf", "shelves", namespaced=False)
BOX: Final = untyped("test.lapse.dev/v1", "Box", "boxes")
COUNTER: Final = ObjectKey("shared", "counter")
BESIDE: Final = "CREATE TABLE IF NOT EXISTS beside (name TEXT NOT NULL)"
TASKS: Final = 4
BOXES: Final = 5


def open_store(path: Path) -> EmbeddedStore:
    return open_embedded(path, kinds=[SHELF, BOX], clock=SystemClock())


def say(what: str, detail: object) -> None:
    sys.stdout.write(f"{what} {detail}\n")
    sys.stdout.flush()


def noting(name: str) -> Callable[[apsw.Cursor], None]:
    def note(cursor: apsw.Cursor) -> None:
        cursor.execute("INSERT INTO beside (name) VALUES (?)", (name,))

    return note


async def shelves(store: EmbeddedStore, name: str) -> None:
    """Make shelves with boxes; remove every second one, with a note beside."""
    for number in count():
        shelf = await store.create(SHELF, {"metadata": {"name": f"{name}-{number}"}})
        say("made", shelf.metadata.name)
        meta = shelf.metadata
        owner = {"apiVersion": SHELF.api_version, "kind": SHELF.kind, "name": meta.name, "uid": meta.uid}
        for box in range(BOXES):
            metadata = {"name": f"{meta.name}-{box}", "namespace": "boxes", "ownerReferences": [owner]}
            await store.create(BOX, {"metadata": metadata, "spec": {"filling": "x" * 500}})
        if number % 2:
            version = meta.resource_version
            await store.delete(SHELF, meta.key, uid=meta.uid, version=version, also=noting(meta.name))
            say("deleted", meta.name)


async def counting(store: EmbeddedStore) -> None:
    """Raise a number that all share, by compare and patch."""
    while True:
        found = await store.get(BOX, COUNTER)
        number = found.body["spec"]["number"] + 1
        try:
            await store.patch(BOX, COUNTER, {"spec": {"number": number}}, version=found.metadata.resource_version)
        except ConflictError:
            continue
        say("counted", number)


async def prepare(store: EmbeddedStore) -> None:
    await store.database.write(lambda cursor: cursor.execute(BESIDE).fetchall())
    with suppress(AlreadyExistsError):
        await store.create(BOX, {"metadata": {"name": "counter", "namespace": "shared"}, "spec": {"number": 0}})


async def main(path: Path, name: str) -> None:
    store = open_store(path)
    await prepare(store)
    await asyncio.gather(*(shelves(store, f"{name}-{task}") for task in range(TASKS)), counting(store))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
