"""The journal in PostgreSQL: rows of any number of machines, beside the rows that they are about.

What `SQLiteJournal` is for one machine. A call writes its rows by one statement, in their order; as part of a change of
the same database (`writer`) they are in its transaction. The tables are made by ``lapse db init``.

A row carries the store that it is about: this database, for things that are in it, or the state folder of a machine.
So the same address in two folders is two things. A journal reads the rows of its folder and of the database.

Ids are not in the order of commits: of two transactions at the same moment the later one may have the smaller id. So
a row also carries the number of its transaction, and who follows (``after``) reads rows by that, only up to the oldest
transaction that still runs: whatever commits later has a larger number, so no row is missed. The price is that a
transaction which writes anywhere on the server, for as long as it runs, delays what followers see. A database that was
restored on another server, where numbers begin anew, is noticed when its journal is first followed: then rows of the
other server come before those of this one, and may be read once more.

Not guaranteed: who counts from a row's id on, as budgets do after a resume, may count one act more or less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.db.postgres.pool import Postgres, run
from lapse.db.statements import load_statements
from lapse.engine.journal.port import DatabaseJournal, Entry, OldRow, RowPosition, domain_about, entry_values, row_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping, Sequence

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row as Found
    from lapse.engine.journal.port import Journal, Row, Writer

SQL: Final = load_statements("lapse.engine.journal", "postgres.sql")
HERE: Final = ""
"""The store of what is in the database itself."""
_COLUMNS: Final = (*Entry.__struct_fields__, "store")
_FILTERS: Final[Mapping[str, str]] = {
    "since_ns": "time_ns >= %(since_ns)s",
    "plan": "details::jsonb ->> 'plan' = %(plan)s",
    "until_ns": "time_ns < %(until_ns)s",
    "domain": "domain = %(domain)s",
    "address": "address = %(address)s",
    "search": "strpos(address, %(search)s) > 0",  # not LIKE, which has patterns
    "uid": "uid = %(uid)s",
    "actor": "actor = %(actor)s",
    "outcome": "outcome = %(outcome)s",
    "policy": "policy = %(policy)s",
}
_EARLIEST: Final = -(2**63)
"""Before every time that a row can have."""


class PostgresJournal(DatabaseJournal[Postgres]):
    """See the module."""

    def __init__(self, database: Postgres, *, store: str = HERE, shared: Collection[str] = ()) -> None:
        """Read and write nothing yet; ``store`` is the name of the folder, ``shared`` the domains of the database."""
        super().__init__(database)
        self.store, self._shared = store, frozenset(shared)
        self.stores = sorted({HERE, store})
        self._is_adopted = False

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

    async def end(self) -> RowPosition:
        """See `Journal`."""
        ((oldest,),) = await self.database.read(SQL["oldest_transaction"], {})
        return RowPosition(0, 0, oldest)

    async def oldest(self, *, until_ns: int, behind: RowPosition | None, limit: int) -> list[OldRow]:
        """See `DatabaseJournal`. These are rows of all stores, also of folders that are no more."""
        time_ns, number = (behind.time_ns, behind.id) if behind is not None else (_EARLIEST, 0)
        values = {"until_ns": until_ns, "time_ns": time_ns, "id": number, "limit": limit}
        return [OldRow(*found) for found in await self.database.read(SQL["oldest"], values)]

    async def remove(self, ids: Sequence[int]) -> int:
        """See `DatabaseJournal`."""
        ((count,),) = await self.database.write(SQL["remove"], {"ids": list(ids)})
        return int(count)

    async def _matching(
        self, given: Mapping[str, Any], before: RowPosition | None, after: RowPosition | None, *, limit: int
    ) -> list[Row]:
        conditions, values = [_FILTERS[name] for name in given], dict(given)
        if before is not None:
            conditions.append("(time_ns, id) < (%(before_time)s, %(before_id)s)")
            values |= {"before_time": before.time_ns, "before_id": before.id}
        if after is None:
            return await self._rows(conditions, values, limit=limit)
        await self._adopt()
        values |= {"after_transaction": str(after.transaction), "after_id": after.id}
        return await self._rows([*conditions, SQL["behind"]], values, limit=limit, order="as_committed")

    async def _adopt(self) -> None:
        """Put rows of another server, whose tables were restored here, before all others; once for each journal."""
        if not self._is_adopted:
            await self.database.write(SQL["adopt"], {})
            self._is_adopted = True

    def _rows_of(self, entries: Sequence[Entry], store: str | None = None) -> list[dict[str, Any]]:
        for entry in entries:
            self._changes.forget(entry)
        stores = [self.store_of(domain_about(one)) if store is None else store for one in entries]
        return [
            dict(zip(_COLUMNS, (*entry_values(one), where), strict=True))
            for one, where in zip(entries, stores, strict=True)
        ]

    async def _rows(
        self, conditions: Sequence[str], values: Mapping[str, Any], *, limit: int, order: str = "newest_first"
    ) -> list[Row]:
        where = " AND ".join([SQL["of_stores"], *conditions])
        statement = " ".join([SQL["entries"], "WHERE", where, SQL[order]])
        everything = {**values, "limit": limit, "stores": self.stores}
        return [row_of(found, found[-1]) for found in await self.database.read(statement, everything)]


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
