"""Freezes in the PostgreSQL database of the journal; what was spent is counted from the journal's rows.

What `lapse.engine.safety.sqlite` is for one machine. Freezes and budgets of what is in a state folder are those of that
folder; those of what is in the database are seen and counted by all machines. What a person freezes for all domains
stops all machines. A clock that jumped is one machine's: it stops what that machine ends, and is resumed from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.core.identity import uuid
from lapse.db.postgres.pool import run
from lapse.engine.journal.postgres import HERE, SQL
from lapse.engine.safety.budget import TOTAL
from lapse.engine.safety.counted import RECORD_NAME, CountedGateStore, GateRow
from lapse.engine.safety.freeze import ABOUT_CLOCK, ALL, CLOCK, FreezeReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.postgres import PostgresJournal
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.counted import MovedRows
    from lapse.engine.safety.freeze import Freeze


class PostgresGateStore(CountedGateStore):
    """See the module."""

    def __init__(self, journal: PostgresJournal, *, budgets: Budgets, domains: Iterable[str]) -> None:
        """See `CountedGateStore`."""
        super().__init__(budgets=budgets, domains=domains)
        self._journal = journal

    async def name(self) -> str:
        """See `CountedGateStore`."""
        rows = await self._journal.database.write(
            SQL["lock_note"], {"store": HERE, "name": RECORD_NAME, "text": uuid()}
        )
        return str(rows[0][0])

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        store = self._store_of(name, row.reason)
        values = {"name": name, "since": freeze.since or row.time_ns, "reason": freeze.reason, "by": freeze.by}

        async def work(cursor: AsyncCursor[Row]) -> None:
            await run(cursor, SQL["freeze"], {**values, "store": store})
            await self._write(cursor, row, store=store)

        await self._journal.database.transact(work)

    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`."""
        mine = self._journal.store
        stores = [mine] if row.reason == FreezeReason.CLOCK_CONFIRMED else self._journal.stores

        async def work(cursor: AsyncCursor[Row]) -> list[str]:
            frozen = await run(cursor, SQL["frozen"], {"stores": stores})
            resumed = [(str(store), str(found), str(why)) for store, found, why in frozen if name in {ALL, found}]
            if resumed:
                await self._write(cursor, row, store=self._store_of(name, row.reason))
                ((last,),) = await run(cursor, SQL["last_row"], {})
                for store, found, _ in resumed:
                    await run(cursor, SQL["resume"], {"store": store, "name": found, "last": last})
                await run(cursor, SQL["count_anew"], {"store": mine, "name": TOTAL, "last": last})
            if any(why.startswith(ABOUT_CLOCK) for _, _, why in resumed):
                await run(cursor, SQL["forget_note"], {"store": mine, "name": CLOCK})
            return sorted({found for _, found, _ in resumed})

        return await self._journal.database.transact(work)

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        rows = await self._journal.database.read(SQL["note"], {"store": self._journal.store, "name": name})
        return str(rows[0][0]) if rows else None

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        await self._journal.database.write(
            SQL["write_note"], {"store": self._journal.store, "name": name, "text": text}
        )

    async def take(self, moved: MovedRows) -> None:
        """See `CountedGateStore`. All that is taken is about the folder that it comes from."""
        store = self._journal.store

        async def work(cursor: AsyncCursor[Row]) -> None:
            ((found,),) = await run(cursor, SQL["lock_note"], {"store": store, "name": moved.note, "text": ""})
            if str(found) != str(moved.before):
                return
            if moved.entries:
                await self._write(cursor, *moved.entries, store=store)
            for row in moved.freezes:
                await run(cursor, SQL["take"], {**row._asdict(), "store": store})
            await run(cursor, SQL["write_note"], {"store": store, "name": moved.note, "text": str(moved.after)})

        await self._journal.database.transact(work)

    def _store_of(self, name: str, reason: str) -> str:
        """Return which store a freeze is about."""
        if reason == FreezeReason.CLOCK_JUMPED or (name == ALL and reason != FreezeReason.BY_PERSON):
            return self._journal.store
        return HERE if name == ALL else self._journal.store_of(name)

    async def _rows(self) -> list[GateRow]:
        """Return one row for each name: a freeze of this folder, or else of the database, and what counts for us."""
        found: dict[str, GateRow] = {}
        for store, *values in await self._journal.database.read(SQL["brakes"], {"stores": self._journal.stores}):
            row, before = GateRow(*values), found.get(values[0])
            counts = store == (self._journal.store if row.name == TOTAL else self._journal.store_of(row.name))
            after = row.counted_after if counts else 0 if before is None else before.counted_after
            frozen = row if before is None or row.since_ns is not None else before
            found[row.name] = frozen._replace(counted_after=after)
        return list(found.values())

    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        return await self._journal.acts(domain, since_ns=since_ns, after=after, slice_ns=slice_ns)

    async def _write(self, cursor: AsyncCursor[Row], *rows: Entry, store: str) -> None:
        written: Awaitable[Any] | None = self._journal.writer(*rows, store=store)(cursor)
        if written is not None:
            await written
