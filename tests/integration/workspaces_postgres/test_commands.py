"""``lapse freeze``, ``resume``, ``hold`` and ``why`` where workspaces are on a server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.app.state_folder import open_gate_store, open_store
from lapse.cli import main
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.postgres import PostgresJournal
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.postgres import PostgresGateStore
from lapse.workspaces.store.postgres import open_postgres_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.server("postgres")
NOBODY = "postgresql://lapse@127.0.0.1:1/lapse"


class Person:
    """Somebody at the command line."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.url, self.capsys = folder, url, capsys

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        assert main(list(line)) == code, self.capsys.readouterr()
        found = self.capsys.readouterr()
        return found.out, found.err

    def json(self, *line: str) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json")[0])

    def frozen(self) -> tuple[set[str], set[str]]:
        """Return what is frozen in the folder, and on the server."""
        return asyncio.run(self._frozen())

    async def _frozen(self) -> tuple[set[str], set[str]]:
        clock = SystemClock()
        folder = open_store(self.folder / "state", clock=clock)
        store = await open_postgres_store(self.url)
        try:
            server = PostgresGateStore(PostgresJournal(store.database), budgets=Budgets(), domains=[], actors=[])
            here, there = await open_gate_store(folder).load(0), await server.load(0)
            return set(here.frozen), set(there.frozen)
        finally:
            await store.close()
            await folder.close()


@pytest.fixture
def person(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("LAPSE_WORKSPACES_URL", database)
    return Person(tmp_path, database, capsys)


def test_workspaces_are_frozen_where_they_are(person: Person) -> None:
    person.run("freeze", "workspaces")
    assert person.frozen() == (set(), {"workspaces"})
    person.run("freeze", "requests")
    assert person.frozen() == ({"requests"}, {"workspaces"})
    assert person.json("resume", "workspaces")["resumed"] == ["workspaces"]
    assert person.frozen() == ({"requests"}, set())


def test_everything_is_frozen_and_resumed_in_both_places(person: Person) -> None:
    said = person.run("freeze", "all")[1]
    assert said.startswith(f"Frozen: everything in {person.folder}/state and postgresql://")
    assert person.frozen() == ({"all"}, {"all"})
    assert person.json("resume", "all")["resumed"] == ["all"]
    assert person.frozen() == (set(), set())


def test_while_the_server_is_away_what_can_be_frozen_is(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_WORKSPACES_URL", NOBODY)
    err = person.run("freeze", "all", code=1)[1]

    assert "This was done in the state folder, but not for workspaces, because their server failed:" in err
    assert "Traceback" not in err
    assert person.frozen() == ({"all"}, set())


def test_a_hold_and_the_reason_of_a_workspace_are_found_there_too(person: Person) -> None:
    person.run("workspaces", "create", "lab", "--no-start", "--port", "9000", "--", "serve")
    person.run("hold", "workspace/lab", "--reason", "mine")
    told = person.json("why", "workspace/lab")

    assert (told["held"], told["hold_reason"], told["journal"]) == (True, "mine", [])


def test_why_answers_from_the_journal_on_the_server(person: Person) -> None:
    row = Entry(
        time_ns=1_700_000_000_000_000_000,
        domain="workspaces",
        address="workspace/gone",
        uid="u",
        version="3",
        verdict="due",
        reason="archive_ttl_expired",
        anchor_ns=None,
        policy="archive after 86400s",
        actor="lapse",
        outcome=Outcome.ENDED,
    )

    async def journalled() -> None:
        store = await open_postgres_store(person.url)
        await PostgresJournal(store.database).append(row)
        await store.close()

    asyncio.run(journalled())

    assert [one["reason"] for one in person.json("why", "workspace/gone")["journal"]] == ["archive_ttl_expired"]
