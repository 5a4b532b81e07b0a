"""Read connections of one SQLite database, lent to one caller at a time, and the read lock that makes them cheap.

`Readers` is a stack, not one connection per thread: taking from and giving to a list are single atomic steps of the
interpreter, so a borrower needs no lock; there are as many connections as there ever were readers at once, whatever the
number of threads; a thread that ends leaves nothing behind; and a reader that interrupts another in the same thread (a
signal handler, a finaliser) gets a cursor of its own. A cursor is lent, not a connection, because making one costs a
tenth of a lookup.

Guarantee: a cursor is with one borrower only. It must be given back with its statement run to the end, because a
statement at rest holds a snapshot, and a held snapshot lets the log grow. A borrower that failed discards its cursor,
which closes the connection.

`ReadLock` keeps the process's shared lock between reads, so that reads in quick succession need no system call. A read
in write-ahead logging takes a shared lock and drops it: two calls to the operating system, which cost as much as the
lookup itself, or more on a virtual machine. SQLite counts these locks per process and asks the system only for the
first and the last. So one connection that stays in a read transaction spares all others both calls. What they see does
not change: each read still begins a transaction of its own, on the newest commit of any process.

The snapshot of that connection keeps a checkpoint from finishing, so the log could grow. Therefore the read lock

- is held only while there are many reads, and let go when they end;
- is held for moments, with pauses in which a checkpoint can finish;
- is not held at all while anybody commits: it would not help then, as a commit moves readers to another lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import apsw

from lapse.core.clock import Clock, SystemClock
from lapse.db.errors import DatabaseClosedError, DatabaseError, DatabaseUnavailableError
from lapse.db.sqlite.forks import FORKED, guard_against_forks

if TYPE_CHECKING:
    from collections.abc import Callable

_HOLD_SECONDS: Final = 0.02
_PAUSE_SECONDS: Final = 0.002
_MANY_READS: Final = 100
_SOON_NS: Final = 10_000_000
"""So many reads in so short a time are worth a thread that ticks."""

_LAST_READS_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.001
_CLOCK: Final = SystemClock()


class Readers:
    """A stack of cursors, and the read lock that they share.

    `take` and `give` are for everybody; `read_lock`, `pop` and `push` for callers that count nanoseconds.
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
        self.read_lock: Final = ReadLock(connect)
        guard_against_forks(self)

    def take(self) -> apsw.Cursor:
        """Return a cursor for this caller alone; open a connection when none is idle."""
        if self.read_lock.unclaimed:
            self.read_lock.note_read()
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
        self.read_lock.close()
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
        self.read_lock.become_forked()
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


class ReadLock:
    """The process's read lock. Readers look at `unclaimed` before each read, and call `note_read` when it is set."""

    def __init__(self, connect: Callable[[], apsw.Connection], clock: Clock = _CLOCK) -> None:
        """Open nothing yet."""
        self.unclaimed = True
        self.held = False
        self._connect = connect
        self._monotonic_ns = clock.monotonic_ns
        self._reads = 0
        self._since_ns = 0
        self._guard = threading.Lock()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    def note_read(self) -> None:
        """Note a read; begin to hold the lock when there are many."""
        if self._ticker is not None:
            self.unclaimed = False
            return
        now_ns = self._monotonic_ns()
        if now_ns - self._since_ns > _SOON_NS:
            self._since_ns, self._reads = now_ns, 0
        self._reads += 1
        if self._reads >= _MANY_READS:
            self._start()

    def close(self) -> None:
        """Let go, for good. Idempotent."""
        with self._guard:
            self._stop.set()
            self.unclaimed = False
            ticker = self._ticker
        if ticker is not None:
            ticker.join()

    def become_forked(self) -> None:
        """Do nothing any more: the thread did not come along, and the lock may be held by it for ever."""
        self.unclaimed = False

    def _start(self) -> None:
        with self._guard:
            if self._ticker is None and not self._stop.is_set():
                ticker = threading.Thread(target=self._tick, name="lapse-read-lock", daemon=True)
                ticker.start()
                self._ticker = ticker  # not before: an interruption may leave it without a start

    def _tick(self) -> None:
        db = None
        try:
            db = self._connect()
            self._tick_on(db.cursor())
        except (apsw.Error, DatabaseError):
            pass  # reads go on without it, and those that fail say why
        finally:
            self.held = False
            if db is not None:
                with suppress(apsw.Error):
                    db.close(force=True)
            with self._guard:
                self._ticker, self._reads = None, 0
                self.unclaimed = not self._stop.is_set()

    def _tick_on(self, cursor: apsw.Cursor) -> None:
        """Hold and let go by turns, until nobody has read for a while."""
        version: Any = None
        while not self._stop.is_set():
            before, version = version, cursor.execute("PRAGMA data_version").fetchall()
            if version == before:
                cursor.execute("BEGIN")
                cursor.execute("SELECT 1 FROM sqlite_schema").fetchall()
                self.held = True
            self.unclaimed = True  # the next reader says that it is there
            self._stop.wait(_HOLD_SECONDS)
            if self.held:
                self.held = False
                cursor.execute("COMMIT")
            if self.unclaimed:
                return
            self._stop.wait(_PAUSE_SECONDS)
