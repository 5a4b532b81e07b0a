"""The journal in PostgreSQL: rows of any number of machines, beside the rows that they are about.

What `SQLiteJournal` is for one machine. A call writes its rows by one statement, in their order; as part of a change of
the same database (`writer`) they are in its transaction. The tables are made by ``lapse db init``.

Not guaranteed: that ids are in the order of commits. Of two transactions at the same moment the later one may have the
smaller id, so who counts from a row on may count one act more or less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.db.postgres.pool import Postgres, run
from lapse.db.statements import load_statements
from lapse.engine.journal.port import DatabaseJournal, Entry, entry_values, row_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row as Found
    from lapse.engine.journal.port import Journal, Row, RowPosition, Writer

SQL: Final = load_statements("lapse.engine.journal", "postgres.sql")
_FILTERS: Final[Mapping[str, str]] = {
    "since_ns": "time_ns >= %(since_ns)s",
    "domain": "domain = %(domain)s",
    "address": "address = %(address)s",
    "uid": "uid = %(uid)s",
}


class PostgresJournal(DatabaseJournal[Postgres]):
    """See the module."""

    async def append(self, *entries: Entry) -> None:
        """See `Journal`."""
        columns = self._columns(entries)
        if entries:
            await self.database.write(SQL["append"], columns)

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """See `Journal`."""
        return await self._rows([SQL["unfinished"]], {}, limit=limit)

    async def acts(
        self, domain: str, *, actors: Sequence[str], since_ns: int, after: int, slice_ns: int
    ) -> dict[int, int]:
        """Count what ``actors`` have ended since then and after the row ``after``, in slices by their number."""
        values = {"domain": domain, "actors": list(actors), "since_ns": since_ns, "after": after, "slice_ns": slice_ns}
        return dict(await self.database.read(SQL["acts"], values))

    def writer(self, *entries: Entry) -> Writer:
        """See `Journal`. What it returns must be awaited."""
        columns = self._columns(entries)

        def write(cursor: AsyncCursor[Found], which: Sequence[int] | None = None) -> Awaitable[None]:
            chosen = columns
            if which is not None:
                chosen = {name: [values[place] for place in which] for name, values in columns.items()}
            return _insert(cursor, chosen)

        return write

    async def _matching(self, given: Mapping[str, Any], before: RowPosition | None, *, limit: int) -> list[Row]:
        conditions, values = [_FILTERS[name] for name in given], dict(given)
        if before is not None:
            conditions.append("(time_ns, id) < (%(before_time)s, %(before_id)s)")
            values |= {"before_time": before.time_ns, "before_id": before.id}
        return await self._rows(conditions, values, limit=limit)

    def _columns(self, entries: Sequence[Entry]) -> dict[str, list[Any]]:
        rows = [entry_values(entry) for entry in entries]
        for entry in entries:
            self._noting.forget(entry)
        return {name: [row[place] for row in rows] for place, name in enumerate(Entry.__struct_fields__)}

    async def _rows(self, conditions: Sequence[str], values: Mapping[str, Any], *, limit: int) -> list[Row]:
        where = ["WHERE", " AND ".join(conditions)] if conditions else []
        statement = " ".join([SQL["entries"], *where, SQL["newest_first"]])
        return [row_of(found) for found in await self.database.read(statement, {**values, "limit": limit})]


async def _insert(cursor: AsyncCursor[Found], columns: Mapping[str, list[Any]]) -> None:
    await run(cursor, SQL["append"], columns)


if TYPE_CHECKING:
    _conforms: type[Journal] = PostgresJournal
