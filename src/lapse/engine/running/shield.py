"""Work that must come to its end although its caller is cancelled: giving back what was taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lapse.core.clock import Clock

T = TypeVar("T")
GRACE_SECONDS: Final = 2.0
"""How much longer than its cancelled caller a piece of work may take: some round trips, and not what a person notices
as a program that does not stop."""


async def finish(work: Callable[[], Coroutine[Any, Any, T]], *, clock: Clock, cancelled: bool = False) -> T:
    """Run ``work`` in a task of its own; a caller that is cancelled meanwhile waits for it, and is cancelled then.

    From the first cancellation on (``cancelled``: from the beginning) the work has `GRACE_SECONDS`, after which it is
    cancelled itself. So cancellation is late by a bounded time, and never swallowed.
    """
    task = asyncio.create_task(work())
    timer = asyncio.create_task(clock.sleep(GRACE_SECONDS)) if cancelled else None
    interruption: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait({task, timer} if timer else {task}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:
                interruption = error
                timer = timer or asyncio.create_task(clock.sleep(GRACE_SECONDS))
            if timer is not None and timer.done() and not task.done():
                task.cancel()
                timer = asyncio.create_task(clock.sleep(GRACE_SECONDS))  # for what it does about its cancellation
    except BaseException:  # of a signal handler
        task.cancel()
        raise
    finally:
        if timer is not None:
            timer.cancel()
    if interruption is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen: the cancellation is what the caller is told
    raise interruption
