"""The worlds in which the contract must hold: a SQLite file, a database on a real PostgreSQL server, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import apsw

from lapse.db.sqlite.database import Database, write_rows
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.db.statements import load_statements
from lapse.engine.journal.log import LOGGER, LogJournal
from lapse.engine.journal.port import Entry, Row, entry_values
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from lapse.engine.journal.port import Journal
    from lapse.engine.journal.postgres import PostgresJournal

    AnyJournal = SQLiteJournal | PostgresJournal
    Wrap = Callable[[Any], Any]


class DatabaseWorld:
    """Journals of one database, as they are opened one after the other."""

    def __init__(self, opening: Callable[[], Awaitable[AnyJournal]], wrap: Wrap) -> None:
        self._opening, self._wrap = opening, wrap
        self._open: list[AnyJournal] = []
        self.journal: Any

    async def another(self) -> Any:  # noqa: ANN401 - see `World`
        self._open.append(await self._opening())
        return self._wrap(self._open[-1])

    async def close(self) -> None:
        for journal in self._open:
            closed = journal.database.close()
            if closed is not None:
                await closed

    def uncommitted(self, entry: Entry) -> contextlib.AbstractAsyncContextManager[None]:
        raise NotImplementedError


class SQLiteWorld(DatabaseWorld):
    path: Path

    @contextlib.asynccontextmanager
    async def uncommitted(self, entry: Entry) -> AsyncIterator[None]:
        connection = apsw.Connection(str(self.path))
        try:
            connection.execute("BEGIN IMMEDIATE")
            append = load_statements("lapse.engine.journal", "sqlite.sql")["append"]
            write_rows(connection.cursor(), append, [entry_values(entry)])
            yield
            connection.execute("COMMIT")
        finally:
            connection.close()


class PostgresWorld(DatabaseWorld):
    @contextlib.asynccontextmanager
    async def uncommitted(self, entry: Entry) -> AsyncIterator[None]:
        other = await self._opening()
        self._open.append(other)
        written, over = asyncio.Event(), asyncio.Event()

        async def work(cursor: Any) -> None:  # noqa: ANN401 - of the driver
            told = other.writer(entry)(cursor)
            assert told is not None
            await told
            written.set()
            await over.wait()

        task = asyncio.create_task(other.database.transact(work))  # type: ignore[union-attr]
        await written.wait()
        yield
        over.set()
        await task


@contextlib.asynccontextmanager
async def sqlite_world(folder: Path, *, wrap: Wrap = lambda journal: journal) -> AsyncIterator[SQLiteWorld]:
    async def open_journal() -> SQLiteJournal:
        file = SQLiteFile(folder / "journal.db", synchronous=Synchronous.NORMAL)
        return SQLiteJournal(Database(file, Schema(application_id=0x4C54, scripts=SCHEMA_SCRIPTS)))

    world = SQLiteWorld(open_journal, wrap)
    world.path = folder / "journal.db"
    world.journal = await world.another()
    try:
        yield world
    finally:
        await world.close()


@contextlib.asynccontextmanager
async def postgres_world(url: str, *, wrap: Wrap = lambda journal: journal) -> AsyncIterator[PostgresWorld]:
    """An empty world in a database that was used by cases before."""
    import psycopg  # `make test` has no driver

    from lapse.db.postgres.pool import Postgres
    from lapse.engine.journal.postgres import PostgresJournal

    async def open_journal() -> PostgresJournal:
        database = Postgres(url, connections=3)
        await database.open()
        return PostgresJournal(database)

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE journal, brakes")
    world = PostgresWorld(open_journal, wrap)
    world.journal = await world.another()
    try:
        yield world
    finally:
        await world.close()


class CollectedLog(logging.Handler):
    """A journal in the log, whose rows are read by a collector of the log, as somebody would who has nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._journal = LogJournal()

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: getattr(record, name) for name in Entry.__struct_fields__}
        self.rows.append(Row(**fields, id=len(self.rows)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._journal, name)

    async def entries(self, *, after: object = None, search: str | None = None, **asked: Any) -> list[Row]:  # noqa: ANN401
        wanted = {name: value for name, value in asked.items() if value is not None}
        given = [row for row in self.rows if all(getattr(row, name) == value for name, value in wanted.items())]
        given = [row for row in given if search is None or search in row.address]
        return given if after is not None else sorted(given, key=lambda row: row.place, reverse=True)


class LogWorld:
    journal: Any

    async def another(self) -> Journal:
        raise NotImplementedError("nothing in the log is read by anybody else")

    def uncommitted(self, entry: Entry) -> contextlib.AbstractAsyncContextManager[None]:
        raise NotImplementedError("the log has no transactions")


@contextlib.contextmanager
def log_world() -> Iterator[LogWorld]:
    world = LogWorld()
    world.journal = collected = CollectedLog()
    logging.getLogger(LOGGER).addHandler(collected)
    try:
        yield world
    finally:
        logging.getLogger(LOGGER).removeHandler(collected)
