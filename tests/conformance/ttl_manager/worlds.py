"""The worlds of the TTL manager: SQLite and one process, PostgreSQL and Redis or Valkey."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal
from lapse.workspaces.store.sqlite import SqliteWorkspaceStore
from tests.conformance.activity.worlds import InProcessWorld, ServerWorld
from tests.conformance.ttl_manager.harness import Harness
from tests.conformance.workspaces.worlds import postgres_world, sqlite_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import redis

    from tests.servers import Server


@contextlib.contextmanager
def own_journal(folder: Path) -> Iterator[SQLiteJournal]:
    """A journal in a database of its own, as that of a state folder is."""
    database = Database(SQLiteFile(folder / "journal.db", synchronous=Synchronous.NORMAL), Schema(1, SCHEMA_SCRIPTS))
    yield SQLiteJournal(database)
    database.close()


@contextlib.asynccontextmanager
async def embedded(folder: Path, *, shares: bool = True, rounds: int = 300) -> AsyncIterator[Harness]:
    """Everything in one process; the journal in the database of the workspaces, or beside it."""
    async with sqlite_world(folder, rounds=rounds) as stores:
        activities = InProcessWorld()
        assert isinstance(stores.store, SqliteWorkspaceStore)
        with own_journal(folder) as beside:
            journal = SQLiteJournal(stores.store.database) if shares else beside
            yield Harness(stores, activities, journal, clock=activities.clock, rounds=rounds)


@contextlib.asynccontextmanager
async def on_servers(*, database: str, server: Server, raw: redis.Redis, rounds: int) -> AsyncIterator[Harness]:
    """Rows and journal on PostgreSQL, connections on Redis or Valkey."""
    from lapse.engine.journal.postgres import PostgresJournal  # `make test` has no driver
    from lapse.workspaces.store.postgres import PostgresWorkspaceStore

    async with postgres_world(database, rounds=rounds) as stores:
        activities = ServerWorld(server, raw)
        try:
            assert isinstance(stores.store, PostgresWorkspaceStore)
            journal = PostgresJournal(stores.store.database)
            yield Harness(stores, activities, journal, clock=VirtualClock(), rounds=rounds)
        finally:
            await activities.close()
