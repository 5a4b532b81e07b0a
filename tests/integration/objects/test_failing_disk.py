"""A disk that fails: a clear error, no half change, and work that goes on when it is well again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile
from lapse.kube.errors import StoreUnavailableError
from lapse.objects.embedded import SCHEMA, EmbeddedStore
from tests.integration.objects.writer import BOX, SHELF
from tests.sqlite_disks import disk, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Document, Json


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    """Give a store whose file cannot grow beyond 80 pages."""
    file = SQLiteFile(tmp_path / "o.db", pragmas={"max_page_count": "80"})
    store = EmbeddedStore(Database(file, SCHEMA), kinds=[SHELF, BOX], clock=VirtualClock())
    yield store
    await store.close()


def large(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"content": "x" * 10_000}}


async def test_a_full_disk_loses_nothing_that_was_acknowledged(small: EmbeddedStore) -> None:
    made: list[Document] = []

    async def fill() -> None:
        while len(made) < 1_000:
            made.append(await small.create(SHELF, large(f"s{len(made):04}")))

    with pytest.raises(StoreUnavailableError, match="the disk is full") as failure:
        await fill()
    assert isinstance(failure.value.__cause__, apsw.FullError)
    assert made
    assert list((await small.list(SHELF)).items) == made


async def test_a_commit_whose_outcome_is_unknown_says_so(tmp_path: Path) -> None:
    with disk() as failing:
        store = EmbeddedStore(Database(failing.file(tmp_path / "o.db"), SCHEMA), kinds=[SHELF], clock=VirtualClock())
        # No reading before: this disk has no shared memory, and so room for one connection only.
        store._looked = True

        def fail(path: str) -> None:
            raise apsw.IOError

        failing.on_sync = fail
        with pytest.raises(StoreUnavailableError, match="it is not known whether the change was made") as failure:
            await store.create(SHELF, large("s"))
        assert isinstance(failure.value.__cause__, apsw.IOError)
        failing.on_sync = nothing
        await store.create(SHELF, large("t"))
        await store.close()


async def test_a_full_disk_is_said_and_work_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    def full(_path: str, _offset: int, _data: bytes) -> None:
        raise apsw.exception_for(apsw.SQLITE_FULL)

    with disk() as failing:
        store = EmbeddedStore(Database(failing.file(tmp_path / "o.db"), SCHEMA), kinds=[SHELF], clock=VirtualClock())
        store._looked = True  # the same
        failing.on_write = full
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="the disk is full"):
                await store.create(SHELF, large("s"))
        failing.on_write = nothing
        await store.create(SHELF, large("s"))
        await store.close()
