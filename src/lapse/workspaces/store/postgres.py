"""Workspaces in PostgreSQL, for any number of processes on any number of machines.

Guarantees, beyond those of the port. Every call is one statement and one round trip, also over a thousand rows, unless
something is written beside it (``also``) or it was refused and the reason is looked up. No decision is made on what a
transaction saw before it waited: on READ COMMITTED, the server compares again with what the one before it left.

Durable means what the server's ``synchronous_commit`` says.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Final

from lapse.db.errors import DatabaseError
from lapse.db.postgres.pool import DEFAULT_PATIENCE, Patience, Postgres, run
from lapse.workspaces.model import WorkspaceId
from lapse.workspaces.store.sql import SqlStore, load_sql, translate, workspace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from psycopg import AsyncCursor

    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import Also, WorkspaceStore
    from lapse.workspaces.store.sql import Columns, Row, Values

_SQL: Final = load_sql("postgres.sql")


async def open_postgres_store(
    url: str, *, patience: Patience = DEFAULT_PATIENCE, connections: int = 8
) -> PostgresWorkspaceStore:
    """Connect; raises `WorkspaceStoreError` when the database cannot be used, or has not the tables it should."""
    database = Postgres(url, patience=patience, connections=connections)
    try:
        await database.open()
    except DatabaseError as error:
        raise translate(error) from error.__cause__
    return PostgresWorkspaceStore(database)


class PostgresWorkspaceStore(SqlStore):
    """See the module. It owns ``database``, which is open, from now on; belongs to one event loop."""

    def __init__(self, database: Postgres) -> None:
        """Touch nothing yet."""
        self._database = database

    @property
    def database(self) -> Postgres:
        """See `WorkspaceStore`."""
        return self._database

    async def check(self) -> None:
        """See `Reading`."""
        await self._look("check", {})

    async def close(self) -> None:
        """See `WorkspaceStore`."""
        await self._database.close()

    async def _read(self, name: str, values: Values) -> Sequence[Workspace]:
        return self._workspaces(name, await self._look(name, values))

    async def _count(self, name: str) -> Sequence[Row]:
        return await self._look(name, {})

    async def _look(self, name: str, values: Values) -> Sequence[Row]:
        try:
            return await self._database.read(_SQL[name], values)
        except DatabaseError as error:
            raise translate(error) from error.__cause__

    async def _write(self, name: str, values: Values) -> Sequence[Row]:
        try:
            return await self._database.write(_SQL[name], values)
        except DatabaseError as error:
            raise translate(error) from error.__cause__

    async def _write_each(
        self, name: str, columns: Columns, *, shared: Values, also: Also | None, places: Mapping[WorkspaceId, int]
    ) -> AbstractSet[WorkspaceId]:
        values = {**columns, **shared}
        if also is None:
            return {WorkspaceId(row[0]) for row in await self._write(name, values)}

        async def write(cursor: AsyncCursor[Row]) -> AbstractSet[WorkspaceId]:
            changed = {WorkspaceId(row[0]) for row in await run(cursor, _SQL[name], values)}
            if changed:
                beside = also(cursor, sorted(places[one] for one in changed))
                if isawaitable(beside):
                    await beside
            return changed

        try:
            return await self._database.transact(write)
        except DatabaseError as error:
            raise translate(error) from error.__cause__

    def _workspace(self, row: Row) -> Workspace:
        return workspace_of(row)

    def _command(self, command: Sequence[str]) -> object:
        return list(command)


if TYPE_CHECKING:
    _conforms: type[WorkspaceStore] = PostgresWorkspaceStore
