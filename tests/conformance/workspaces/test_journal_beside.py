"""A journal in the store's own database: a transition and its row are written together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile, Synchronous
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.workspaces.model import DesiredState, Ms, NewWorkspace, ObservedStatus
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore
from tests.conformance.workspaces.worlds import WITH_TABLES_BESIDE, postgres_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.journal.port import Journal
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore

NOW = Ms(1_700_000_000_000)


def entry(name: str) -> Entry:
    return Entry(
        time_ns=NOW * 1_000_000,
        domain="workspaces",
        address=f"workspace/{name}",
        uid=name,
        version="1",
        verdict="due",
        reason="idle",
        anchor_ns=None,
        policy="",
        actor="ttl-manager",
        outcome=Outcome.ENDED,
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server("postgres"))])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[WorkspaceStore, Journal]]:
    """A store, and a journal in its database."""
    if request.param == "sqlite":
        file = SQLiteFile(tmp_path / "workspaces.db", synchronous=Synchronous.NORMAL)
        embedded = SqliteWorkspaceStore(Database(file, WITH_TABLES_BESIDE))
        yield embedded, SQLiteJournal(embedded.database)
        await embedded.close()
        return
    from lapse.engine.journal.postgres import PostgresJournal  # `make test` has no driver
    from lapse.workspaces.store.postgres import open_postgres_store

    with postgres_database(request.getfixturevalue("shared_postgres")) as url:
        store = await open_postgres_store(url)
        yield store, PostgresJournal(store.database)
        await store.close()


async def running(store: WorkspaceStore, *names: str) -> list[Workspace]:
    made = []
    for name in names:
        one = await store.create(NewWorkspace(name=name, owner="ada", command=("serve",), port=1), now=NOW)
        await store.observe({one.id: ObservedStatus.RUNNING}, now=NOW)
        made.append(await store.get(one.id))
    return made


async def test_the_journal_tells_of_exactly_those_that_were_changed(both: tuple[WorkspaceStore, Journal]) -> None:
    store, journal = both
    made = await running(store, *"abc")
    await store.connected(made[1].id, now=NOW)
    rows = journal.writer(*(entry(one.name) for one in made))

    assert journal.shares(store)
    changed = await store.to_standby([one.candidate for one in made], now=NOW, also=rows)
    assert changed == {made[0].id, made[2].id}
    assert {row.address for row in await journal.entries()} == {"workspace/a", "workspace/c"}


async def test_a_row_that_cannot_be_written_undoes_the_change(both: tuple[WorkspaceStore, Journal]) -> None:
    store, journal = both
    (one,) = await running(store, "a")
    impossible = journal.writer(replace(entry("a"), time_ns=2**70))

    with pytest.raises(Exception, match=r"."):  # whatever the driver makes of it
        await store.to_standby([one.candidate], now=NOW, also=impossible)
    assert (await store.get(one.id)).desired_state is DesiredState.RUNNING
    assert await journal.entries() == []
