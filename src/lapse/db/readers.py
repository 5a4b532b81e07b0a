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
from typing import TYPE_CHECKING, Any, Final

import apsw

from lapse.db.errors import DatabaseClosedError, DatabaseUnavailableError
from lapse.db.forks import FORKED, guard_against_forks

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOSE_ATTEMPTS: Final = 1_000
_CLOSE_PAUSE_SECONDS: Final = 0.01


class Readers:
    """A stack of cursors. Callers that count nanoseconds use ``idle.pop`` and ``idle.append`` themselves."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        """Open nothing yet."""
        self._connect = connect
        self._guard = threading.Lock()
        self._opened: list[apsw.Connection] = []
        self._closed = self._forked = False
        self.idle: Final[list[apsw.Cursor]] = []
        guard_against_forks(self)

    def take(self) -> apsw.Cursor:
        """Return a cursor for this caller alone."""
        try:
            return self.idle.pop()
        except IndexError:
            return self.open_another()

    def give(self, cursor: apsw.Cursor) -> None:
        """Take a cursor back whose statement has run to its end."""
        self.idle.append(cursor)

    def open_another(self) -> apsw.Cursor:
        """Open a connection: for a caller who found ``idle`` empty."""
        if self._forked:
            raise DatabaseUnavailableError(FORKED)
        with self._guard:
            if self._closed:
                raise DatabaseClosedError
            db = self._connect()
            self._opened.append(db)
        return db.cursor()

    def discard(self, cursor: apsw.Cursor) -> None:
        """Close the connection of a cursor that failed."""
        db = cursor.connection
        with self._guard:
            if db in self._opened:
                self._opened.remove(db)
        with suppress(apsw.Error):
            db.close(force=True)

    def close(self) -> None:
        """Close all connections, waiting for reads at hand; later readers find the pool closed. Idempotent."""
        if self._forked:
            return
        with self._guard:
            self._closed = True
            opened, self._opened = self._opened, []
        self.idle.clear()
        for db in opened:
            _close_when_free(db)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.forks`."""
        self._forked = True
        kept: list[Any] = [*self._opened, *self.idle]
        self.idle.clear()
        return kept


def _close_when_free(db: apsw.Connection) -> None:
    pause = threading.Event()
    for _ in range(_CLOSE_ATTEMPTS):
        try:
            db.close(force=True)
        except apsw.ThreadingViolationError:
            pause.wait(_CLOSE_PAUSE_SECONDS)  # a reader is inside SQLite at this moment
        except apsw.Error:
            return
        else:
            return
