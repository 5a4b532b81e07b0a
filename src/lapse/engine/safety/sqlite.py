"""Freezes and holds in the database of the journal; what was spent is counted from the journal's rows.

A freeze and its row are one transaction. Every process of the machine sees it within `TRUST_SECONDS`, because that is
how often it is read while anything is being ended: a read takes microseconds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.engine.safety.budget import TOTAL
from lapse.engine.safety.counted import RESERVED, SQL, CountedGateStore, GateRow, name_record
from lapse.engine.safety.freeze import ABOUT_CLOCK, ALL, CLOCK
from lapse.engine.safety.holds import (
    Hold,
    HoldStore,
    LegalHoldError,
    PlacedExtension,
    PlacedHold,
    WeakerHoldError,
    demand_placeable,
    demand_releasable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
EXTENSIONS_SCRIPTS: Final[Sequence[str]] = (SQL["schema_extensions"],)
"""The same, for legal holds and extensions."""
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

    async def resume(self, name: str, row: Entry, *, mark: str | None = None) -> list[str]:
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
                believe = (SQL["forget_note"], (CLOCK,)) if mark is None else (SQL["write_note"], (CLOCK, mark))
                cursor.execute(*believe)
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

    async def list_notes(self, prefix: str) -> dict[str, str]:
        """See `Notes`."""
        return {name: text for name, text in self._journal.database.read(SQL["notes"]) if name.startswith(prefix)}

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

    async def _reservations(self) -> str | None:
        return note_in(self._journal.database, RESERVED)

    async def _change_reservations(self, change: Callable[[str | None], str]) -> str:
        def write(cursor: apsw.Cursor) -> str:
            found = cursor.execute(SQL["note"], (RESERVED,)).fetchall()
            text = change(str(found[0][0]) if found else None)
            cursor.execute(SQL["write_note"], (RESERVED, text))
            return text

        return await self._journal.database.write(write)

    async def _rows(self) -> list[GateRow]:
        return [GateRow(*row) for row in self._journal.database.read(SQL["all"])]

    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        return self._journal.acts(domain, since_ns=since_ns, after=after, slice_ns=slice_ns)


class SQLiteHolds:
    """A `HoldStore`. Needs `HOLDS_SCRIPTS` and `EXTENSIONS_SCRIPTS` in its database."""

    def __init__(self, database: Database) -> None:
        """Read nothing yet."""
        self._database = database

    async def held(self, domain: str, uids: Sequence[str]) -> dict[str, Hold]:
        """See `HoldStore`."""
        rows = self._database.read(SQL["held"], (domain, json.dumps(uids)))
        return {uid: stored_hold(*hold) for uid, *hold in rows}

    async def hold(self, placed: PlacedHold, *, replace: bool = False) -> Hold | None:
        """See `HoldStore`."""

        def write(cursor: apsw.Cursor) -> Hold | LapseError | None:
            found = _held(cursor, placed.domain, placed.uid)
            refusal = refusal_of(demand_placeable, placed.address, placed.hold, found, placed.since, replace=replace)
            if refusal is None:
                cursor.execute(SQL["hold"], _values(placed))
            return refusal or found

        return _answer(await self._database.write(write))

    async def release(
        self,
        domain: str,
        uid: str,
        *,
        by: str,
        legal: bool = True,
        only: str | None = None,
        address: str | None = None,
    ) -> Hold | None:
        """See `HoldStore`."""

        def write(cursor: apsw.Cursor) -> Hold | LapseError | None:
            found = _held(cursor, domain, uid)
            refusal = refusal_of(demand_releasable, address or uid, found, by=by, legal=legal, only=only)
            if refusal is None:
                cursor.execute(SQL["release"], (domain, uid))
            return refusal or found

        return _answer(await self._database.write(write))

    async def extended(self, domain: str, uids: Sequence[str]) -> dict[str, UnixNs]:
        """See `HoldStore`."""
        rows = self._database.read(SQL["extended"], (domain, json.dumps(uids)))
        return {uid: UnixNs(until) for uid, until in rows}

    async def extend(self, placed: PlacedExtension) -> UnixNs:
        """See `HoldStore`."""
        rows = await self._database.write(lambda cursor: cursor.execute(SQL["extend"], placed).fetchall())
        return UnixNs(cast("int", rows[0][0]))

    # --- moving -------------------------------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Whether nothing is kept here."""
        return not self._database.read(SQL["all_holds"]) and not self._database.read(SQL["all_extensions"])

    async def move(self, into: HoldStore) -> None:
        """Bring everything into another store; of two holds on one thing the stronger stays. Can be repeated."""
        holds = [
            PlacedHold(domain, uid, address, stored_hold(reason, until, by, is_legal), UnixNs(since))
            for domain, uid, address, reason, until, since, by, is_legal in self._database.read(SQL["all_holds"])
        ]
        extensions = [PlacedExtension(*row) for row in self._database.read(SQL["all_extensions"])]
        for one in holds:
            with suppress(WeakerHoldError, LegalHoldError):
                await into.hold(one)
        for other in extensions:
            await into.extend(other)

        def forget(cursor: apsw.Cursor) -> None:
            cursor.executemany(SQL["forget_hold"], [(one.domain, one.uid, one.since) for one in holds])
            cursor.executemany(SQL["forget_extension"], [(one.domain, one.uid, one.since) for one in extensions])

        await self._database.write(forget)


def stored_hold(reason: str, until: int | None, by: str, is_legal: int | bool) -> Hold:  # noqa: FBT001 - a column
    """Return the hold of a row."""
    return Hold(reason, None if until is None else UnixNs(until), by, bool(is_legal))


def refusal_of(demand: Callable[..., None], *values: object, **options: object) -> LapseError | None:
    """Return what a demand raises: in a transaction an error is an answer, which undoes nothing of others."""
    try:
        demand(*values, **options)
    except LapseError as error:
        return error
    return None


def _held(cursor: apsw.Cursor, domain: str, uid: str) -> Hold | None:
    rows: list[Any] = cursor.execute(SQL["held"], (domain, json.dumps([uid]))).fetchall()
    return stored_hold(*rows[0][1:]) if rows else None


def _values(placed: PlacedHold) -> tuple[Any, ...]:
    hold = placed.hold
    where = (placed.domain, placed.uid, placed.address)
    return (*where, hold.reason, hold.until, placed.since, hold.by, int(hold.is_legal))


def _answer(answer: Hold | LapseError | None) -> Hold | None:
    if isinstance(answer, LapseError):
        raise answer
    return answer


def note_in(database: Database, name: str) -> str | None:
    """Return a note of an open database."""
    rows = database.read(SQL["note"], (name,))
    return str(rows[0][0]) if rows else None


if TYPE_CHECKING:
    _holds: type[HoldStore] = SQLiteHolds
