"""A background event loop, for synchronous callers of asynchronous work.

One daemon thread per process, started at first use: renewals of locks run on it, and the blocking API of network
backends. A forked child gets a loop of its own: threads do not survive a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lapse.core.errors import LapseError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_guard = threading.Lock()
_running: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None


class OnBackgroundThreadError(LapseError):
    """This call would wait for the thread that makes it, the one on which keys work in the background.

    A finaliser that was run there made it: close generators and objects that use a store before they are collected.
    """


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the process's background loop."""
    global _running  # noqa: PLW0603 - one loop per process is the point
    running = _running
    if running is not None:
        return running[1]
    with _guard:
        if _running is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="lapse-background-loop", daemon=True)
            thread.start()
            _running = (thread, loop)
        return _running[1]


def on_background_thread() -> bool:
    """Whether this thread is the one that runs the background loop: it must not wait for that loop."""
    running = _running
    return running is not None and threading.current_thread() is running[0]


class Call(Generic[T]):
    """A piece of work on an event loop that another thread waits for, and may stop waiting for at any instruction.

    Not a `concurrent.futures.Future`: its condition is locked by Python code, so an exception of a signal handler can
    leave it locked, and the loop would wait for it for ever. Here the two share one lock, which the loop releases.
    """

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        """Start; raises RuntimeError when the loop is closed."""
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Lock()
        self._done.acquire()
        loop.call_soon_threadsafe(self._start)

    def wait(self, seconds: float | None = None) -> T:
        """Wait for the answer, for ``seconds`` at most: then raise TimeoutError. Belongs to one thread."""
        if not self._done.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError
        assert self._task is not None  # noqa: S101 - it is done
        return self._task.result()

    def cancel(self) -> None:
        """Cancel the work, if it is not done; do not wait for that."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # seen: what waits is told, if it still waits
        self._done.release()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the background loop and wait for it; an exception of a signal handler cancels it."""
    if on_background_thread():
        work.close()
        raise OnBackgroundThreadError
    call = Call(work, background_loop())
    try:
        return call.wait()
    except BaseException:
        call.cancel()  # changes nothing when it was the work that failed
        raise


def _in_child() -> None:
    global _guard, _running
    _guard, _running = threading.Lock(), None  # a thread that is gone may have held the old one


os.register_at_fork(after_in_child=_in_child)
