"""A background event loop, for synchronous callers of asynchronous work.

One daemon thread per process, started at first use: renewals of locks run on it, and the blocking face of network
backends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_guard = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the process's background loop. A forked child gets its own: threads do not survive a fork."""
    global _running  # noqa: PLW0603 - one loop per process is the point
    with _guard:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="lapse-background-loop", daemon=True).start()
            _running = (os.getpid(), loop)
        return _running[1]


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the background loop and wait for it. Must not be called from that loop."""
    return asyncio.run_coroutine_threadsafe(work, background_loop()).result()
