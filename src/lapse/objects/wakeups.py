"""Tells watches when there may be something new, without ever telling them what.

A commit of this process wakes the watches of its kind at once. Everything else, such as commits of other processes, is
noticed by one poller, which runs only while somebody watches: it asks SQLite for `data_version`, which costs a look at
shared memory and changes with every commit of another connection. A watch that is woken for nothing reads nothing, so
waking too often is harmless, and what is missed here is made up for by the next poll.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import apsw

from lapse.db.errors import DatabaseError
from lapse.db.sqlite.file import open_reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lapse.core.clock import Clock
    from lapse.db.sqlite.file import SQLiteFile

_POLL_SECONDS: Final = 0.05


class Wakeups:
    """See the module. ``noticed`` is called for every foreign commit."""

    def __init__(self, file: SQLiteFile, *, clock: Clock, noticed: Callable[[], None]) -> None:
        """Begin with nobody to wake."""
        self._file = file
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
        while True:
            # A connection that failed is given up. Those who are woken read for themselves, and say what is wrong.
            with suppress(apsw.Error, DatabaseError):
                await self._poll_on(open_reader(self._file))
            self.wake_all()
            await self._clock.sleep(_POLL_SECONDS)

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
                await self._clock.sleep(_POLL_SECONDS)
        finally:
            with suppress(apsw.Error):
                db.close(force=True)
