"""The journal: who let what lapse, when and by which rule; also every change of a verdict, but not every look.

Rows are appended and never changed. Where journal and objects share one database, the row of an act is written in the
act's own transaction, so there is neither an act without a row nor a row without an act. Elsewhere an *intent* is
written before the act and its *outcome* after it, joined by ``attempt``; an intent without an outcome (`unfinished`)
tells of a process that ended in between: the act may have happened or not.

`VerdictChanges` writes a row for every change of a verdict. The last row about an object is remembered, and read from
the journal where it is not: so a restart, another leader or a full memory does not write the same change again.

Not guaranteed: that times never go back between two rows, because the wall clock may. Two processes that look at one
object at the same time may both write the change, or, when they take turns, leave one out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from lapse.core.decision import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

D = TypeVar("D")

_REMEMBERED: Final = 100_000
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
    """Due, and a guard was against it."""
    WOULD_END = "would_end"
    """Due, in a dry run."""
    FAILED = "failed"
    NOTED = "noted"
    """Nothing was to be done, but the verdict is another one than before."""
    FROZEN = "frozen"
    """A whole domain: nothing of it is ended from now on."""
    RESUMED = "resumed"
    """A whole domain goes on."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row to be written. Times are Unix nanoseconds."""

    time_ns: int
    domain: str
    address: str
    uid: str
    version: str
    verdict: str
    """due, keep or unknown."""
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

    @property
    def place(self) -> RowPosition:
        """Where it stands: what comes after it in a list is asked for with ``before=row.place``."""
        return RowPosition(self.time_ns, self.id)


class RowPosition(NamedTuple):
    """A place in the order of rows; ids decide between rows of the same moment."""

    time_ns: int
    id: int


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
        since_ns: int | None = None,
        domain: str | None = None,
        address: str | None = None,
        uid: str | None = None,
        limit: int = 100,
        before: RowPosition | None = None,
    ) -> list[Row]:
        """Return at most ``limit`` rows, newest first; ``since_ns`` is included, ``before`` is not."""
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
    """Return what makes a row a change: verdict, reason or outcome differ from those of the last row of its object."""
    return entry.verdict, str(entry.reason), entry.outcome


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
        since_ns: int | None = None,
        domain: str | None = None,
        address: str | None = None,
        uid: str | None = None,
        limit: int = 100,
        before: RowPosition | None = None,
    ) -> list[Row]:
        """See `Journal`."""
        asked = {"since_ns": since_ns, "domain": domain, "address": address, "uid": uid}
        given = {name: value for name, value in asked.items() if value is not None}
        return await self._matching(given, before, limit=limit)

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
    async def _matching(self, given: Mapping[str, Any], before: RowPosition | None, *, limit: int) -> list[Row]:
        """Return rows whose columns have the ``given`` values; ``since_ns`` is the earliest time."""


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


def row_of(found: Sequence[Any]) -> Row:
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
    )
