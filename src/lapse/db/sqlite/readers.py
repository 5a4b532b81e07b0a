"""Connections for reading, lent to one caller at a time.

A stack, not one connection per thread: taking from and giving to a list are single atomic steps of the interpreter, so
a borrower needs no lock; there are as many connections as there ever were readers at once, whatever the number of
threads; a thread that ends leaves nothing behind; and a reader that interrupts another in the same thread (a signal
handler, a finaliser) gets a cursor of its own. A cursor is lent, not a connection, because making one costs a tenth of
a lookup.

Guarantee: a cursor is with one borrower only. It must be given back with its statement run to the end, because a
statement at rest holds a snapshot, and a held snapshot lets the log grow. A borrower that failed discards its cursor,
which closes the connection.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import apsw

from lapse.db.errors import DatabaseClosedError, DatabaseUnavailableError
from lapse.db.sqlite.forks import FORKED, guard_against_forks
from lapse.db.sqlite.read_lock import Anchor

if TYPE_CHECKING:
    from collections.abc import Callable

_LAST_READS_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.001


class Readers:
    """A stack of cursors, and the anchor of their locks.

    `take` and `give` are for everybody; `anchor`, `pop` and `push` for callers that count nanoseconds.
    """

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Open nothing yet."""
        self._connect = connect
        self._guard = threading.Lock()
        self._opened: list[apsw.Connection] = []
        self._idle: list[apsw.Cursor] = []
        self._closed = self._forked = False
        self.pop: Callable[[], apsw.Cursor] = self._idle.pop
        """Return a cursor; IndexError means: call `take`."""
        self.push: Final = self._idle.append
        self.anchor: Final = Anchor(connect)
        guard_against_forks(self)

    def take(self) -> apsw.Cursor:
        """Return a cursor for this caller alone; open a connection when none is idle."""
        if self.anchor.loose:
            self.anchor.stir()
        try:
            return self.pop()
        except IndexError:
            return self._open_another()

    def give(self, cursor: apsw.Cursor) -> None:
        """Take a cursor back whose statement has run to its end."""
        self.push(cursor)

    def discard(self, cursor: apsw.Cursor) -> None:
        """Close the connection of a cursor that failed."""
        with suppress(apsw.Error):
            self._close(cursor.connection)

    def close(self) -> None:
        """Close all connections, waiting for the reads at hand; later readers find the stack closed. Idempotent."""
        if self._forked:
            return
        with self._guard:
            self._closed = True
        self.pop = _refuse
        self.anchor.close()
        pause = threading.Event()
        for _ in range(int(_LAST_READS_SECONDS / _LOOK_SECONDS)):
            while self._idle:
                self.discard(self._idle.pop())
            if not self._opened:
                return
            pause.wait(_LOOK_SECONDS)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.sqlite.forks`."""
        self._forked = True
        self.pop = _refuse
        self.anchor.become_forked()
        return [*self._opened, *self._idle]

    def _open_another(self) -> apsw.Cursor:
        if self._forked:
            raise DatabaseUnavailableError(FORKED)
        with self._guard:
            if self._closed:
                raise DatabaseClosedError
            db = self._connect()
            self._opened.append(db)
        return db.cursor()

    def _close(self, db: apsw.Connection) -> None:
        with self._guard:
            if db in self._opened:
                self._opened.remove(db)
        db.close(force=True)


def _refuse() -> NoReturn:
    raise IndexError
