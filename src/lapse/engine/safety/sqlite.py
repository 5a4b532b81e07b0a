"""Freezes and holds in the database of the journal; what was spent is counted from the journal's rows.

A freeze and its row are one transaction. Every process of the machine sees it within `TRUST_SECONDS`, because that is
how often it is read while anything is being ended: a read takes microseconds.

Only rows of the engine's own actor count: what people delete is their own business and does not spend the budget. Of a
person who lets the engine end things, by a command, that person's rows count as well, for that command.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.db.statements import load_statements
from lapse.engine.safety.budget import TOTAL, Budget, Ledger
from lapse.engine.safety.freeze import ALL, CLOCK, Freeze, GateState, GateStore, Notes
from lapse.engine.safety.holds import Hold, HoldStore, PlacedHold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import apsw

    from lapse.db.sqlite.database import Database
    from lapse.engine.journal.port import Entry, SQLiteJournal
    from lapse.engine.safety.budget import Budgets

_SQL: Final = load_statements("lapse.engine.safety", "sqlite.sql")
SCHEMA_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_1"],)
"""For whoever opens the database that the journal lives in."""
NOTES_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_2"],)
"""The same, for notes. Files remember how many scripts they have, so it comes after all that there were before."""
HOLDS_SCRIPTS: Final[Sequence[str]] = (_SQL["schema_3"],)
"""The same, for holds."""
TRUST_SECONDS: Final = 1.0


class SQLiteGateStore:
    """See the module; a `GateStore` with `Notes`. Needs both scripts in the journal's database."""

    keeps_spending: Final = False

    def __init__(
        self, journal: SQLiteJournal, *, budgets: Budgets, domains: Iterable[str], actors: Iterable[str]
    ) -> None:
        """Nothing is read yet. ``domains`` are those that the total budget counts, ``actors`` those whose acts do."""
        self._journal, self._budgets, self._domains, self._actors = journal, budgets, tuple(domains), tuple(actors)

    async def load(self, now: int) -> GateState:
        """See `GateStore`."""
        rows = self._journal.database.read(_SQL["all"])
        frozen = {name: Freeze(UnixNs(since), reason, by) for name, since, reason, by, _ in rows if since is not None}
        counted_after = {name: row for name, _, _, _, row in rows}
        return GateState(frozen, dict(self._spent(counted_after, now)), epoch=repr(sorted(counted_after.items())))

    async def spend(self, state: GateState, spent: Ledger) -> GateState:
        """Write nothing: the rows of the acts will tell."""
        return GateState(state.frozen, spent, state.epoch)

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        write_row = self._journal.writer(row)

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(_SQL["freeze"], (name, freeze.since or row.time_ns, freeze.reason, freeze.by))
            write_row(cursor)

        await self._journal.database.write(write)

    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`."""
        write_row = self._journal.writer(row)

        def write(cursor: apsw.Cursor) -> list[str]:
            frozen = [str(found[0]) for found in cursor.execute(_SQL["frozen"])]
            resumed = [found for found in frozen if name in {ALL, found}]
            if resumed:
                write_row(cursor)
                ((last,),) = cursor.execute(_SQL["last_row"]).fetchall()
                for found in resumed:
                    cursor.execute(_SQL["resume"], (found, last))
                cursor.execute(_SQL["count_anew"], (TOTAL, last))
                cursor.execute(_SQL["forget_note"], (CLOCK,))
            return resumed

        return await self._journal.database.write(write)

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return note_in(self._journal.database, name)

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(_SQL["write_note"], (name, text))

        await self._journal.database.write(write)

    def _spent(self, counted_after: Mapping[str, int], now: int) -> Iterator[tuple[str, dict[int, int]]]:
        for domain in self._domains:
            if self._budgets.of(domain).most is not None:
                yield domain, self._slices([domain], self._budgets.of(domain), now, counted_after.get(domain, 0))
        if self._budgets.total.most is not None:
            yield TOTAL, self._slices(self._domains, self._budgets.total, now, counted_after.get(TOTAL, 0))

    def _slices(self, domains: Iterable[str], budget: Budget, now: int, after: int) -> dict[int, int]:
        slices: dict[int, int] = {}
        since_ns = now - budget.window_ns - budget.slice_ns  # all of every slice that may count
        for domain, actor in product(domains, self._actors):
            found = self._journal.acts(domain, actor=actor, since_ns=since_ns, after=after, slice_ns=budget.slice_ns)
            for number, count in found.items():
                end = (number + 1) * budget.slice_ns - 1
                slices[end] = slices.get(end, 0) + count
        return slices


class SQLiteHolds:
    """A `HoldStore`. Needs `HOLDS_SCRIPTS` in its database."""

    def __init__(self, database: Database) -> None:
        """Read nothing yet."""
        self._database = database

    async def held(self, domain: str, uids: Sequence[str]) -> dict[str, Hold]:
        """See `HoldStore`."""
        rows = self._database.read(_SQL["held"], (domain, json.dumps(uids)))
        return {uid: _hold(reason, until) for uid, reason, until in rows}

    async def hold(self, placed: PlacedHold) -> None:
        """See `HoldStore`."""
        hold = placed.hold
        row = (placed.domain, placed.uid, placed.address, hold.reason, hold.until, placed.since, placed.by)

        def write(cursor: apsw.Cursor) -> None:
            cursor.execute(_SQL["hold"], row)

        await self._database.write(write)

    async def release(self, domain: str, uid: str) -> Hold | None:
        """See `HoldStore`."""

        def write(cursor: apsw.Cursor) -> Hold | None:
            for reason, until in cursor.execute(_SQL["release"], (domain, uid)).fetchall():
                return _hold(str(reason), until)
            return None

        return await self._database.write(write)


def _hold(reason: str, until: Any) -> Hold:  # noqa: ANN401 - a whole number or None, as the schema says
    return Hold(reason, None if until is None else UnixNs(until))


def note_in(database: Database, name: str) -> str | None:
    """Return a note of an open database."""
    rows = database.read(_SQL["note"], (name,))
    return str(rows[0][0]) if rows else None


if TYPE_CHECKING:
    _conforms: type[GateStore] = SQLiteGateStore
    _keeps: type[Notes] = SQLiteGateStore
    _holds: type[HoldStore] = SQLiteHolds
