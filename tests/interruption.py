"""Interruption at a chosen moment: cancellation at the n-th wait of a coroutine, exceptions of signal handlers."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator


class CancelAt:
    """Awaits a coroutine, and cancels it at its waits of these numbers (from 1), as its task would."""

    def __init__(self, work: Coroutine[Any, Any, Any], *steps: int) -> None:
        self._work, self._steps = work, set(steps)
        self.left = set(steps)

    def __await__(self) -> Generator[Any, Any, Any]:
        work = self._work.__await__()
        try:
            waits_for = next(work)
            for step in count(1):
                if step in self._steps:
                    self.left.discard(step)
                    if waits_for is not None:
                        waits_for.cancel()
                    waits_for = work.throw(asyncio.CancelledError())
                    continue
                try:
                    yield waits_for
                except BaseException as error:  # noqa: BLE001 - what a task throws in
                    waits_for = work.throw(error)
                else:
                    waits_for = next(work)
        except StopIteration as end:
            return end.value


async def cancel_everywhere(
    make: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[str], Awaitable[None]], *, again: int | None = None
) -> int:
    """Cancel a fresh coroutine at its first wait, at its second, ... until one is through; ``check`` after each.

    ``again`` cancels a second time, so many waits later. Returns the number of waits.
    """
    for step in count(1):
        steps = [step] if again is None else [step, step + again]
        cancelling = CancelAt(make(), *steps)
        try:
            await cancelling
        except asyncio.CancelledError:
            pass
        else:
            assert step in cancelling.left, f"the cancellation at wait {step} was swallowed"
            return step - 1
        await check(f"cancelled at waits {steps}")
    raise AssertionError


class Interrupted(BaseException):
    """What a signal handler raises, like KeyboardInterrupt."""


class Alarm:
    """Raises `Interrupted` in the main thread when it is due: once or several times, and never while it is off."""

    def __init__(self) -> None:
        self.raised = 0
        self._on = False
        self._more: list[float] = []

    def call(self, work: Callable[[], Any], *after: float) -> None:
        """Run ``work``, and interrupt it so many seconds after its start; then so many seconds after that."""
        try:
            self._more = list(after[1:])
            self._on = True
            signal.setitimer(signal.ITIMER_REAL, after[0])
            work()
            self._on = False
        except Interrupted:
            self._on = False  # no handler runs between the match and this
        signal.setitimer(signal.ITIMER_REAL, 0)

    def handle(self, *_: object) -> None:
        """Be the signal's handler."""
        if self._on:
            self.raised += 1
            if self._more:
                signal.setitimer(signal.ITIMER_REAL, self._more.pop())
            raise Interrupted


@contextmanager
def alarm() -> Iterator[Alarm]:
    """Give an alarm."""
    made = Alarm()
    before = signal.signal(signal.SIGALRM, made.handle)
    try:
        yield made
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
