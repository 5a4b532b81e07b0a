"""Freezes in the PostgreSQL database of the journal; what was spent is counted from the journal's rows.

What `lapse.engine.safety.sqlite` is for one machine: a freeze is seen by all of them, and they share one budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.db.postgres.pool import run
from lapse.engine.journal.postgres import SQL
from lapse.engine.safety.budget import TOTAL, Budget, Ledger
from lapse.engine.safety.freeze import ALL, Freeze, GateState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence
    from typing import Any

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.postgres import PostgresJournal
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.freeze import GateStore


class PostgresGateStore:
    """See the module; a `GateStore`."""

    keeps_spending: Final = False

    def __init__(
        self, journal: PostgresJournal, *, budgets: Budgets, domains: Iterable[str], actors: Iterable[str]
    ) -> None:
        """Nothing is read yet. ``domains`` are those that the total budget counts, ``actors`` those whose acts do."""
        self._journal, self._budgets, self._domains, self._actors = journal, budgets, tuple(domains), tuple(actors)

    async def load(self, now: int) -> GateState:
        """See `GateStore`."""
        rows = await self._journal.database.read(SQL["brakes"], {})
        frozen = {name: Freeze(UnixNs(since), reason, by) for name, since, reason, by, _ in rows if since is not None}
        counted_after = {name: row for name, _, _, _, row in rows}
        spent: Ledger = {}
        for domain in self._domains:
            if self._budgets.of(domain).most is not None:
                after = counted_after.get(domain, 0)
                spent[domain] = await self._slices([domain], self._budgets.of(domain), now, after)
        if self._budgets.total.most is not None:
            spent[TOTAL] = await self._slices(self._domains, self._budgets.total, now, counted_after.get(TOTAL, 0))
        return GateState(frozen, spent, epoch=repr(sorted(counted_after.items())))

    async def spend(self, state: GateState, spent: Ledger) -> GateState:
        """Write nothing: the rows of the acts will tell."""
        return GateState(state.frozen, spent, state.epoch)

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
            return resumed

        return await self._journal.database.transact(work)

    async def _write(self, cursor: AsyncCursor[Row], row: Entry) -> None:
        written: Awaitable[Any] | None = self._journal.writer(row)(cursor)
        if written is not None:
            await written

    async def _slices(self, domains: Sequence[str], budget: Budget, now: int, after: int) -> dict[int, int]:
        slices: dict[int, int] = {}
        size = budget.slice_ns
        since_ns = now - budget.window_ns - size  # all of every slice that may count
        for domain in domains:
            found = await self._journal.acts(domain, actors=self._actors, since_ns=since_ns, after=after, slice_ns=size)
            for number, count in found.items():
                end = (number + 1) * size - 1
                slices[end] = slices.get(end, 0) + count
        return slices


if TYPE_CHECKING:
    _conforms: type[GateStore] = PostgresGateStore
