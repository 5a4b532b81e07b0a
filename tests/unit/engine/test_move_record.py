"""Rows of one record move into another: all of them, once, whatever happens in between."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS as JOURNAL_SCRIPTS
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.safety import counted
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.counted import is_copy, move_record, rename_record
from lapse.engine.safety.freeze import CLOCK, Freeze, FreezeReason, freeze_row, resume_row
from lapse.engine.safety.sqlite import NOTES_SCRIPTS, SCHEMA_SCRIPTS, SQLiteGateStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lapse.engine.safety.counted import MovedRows

SCHEMA = Schema(application_id=0x4C54, scripts=(*JOURNAL_SCRIPTS, *SCHEMA_SCRIPTS, *NOTES_SCRIPTS))
NOW = 1_700_000_000_000_000_000
BUDGETS = Budgets(Budget.parse("100/1h"), {"things": Budget.parse("50/1h")})
ROW = Entry(
    time_ns=NOW,
    domain="things",
    address="thing/a",
    uid="a",
    version="1",
    verdict="due",
    reason="ttl_expired",
    anchor_ns=None,
    policy="",
    actor="lapse",
    outcome=Outcome.ENDED,
    details={"of": "a"},
)


class RecordOf:
    """One record, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.database = Database(SQLiteFile(path, synchronous=Synchronous.NORMAL), SCHEMA)
        self.journal = SQLiteJournal(self.database)
        self.safety = SQLiteGateStore(self.journal, budgets=BUDGETS, domains=["things"])

    async def freeze(self, name: str, why: str, *, since: int = NOW) -> None:
        freeze = Freeze(UnixNs(since), why, "ann")
        await self.safety.freeze(name, freeze, freeze_row(name, freeze, reason=FreezeReason.BY_PERSON, now=NOW))

    async def end(self, *names: str) -> None:
        await self.journal.append(*[replace(ROW, address=f"thing/{name}") for name in names])

    async def told(self) -> list[str]:
        rows = await self.journal.entries(limit=10_000)
        return sorted(row.address or row.outcome for row in rows)

    async def spent(self) -> dict[str, int]:
        return {name: sum(slices.values()) for name, slices in (await self.safety.load(NOW)).spent.items()}


@pytest.fixture
def old(tmp_path: Path) -> Iterator[RecordOf]:
    record = RecordOf(tmp_path / "old.db")
    yield record
    record.database.close()


@pytest.fixture
def new(tmp_path: Path) -> Iterator[RecordOf]:
    record = RecordOf(tmp_path / "new.db")
    yield record
    record.database.close()


async def full(record: RecordOf) -> None:
    """Write what is counted before a resume and after it, and what is frozen."""
    await record.end("before", "before")
    await record.freeze("things", "wait")
    await record.safety.resume("things", resume_row("things", by="ann", now=NOW))
    await record.end("after", "after", "after")
    await record.freeze("others", "audit")
    await record.safety.write_note(CLOCK, "a mark")


@pytest.mark.parametrize("page", [1, 2, 3, 2_000])
async def test_everything_moves_and_no_less_is_counted(
    old: RecordOf, new: RecordOf, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "_PAGE", page)
    await full(old)
    told = await old.told()
    assert await old.spent() == {"things": 3, "all": 3}

    assert await move_record(old.database, new.safety) == len(told)
    assert (await new.told(), await new.spent()) == (told, {"things": 5, "all": 5})
    assert (await new.safety.load(NOW)).frozen == {"others": Freeze(UnixNs(NOW), "audit", "ann")}
    assert await new.safety.read_note(CLOCK) == "a mark"
    assert await move_record(old.database, new.safety) == 0
    assert await new.told() == told


async def test_what_was_moved_stays_for_those_that_live_on_it(old: RecordOf, new: RecordOf) -> None:
    await full(old)
    told = await old.told()
    await move_record(old.database, new.safety)

    assert await old.told() == told
    assert set((await old.safety.load(NOW)).frozen) == {"others"}


async def test_a_record_that_is_given_up_is_emptied(old: RecordOf, new: RecordOf) -> None:
    await full(old)
    told = await old.told()
    await move_record(old.database, new.safety, empties=True)

    assert (await new.told(), await old.told()) == (told, [])
    assert list(old.database.read("SELECT * FROM brakes")) == []
    assert await old.safety.read_note(CLOCK) is None
    await old.end("late")
    assert await move_record(old.database, new.safety, empties=True) == 1


async def test_what_comes_later_moves_later(old: RecordOf, new: RecordOf) -> None:
    await old.end("one")
    await move_record(old.database, new.safety)
    await old.end("two")
    await old.freeze("things", "meanwhile")
    await move_record(old.database, new.safety)

    assert await new.told() == ["frozen", "thing/one", "thing/two"]
    assert set((await new.safety.load(NOW)).frozen) == {"things"}


async def test_a_freeze_of_either_stays(old: RecordOf, new: RecordOf) -> None:
    await full(old)
    await new.end("here")
    await new.freeze("others", "mine")
    await new.safety.write_note(CLOCK, "mine, too")
    await move_record(old.database, new.safety)

    assert (await new.safety.load(NOW)).frozen["others"].reason == "mine"
    assert await new.safety.read_note(CLOCK) == "mine, too"


async def test_a_freeze_that_was_lifted_there_does_not_come_back(old: RecordOf, new: RecordOf) -> None:
    await full(old)
    await move_record(old.database, new.safety)
    await new.safety.resume("others", resume_row("others", by="ann", now=NOW))
    await move_record(old.database, new.safety)
    assert (await new.safety.load(NOW)).frozen == {}

    await old.freeze("others", "again", since=NOW + 1)
    await move_record(old.database, new.safety)
    assert (await new.safety.load(NOW)).frozen["others"].reason == "again"


async def test_a_freeze_that_comes_during_the_move_is_taken_by_the_next_one(old: RecordOf, new: RecordOf) -> None:
    await full(old)
    with pytest.raises(KeyboardInterrupt):
        await move_record(old.database, Interrupted(new, 1))
    await old.freeze("things", "STOP")
    await move_record(old.database, new.safety)

    assert set((await new.safety.load(NOW)).frozen) == {"others", "things"}


async def test_a_copy_that_went_its_own_way_is_told_from_the_record(
    old: RecordOf, new: RecordOf, tmp_path: Path
) -> None:
    await full(old)
    assert not await is_copy(old.database, new.safety)
    await move_record(old.database, new.safety)
    assert not await is_copy(old.database, new.safety)
    old.database.close()
    shutil.copy(tmp_path / "old.db", tmp_path / "copy.db")
    copy, old = RecordOf(tmp_path / "copy.db"), RecordOf(tmp_path / "old.db")
    await old.end("three", "more", "rows")
    await move_record(old.database, new.safety)
    assert await is_copy(copy.database, new.safety), "it has fewer rows"
    await copy.end("other", "rows", "than", "those")
    assert await is_copy(copy.database, new.safety), "it has other rows"
    assert not await is_copy(old.database, new.safety)

    name = await copy.safety.name()
    await copy.database.write(rename_record)
    assert await copy.safety.name() not in {name, await old.safety.name()}
    assert await move_record(copy.database, new.safety) == len(await copy.told())
    copy.database.close()
    old.database.close()


class Interrupted(SQLiteGateStore):
    """A record whose process dies after so many parts were taken."""

    def __init__(self, record: RecordOf, parts: int) -> None:
        super().__init__(record.journal, budgets=BUDGETS, domains=["things"])
        self.left = parts

    async def take(self, moved: MovedRows) -> None:
        await super().take(moved)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("parts", range(1, 8))
async def test_no_row_is_lost_or_doubled_when_it_is_interrupted(
    old: RecordOf, new: RecordOf, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "_PAGE", 1)
    await full(old)
    told = await old.told()

    with pytest.raises(KeyboardInterrupt):
        await move_record(old.database, Interrupted(new, parts))
    await move_record(old.database, new.safety)
    assert (await new.told(), await new.spent()) == (told, {"things": 5, "all": 5})
    assert set((await new.safety.load(NOW)).frozen) == {"others"}


async def test_two_who_move_at_once_move_each_row_once(
    old: RecordOf, new: RecordOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "_PAGE", 1)
    await full(old)
    told = await old.told()
    others = [RecordOf(tmp_path / "old.db"), RecordOf(tmp_path / "new.db")]
    await asyncio.gather(move_record(old.database, new.safety), move_record(others[0].database, others[1].safety))
    for one in others:
        one.database.close()

    assert await new.told() == told
