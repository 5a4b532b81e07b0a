"""The journal in PostgreSQL: rows of any number of machines, beside the rows that they are about.

What `SQLiteJournal` is for one machine. A call writes its rows by one statement, in their order; as part of a change of
the same database (`writer`) they are in its transaction. The tables are made by ``lapse db init``.

A row carries the store that it is about: this database, for things that are in it, or the state folder of a machine.
So the same address in two folders is two things. A journal reads the rows of its folder and of the database.

Not guaranteed: that ids are in the order of commits. Of two transactions at the same moment the later one may have the
smaller id, so who counts from a row on may count one act more or less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.db.postgres.pool import Postgres, run
from lapse.db.statements import load_statements
from lapse.engine.journal.port import DatabaseJournal, Entry, entry_values, row_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row as Found
    from lapse.engine.journal.port import Journal, Row, RowPosition, Writer

SQL: Final = load_statements("lapse.engine.journal", "postgres.sql")
HERE: Final = ""
"""The store of what is in the database itself."""
_COLUMNS: Final = (*Entry.__struct_fields__, "store")
_FILTERS: Final[Mapping[str, str]] = {
    "since_ns": "time_ns >= %(since_ns)s",
    "domain": "domain = %(domain)s",
    "address": "address = %(address)s",
    "uid": "uid = %(uid)s",
}


class PostgresJournal(DatabaseJournal[Postgres]):
    """See the module."""

    def __init__(self, database: Postgres, *, store: str = HERE, shared: Collection[str] = ()) -> None:
        """Read and write nothing yet; ``store`` is the name of the folder, ``shared`` the domains of the database."""
        super().__init__(database)
        self.store, self._shared = store, frozenset(shared)
        self.stores = sorted({HERE, store})

    def store_of(self, domain: str) -> str:
        """Return which store the things of a domain are in."""
        return HERE if domain in self._shared else self.store

    async def append(self, *entries: Entry) -> None:
        """See `Journal`."""
        if entries:
            await self.database.write(SQL["append"], _document(self._rows_of(entries)))

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """See `Journal`."""
        return await self._rows([SQL["unfinished"]], {}, limit=limit)

    async def acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        """Count what was ended, or may have been, since then and after a row, in slices by their number."""
        values = {"domain": domain, "since_ns": since_ns, "after": after, "slice_ns": slice_ns}
        return dict(await self.database.read(SQL["acts"], {**values, "store": self.store_of(domain)}))

    def writer(self, *entries: Entry, store: str | None = None) -> Writer:
        """See `Journal`. What it returns must be awaited; all rows are about ``store``, if one is named."""
        rows = self._rows_of(entries, store)

        def write(cursor: AsyncCursor[Found], which: Sequence[int] | None = None) -> Awaitable[None]:
            return _insert(cursor, rows if which is None else [rows[place] for place in which])

        return write

    async def _matching(self, given: Mapping[str, Any], before: RowPosition | None, *, limit: int) -> list[Row]:
        conditions, values = [_FILTERS[name] for name in given], dict(given)
        if before is not None:
            conditions.append("(time_ns, id) < (%(before_time)s, %(before_id)s)")
            values |= {"before_time": before.time_ns, "before_id": before.id}
        return await self._rows(conditions, values, limit=limit)

    def _rows_of(self, entries: Sequence[Entry], store: str | None = None) -> list[dict[str, Any]]:
        for entry in entries:
            self._changes.forget(entry)
        return [
            dict(
                zip(_COLUMNS, (*entry_values(one), self.store_of(one.domain) if store is None else store), strict=True)
            )
            for one in entries
        ]

    async def _rows(self, conditions: Sequence[str], values: Mapping[str, Any], *, limit: int) -> list[Row]:
        where = " AND ".join([SQL["of_stores"], *conditions])
        statement = " ".join([SQL["entries"], "WHERE", where, SQL["newest_first"]])
        everything = {**values, "limit": limit, "stores": self.stores}
        return [row_of(found) for found in await self.database.read(statement, everything)]


async def _insert(cursor: AsyncCursor[Found], rows: Sequence[Mapping[str, Any]]) -> None:
    await run(cursor, SQL["append"], _document(rows))


def _document(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"rows": msgspec.json.encode(rows, enc_hook=_plain).decode()}


def _plain(value: object) -> str | int:
    """Return what a value of a class of one's own stands for."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"a row of the journal cannot hold {type(value).__name__}")


if TYPE_CHECKING:
    _conforms: type[Journal] = PostgresJournal
