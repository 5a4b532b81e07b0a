"""Blocking work in a thread that ends when its task is cancelled."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Run ``work(stop)`` in a thread; when this is cancelled, ``stop()`` becomes true and the thread is waited for."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        while not running.done():  # also when it is cancelled again: a thread that comes late meets the next action
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        running.exception()  # seen: an interrupted piece of work fails, which is what was asked of it
        raise
