"""The change log of the embedded store, for lists and watches: changes after a version, and the objects at one.

Each call sees one moment of the database and leaves no statement open. `GoneError` when the log no longer reaches back
far enough, and also when a version lies in the future: the file was then put back from a backup, and what the caller
has seen is no part of its history.

`Wakeups` tells watches when there may be something new, without ever telling them what. A commit of this process wakes
the watches of its kind at once. Everything else, such as commits of other processes, is noticed by one poller, which
runs only while somebody watches: when the kernel tells of a write (`lapse.db.sqlite.writes`), and now and then anyway,
it asks SQLite for `data_version`, which changes with every commit of another connection. A watch that is woken for
nothing reads nothing, so waking too often is harmless, and what is missed here is made up for by the next poll. It
belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw
import msgspec

from lapse.db.errors import DatabaseError
from lapse.db.sqlite.file import open_reader
from lapse.db.sqlite.writes import Writes
from lapse.kube.errors import GoneError, InvalidError
from lapse.kube.resources import EventType, Struct
from lapse.objects.documents import decode
from lapse.objects.port import LabelSummary
from lapse.objects.tables import SQL, labels_text, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from lapse.core.clock import Clock
    from lapse.db.sqlite.file import SQLiteFile

_POLL_SECONDS: Final = 0.05
"""How often the file is asked at most; where the kernel tells of no writes, also at least."""
_UNTOLD_SECONDS: Final = 1.0
"""How often it is asked although the kernel told of no write."""

_BATCH_CHANGES: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_BEYOND_NAMESPACES: Final = "~"
"""Sorts after every namespace."""


class Change(NamedTuple):
    """One line of the log, with the body that there is now or, for a deletion, was last."""

    type: EventType
    version: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened next; ``seen`` is the version up to which nothing else did."""

    changes: list[Change]
    seen: int
    more: bool


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which objects a list asks for."""

    kind: str
    namespace: str | None
    labels: Mapping[str, str]
    limit: int | None
    created_before: str = ""
    """Empty: whenever."""


class Cursor(NamedTuple):
    """Where the next page begins: after this object, at this moment."""

    moment: int
    namespace: str
    name: str

    def __str__(self) -> str:
        """Print as `Page.next`."""
        return f"{self.moment}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ListedPage:
    """The bodies of one page, the moment they show, and where the next page begins."""

    bodies: list[bytes]
    moment: int
    next: Cursor | None


class _Described(Struct, frozen=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: str = ""


class _Body(Struct, frozen=True):
    metadata: _Described


_read_metadata: Final = msgspec.json.Decoder(_Body).decode


def read_version(kind: str, text: str) -> int:
    """Read a version that this store once printed."""
    if not text.isascii() or not text.isdigit():
        raise InvalidError(kind=kind, name="list", problem=f"resourceVersion is {text!r}; expected one of this store")
    return int(text)


def read_cursor(kind: str, text: str) -> Cursor:
    """Read `Page.next`."""
    match text.split("/"):
        case [moment, namespace, name] if moment.isascii() and moment.isdigit():
            return Cursor(int(moment), namespace, name)
    raise InvalidError(kind=kind, name="list", problem=f"the page begins at {text!r}; expected a page's own next")


def changes_after(cursor: apsw.Cursor, *, version: int, kind: str, namespace: str | None) -> Batch:
    """Return the changes of a kind after a version, in order, as many as fit in memory well."""
    cursor.execute("BEGIN")
    _, tip = _check_reach(cursor, version)
    changes: list[Change] = []
    more = False
    size = 0
    lines: Iterable[Any] = cursor.execute(SQL["changes_since"], (version, kind, namespace))
    for number, previous, removed, body in lines:
        if len(changes) == _BATCH_CHANGES or size > _BATCH_BYTES:
            more = True
            break
        event = EventType.DELETED if removed else EventType.ADDED if previous is None else EventType.MODIFIED
        changes.append(Change(event, number, body))
        size += len(body)
    cursor.execute("COMMIT")
    return Batch(changes, changes[-1].version if more else tip, more)


def page(cursor: apsw.Cursor, question: ListQuery, start: Cursor | None) -> ListedPage:
    """Return one page, of now or, with ``start``, of the moment when the list began."""
    cursor.execute("BEGIN")
    tip = rows(cursor, SQL["tip"])[0][0] if start is None else _check_reach(cursor, start.moment)[1]
    moment = tip if start is None else start.moment
    bodies: list[bytes] = []
    last = following = None
    for namespace, name, body in _walk(cursor, question, start, moment=moment, changed=tip > moment):
        if not _is_wanted(body, question):
            continue
        if question.limit and len(bodies) == question.limit:
            following = last
            break
        bodies.append(body)
        last = Cursor(moment, namespace, name)
    cursor.execute("COMMIT")
    return ListedPage(bodies, moment, following)


def summary(cursor: apsw.Cursor, question: ListQuery) -> list[LabelSummary] | None:
    """Tell what there is, by namespace and labels; None where that is more than the limit."""
    first, beyond = question.namespace or "", question.namespace or _BEYOND_NAMESPACES
    most = sys.maxsize - 1 if question.limit is None else question.limit
    found = rows(cursor, SQL["summary"], (question.kind, first, beyond, labels_text(question.labels), most + 1))
    if len(found) > most:
        return None
    told = [
        LabelSummary(namespace or None, decode(labels) if labels else {}, how_many, oldest)
        for namespace, labels, how_many, oldest in found
    ]
    return [one for one in told if question.labels.items() <= one.labels.items()]


def _walk(
    cursor: apsw.Cursor, question: ListQuery, start: Cursor | None, *, moment: int, changed: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield the objects of that moment in order, read only as far as they are taken."""
    first, beyond = question.namespace or "", question.namespace or _BEYOND_NAMESPACES
    place = (start.namespace, start.name) if start else (first, "")
    values = (question.kind, *place, beyond, moment)
    replaced = rows(cursor, SQL["list_replaced"], values) if changed else []
    # A generator around the cursor, because a merge that is not read to its end closes what it reads from.
    wanted, before = labels_text(question.labels), question.created_before
    current = (SQL["list_some"], (*values, wanted, before)) if wanted or before else (SQL["list_current"], values)
    return heapq.merge(replaced, (row for row in cursor.execute(*current)))


def _check_reach(cursor: apsw.Cursor, version: int) -> tuple[int, int]:
    horizon, tip = rows(cursor, SQL["moment"])[0]
    if not horizon <= version <= tip:
        raise GoneError(version=version)
    return horizon, tip


def _is_wanted(body: bytes, question: ListQuery) -> bool:
    if not question.labels and not question.created_before:
        return True
    found = _read_metadata(body).metadata
    is_old = not question.created_before or found.creation_timestamp < question.created_before
    return is_old and question.labels.items() <= found.labels.items()


class Wakeups:
    """See the module. ``noticed`` is called for every foreign commit."""

    def __init__(self, file: SQLiteFile, *, clock: Clock, noticed: Callable[[], None]) -> None:
        """Begin with nobody to wake."""
        self._file = file
        self._writes = Writes([file.path])
        self._clock = clock
        self._noticed = noticed
        self._sleepers: dict[asyncio.Event, str] = {}
        self._poller: asyncio.Task[None] | None = None
        self.closed = False

    @asynccontextmanager
    async def listening(self, kind: str) -> AsyncIterator[asyncio.Event]:
        """Lend an event that is set whenever something may have happened to objects of a kind."""
        event = asyncio.Event()
        self._sleepers[event] = kind
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="lapse-object-changes")
        try:
            yield event
        finally:
            del self._sleepers[event]
            if not self._sleepers:
                await self._stop()

    def wake(self, kind: str) -> None:
        """Wake the watches of one kind."""
        for event, wanted in self._sleepers.items():
            if wanted == kind:
                event.set()

    def wake_all(self) -> None:
        """Wake every watch."""
        for event in self._sleepers:
            event.set()

    async def close(self) -> None:
        """Wake everybody, so that they find it closed."""
        self.closed = True
        self.wake_all()
        await self._stop()

    async def _stop(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None and not poller.done():
            poller.cancel()
            await asyncio.wait([poller])

    async def _poll(self) -> None:
        try:
            while True:
                # A connection that failed is given up. Those who are woken read for themselves, and say what is wrong.
                with suppress(apsw.Error, DatabaseError):
                    await self._poll_on(open_reader(self._file))
                self.wake_all()
                await self._clock.sleep(_POLL_SECONDS)
        finally:
            self._writes.close()

    async def _poll_on(self, db: apsw.Connection) -> None:
        """Look and sleep by turns. The same connection every time: the number means nothing to another one."""
        try:
            cursor = db.cursor()
            before: object = None
            while True:
                version = cursor.execute("PRAGMA data_version").fetchall()
                if version != before:
                    # Also the first time: what was committed before this connection was opened, it does not count.
                    before = version
                    self.wake_all()
                    self._noticed()
                await self._writes.pause(self._clock, least=_POLL_SECONDS, most=_UNTOLD_SECONDS)
        finally:
            with suppress(apsw.Error):
                db.close(force=True)
