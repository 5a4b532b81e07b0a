"""The two worlds in which the contract must hold: a SQLite file, and a database on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from lapse.core.identity import secret_bytes
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS as JOURNAL_SCRIPTS
from lapse.engine.safety.sqlite import NOTES_SCRIPTS
from lapse.engine.safety.sqlite import SCHEMA_SCRIPTS as GATE_SCRIPTS
from lapse.workspaces.store.sqlite import SCHEMA, SqliteWorkspaceStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from lapse.workspaces.store.port import Also, WorkspaceStore
    from tests.servers import Server

    Wrap = Callable[[WorkspaceStore], WorkspaceStore]

ROUNDS = 200
BESIDE = ("CREATE TABLE beside (text TEXT)", *JOURNAL_SCRIPTS, *GATE_SCRIPTS, *NOTES_SCRIPTS)
WITH_TABLES_BESIDE = Schema(SCHEMA.application_id, (*SCHEMA.scripts, *BESIDE))
"""A file of workspaces with a record of its own in it, as nobody has: for what is written in one transaction."""


class SqlWorld:
    """Stores of one database, as they are opened one after the other."""

    def __init__(self, opening: Callable[[], Awaitable[WorkspaceStore]], wrap: Wrap, rounds: int) -> None:
        self.rounds = rounds
        self._opening, self._wrap = opening, wrap
        self._open: list[WorkspaceStore] = []
        self.store: WorkspaceStore

    async def another(self) -> WorkspaceStore:
        self._open.append(await self._opening())
        return self._wrap(self._open[-1])

    async def restart(self) -> WorkspaceStore:
        await self.close()
        self.store = await self.another()
        return self.store

    async def close(self) -> None:
        for store in self._open:
            await store.close()
        self._open.clear()

    def beside(self, text: str, *, fails: bool = False) -> Also:
        raise NotImplementedError

    async def written_beside(self) -> list[str]:
        raise NotImplementedError


class SqliteWorld(SqlWorld):
    def beside(self, text: str, *, fails: bool = False) -> Also:
        def write(cursor: Any, places: Sequence[int]) -> None:  # noqa: ANN401
            cursor.execute("INSERT INTO beside VALUES (?)", (f"{text} {list(places)}",))
            assert not fails or 1 / 0

        return write

    async def written_beside(self) -> list[str]:
        (store, *_) = self._open
        assert isinstance(store, SqliteWorkspaceStore)
        return [row[0] for row in store.database.read("SELECT text FROM beside")]


class PostgresWorld(SqlWorld):
    url: str

    def beside(self, text: str, *, fails: bool = False) -> Also:
        async def write(cursor: Any, places: Sequence[int]) -> None:  # noqa: ANN401
            await cursor.execute("INSERT INTO beside VALUES (%s)", (f"{text} {list(places)}",))
            assert not fails or 1 / 0

        return write

    async def written_beside(self) -> list[str]:
        import psycopg  # `make test` has no driver

        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            return [row[0] for row in await (await connection.execute("SELECT text FROM beside")).fetchall()]


@contextlib.asynccontextmanager
async def sqlite_world(
    folder: Path, *, wrap: Wrap = lambda store: store, rounds: int = ROUNDS
) -> AsyncIterator[SqliteWorld]:
    async def open_store() -> WorkspaceStore:
        file = SQLiteFile(folder / "workspaces.db", synchronous=Synchronous.NORMAL)
        return SqliteWorkspaceStore(Database(file, WITH_TABLES_BESIDE))

    world = SqliteWorld(open_store, wrap, rounds)
    world.store = await world.another()
    try:
        yield world
    finally:
        await world.close()


@contextlib.contextmanager
def postgres_database(server: Server) -> Iterator[str]:
    """Make a database with our tables, for one file of tests; return its URL."""
    import psycopg  # `make test` has no driver

    from lapse.db.postgres.migration import migrate

    name = f"workspaces_{secret_bytes(5).hex()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = f"{server.url.rpartition('/')[0]}/{name}"
    migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE beside (text text)")
    yield url
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.asynccontextmanager
async def postgres_world(url: str, *, rounds: int = ROUNDS) -> AsyncIterator[PostgresWorld]:
    """An empty world in a database that was used by cases before."""
    import psycopg  # `make test` has no driver

    from lapse.workspaces.store.postgres import open_postgres_store

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE workspaces, beside, journal, brakes")
    world = PostgresWorld(lambda: open_postgres_store(url, connections=3), lambda store: store, rounds)
    world.url = url
    world.store = await world.another()
    try:
        yield world
    finally:
        await asyncio.shield(world.close())
