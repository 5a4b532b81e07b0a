"""Keeps the process's read lock held between reads, so that reads in quick succession need no system call.

A read in write-ahead logging takes a shared lock and drops it: two calls to the operating system, which cost as much as
the lookup itself, or more on a virtual machine. SQLite counts these locks per process and asks the system only for the
first and the last. So one connection that stays in a read transaction, the anchor, spares all others both calls. What
they see does not change: each read still begins a transaction of its own, on the newest commit of any process.

An anchored snapshot keeps a checkpoint from finishing, so the log could grow. Therefore the anchor

- is held only while there are many reads, and let go when they end;
- is held for moments, with pauses in which a checkpoint can finish;
- is not held at all while anybody commits: it would not help then, as a commit moves readers to another lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import apsw

from lapse.core.clock import Clock, SystemClock
from lapse.db.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

_HOLD_SECONDS: Final = 0.02
_PAUSE_SECONDS: Final = 0.002
_MANY_READS: Final = 100
_SOON_NS: Final = 10_000_000
"""So many reads in so short a time are worth a thread that ticks."""
_CLOCK: Final = SystemClock()


class Anchor:
    """Readers look at `loose` before each read, and call `stir` when it is set."""

    def __init__(self, connect: Callable[[], apsw.Connection], clock: Clock = _CLOCK) -> None:
        """Open nothing yet."""
        self.loose = True
        self.held = False
        self._connect = connect
        self._monotonic_ns = clock.monotonic_ns
        self._reads = 0
        self._since_ns = 0
        self._guard = threading.Lock()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    def stir(self) -> None:
        """Note a read; begin to hold the anchor when there are many."""
        if self._ticker is not None:
            self.loose = False
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
            self.loose = False
            ticker = self._ticker
        if ticker is not None:
            ticker.join()

    def become_forked(self) -> None:
        """Do nothing any more: the thread did not come along, and the lock may be held by it for ever."""
        self.loose = False

    def _start(self) -> None:
        with self._guard:
            if self._ticker is None and not self._stop.is_set():
                ticker = threading.Thread(target=self._tick, name="lapse-read-anchor", daemon=True)
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
                self.loose = not self._stop.is_set()

    def _tick_on(self, cursor: apsw.Cursor) -> None:
        """Hold and let go by turns, until nobody has read for a while."""
        version: Any = None
        while not self._stop.is_set():
            before, version = version, cursor.execute("PRAGMA data_version").fetchall()
            if version == before:
                cursor.execute("BEGIN")
                cursor.execute("SELECT 1 FROM sqlite_schema").fetchall()
                self.held = True
            self.loose = True  # the next reader says that it is there
            self._stop.wait(_HOLD_SECONDS)
            if self.held:
                self.held = False
                cursor.execute("COMMIT")
            if self.loose:
                return
            self._stop.wait(_PAUSE_SECONDS)
