"""A journal in the store's own database: a transition and its row are written together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.db.sqlite import Synchronous
from lapse.engine.journal import Entry, Outcome, SQLiteJournal
from lapse.workspaces.model import Ms, NewWorkspace, ObservedStatus
from lapse.workspaces.sqlite_store import open_sqlite_store

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_the_journal_tells_of_exactly_those_that_were_changed(tmp_path: Path) -> None:
    store = open_sqlite_store(tmp_path / "workspaces.db", synchronous=Synchronous.NORMAL)
    journal = SQLiteJournal(store.database)
    try:
        made = []
        for name in "abc":
            asked = NewWorkspace(name=name, owner="ada", command=("serve",), port=1)
            one = await store.create(asked, now=NOW)
            await store.observe({one.id: ObservedStatus.RUNNING}, now=NOW)
            made.append(await store.get(one.id))
        await store.connected(made[1].id, now=NOW)
        rows = journal.writer(*(entry(one.name) for one in made))

        assert journal.shares(store)
        changed = await store.to_standby([one.candidate for one in made], now=NOW, also=rows)
        assert changed == {made[0].id, made[2].id}
        assert {row.address for row in await journal.entries()} == {"workspace/a", "workspace/c"}
    finally:
        await store.close()
