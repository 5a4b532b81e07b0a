"""The journal: who let what lapse, when and by which rule; also every change of a verdict, but not every look.

Rows are appended and never changed. Where journal and objects share one database, the row of an act is written in the
act's own transaction, so there is neither an act without a row nor a row without an act. Elsewhere an *intent* is
written before the act and its *outcome* after it, joined by ``attempt``; an intent without an outcome (`unfinished`)
tells of a process that ended in between: the act may have happened or not.

`VerdictChanges` writes a row for every change of a verdict. The last row about an object is remembered, and read from
the journal where it is not: so a restart, another leader or a full memory does not write the same change again.

Rows are read newest first, by their times, or in the order in which they were committed, after a `RowPosition`. The
second order is for those who follow: whoever asks for the rows after the last one that they have seen gets every row
that is ever written, once, however many write at the same time. A row of one transaction comes with the others of it.

Rows of the domain `AUDIT` tell what people and programs did beside ending things: tokens, log-ins, workspaces, holds,
approvals. It is no domain of the registry: nothing of it lapses, is frozen or counts for a budget.

Not guaranteed: that times never go back between two rows, because the wall clock may. Two processes that look at one
object at the same time may both write the change, or, when they take turns, leave one out. That a row is still there
once it is older than ``journal_ttl`` (`lapse.engine.journal.retention`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from lapse.core.decision import Reason
from lapse.core.errors import UsageError
from lapse.core.log import current_work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

D = TypeVar("D")

AUDIT: Final = "audit"
"""The domain of rows about what was done beside ending things."""
UNDO_UNTIL: Final = "undo_until_ns"
"""What the details of a row name until when it is needed to undo its act: it is kept so long, whatever its age."""
_REMEMBERED: Final = 100_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
_Who = tuple[str, str]
NotedVerdict = tuple[str, str, str]
"""Verdict, reason and outcome of a row."""


class DeletionReason(Reason):
    """Why something is deleted that is not due."""

    BY_PERSON = "deleted_by_person"


class Outcome(StrEnum):
    """What came of it."""

    INTENT = "intent"
    """About to be done: the row before an act that cannot share a transaction with it."""
    ENDED = "ended"
    GONE = "gone"
    """Was not there any more, which is what was wanted."""
    CHANGED = "changed"
    """Changed meanwhile, so nothing was done; it is decided again."""
    HELD = "held"
    """Due, and held by somebody."""
    REFUSED = "refused"
    """Due, and a guard was against it; in the audit, asked for and not allowed."""
    WOULD_END = "would_end"
    """Due, in a dry run."""
    FAILED = "failed"
    NOTED = "noted"
    """Nothing was to be done, but the verdict is another one than before."""
    FROZEN = "frozen"
    """A whole domain: nothing of it is ended from now on."""
    RESUMED = "resumed"
    """A whole domain goes on."""
    DONE = "done"
    """In the audit: somebody has done it."""
    EXPIRING = "expiring"
    """Nothing was to be done, but its deadline is near: see `lapse.engine.journal.expiring`."""
    UNDELIVERED = "undelivered"
    """An event that a webhook did not take, and that is not sent to it again: see `lapse.engine.journal.outbox`."""


class AuditReason(Reason):
    """What a row of the audit tells."""

    TOKEN_CREATED = "token_created"  # noqa: S105 - the name of an event
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - the name of an event
    LOGIN_REFUSED = "login_refused"
    WORKSPACE_CREATED = "workspace_created"
    WORKSPACE_OPENED = "workspace_opened"
    HOLD_PLACED = "hold_placed"
    HOLD_RELEASED = "hold_released"
    DEADLINE_EXTENDED = "deadline_extended"
    PLAN_PROPOSED = "plan_proposed"
    PLAN_APPROVED = "plan_approved"
    BROUGHT_BACK = "brought_back"
    """Out of the trash."""
    JOURNAL_REMOVED = "journal_removed"
    """Rows of the journal that were older than ``journal_ttl``."""


class RowPositionError(UsageError, ValueError):
    """{text!r} is not a position in the journal. Expected one as an answer of the journal names it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row to be written. Times are Unix nanoseconds."""

    time_ns: int
    domain: str
    address: str
    uid: str
    version: str
    verdict: str
    """due, keep or unknown; empty in the audit, where nothing is decided."""
    reason: str
    anchor_ns: int | None
    """What the time was counted from."""
    policy: str
    """A short hash of the policy that decided."""
    actor: str
    """The loop, the user or the plan."""
    outcome: Outcome
    details: dict[str, Any] | None = None
    tick: str = ""
    """The id that the log lines of the same work carry."""
    attempt: str | None = None
    """Joins an intent and its outcome."""


class Row(Entry, frozen=True, kw_only=True, gc=False):
    """One row as it was written."""

    id: int
    transaction: int = 0
    """The number of the transaction that wrote it; 0 in a database that is written by one at a time."""

    @property
    def place(self) -> RowPosition:
        """Where it stands: rows beside it are asked for with ``before=row.place`` or ``after=row.place``."""
        return RowPosition(self.time_ns, self.id, self.transaction)


class RowPosition(NamedTuple):
    """A place in both orders of rows: by time and id, and by transaction and id. `str` and `parse` are inverses."""

    time_ns: int
    id: int
    transaction: int = 0

    def __str__(self) -> str:
        """Print it as one word."""
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> RowPosition:
        """Read what `str` printed; raises `RowPositionError`."""
        parts = text.split(".")
        if len(parts) != len(cls._fields) or not all(_NUMBER.fullmatch(part) for part in parts):
            raise RowPositionError(text=text)
        return cls(*map(int, parts))


BEGINNING: Final = RowPosition(0, 0, 0)
"""Before all rows, for those who follow."""


class RowFilters(TypedDict, total=False):
    """Which rows are asked for: those that have all of what is given; None is as good as left out."""

    since_ns: int | None
    """The earliest time, which is included."""
    until_ns: int | None
    """The time before which they were written."""
    domain: str | None
    address: str | None
    search: str | None
    """A part of the address, as it is written: upper and lower case differ, and nothing in it is a pattern."""
    uid: str | None
    actor: str | None
    outcome: Outcome | None
    policy: str | None
    plan: str | None
    """The plan that was carried out, which the details of a row name."""


class Writer(Protocol):
    """Writes rows that were made before, in a transaction that somebody else began."""

    def __call__(self, cursor: Any, which: Sequence[int] | None = None) -> Awaitable[None] | None:  # noqa: ANN401 - of any database
        """Write the rows at these places, all of them unless it is said; what it returns, if anything, is awaited."""
        ...


class Journal(Protocol):
    """What the engine asks of a journal."""

    @property
    def is_log(self) -> bool:
        """Whether its rows are events of the log, which need not be told there again."""
        ...

    async def append(self, *entries: Entry) -> None:
        """Write rows, all or none; they are durable when this returns."""
        ...

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        """Write a row if it says something else than the last row of the same object; return whether it was written.

        Verdict, reason and outcome are what counts. ``unless_first`` is for what goes without saying: it is noted only
        after something else was written.
        """
        ...

    async def entries(
        self,
        *,
        limit: int = 100,
        before: RowPosition | None = None,
        after: RowPosition | None = None,
        **asked: Unpack[RowFilters],
    ) -> list[Row]:
        """Return at most ``limit`` rows, newest first; with ``after``, those behind it as they were committed.

        No row is missed between two calls of which the second names the place of the last row of the first one, nor
        after `end`. Both ``before`` and ``after`` may be given, and neither is included. Raises `LapseError` where
        rows cannot be read back.
        """
        ...

    async def end(self) -> RowPosition:
        """Return a place behind all rows that can be read by ``after`` now, and before all that come later.

        Who finds nothing among many rows goes on from here, instead of looking through them again.
        """
        ...

    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """Return intents without an outcome, newest first; those of acts at hand are among them."""
        ...

    def writer(self, *entries: Entry) -> Writer:
        """Return what writes rows on the cursor of a transaction of the shared database."""
        ...

    def shares(self, store: HasDatabase) -> bool:
        """Whether the objects of ``store`` live in the same database, so that `writer` can be used."""
        ...


class HasDatabase(Protocol):
    """The part of an object store that tells where its objects live."""

    @property
    def database(self) -> object | None:
        """See `lapse.objects.port.ObjectStore`."""
        ...


class VerdictChanges:
    """The changes of verdicts in one journal, which calls `forget` for every row that it writes."""

    def __init__(self, journal: Journal, *, remembered: int = _REMEMBERED) -> None:
        """Remember what was said about this many objects; the oldest are looked up when they are needed again."""
        self._journal = journal
        self._remembered = remembered
        self._last: OrderedDict[_Who, NotedVerdict | None] = OrderedDict()

    async def note(self, entry: Entry, *, unless_first: bool) -> bool:
        """See `Journal.note`."""
        last = await self._last_of(entry)
        if last == noted_verdict(entry) or (last is None and unless_first):
            return False
        await self._journal.append(entry)
        self._keep((entry.domain, entry.uid), noted_verdict(entry))
        return True

    def forget(self, entry: Entry) -> None:
        """Drop what is known about the object of a row that is being written."""
        self._last.pop((entry.domain, entry.uid), None)

    async def _last_of(self, entry: Entry) -> NotedVerdict | None:
        who = (entry.domain, entry.uid)
        if who in self._last:
            return self._last[who]
        rows = await self._journal.entries(domain=entry.domain, uid=entry.uid, limit=1)
        return self._keep(who, noted_verdict(rows[0]) if rows else None)

    def _keep(self, who: _Who, noted: NotedVerdict | None) -> NotedVerdict | None:
        self._last[who] = noted
        self._last.move_to_end(who)
        if len(self._last) > self._remembered:
            self._last.popitem(last=False)
        return noted


def noted_verdict(entry: Entry) -> NotedVerdict:
    """Return what makes a row a change: verdict, reason or outcome differ from those of the last row of its object.

    A warning says nothing new about the verdict, which is noted before it or goes without saying.
    """
    outcome = Outcome.NOTED if entry.outcome is Outcome.EXPIRING else entry.outcome
    return entry.verdict, str(entry.reason), outcome


class DatabaseJournal(ABC, Generic[D]):
    """The part of a `Journal` that is the same in every database; the opener of ``database`` closes it."""

    is_log: Final = False

    def __init__(self, database: D) -> None:
        """Nothing is read or written yet."""
        self.database = database
        self._changes = VerdictChanges(self)

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        """See `Journal`."""
        return await self._changes.note(entry, unless_first=unless_first)

    async def entries(
        self,
        *,
        limit: int = 100,
        before: RowPosition | None = None,
        after: RowPosition | None = None,
        **asked: Unpack[RowFilters],
    ) -> list[Row]:
        """See `Journal`."""
        given = {name: value for name, value in asked.items() if value is not None}
        return await self._matching(given, before, after, limit=limit)

    def shares(self, store: HasDatabase) -> bool:
        """See `Journal`."""
        return store.database is self.database

    @abstractmethod
    async def append(self, *entries: Entry) -> None:
        """See `Journal`."""

    @abstractmethod
    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        """See `Journal`."""

    @abstractmethod
    def writer(self, *entries: Entry) -> Writer:
        """See `Journal`."""

    @abstractmethod
    async def end(self) -> RowPosition:
        """See `Journal`."""

    @abstractmethod
    async def oldest(self, *, until_ns: int, behind: RowPosition | None, limit: int) -> list[OldRow]:
        """Return rows of before ``until_ns``, oldest first, ``behind`` a place in that order: for their retention."""

    @abstractmethod
    async def remove(self, ids: Sequence[int]) -> int:
        """Remove rows, in one short transaction; return how many were there."""

    @abstractmethod
    async def _matching(
        self, given: Mapping[str, Any], before: RowPosition | None, after: RowPosition | None, *, limit: int
    ) -> list[Row]:
        """Return rows that are as ``given`` says, by the names of `RowFilters`."""


class OldRow(NamedTuple):
    """As much of a row as its retention looks at."""

    time_ns: int
    id: int
    details: str | None
    """In JSON."""

    @property
    def place(self) -> RowPosition:
        """Where it stands."""
        return RowPosition(self.time_ns, self.id)


def audit_row(
    reason: AuditReason,
    *,
    address: str,
    actor: str,
    time_ns: int,
    domain: str = "",
    uid: str = "",
    outcome: Outcome = Outcome.DONE,
    details: Mapping[str, Any] | None = None,
) -> Entry:
    """Return a row of the audit: what ``actor`` did with what has this address, in a ``domain`` or in none.

    The details must hold no secret, and no text of a token: rows are shown to everybody who may read.
    """
    told = {**({"domain": domain} if domain else {}), **(details or {})}
    return Entry(
        time_ns=time_ns,
        domain=AUDIT,
        address=address,
        uid=uid,
        version="",
        verdict="",
        reason=reason,
        anchor_ns=None,
        policy="",
        actor=actor,
        outcome=outcome,
        details=told or None,
        tick=current_work(),
    )


def domain_about(entry: Entry) -> str:
    """Return the domain of the thing that a row is about; a row of the audit names it in its details, if any."""
    named = (entry.details or {}).get("domain") if entry.domain == AUDIT else None
    return named if isinstance(named, str) else entry.domain


def entry_values(entry: Entry) -> tuple[Any, ...]:
    """Return the columns of a row, in the order of the fields."""
    return (
        entry.time_ns,
        entry.domain,
        entry.address,
        entry.uid,
        entry.version,
        entry.verdict,
        entry.reason,
        entry.anchor_ns,
        entry.policy,
        entry.actor,
        entry.outcome.value,
        None if entry.details is None else msgspec.json.encode(entry.details).decode(),
        entry.tick,
        entry.attempt,
    )


def row_of(found: Sequence[Any], transaction: int = 0) -> Row:
    """Make a row of its columns, in the same order, and its id."""
    return Row(
        time_ns=found[0],
        domain=found[1],
        address=found[2],
        uid=found[3],
        version=found[4],
        verdict=found[5],
        reason=found[6],
        anchor_ns=found[7],
        policy=found[8],
        actor=found[9],
        outcome=Outcome(found[10]),
        details=None if found[11] is None else msgspec.json.decode(found[11]),
        tick=found[12],
        attempt=found[13],
        id=found[14],
        transaction=transaction,
    )
