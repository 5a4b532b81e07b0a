"""Proposed plans in the PostgreSQL database of the record, those of each state folder apart, as its approvals are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.db.postgres.pool import run
from lapse.db.statements import load_statements
from lapse.engine.plans.proposed import KeptPlan

if TYPE_CHECKING:
    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Row
    from lapse.engine.journal.postgres import PostgresJournal
    from lapse.engine.plans.proposed import Application, PlanStore

_SQL: Final = load_statements("lapse.engine.plans", "postgres.sql")


class PostgresPlans:
    """A `PlanStore`: plans of a state folder are those of that folder."""

    def __init__(self, journal: PostgresJournal) -> None:
        """Read nothing yet; the journal knows which folder it is of."""
        self._database, self._store = journal.database, journal.store

    async def keep(self, plan: KeptPlan, document: bytes, *, now: int, most: int) -> bool | None:
        """See `PlanStore`."""
        values = {**plan._asdict(), "store": self._store, "now": now, "document": document}

        async def work(cursor: AsyncCursor[Row]) -> bool | None:
            await run(cursor, _SQL["lock"], {})
            await run(cursor, _SQL["forget_expired"], values)
            if await run(cursor, _SQL["is_kept"], values):
                return False
            ((count,),) = await run(cursor, _SQL["count"], values)
            if count >= most and not await run(cursor, _SQL["forget_done"], values):
                return None
            await run(cursor, _SQL["keep"], values)
            return True

        return await self._database.transact(work)

    async def plans(self, now: int) -> list[KeptPlan]:
        """See `PlanStore`."""
        rows = await self._database.read(_SQL["plans"], {"store": self._store, "now": now})
        return [KeptPlan(*row) for row in rows]

    async def document(self, plan: str, now: int) -> bytes | None:
        """See `PlanStore`."""
        rows = await self._database.read(_SQL["document"], {"store": self._store, "id": plan, "now": now})
        return bytes(rows[0][0]) if rows else None

    async def note(self, done: Application) -> None:
        """See `PlanStore`."""
        await self._database.write(_SQL["note"], {**done._asdict(), "store": self._store})


if TYPE_CHECKING:
    _plans: type[PlanStore] = PostgresPlans
