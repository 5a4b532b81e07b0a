"""Two stores on one file, as two processes have it: each sees what the other does, and works off what it left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.kube.errors import AlreadyExistsError, ConflictError, StoreUnavailableError
from lapse.kube.resources import EventType
from tests.integration.objects.writer import BOX, SHELF, open_store

if TYPE_CHECKING:
    from pathlib import Path


async def test_each_sees_the_others_changes_soon_and_without_asking(tmp_path: Path) -> None:
    here, there = open_store(tmp_path / "o.db"), open_store(tmp_path / "o.db")
    watch = here.watch(SHELF, since=(await here.list(SHELF)).resource_version)
    for number in range(20):
        made = await there.create(SHELF, {"metadata": {"name": f"s{number}"}})
        async with asyncio.timeout(30):  # far beyond a tenth of a second: a busy machine is no failure
            event = await anext(watch)
            while event.type is EventType.BOOKMARK:
                event = await anext(watch)
        assert event.object == made
        assert await here.get(SHELF, made.metadata.key) == made
    await watch.aclose()
    await here.close()
    await there.close()


async def test_of_two_who_create_or_change_the_same_one_wins(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / "o.db") for _ in range(2)]
    for number in range(20):
        asks = [store.create(SHELF, {"metadata": {"name": f"s{number}"}}) for store in stores]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        (loser,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(loser, AlreadyExistsError)
        (made,) = [answer for answer in answers if not isinstance(answer, BaseException)]
        version = made.metadata.resource_version
        patches = [
            store.patch(SHELF, made.metadata.key, {"spec": {"by": by}}, version=version)
            for by, store in enumerate(stores)
        ]
        lost = [
            found for found in await asyncio.gather(*patches, return_exceptions=True) if isinstance(found, Exception)
        ]
        assert [type(error) for error in lost] == [ConflictError]
    for store in stores:
        await store.close()


async def test_what_another_left_is_collected_by_whoever_watches(tmp_path: Path) -> None:
    here, there = open_store(tmp_path / "o.db"), open_store(tmp_path / "o.db")
    shelf = await here.create(SHELF, {"metadata": {"name": "s"}})
    meta = shelf.metadata
    owner = {"apiVersion": SHELF.api_version, "kind": SHELF.kind, "name": meta.name, "uid": meta.uid}
    box = await here.create(BOX, {"metadata": {"name": "b", "namespace": "n", "ownerReferences": [owner]}})
    watch = here.watch(BOX, since=box.metadata.resource_version)
    reading = asyncio.ensure_future(anext(watch))
    await there.delete(SHELF, meta.key)
    await there.close()  # before its own collector did anything
    event = await asyncio.wait_for(reading, 10)
    while event.type is EventType.BOOKMARK:
        event = await asyncio.wait_for(anext(watch), 10)
    assert event.type is EventType.DELETED
    await watch.aclose()
    await here.close()


async def test_a_file_of_another_program_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "o.db").write_text("this is no database" * 100)
    with pytest.raises(StoreUnavailableError, match="not a SQLite database"):
        open_store(tmp_path / "o.db")
