"""Commands where ``database_url`` names the record: ``freeze``, ``resume``, ``hold``, ``why`` and deletions."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lapse.app.record import ProcessRecord, open_server, open_store
from lapse.cli import main
from lapse.core.clock import SystemClock
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.postgres import PostgresJournal
from lapse.settings import load_settings
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

    def join(self) -> None:
        """Do to the record what `lapse up` does."""
        asyncio.run(self._join())

    async def _join(self) -> None:
        settings = load_settings().settings
        folder = open_store(settings.state_dir, clock=SystemClock())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(folder.close)
            server = await open_server(settings, stack)
            await ProcessRecord.open(settings, folder, server, joins=True)

    def frozen(self) -> tuple[set[str], set[str]]:
        """Return what is frozen in the folder, and on the server."""
        return asyncio.run(self._frozen())

    async def _frozen(self) -> tuple[set[str], set[str]]:
        clock = SystemClock()
        folder = open_store(self.folder / "state", clock=clock)
        store = await open_postgres_store(self.url)
        try:
            here = await ProcessRecord.in_folder(folder).safety.load(0)
            name = await ProcessRecord.in_folder(folder).safety.name()
            there = await ProcessRecord.on_server(store.database, folder=name).safety.load(0)
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
    monkeypatch.setenv("LAPSE_DATABASE_URL", database)
    return Person(tmp_path, database, capsys)


def test_a_freeze_of_any_domain_is_in_the_one_record(person: Person) -> None:
    said = person.run("freeze", "workspaces")[0]
    assert said.startswith("Frozen: workspaces in postgresql://")
    assert "@" not in said
    person.run("freeze", "requests")
    assert person.frozen() == (set(), {"workspaces", "requests"})
    assert person.json("resume", "workspaces")["resumed"] == ["workspaces"]
    assert person.frozen() == (set(), {"requests"})


def test_the_command_that_resumes_shows_no_password_and_no_stars(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_environment = person.run("freeze", "workspaces")[0]
    assert " ".join(by_environment.split()).endswith("To resume: lapse resume workspaces")

    monkeypatch.delenv("LAPSE_DATABASE_URL")
    flags = ("--database-url", person.url, "--state-dir", str(person.folder / "state"))
    said = " ".join(person.run("freeze", "requests", *flags)[0].split())
    wanted = f"lapse resume --state-dir {person.folder / 'state'} requests"
    assert said.endswith(f". To resume, with the same --database-url: {wanted}")
    assert person.json(*wanted.split()[1:], *flags[:2])["resumed"] == ["requests"]


def test_everything_is_frozen_and_resumed_by_one_row(person: Person) -> None:
    person.run("freeze", "all")
    assert person.frozen() == (set(), {"all"})
    assert person.json("resume", "all")["resumed"] == ["all"]
    assert person.frozen() == (set(), set())


def test_a_folder_with_a_record_of_its_own_is_left_alone_until_lapse_up_moves_it(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_DATABASE_URL")
    person.run("freeze", "requests", "--reason", "audit")
    monkeypatch.setenv("LAPSE_DATABASE_URL", person.url)
    err = person.run("freeze", "history", code=1)[1]

    assert "Start lapse up with this database_url, which moves it" in " ".join(err.split())
    assert person.url not in err
    assert person.frozen() == ({"requests"}, set())


def test_a_folder_that_has_joined_a_database_is_refused_without_it_and_with_another(
    person: Person, another_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.join()
    person.run("freeze", "requests")
    assert person.frozen() == (set(), {"requests"})
    for url in ("", another_database):
        monkeypatch.setenv("LAPSE_DATABASE_URL", url)
        for command in (["freeze", "all"], ["resume", "requests"], ["history", "prune", "--yes"]):
            err = " ".join(person.run(*command, code=1)[1].split())
            assert "is in postgresql://" in err
            assert "Set database_url to that database" in err
    assert person.frozen() == (set(), {"requests"})


def test_a_folder_that_leaves_its_database_ends_nothing_until_somebody_resumes_it(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.join()
    person.run("freeze", "requests")
    monkeypatch.delenv("LAPSE_DATABASE_URL")
    assert "postgresql://" in person.json("db", "leave")["left"]

    assert person.json("db", "leave")["left"] is None
    assert person.frozen() == ({"all"}, {"requests"})
    assert person.json("resume", "all")["resumed"] == ["all"]
    monkeypatch.setenv("LAPSE_DATABASE_URL", person.url)
    person.join()
    assert person.frozen()[1] == {"requests"}, "what is frozen there still is"


def test_a_command_that_ends_things_asks_the_database_that_its_flag_names(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_DATABASE_URL")
    err = person.run("history", "prune", "--yes", "--database-url", NOBODY, code=1)[1]

    assert "it cannot be reached" in err


def test_the_old_name_of_the_setting_means_the_same_and_is_warned_of(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_DATABASE_URL")
    monkeypatch.setenv("LAPSE_WORKSPACES_URL", person.url)
    err = person.run("freeze", "history")[1]
    assert "warning: environment LAPSE_WORKSPACES_URL: workspaces_url goes with the next version" in " ".join(
        err.split()
    )
    assert person.frozen() == (set(), {"history"})


def test_while_the_server_is_away_nothing_is_frozen_and_that_is_said(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_DATABASE_URL", NOBODY)
    err = person.run("freeze", "all", code=1)[1]

    assert "it cannot be reached" in err
    assert "Traceback" not in err
    assert person.frozen() == (set(), set())


def test_what_needs_no_record_needs_no_server(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_DATABASE_URL", NOBODY)

    assert person.json("history", "list")["items"] == []
    assert person.json("requests", "list")["items"] == []


def test_a_hold_and_the_reason_of_a_workspace_are_found_there_too(person: Person) -> None:
    person.run("workspaces", "create", "lab", "--no-start", "--port", "9000", "--", "serve")
    person.run("hold", "workspace/lab", "--reason", "mine")
    told = person.json("why", "workspace/lab")

    assert told["hold"]["reason"] == "mine"
    assert [one["reason"] for one in told["journal"]] == ["hold_placed", "workspace_created"]


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


def test_a_deletion_of_a_workspace_is_in_the_record(person: Person) -> None:
    person.run("workspaces", "create", "lab", "--no-start", "--port", "9000", "--", "serve")
    person.run("workspaces", "delete", "lab", "--yes")
    told = person.json("why", "workspace/lab")

    assert [one["outcome"] for one in told["journal"]] == ["ended", "intent", "done"]
