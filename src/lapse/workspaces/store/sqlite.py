"""Workspaces in a SQLite database, for one machine and without a server.

Guarantees, beyond those of the port. A change is answered when it is durable as the database's ``synchronous`` says,
and shares its commit with the process's other writers. A read sees every change, of any process, that was answered
before it began. Where a journal lives in the same database, ``also`` writes its rows in the transition's transaction.

Not guaranteed: that a step over many rows lets others write in between: it holds the write lock for as long as it
takes, about ten microseconds for each row.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lapse.db.errors import DatabaseError
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS as JOURNAL_SCRIPTS
from lapse.engine.running.database_lease import SCHEMA_SCRIPTS as LEASE_SCRIPTS
from lapse.engine.safety.sqlite import NOTES_SCRIPTS
from lapse.engine.safety.sqlite import SCHEMA_SCRIPTS as GATE_SCRIPTS
from lapse.workspaces.model import WorkspaceId
from lapse.workspaces.store.sql import COLUMNS, SqlStore, load_sql, translate, workspace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    import apsw

    from lapse.db.sqlite.group_commit import Operation
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import Also, WorkspaceStore
    from lapse.workspaces.store.sql import Columns, Row, Values

T = TypeVar("T")

_SQL: Final = load_sql("sqlite.sql")
_APPLICATION: Final = 0x4C617057  # "LapW"
# Files remember how many of these they have: what is new goes to the end.
_WITH_RECORD: Final = (
    _SQL["schema_1"], *JOURNAL_SCRIPTS, *GATE_SCRIPTS, _SQL["schema_2"], _SQL["schema_3"], *NOTES_SCRIPTS,
)  # fmt: skip
SCHEMA_WITH_RECORD: Final = Schema(_APPLICATION, _WITH_RECORD)
"""Of earlier versions: with tables of a journal and of freezes, which are in the state folder's own record."""
SCHEMA: Final = Schema(
    _APPLICATION, (*_WITH_RECORD, _SQL["schema_4"], *LEASE_SCRIPTS, _SQL["schema_5"], _SQL["schema_6"])
)
_STEPS: Final = {"observe": ("observe_changed", "observe_same")}
"""What takes two statements for each row here, because RETURNING does not tell what was before."""
_QUICK_PAGE: Final = 500
"""A page up to this long is read where it is asked for; longer ones in a thread, else the event loop stands still."""
_COMMAND_AT: Final = COLUMNS.index("command")
_LEGAL_AT: Final = COLUMNS.index("hold_is_legal")


def open_sqlite_store(path: Path, *, synchronous: Synchronous = Synchronous.FULL) -> SqliteWorkspaceStore:
    """Open or create the file; raises `WorkspaceStoreError` when it cannot be used."""
    try:
        return SqliteWorkspaceStore(Database(SQLiteFile(path, synchronous=synchronous), SCHEMA))
    except DatabaseError as error:
        error.problem = f"{path}: {error.problem}"
        raise translate(error) from error.__cause__


class SqliteWorkspaceStore(SqlStore):
    """See the module. It owns ``database``, whose schema is `SCHEMA`, from now on."""

    def __init__(self, database: Database) -> None:
        """Touch nothing yet."""
        self._database = database

    @property
    def database(self) -> Database:
        """See `WorkspaceStore`."""
        return self._database

    async def check(self) -> None:
        """See `Reading`."""
        self._look("check", {})

    async def close(self) -> None:
        """See `WorkspaceStore`."""
        await asyncio.to_thread(self._database.close)

    async def _read(self, name: str, values: Values) -> Sequence[Workspace]:
        if values.get("limit", 0) <= _QUICK_PAGE:
            return self._workspaces(name, self._look(name, values))
        return await asyncio.to_thread(lambda: self._workspaces(name, self._look(name, values)))

    async def _count(self, name: str) -> Sequence[Row]:
        return await asyncio.to_thread(self._look, name, {})

    async def _write(self, name: str, values: Values) -> Sequence[Row]:
        return await self._commit(lambda cursor: cursor.execute(_SQL[name], values).fetchall())

    async def _write_each(
        self, name: str, columns: Columns, *, shared: Values, also: Also | None, places: Mapping[WorkspaceId, int]
    ) -> AbstractSet[WorkspaceId]:
        statements = [_SQL[step] for step in _STEPS.get(name, (name,))]
        rows = [{**dict(zip(columns, row, strict=True)), **shared} for row in zip(*columns.values(), strict=True)]

        def write(cursor: apsw.Cursor) -> AbstractSet[WorkspaceId]:
            changed = {
                WorkspaceId(str(found[0]))
                for row in rows
                for statement in statements
                for found in cursor.execute(statement, row).fetchall()
            }
            if also is not None and changed:
                also(cursor, sorted(places[one] for one in changed))
            return changed

        return await self._commit(write)

    def _workspace(self, row: Row) -> Workspace:
        values = list(row)
        values[_COMMAND_AT] = msgspec.json.decode(values[_COMMAND_AT])
        values[_LEGAL_AT] = bool(values[_LEGAL_AT])
        return workspace_of(values)

    def _command(self, command: Sequence[str]) -> object:
        return msgspec.json.encode(command).decode()

    def _look(self, name: str, values: Values) -> list[Any]:
        try:
            return self._database.read_together(lambda cursor: cursor.execute(_SQL[name], values).fetchall())
        except DatabaseError as error:
            raise translate(error) from error.__cause__

    async def _commit(self, operation: Operation[T]) -> T:
        try:
            return await self._database.write(operation)
        except DatabaseError as error:
            raise translate(error) from error.__cause__


if TYPE_CHECKING:
    _conforms: type[WorkspaceStore] = SqliteWorkspaceStore
