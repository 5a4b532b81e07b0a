"""The journal in SQLite: rows of one machine, in the database of the objects that they are about.

A call writes its rows in one transaction; as part of a change of the same database (`writer`) they are in that one.

SQLite lets one transaction write at a time and never gives an id twice, so the order of ids is that of the commits:
whoever reads rows after an id has read all that there are up to the last one.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from lapse.db.sqlite.database import Database, write_rows
from lapse.db.statements import load_statements
from lapse.engine.journal.port import DatabaseJournal, OldRow, RowPosition, entry_values, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from lapse.engine.journal.port import Entry, Row, Writer

_SQL: Final = load_statements("lapse.engine.journal", "sqlite.sql")
SCHEMA_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_1"], _SQL["schema_2"])
"""For whoever opens the database that the journal's table is to live in."""
INTENT_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_3"],)
"""The same, where intents are counted. Files remember how many scripts they have, so it comes after all others."""
_FILTERS: Final[Mapping[str, str]] = {
    "since_ns": "time_ns >= ?",
    "plan": "json_extract(details, '$.plan') = ?",
    "until_ns": "time_ns < ?",
    "domain": "domain = ?",
    "address": "address = ?",
    "search": "instr(address, ?) > 0",  # neither LIKE nor GLOB: both have patterns, and LIKE takes a for A
    "uid": "uid = ?",
    "actor": "actor = ?",
    "outcome": "outcome = ?",
    "policy": "policy = ?",
}
_EARLIEST: Final = -(2**63)
"""Before every time that a row can have."""


class SQLiteJournal(DatabaseJournal[Database]):
    """A `Journal` in a database whose schema holds `SCHEMA_SCRIPTS`."""

    async def append(self, *entries: Entry) -> None:
        """See `Journal`."""
        await self.database.write(self.writer(*entries))

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """See `Journal`."""
        return self._rows([_SQL["unfinished"]], [], limit=limit)

    def acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        """Count what was ended, or may have been, since then and after a row, in slices by their number."""
        return dict(self.database.read(_SQL["acts"], (slice_ns, domain, since_ns, after)))

    def writer(self, *entries: Entry) -> Writer:
        """See `Journal`."""
        values = [entry_values(entry) for entry in entries]
        for entry in entries:
            self._changes.forget(entry)

        def write(cursor: Any, which: Sequence[int] | None = None) -> None:  # noqa: ANN401 - see `Writer`
            write_rows(cursor, _SQL["append"], values if which is None else [values[place] for place in which])

        return write

    async def end(self) -> RowPosition:
        """See `Journal`."""
        ((last,),) = self.database.read(_SQL["last_id"])
        return RowPosition(0, last)

    async def oldest(self, *, until_ns: int, behind: RowPosition | None, limit: int) -> list[OldRow]:
        """See `DatabaseJournal`."""
        place = (behind.time_ns, behind.id) if behind is not None else (_EARLIEST, 0)
        return [OldRow(*found) for found in self.database.read(_SQL["oldest"], (until_ns, *place, limit))]

    async def remove(self, ids: Sequence[int]) -> int:
        """See `DatabaseJournal`."""

        def work(cursor: apsw.Cursor) -> int:
            cursor.execute(_SQL["remove"], (json.dumps(ids),))
            return cursor.connection.changes()

        return await self.database.write(work)

    async def _matching(
        self, given: Mapping[str, Any], before: RowPosition | None, after: RowPosition | None, *, limit: int
    ) -> list[Row]:
        conditions, values = [_FILTERS[name] for name in given], list(given.values())
        if before is not None:
            conditions.append("(time_ns, id) < (?, ?)")
            values += before.time_ns, before.id
        order = "newest_first"
        if after is not None:
            conditions, values, order = [*conditions, "id > ?"], [*values, after.id], "as_committed"
        if "search" in given:  # looks at every row: a fifth of a second for half a million
            return await asyncio.to_thread(self._rows, conditions, values, limit=limit, order=order)
        return self._rows(conditions, values, limit=limit, order=order)

    def _rows(
        self, conditions: Sequence[str], values: Sequence[Any], *, limit: int, order: str = "newest_first"
    ) -> list[Row]:
        where = ["WHERE", " AND ".join(conditions)] if conditions else []
        statement = " ".join([_SQL["entries"], *where, _SQL[order]])
        return [row_of(found) for found in self.database.read(statement, [*values, limit])]
