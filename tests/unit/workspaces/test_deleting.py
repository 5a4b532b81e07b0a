"""A person's deletion: what stops it, and what the journal tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal
from lapse.engine.safety.holds import HeldError
from lapse.workspaces.errors import ChangedMeanwhileError
from lapse.workspaces.model import Ms, NewWorkspace
from lapse.workspaces.opening import open_workspaces
from lapse.workspaces.target import delete_by_person

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.journal.port import Entry
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore


class DeletionFixture:
    """A workspace, and who wants it gone."""

    def __init__(self, store: WorkspaceStore, journal: SQLiteJournal) -> None:
        self.store, self.journal, self.clock = store, journal, VirtualClock()

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    async def create(self) -> Workspace:
        new = NewWorkspace(name="lab", owner="ann", command=("serve",), port=9000)
        return await self.store.create(new, now=self.now)

    async def delete(self, seen: Workspace) -> Workspace:
        return await delete_by_person(self.store, self.journal, seen, actor="cli (ann)", clock=self.clock)

    async def told(self) -> list[tuple[str, str, str]]:
        rows = await self.journal.entries(address="workspace/lab")
        return [(row.outcome, row.reason, row.actor) for row in reversed(rows)]


@pytest.fixture
async def deletion(tmp_path: Path) -> AsyncIterator[DeletionFixture]:
    store = await open_workspaces(f"file://{tmp_path}/workspaces.db")
    journal = Database(SQLiteFile(tmp_path / "journal.db"), Schema(1, SCHEMA_SCRIPTS))
    yield DeletionFixture(store, SQLiteJournal(journal))
    journal.close()
    await store.close()


async def test_the_journal_tells_who_deleted_it(deletion: DeletionFixture) -> None:
    deleted = await deletion.delete(await deletion.create())

    assert deleted.deleted_at == deletion.now
    by = ("deleted_by_person", "cli (ann)")
    assert await deletion.told() == [(Outcome.INTENT, *by), (Outcome.ENDED, *by)]
    assert await deletion.journal.unfinished() == []


async def test_one_that_is_held_stays_and_the_reason_is_said(deletion: DeletionFixture) -> None:
    made = await deletion.create()
    held = await deletion.store.hold(made.id, "audit", now=deletion.now)

    with pytest.raises(HeldError, match=r"workspace/lab is held \(audit\), so it is not deleted"):
        await deletion.delete(held)
    assert (await deletion.store.get(made.id)).deleted_at is None
    assert await deletion.told() == [(Outcome.HELD, "held", "cli (ann)")]


async def test_one_that_is_held_after_it_was_looked_at_stays(deletion: DeletionFixture) -> None:
    made = await deletion.create()
    await deletion.store.hold(made.id, "audit", now=deletion.now)

    with pytest.raises(ChangedMeanwhileError):
        await deletion.delete(made)
    assert (await deletion.store.get(made.id)).deleted_at is None
    assert [outcome for outcome, _, _ in await deletion.told()] == [Outcome.INTENT, Outcome.CHANGED]


async def test_what_cannot_be_written_down_is_not_done(deletion: DeletionFixture) -> None:
    made = await deletion.create()
    deletion.journal.database.close()

    with pytest.raises(Exception, match="closed"):
        await deletion.delete(made)
    assert (await deletion.store.get(made.id)).deleted_at is None


async def test_an_outcome_that_cannot_be_written_does_not_undo_what_is_done(
    deletion: DeletionFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await deletion.create()
    real = deletion.journal.append

    async def intents_only(*entries: Entry) -> None:
        if entries[0].outcome is not Outcome.INTENT:
            raise OSError("the disk is full")
        await real(*entries)

    monkeypatch.setattr(deletion.journal, "append", intents_only)
    deleted = await deletion.delete(made)

    assert deleted.deleted_at == deletion.now
    assert [row.uid for row in await deletion.journal.unfinished()] == [made.id]
