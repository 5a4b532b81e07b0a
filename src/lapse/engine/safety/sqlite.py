"""Freezes and holds in the database of the journal; what was spent is counted from the journal's rows.

A freeze and its row are one transaction. Every process of the machine sees it within `TRUST_SECONDS`, because that is
how often it is read while anything is being ended: a read takes microseconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.engine.safety.budget import TOTAL
from lapse.engine.safety.counted import SQL, CountedGateStore, GateRow, name_record
from lapse.engine.safety.freeze import ABOUT_CLOCK, ALL, CLOCK
from lapse.engine.safety.holds import Hold, HoldStore, PlacedHold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

    from lapse.db.sqlite.database import Database
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.counted import MovedRows
    from lapse.engine.safety.freeze import Freeze

SCHEMA_SCRIPTS: Final[Sequence[str]] = (SQL["schema_1"],)
"""For whoever opens the database that the journal lives in."""
NOTES_SCRIPTS: Final[Sequence[str]] = (SQL["schema_2"],)
"""The same, for notes. Files remember how many scripts they have, so it comes after all that there were before."""
HOLDS_SCRIPTS: Final[Sequence[str]] = (SQL["schema_3"],)
"""The same, for holds."""
TRUST_SECONDS: Final = 1.0


class SQLiteGateStore(CountedGateStore):
    """See the module. Needs both scripts in the journal's database."""

    def __init__(self, journal: SQLiteJournal, *, budgets: Budgets, domains: Iterable[str]) -> None:
        """See `CountedGateStore`."""
        super().__init__(budgets=budgets, domains=domains)
        self._journal = journal

    async def name(self) -> str:
        """See `CountedGateStore`."""
        return await self._journal.database.write(name_record)

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        write_row = self._journal.writer(row)

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(SQL["freeze"], (name, freeze.since or row.time_ns, freeze.reason, freeze.by))
            write_row(cursor)

        await self._journal.database.write(write)

    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`."""
        write_row = self._journal.writer(row)

        def write(cursor: apsw.Cursor) -> list[str]:
            frozen = [(str(found), str(reason)) for found, reason in cursor.execute(SQL["frozen"])]
            resumed = {found: reason for found, reason in frozen if name in {ALL, found}}
            if resumed:
                write_row(cursor)
                ((last,),) = cursor.execute(SQL["last_row"]).fetchall()
                for found in resumed:
                    cursor.execute(SQL["resume"], (found, last))
                cursor.execute(SQL["count_anew"], (TOTAL, last))
            if any(reason.startswith(ABOUT_CLOCK) for reason in resumed.values()):
                cursor.execute(SQL["forget_note"], (CLOCK,))
            return list(resumed)

        return await self._journal.database.write(write)

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return note_in(self._journal.database, name)

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(SQL["write_note"], (name, text))

        await self._journal.database.write(write)

    async def take(self, moved: MovedRows) -> None:
        """See `CountedGateStore`."""
        write_rows = self._journal.writer(*moved.entries)

        def write(cursor: apsw.Cursor) -> None:
            found = cursor.execute(SQL["note"], (moved.note,)).fetchall()
            if (str(found[0][0]) if found else "") != str(moved.before):
                return
            write_rows(cursor)
            for row in moved.freezes:
                cursor.execute(SQL["take"], (row.name, row.since_ns, row.reason, row.by))
            cursor.execute(SQL["write_note"], (moved.note, str(moved.after)))

        await self._journal.database.write(write)

    async def _rows(self) -> list[GateRow]:
        return [GateRow(*row) for row in self._journal.database.read(SQL["all"])]

    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        return self._journal.acts(domain, since_ns=since_ns, after=after, slice_ns=slice_ns)


class SQLiteHolds:
    """A `HoldStore`. Needs `HOLDS_SCRIPTS` in its database."""

    def __init__(self, database: Database) -> None:
        """Read nothing yet."""
        self._database = database

    async def held(self, domain: str, uids: Sequence[str]) -> dict[str, Hold]:
        """See `HoldStore`."""
        rows = self._database.read(SQL["held"], (domain, json.dumps(uids)))
        return {uid: _hold(reason, until) for uid, reason, until in rows}

    async def hold(self, placed: PlacedHold) -> None:
        """See `HoldStore`."""
        hold = placed.hold
        row = (placed.domain, placed.uid, placed.address, hold.reason, hold.until, placed.since, placed.by)

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(SQL["hold"], row)

        await self._database.write(write)

    async def release(self, domain: str, uid: str) -> Hold | None:
        """See `HoldStore`."""

        def write(cursor: apsw.Cursor) -> Hold | None:
            for reason, until in cursor.execute(SQL["release"], (domain, uid)).fetchall():
                return _hold(str(reason), until)
            return None

        return await self._database.write(write)


def _hold(reason: str, until: Any) -> Hold:  # noqa: ANN401 - a whole number or None, as the schema says
    return Hold(reason, None if until is None else UnixNs(until))


def note_in(database: Database, name: str) -> str | None:
    """Return a note of an open database."""
    rows = database.read(SQL["note"], (name,))
    return str(rows[0][0]) if rows else None


if TYPE_CHECKING:
    _holds: type[HoldStore] = SQLiteHolds
