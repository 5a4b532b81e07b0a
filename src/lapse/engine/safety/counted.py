"""Freezes and budgets beside a journal: what is common to the stores on SQLite and on PostgreSQL.

What is frozen is a table; what was spent is counted from the journal's rows. What a process has taken and not done yet
is reserved in a note, which is compared and written in one step, so that two processes never take the same; what one
that is gone has reserved is forgotten soon after its slice. What people end themselves counts as well. An act that may
have happened counts: an intent without an outcome, and a failure, which may be an answer that was lost. So neither a
restart nor a crash refills a budget.

`move_record` moves the rows of one record into another, as when a state folder is given a ``database_url``. No row is
lost or doubled, also when it is interrupted or two processes do it at once: the other record notes, in the transaction
of the rows, up to which row it has them. A freeze of either stays a freeze, also one that comes during the move: it is
taken over by the next one. A copy of a record that went its own way is told from it by its rows (`is_copy`). Not
guaranteed: that budgets count the same acts as before. What was counted anew since a resume is counted from the
beginning of the window again, so that too little is done, not too much.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.identity import uuid
from lapse.db.statements import load_statements
from lapse.engine.journal.port import entry_values, row_of
from lapse.engine.safety.budget import TOTAL, Budget, Ledger, Reservation, ledger_of
from lapse.engine.safety.freeze import Freeze, GateConflictError, GateState, GateUnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import apsw

    from lapse.db.sqlite.database import Database
    from lapse.engine.journal.port import Entry, Row
    from lapse.engine.safety.budget import Budgets

SQL: Final = load_statements("lapse.engine.safety", "sqlite.sql")
RECORD_NAME: Final = "record"
"""The note with the name that a record has for others."""
_MOVED: Final = "moved from "
"""Begins the note with what was moved from another record."""
RESERVED: Final = "reserved"
"""The note with what processes have taken of budgets."""
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


class MoveMark(msgspec.Struct, frozen=True):
    """How much of one record another one has."""

    until: int = 0
    """The number of the last row."""
    digest: str = ""
    """Of that row: a copy that went its own way has another one there."""
    freezes: dict[str, int] = {}
    """Since when each domain was frozen there. A freeze that has been lifted since is not taken over again."""

    @classmethod
    def read(cls, note: str | None) -> MoveMark:
        """Read it; none is that of nothing."""
        return msgspec.json.decode(note, type=cls) if note else cls()

    def __str__(self) -> str:
        """Write it; that of nothing is empty."""
        return "" if self == MoveMark() else msgspec.json.encode(self, order="sorted").decode()


class MovedRows(NamedTuple):
    """The next part of another record."""

    note: str
    """The name of the note with the mark."""
    before: MoveMark
    after: MoveMark
    entries: Sequence[Entry]
    freezes: Sequence[GateRow]


class _ReservationBook(msgspec.Struct, frozen=True):
    """What processes have taken of budgets and not done yet."""

    serial: int = 0
    """One more whenever something was taken: who has read another one must read again."""
    holders: dict[str, list[Reservation]] = {}

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Read it; raises `GateUnreadableError` for what cannot be read."""
        try:
            return msgspec.json.decode(text, type=cls) if text else cls()
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise GateUnreadableError(place="the record", problem=str(error), run="lapse resume") from error

    def __str__(self) -> str:
        """Write it."""
        return msgspec.json.encode(self, order="sorted").decode()

    def others(self, holder: str) -> list[Reservation]:
        """Return what everybody but ``holder`` has taken."""
        return [one for name, taken in self.holders.items() if name != holder for one in taken]

    def with_mine(self, holder: str, mine: Sequence[Reservation], *, serial: int, now: int) -> Self:
        """Return it with nothing of ``holder`` but ``mine``, and without what processes that are gone have left."""
        taken = {**self.holders, holder: list(mine)}
        kept = {name: [one for one in these if one.until >= now] for name, these in taken.items()}
        return type(self)(serial, {name: these for name, these in kept.items() if these})


class CountedGateStore(ABC):
    """A `lapse.engine.safety.freeze.GateStore` with `Notes`, without its database."""

    keeps_spending: Final = False

    def __init__(self, *, budgets: Budgets, domains: Iterable[str]) -> None:
        """Nothing is read yet. ``domains`` are those that the total budget counts."""
        self.budgets, self._domains = budgets, tuple(domains)

    async def load(self, now: int, *, holder: str = "") -> GateState:
        """See `GateStore`. What is reserved is read first: what is done meanwhile is counted twice, and not missed."""
        book = _ReservationBook.read(await self._reservations())
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
        reserved = ledger_of(self._seen_from_here(book.others(holder)), now)
        return GateState(frozen, spent, reserved, epoch=repr(sorted(counted_after.items())), version=str(book.serial))

    async def spend(
        self, state: GateState, spent: Ledger, *, holder: str, mine: Sequence[Reservation], now: int
    ) -> GateState:
        """See `GateStore`: the rows of the acts will tell, and until then the reservation does."""
        located = self._located(mine)

        def reserve(text: str | None) -> str:
            book = _ReservationBook.read(text)
            if str(book.serial) != state.version:
                raise GateConflictError(place="the record", problem="another process has taken from a budget")
            return str(book.with_mine(holder, located, serial=book.serial + 1, now=now))

        text = await self._change_reservations(reserve)
        return replace(state, spent=spent, version=str(_ReservationBook.read(text).serial))

    async def release(self, holder: str, mine: Sequence[Reservation], *, now: int) -> None:
        """See `GateStore`. Nobody's sum grows by it, so nobody has to count again."""
        located = self._located(mine)

        def give_back(text: str | None) -> str:
            book = _ReservationBook.read(text)
            return str(book.with_mine(holder, located, serial=book.serial, now=now))

        await self._change_reservations(give_back)

    def _located(self, reservations: Iterable[Reservation]) -> list[Reservation]:
        return [msgspec.structs.replace(one, store=self._store_of_things(one.domain)) for one in reservations]

    def _seen_from_here(self, reservations: Iterable[Reservation]) -> Iterable[Reservation]:
        """Return those of things that count here; of a folder's own total, others know nothing."""
        return [
            one
            for one in reservations
            if one.domain in self._domains and one.store == self._store_of_things(one.domain)
        ]

    def _store_of_things(self, domain: str) -> str:
        """Return the store that the things of a domain are in."""
        return ""

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
    async def _reservations(self) -> str | None:
        """Return what processes have reserved, as it was written."""

    @abstractmethod
    async def _change_reservations(self, change: Callable[[str | None], str]) -> str:
        """Replace that by what ``change`` makes of it, in one step; return it. What it raises leaves all as it was."""

    @abstractmethod
    async def _rows(self) -> Sequence[GateRow]:
        """Return all rows."""

    @abstractmethod
    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> Mapping[int, int]:
        """Count what was ended, or may have been, since then and after that row, in slices of time by their number."""

    @abstractmethod
    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`; the freeze and its row are one transaction."""

    @abstractmethod
    async def resume(self, name: str, row: Entry, *, mark: str | None = None) -> list[str]:
        """See `GateStore`; all of it is one transaction."""

    @abstractmethod
    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""

    @abstractmethod
    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""

    @abstractmethod
    async def list_notes(self, prefix: str) -> Mapping[str, str]:
        """See `Notes`."""

    @abstractmethod
    async def name(self) -> str:
        """Return the name that this record has for others, which is given to it once."""

    @abstractmethod
    async def take(self, moved: MovedRows) -> None:
        """Take a part of another record, unless that has gone further meanwhile; all of it is one transaction."""


# --- moving -----------------------------------------------------------------------------------------------------------


async def move_record(
    source: Database, into: CountedGateStore, *, notes: Collection[str] | None = None, empties: bool = False
) -> int:
    """Bring all rows of an SQLite database into another record; return how many rows of the journal.

    With them go the notes of these names, or all of them; where ``into`` has one, that one stays. What was moved stays
    where it was, unless it ``empties`` that: a process that still lives on it finds its freezes there.
    """
    gate = [row for row in (GateRow(*found) for found in source.read(SQL["all"])) if row.since_ns is not None]
    texts = {key: text for key, text in source.read(SQL["notes"]) if _is_moved(key, notes)}
    ((last,),) = source.read(SQL["last_row"])
    if not gate and last is None and not texts:
        return 0
    note, count = _MOVED + await source.write(name_record), 0
    mark = MoveMark.read(await into.read_note(note))
    while (part := _next(source, note, mark, gate)) is not None:
        await into.take(part)
        mark = MoveMark.read(await into.read_note(note))
        count += len(part.entries)
    for key, text in texts.items():
        if await into.read_note(key) is None:
            await into.write_note(key, text)
    if empties:
        await source.write(lambda cursor: _forget(cursor, mark.until, gate, texts))
    return count


async def is_copy(source: Database, of: CountedGateStore) -> bool:
    """Whether ``of`` has rows of another database with the name of ``source``: that of which it is a copy."""
    mark = MoveMark.read(await of.read_note(_MOVED + await source.write(name_record)))
    ((last,),) = source.read(SQL["last_row"])
    if mark.until > (last or 0):
        return True
    return any(_digest(row_of(found)) != mark.digest for found in source.read(SQL["row"], (mark.until,)))


def name_record(cursor: apsw.Cursor) -> str:
    """Return the name of the record in an SQLite database, which is given to it once."""
    cursor.execute(SQL["write_note_once"], (RECORD_NAME, uuid()))
    return str(cursor.execute(SQL["note"], (RECORD_NAME,)).fetchall()[0][0])


def rename_record(cursor: apsw.Cursor) -> str:
    """Give another name to the record in an SQLite database; return it."""
    cursor.execute(SQL["forget_note"], (RECORD_NAME,))
    return name_record(cursor)


def _is_moved(note: str, asked: Collection[str] | None) -> bool:
    return note in asked if asked is not None else note not in {RECORD_NAME, RESERVED} and not note.startswith(_MOVED)


def _next(source: Database, note: str, mark: MoveMark, gate: Sequence[GateRow]) -> MovedRows | None:
    rows: list[Row] = [row_of(found) for found in source.read(SQL["rows_after"], (mark.until, _PAGE))]
    freezes = [row for row in gate if mark.freezes.get(row.name) != row.since_ns]
    if not rows and not freezes:
        return None
    known = mark.freezes | {row.name: row.since_ns for row in freezes if row.since_ns is not None}
    until, digest = (rows[-1].id, _digest(rows[-1])) if rows else (mark.until, mark.digest)
    return MovedRows(note, mark, MoveMark(until, digest, known), rows, freezes)


def _digest(row: Row) -> str:
    return blake2b(repr(entry_values(row)).encode(), digest_size=16).hexdigest()


def _forget(cursor: apsw.Cursor, until: int, gate: Iterable[GateRow], notes: Iterable[str]) -> None:
    cursor.execute(SQL["forget_rows"], (until,))
    cursor.execute(SQL["forget_resumed"])
    for row in gate:  # one that was frozen meanwhile stays, and is moved the next time
        cursor.execute(SQL["forget_brake"], (row.name, row.since_ns))
    for name in notes:
        cursor.execute(SQL["forget_note"], (name,))


if TYPE_CHECKING:
    from lapse.engine.safety.freeze import GateStore, Notes

    _conforms: tuple[type[GateStore], type[Notes]] = (CountedGateStore, CountedGateStore)
