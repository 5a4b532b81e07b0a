"""Freezes in the PostgreSQL database of the journal; what was spent is counted from the journal's rows.

What `lapse.engine.safety.sqlite` is for one machine: a freeze is seen by all of them, and they share one budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.db.postgres.pool import run
from lapse.engine.journal.postgres import SQL
from lapse.engine.safety.budget import TOTAL
from lapse.engine.safety.counted import CountedGateStore, GateRow
from lapse.engine.safety.freeze import ALL, CLOCK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable
    from typing import Any

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.postgres import PostgresJournal
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.counted import MovedRows
    from lapse.engine.safety.freeze import Freeze


class PostgresGateStore(CountedGateStore):
    """See the module."""

    def __init__(
        self, journal: PostgresJournal, *, budgets: Budgets, domains: Iterable[str], actors: Iterable[str]
    ) -> None:
        """See `CountedGateStore`."""
        super().__init__(budgets=budgets, domains=domains, actors=actors)
        self._journal = journal

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        values = {"name": name, "since": freeze.since or row.time_ns, "reason": freeze.reason, "by": freeze.by}

        async def work(cursor: AsyncCursor[Row]) -> None:
            await run(cursor, SQL["freeze"], values)
            await self._write(cursor, row)

        await self._journal.database.transact(work)

    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`."""

        async def work(cursor: AsyncCursor[Row]) -> list[str]:
            frozen = [str(found) for (found,) in await run(cursor, SQL["frozen"], {})]
            resumed = [found for found in frozen if name in {ALL, found}]
            if resumed:
                await self._write(cursor, row)
                ((last,),) = await run(cursor, SQL["last_row"], {})
                for found in resumed:
                    await run(cursor, SQL["resume"], {"name": found, "last": last})
                await run(cursor, SQL["count_anew"], {"name": TOTAL, "last": last})
                await run(cursor, SQL["forget_note"], {"name": CLOCK})
            return resumed

        return await self._journal.database.transact(work)

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        rows = await self._journal.database.read(SQL["note"], {"name": name})
        return str(rows[0][0]) if rows else None

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        await self._journal.database.write(SQL["write_note"], {"name": name, "text": text})

    async def take(self, moved: MovedRows) -> None:
        """See `CountedGateStore`."""

        async def work(cursor: AsyncCursor[Row]) -> None:
            ((found,),) = await run(cursor, SQL["lock_note"], {"name": moved.note, "text": "0"})
            if int(found) != moved.after:
                return
            await self._write(cursor, *moved.entries)
            ((last,),) = await run(cursor, SQL["last_row"], {})
            for row in moved.gate:
                counted_after = last if row.counted_after else 0
                await run(cursor, SQL["take"], {**row._asdict(), "counted_after": counted_after})
            await run(cursor, SQL["write_note"], {"name": moved.note, "text": str(moved.until)})

        await self._journal.database.transact(work)

    async def _rows(self) -> list[GateRow]:
        return [GateRow(*row) for row in await self._journal.database.read(SQL["brakes"], {})]

    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        return await self._journal.acts(domain, actors=self._actors, since_ns=since_ns, after=after, slice_ns=slice_ns)

    async def _write(self, cursor: AsyncCursor[Row], *rows: Entry) -> None:
        written: Awaitable[Any] | None = self._journal.writer(*rows)(cursor)
        if written is not None:
            await written
