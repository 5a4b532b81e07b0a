"""The moment between two steps that should be one: broken things are held in it until somebody has come in between.

A race that a broken thing must lose is not left to luck: how long others take is the machine's affair. Whoever has
looked waits until another one has looked as well, or has written; then both go on, and one of them is wrong. That
happens once, which is enough to be caught; afterwards nobody is held.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from lapse.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

PATIENCE_SECONDS: Final = 5.0
"""For somebody who does not come: then nothing was spoiled, and the next one is held."""
POLL_SECONDS: Final = 0.001


class Window:
    """Holds threads."""

    def __init__(self) -> None:
        self.over = False
        """Whether somebody was overtaken already."""
        self._guard = threading.Lock()
        self._waiting: dict[Hashable, threading.Event] = {}
        self._looked = threading.Event()

    def meet(self, place: Hashable) -> None:
        """Wait until two have come to the same place."""
        with self._guard:
            if self.over:
                return
            other = self._waiting.pop(place, None)
            mine = threading.Event()
            if other is None:
                self._waiting[place] = mine
            else:
                self.over = True
        self._looked.set()
        if other is not None:
            other.set()
        elif not mine.wait(PATIENCE_SECONDS):
            with self._guard:
                if self._waiting.get(place) is mine:
                    del self._waiting[place]

    def overtaken(self, check: Callable[[], bool]) -> bool:
        """Wait until ``check`` says so; True for the one who is to make use of it."""
        self._looked.set()
        pause = threading.Event()
        for _ in range(round(PATIENCE_SECONDS / POLL_SECONDS)):
            if self.over:
                return False
            if check():
                with self._guard:
                    first, self.over = not self.over, True
                return first
            pause.wait(POLL_SECONDS)
        return False

    def wait_for_a_look(self) -> None:
        """Let somebody look first."""
        if not self.over:
            self._looked.wait(PATIENCE_SECONDS)


class AsyncWindow:
    """Holds tasks of an event loop."""

    def __init__(self) -> None:
        self.over = False
        self._inside = 0
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}

    async def meet(self, *place: Hashable) -> None:
        """Wait until two have come to the same place."""
        if self.over:
            return
        other = self._waiting.pop(place, None)
        if other is not None:
            self.over = True
            other.set_result(None)
            return
        mine = self._waiting[place] = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([mine], timeout=PATIENCE_SECONDS)
        if not done and self._waiting.get(place) is mine:
            del self._waiting[place]

    async def overtaken(self, check: Callable[[], Awaitable[bool]]) -> None:
        """Wait until ``check`` says so, or until another one waits here as well."""
        self._inside += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not self.over and self._inside == 1 and not await check():
                    await SystemClock().sleep(POLL_SECONDS)
                self.over = True
        self._inside -= 1


_WINDOWS: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWindow] = WeakKeyDictionary()


def window_of_this_loop() -> AsyncWindow:
    """Return the one that all broken things of a test share, where two of them race with each other."""
    return _WINDOWS.setdefault(asyncio.get_running_loop(), AsyncWindow())
