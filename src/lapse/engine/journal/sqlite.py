"""The journal in SQLite: rows of one machine, in the database of the objects that they are about.

A call writes its rows in one transaction; as part of a change of the same database (`writer`) they are in that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.db.sqlite.database import Database, write_rows
from lapse.db.statements import load_statements
from lapse.engine.journal.port import DatabaseJournal, entry_values, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.engine.journal.port import Entry, Row, RowPosition, Writer

_SQL: Final = load_statements("lapse.engine.journal", "sqlite.sql")
SCHEMA_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_1"], _SQL["schema_2"])
"""For whoever opens the database that the journal's table is to live in."""
INTENT_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_3"],)
"""The same, where intents are counted. Files remember how many scripts they have, so it comes after all others."""
_FILTERS: Final[Mapping[str, str]] = {
    "since_ns": "time_ns >= ?",
    "domain": "domain = ?",
    "address": "address = ?",
    "uid": "uid = ?",
}


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

    async def _matching(self, given: Mapping[str, Any], before: RowPosition | None, *, limit: int) -> list[Row]:
        conditions, values = [_FILTERS[name] for name in given], list(given.values())
        if before is not None:
            conditions.append("(time_ns, id) < (?, ?)")
            values += before
        return self._rows(conditions, values, limit=limit)

    def _rows(self, conditions: Sequence[str], values: Sequence[Any], *, limit: int) -> list[Row]:
        where = ["WHERE", " AND ".join(conditions)] if conditions else []
        statement = " ".join([_SQL["entries"], *where, _SQL["newest_first"]])
        return [row_of(found) for found in self.database.read(statement, [*values, limit])]
