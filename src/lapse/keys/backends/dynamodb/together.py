"""Several requests at once, but not all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lapse.core.errors import LapseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


async def run_together(jobs: Sequence[Callable[[], Awaitable[None]]], width: int) -> list[LapseError]:
    """Run the jobs, ``width`` at a time, and return the errors.

    After an error no further job is started; those that run are awaited, because a write that is cancelled half-way
    leaves the caller in doubt for no reason.
    """
    failures: list[LapseError] = []
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            try:
                await job()
            except LapseError as error:
                failures.append(error)
            if failures:
                return

    if len(jobs) == 1:
        await work()
        return failures
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(width, len(jobs))):
            workers.create_task(work())
    return failures
