"""What every journal does, whichever database it lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from lapse.core.decision import DueReason
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.port import Entry, Journal, Outcome
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from lapse.engine.journal.postgres import PostgresJournal
    from tests.servers import Server

    AnyJournal = SQLiteJournal | PostgresJournal

ENTRY = Entry(
    time_ns=1_700_000_000_000_000_000,
    domain="requests",
    address="vcr/default/nightly",
    uid="uid-1",
    version="41",
    verdict="due",
    reason=DueReason.TTL_EXPIRED,
    anchor_ns=1_699_999_000_000_000_000,
    policy="a1b2c3",
    actor="requests-ttl",
    outcome=Outcome.ENDED,
    details={"handle": "vol-7", "size": 3, "имя": "том"},
    tick="tick-1",
)


class Opened:
    """One place for journals: can be opened again, as another process or a restart would."""

    def __init__(self, opening: Callable[[], Awaitable[AnyJournal]]) -> None:
        self._opening = opening
        self._open: list[AnyJournal] = []

    async def __call__(self) -> AnyJournal:
        self._open.append(await self._opening())
        return self._open[-1]

    async def close(self) -> None:
        for journal in self._open:
            closed = journal.database.close()
            if closed is not None:
                await closed


async def sqlite(path: Path) -> SQLiteJournal:
    file = SQLiteFile(path / "journal.db", synchronous=Synchronous.NORMAL)
    return SQLiteJournal(Database(file, Schema(application_id=0x4C54, scripts=SCHEMA_SCRIPTS)))


async def postgres(url: str) -> PostgresJournal:
    from lapse.db.postgres.pool import Postgres  # `make test` has no driver
    from lapse.engine.journal.postgres import PostgresJournal

    database = Postgres(url)
    await database.open()
    return PostgresJournal(database)


@pytest.fixture(scope="module")
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server("postgres"))])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    if request.param == "sqlite":
        opened = Opened(lambda: sqlite(tmp_path))
    else:
        import psycopg  # `make test` has no driver

        url = request.getfixturevalue("database")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE journal, brakes")
        opened = Opened(lambda: postgres(url))
    yield opened
    await opened.close()


@pytest.fixture
async def journal(place: Opened) -> Journal:
    return await place()


async def names(journal: Journal) -> list[str]:
    return [row.address for row in await journal.entries()]


class TextOfItsOwn(str):
    """As some libraries have."""

    __slots__ = ()


@pytest.mark.parametrize(
    "changes",
    [
        {"details": {"hold": "audit\0 2026", "nested": {"\0": ["\0"]}}},
        {"details": {"quotes": "\"'\\ \n\t\u2028", "number": 2**63 + 1, "empty": {}, "none": None}},
        {"details": {}},
        {"uid": TextOfItsOwn("a uid")},
        {"actor": "null", "policy": "NULL", "tick": "\\u0000"},
        {"time_ns": 2**63 - 1, "anchor_ns": -(2**63)},
        {"address": "x" * 100_000},
    ],
    ids=["nul", "quotes", "empty", "a class of its own", "words", "numbers", "long"],
)
async def test_odd_values_are_read_as_they_were_written(journal: Journal, changes: dict[str, Any]) -> None:
    odd = replace(ENTRY, **changes)
    await journal.append(ENTRY, odd, ENTRY)
    found = {row.id: row for row in await journal.entries(limit=10)}
    _, row, _ = (found[number] for number in sorted(found))

    assert {name: getattr(row, name) for name in changes} == changes


async def test_a_row_is_read_as_it_was_written(journal: Journal) -> None:
    bare = replace(ENTRY, anchor_ns=None, details=None, tick="", address="keeper/x", time_ns=ENTRY.time_ns + 1)
    await journal.append(ENTRY, bare)
    newer, older = await journal.entries()

    for row, entry in ((older, ENTRY), (newer, bare)):
        assert {name: getattr(row, name) for name in Entry.__struct_fields__} == {
            name: getattr(entry, name) for name in Entry.__struct_fields__
        }


async def test_rows_outlive_the_process(place: Opened) -> None:
    await (await place()).append(ENTRY)

    assert await names(await place()) == ["vcr/default/nightly"]


async def test_rows_come_newest_first_and_in_the_order_of_writing_where_the_moment_is_the_same(
    journal: Journal,
) -> None:
    for number, time in enumerate((5, 7, 7, 6, 7)):
        await journal.append(replace(ENTRY, time_ns=time, address=f"keeper/{number}"))

    assert await names(journal) == ["keeper/4", "keeper/2", "keeper/1", "keeper/3", "keeper/0"]


async def test_pages_show_every_row_once_also_when_rows_are_written_meanwhile(journal: Journal) -> None:
    await journal.append(
        *(replace(ENTRY, time_ns=10 + number // 4, address=f"keeper/{number}") for number in range(20))
    )
    seen, before = [], None
    while rows := await journal.entries(limit=3, before=before):
        seen += [row.address for row in rows]
        before = rows[-1].place
        await journal.append(replace(ENTRY, time_ns=99))

    assert seen == [f"keeper/{number}" for number in reversed(range(20))]


async def test_rows_are_found_by_time_domain_address_and_uid(journal: Journal) -> None:
    await journal.append(
        replace(ENTRY, time_ns=1, address="keeper/a", domain="keepers", uid="u1"),
        replace(ENTRY, time_ns=2, address="keeper/b", domain="keepers", uid="u2"),
        replace(ENTRY, time_ns=3, address="vcr/n/a", uid="u1"),
    )

    assert [row.address for row in await journal.entries(since_ns=2)] == ["vcr/n/a", "keeper/b"]
    assert [row.address for row in await journal.entries(domain="keepers")] == ["keeper/b", "keeper/a"]
    assert [row.address for row in await journal.entries(address="keeper/a")] == ["keeper/a"]
    assert [row.address for row in await journal.entries(uid="u1")] == ["vcr/n/a", "keeper/a"]
    assert [row.address for row in await journal.entries(uid="u1", domain="keepers", since_ns=1, limit=1)] == [
        "keeper/a"
    ]
    assert [row.address for row in await journal.entries(uid="nobody")] == []


async def test_rows_written_together_are_written_all_or_none(journal: Journal) -> None:
    unreadable = replace(ENTRY, details={"what": object()})
    with pytest.raises(TypeError):
        await journal.append(ENTRY, unreadable)

    assert await journal.entries() == []


async def test_an_intent_is_unfinished_until_its_outcome_is_written(journal: Journal) -> None:
    for number in range(3):
        intent = replace(ENTRY, outcome=Outcome.INTENT, attempt=f"attempt-{number}", address=f"keeper/{number}")
        await journal.append(intent)
    await journal.append(replace(ENTRY, outcome=Outcome.ENDED, attempt="attempt-1", address="keeper/1"))
    await journal.append(ENTRY)

    assert [row.address for row in await journal.unfinished()] == ["keeper/2", "keeper/0"]
    assert [row.address for row in await journal.unfinished(limit=1)] == ["keeper/2"]


async def test_a_verdict_is_noted_when_it_changes_and_not_when_it_is_looked_at(journal: Journal) -> None:
    unknown = replace(ENTRY, verdict="unknown", reason="missing_anchor", outcome=Outcome.NOTED)
    held = replace(ENTRY, verdict="keep", reason="held", outcome=Outcome.HELD)
    written = [await journal.note(entry) for entry in (unknown, unknown, held, held, unknown)]

    assert written == [True, False, True, False, True]
    assert [row.reason for row in await journal.entries()] == ["missing_anchor", "held", "missing_anchor"]


async def test_what_was_noted_is_not_noted_again_after_a_restart(place: Opened) -> None:
    unknown = replace(ENTRY, verdict="unknown", reason="missing_anchor", outcome=Outcome.NOTED)
    await (await place()).note(unknown)

    assert not await (await place()).note(unknown)


async def test_another_row_in_between_makes_it_news_again(journal: Journal) -> None:
    held = replace(ENTRY, verdict="keep", reason="held", outcome=Outcome.HELD)
    await journal.note(held)
    await journal.append(replace(ENTRY, outcome=Outcome.FAILED, time_ns=ENTRY.time_ns + 1))

    assert await journal.note(replace(held, time_ns=ENTRY.time_ns + 2))


async def test_what_goes_without_saying_is_news_only_after_something_else(journal: Journal) -> None:
    not_yet = replace(ENTRY, verdict="keep", reason="not_yet", outcome=Outcome.NOTED)
    unknown = replace(ENTRY, verdict="unknown", reason="missing_anchor", outcome=Outcome.NOTED)

    assert not await journal.note(not_yet, unless_first=True)
    assert await journal.note(unknown)
    assert await journal.note(not_yet, unless_first=True)


async def test_objects_and_domains_do_not_hide_each_others_news(journal: Journal) -> None:
    held = replace(ENTRY, verdict="keep", reason="held", outcome=Outcome.HELD)

    assert await journal.note(held)
    assert await journal.note(replace(held, uid="another"))
    assert await journal.note(replace(held, domain="another"))


async def test_a_journal_shares_the_database_it_lives_in_and_no_other(place: Opened) -> None:
    class Store:
        def __init__(self, database: object | None) -> None:
            self.database = database

    one, other = await place(), await place()

    assert one.shares(Store(one.database))
    assert not one.shares(Store(other.database))
    assert not one.shares(Store(None))
