"""Proposed plans in the SQLite database of the record; each change of them is one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.db.statements import load_statements
from lapse.engine.plans.proposed import KeptPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from lapse.db.sqlite.database import Database
    from lapse.engine.plans.proposed import Application, PlanStore

_SQL: Final = load_statements("lapse.engine.plans", "sqlite.sql")
PLANS_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_plans"],)
"""For whoever opens the database. Files remember how many scripts they have, so it comes after all others."""
_GIVEN: Final = 9
"""So many of the fields of a `KeptPlan` are there before it is carried out."""


class SQLitePlans:
    """A `PlanStore`. Needs `PLANS_SCRIPTS` in its database."""

    def __init__(self, database: Database) -> None:
        """Read nothing yet."""
        self._database = database

    async def keep(self, plan: KeptPlan, document: bytes, *, now: int, most: int) -> bool | None:
        """See `PlanStore`."""

        def write(cursor: apsw.Cursor) -> bool | None:
            cursor.execute(_SQL["forget_expired"], (now,))
            if cursor.execute(_SQL["is_kept"], (plan.id,)).fetchall():
                return False
            ((count,),) = cursor.execute(_SQL["count"]).fetchall()
            if int(str(count)) >= most and not cursor.execute(_SQL["forget_done"]).fetchall():
                return None
            cursor.execute(_SQL["keep"], (*plan[:_GIVEN], document))
            return True

        return await self._database.write(write)

    async def plans(self, now: int) -> list[KeptPlan]:
        """See `PlanStore`."""
        return [KeptPlan(*row) for row in self._database.read(_SQL["plans"], (now,))]

    async def document(self, plan: str, now: int) -> bytes | None:
        """See `PlanStore`."""
        rows = self._database.read(_SQL["document"], (plan, now))
        return bytes(rows[0][0]) if rows else None

    async def note(self, done: Application) -> None:
        """See `PlanStore`."""

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(_SQL["note"], done._asdict())

        await self._database.write(write)


if TYPE_CHECKING:
    _plans: type[PlanStore] = SQLitePlans
