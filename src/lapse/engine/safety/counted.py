"""Freezes and budgets beside a journal: what is common to the stores on SQLite and on PostgreSQL.

What is frozen is a table; what was spent is counted from the journal's rows, so nothing is written for it. Only rows of
the engine's own actor count: what people delete is their own business and does not spend the budget. Of a person who
lets the engine end things, by a command, that person's rows count as well, for that command.

`move_record` moves the rows of one record into another, as when a state folder is given a ``database_url``. No row is
lost or doubled, also when it is interrupted or two processes do it at once: the other record notes, in the transaction
of the rows, up to which row it has them. A freeze of either stays a freeze. Not guaranteed: that budgets count the same
acts as before: where both records have an account, the longer count is taken, so that too little is done, not too much.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.identity import uuid
from lapse.db.statements import load_statements
from lapse.engine.journal.port import row_of
from lapse.engine.safety.budget import TOTAL, Budget, Ledger
from lapse.engine.safety.freeze import Freeze, GateState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import apsw

    from lapse.db.sqlite.database import Database
    from lapse.engine.journal.port import Entry, Row
    from lapse.engine.safety.budget import Budgets

SQL: Final = load_statements("lapse.engine.safety", "sqlite.sql")
_IDENTITY: Final = "record"
"""The note with the name that a record has for those that it is moved into."""
_MOVED: Final = "moved from "
"""Begins the note with the number of the last row that was moved from another record."""
_PAGE: Final = 2_000


class GateRow(NamedTuple):
    """What is known of one domain, or of all of them."""

    name: str
    since_ns: int | None
    """None while it goes on."""
    reason: str
    by: str
    counted_after: int
    """The journal's row of the last resume; 0 where there was none."""


class MovedRows(NamedTuple):
    """A part of another record: everything after one of its rows, up to and with another."""

    source: str
    after: int
    until: int
    entries: Sequence[Entry]
    gate: Sequence[GateRow]
    """Those that count from ``until``, or from nothing (0)."""

    @property
    def note(self) -> str:
        """The note that tells how far it has come."""
        return _MOVED + self.source


class CountedGateStore(ABC):
    """A `lapse.engine.safety.freeze.GateStore` with `Notes`, without its database."""

    keeps_spending: Final = False

    def __init__(self, *, budgets: Budgets, domains: Iterable[str], actors: Iterable[str]) -> None:
        """Nothing is read yet. ``domains`` are those that the total budget counts, ``actors`` those whose acts do."""
        self.budgets, self._domains, self._actors = budgets, tuple(domains), tuple(actors)

    async def load(self, now: int) -> GateState:
        """See `GateStore`."""
        rows = await self._rows()
        frozen = {
            row.name: Freeze(UnixNs(row.since_ns), row.reason, row.by) for row in rows if row.since_ns is not None
        }
        counted_after = {row.name: row.counted_after for row in rows}
        counted = [(domain, [domain]) for domain in self._domains]
        spent: Ledger = {
            account: await self._slices(domains, self.budgets.of(account), now, counted_after.get(account, 0))
            for account, domains in [*counted, (TOTAL, list(self._domains))]
            if self.budgets.of(account).most is not None
        }
        return GateState(frozen, spent, epoch=repr(sorted(counted_after.items())))

    async def spend(self, state: GateState, spent: Ledger) -> GateState:
        """Write nothing: the rows of the acts will tell."""
        return GateState(state.frozen, spent, state.epoch)

    async def _slices(self, domains: Sequence[str], budget: Budget, now: int, after: int) -> dict[int, int]:
        slices: dict[int, int] = {}
        size = budget.slice_ns
        since_ns = now - budget.window_ns - size  # all of every slice that may count
        for domain in domains:
            for number, count in (await self._acts(domain, since_ns=since_ns, after=after, slice_ns=size)).items():
                end = (number + 1) * size - 1
                slices[end] = slices.get(end, 0) + count
        return slices

    # --- to be added by a store ---------------------------------------------------------------------------------------

    @abstractmethod
    async def _rows(self) -> Sequence[GateRow]:
        """Return all rows."""

    @abstractmethod
    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> Mapping[int, int]:
        """Count what the actors have ended since then and after that row, in slices of time by their number."""

    @abstractmethod
    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`; the freeze and its row are one transaction."""

    @abstractmethod
    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`; all of it is one transaction."""

    @abstractmethod
    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""

    @abstractmethod
    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""

    @abstractmethod
    async def take(self, moved: MovedRows) -> None:
        """Take rows of another record, unless it has gone further meanwhile; all of it is one transaction."""


# --- moving -----------------------------------------------------------------------------------------------------------


async def move_record(source: Database, into: CountedGateStore, *, notes: Collection[str] | None = None) -> int:
    """Move all rows of an SQLite database, which has the tables of all three; return how many rows of the journal.

    With them go the notes of these names, or all of them; where ``into`` has one, that one stays.
    """
    gate = [GateRow(*row) for row in source.read(SQL["all"])]
    ((last,),) = source.read(SQL["last_row"])
    texts = {key: text for key, text in source.read(SQL["notes"]) if _is_moved(key, notes)}
    if not gate and last is None and not texts:
        return 0
    name, count = await source.write(_name_itself), 0
    while (after := int(await into.read_note(_MOVED + name) or 0)) < (last or 0):
        entries, until = _page(source, after, cuts=[row.counted_after for row in gate])
        counted = [row for row in gate if after < row.counted_after <= until]
        await into.take(MovedRows(name, after, until, entries, counted))
        count += len(entries)
    await into.take(MovedRows(name, after, after, (), [one for one in gate if not 0 < one.counted_after <= after]))
    for key, text in texts.items():
        if await into.read_note(key) is None:
            await into.write_note(key, text)
    await source.write(lambda cursor: _forget(cursor, after, gate, texts))
    return count


def _is_moved(note: str, asked: Collection[str] | None) -> bool:
    return note in asked if asked is not None else note != _IDENTITY and not note.startswith(_MOVED)


def _name_itself(cursor: apsw.Cursor) -> str:
    cursor.execute(SQL["write_note_once"], (_IDENTITY, uuid()))
    return str(cursor.execute(SQL["note"], (_IDENTITY,)).fetchall()[0][0])


def _page(source: Database, after: int, *, cuts: Iterable[int]) -> tuple[list[Row], int]:
    """Return the next rows, and up to which row that is all; never beyond a row that something counts from."""
    cut = min((cut for cut in cuts if cut > after), default=None)
    found = source.read(SQL["rows_after"], (after, cut, _PAGE))
    rows: list[Row] = [row_of(row) for row in found]
    return rows, rows[-1].id if len(rows) == _PAGE or cut is None else cut


def _forget(cursor: apsw.Cursor, until: int, gate: Iterable[GateRow], notes: Iterable[str]) -> None:
    cursor.execute(SQL["forget_rows"], (until,))
    for row in gate:  # one that was frozen meanwhile stays, and is moved the next time
        cursor.execute(SQL["forget_brake"], (row.name, row.since_ns, row.counted_after))
    for name in notes:
        cursor.execute(SQL["forget_note"], (name,))


if TYPE_CHECKING:
    from lapse.engine.safety.freeze import GateStore, Notes

    _conforms: tuple[type[GateStore], type[Notes]] = (CountedGateStore, CountedGateStore)
