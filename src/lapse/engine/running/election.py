"""Leadership, and its election by a lease, whatever store the lease is kept in.

Leadership is what the engine asks of whatever decides which process leads: `lapse.keys.election` and, on Kubernetes, a
Lease provide it; where there is one process only, `SoleLeader` does. A leader's work is a coroutine that runs while
this process leads and is *cancelled before leadership can move*, so that two leaders never work at the same time. It
must therefore stop promptly when it is cancelled; work that cannot (a blocking call in a thread) checks its term before
each effect.

The leader holds a lease: acquired, renewed at a quarter of its TTL, tried again every second on errors. The deadline
counts from the start of the last successful renewal. Work is cancelled when three quarters of the TTL have passed
without one, so it has the last quarter to stop before the lease can move; it is cancelled at once when a renewal is
refused. A candidate that stops gives the lease back, so the next one need not wait for the TTL. Every attempt is
bounded by the time that is left: a store that never answers must not hold up a step-down.

What it does not guarantee.

- Work that does not stop within a quarter of the TTL after it was cancelled, or blocks the event loop, may overlap with
  the next leader's. Whatever must never happen twice checks ``term.lost`` first or hands ``term.fence`` to its store.
- A process that is stopped (SIGSTOP, a suspended machine) cannot notice anything while it stands still; when it goes
  on, its work is cancelled at the first chance, which is after the fact.
- Clocks may differ, but must run at the same speed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapse.core.clock import Clock, SystemClock
from lapse.core.errors import LapseError
from lapse.core.jitter import around
from lapse.core.log import get_logger
from lapse.engine.running.shield import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from lapse.core.clock import Clock


class Term(Protocol):
    """One period of leadership."""

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier term of anybody: for stores that can refuse smaller ones."""
        ...

    @property
    def lost(self) -> bool:
        """Whether this process no longer leads, or can no longer know that it does."""
        ...


class Leadership(Protocol):
    """Decides who leads. One object per process and name."""

    @property
    def leading(self) -> bool:
        """Whether this process leads now."""
        ...

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        """Try to lead, for ever; run ``work`` during each term, and release when cancelled.

        Work that returns by itself ends the election; its error is raised.
        """
        ...


@dataclass(slots=True)
class _SoleTerm:
    fence: int
    lost: bool = False


_CLOCK: Final = SystemClock()


class SoleLeader:
    """Leadership where nobody else is: leads at once, until it is cancelled.

    Does not find out whether somebody else is there: that a state folder is used by one process is its user's word.
    """

    def __init__(self, clock: Clock = _CLOCK) -> None:
        """Take fences from ``clock``, so that they grow over restarts as well as the wall clock does."""
        self._clock = clock
        self._term: _SoleTerm | None = None

    @property
    def leading(self) -> bool:
        """See `Leadership`."""
        return self._term is not None

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        """See `Leadership`."""
        self._term = term = _SoleTerm(fence=self._clock.wall_ns())
        try:
            await work(term)
        finally:
            term.lost, self._term = True, None


_RETRY_SECONDS: Final = 1.0
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.running.election")


class ElectionLease(Protocol):
    """The lease that candidates compete for: one owner at a time. It is also the `Term` of its owner."""

    @property
    def ttl_seconds(self) -> int:
        """How long it lasts without renewal."""
        ...

    @property
    def deadline_ns(self) -> int:
        """Until when it is ours at the least, in boottime; counts from the start of the last successful renewal."""
        ...

    @property
    def fence(self) -> int:
        """See `Term`."""
        ...

    @property
    def lost(self) -> bool:
        """See `Term`."""
        ...

    async def acquire(self) -> bool:
        """Become the owner; False when somebody else is. Errors are `LapseError`."""
        ...

    async def renew(self) -> bool:
        """Move the deadline; False when somebody else is the owner now. May be repeated after an unknown outcome."""
        ...

    async def release(self) -> bool:
        """Give it back; False when it was lost before."""
        ...


class LeaseElection:
    """One candidate for one lease: a `Leadership`."""

    def __init__(self, lease: ElectionLease, *, clock: Clock) -> None:
        """Nothing is touched before `campaign`."""
        self._lease, self._clock = lease, clock
        self._quarter = lease.ttl_seconds / 4
        self._working = False

    @property
    def leading(self) -> bool:
        """Whether this process leads now: its work runs and the lease is known to be ours."""
        return self._working and not self._lease.lost

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        """See `Leadership`."""
        while True:
            try:
                if await self._try_to_lead() and await self._serve(work):
                    return
            finally:
                if not self._lease.lost:  # cancelled when it was just acquired
                    await finish(self._give_back, clock=self._clock)
            await self._clock.sleep(around(min(_RETRY_SECONDS, self._quarter), fraction=0.25))

    async def _try_to_lead(self) -> bool:
        # An attempt that is under way is let come to its end: whether the lease is ours must not stay unknown.
        attempt = finish(self._lease.acquire, clock=self._clock)
        try:
            return await self._before_deadline(attempt, self._clock.boottime_ns() + self._ttl_ns())
        except (LapseError, TimeoutError) as error:
            _log.warning("election_failed", error=type(error).__name__, reason=str(error))
            return False

    async def _serve(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> bool:
        """Lead one term; True when the work came to its own end."""
        _log.info("leading", fence=self._lease.fence)
        self._working = True
        working = asyncio.create_task(work(self._lease), name="lapse-leader-work")
        renewing = asyncio.create_task(self._keep_renewing(), name="lapse-leader-renewal")
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            finished = working.done()
        finally:
            await self._step_down(working, renewing)
        if finished:
            working.result()
        return finished

    async def _step_down(self, working: asyncio.Task[None], renewing: asyncio.Task[None]) -> None:
        """Stop, in this order and to the end, however often this is cancelled: a renewal that nobody stops goes on."""
        try:
            await _stopped(working)  # the work first, and waited for: the lease must not move while it still runs
        finally:
            self._working = False
            try:
                await _stopped(renewing)
            finally:
                _log.info("stepped_down")  # before the lease is given back, which the log of the next leader follows
                await finish(self._give_back, clock=self._clock)

    async def _give_back(self) -> None:
        try:
            await self._before_deadline(self._lease.release(), self._lease.deadline_ns)
        except (LapseError, TimeoutError) as error:
            _log.warning(
                "lease_not_given_back", error=type(error).__name__, lapses_after_seconds=self._lease.ttl_seconds
            )

    async def _keep_renewing(self) -> None:
        """Return when the work has to stop: a renewal was refused, or none succeeded for three quarters of the TTL."""
        wait = self._quarter
        while (stop_ns := self._stop_work_ns()) > self._clock.boottime_ns():
            await self._clock.sleep(min(wait, (stop_ns - self._clock.boottime_ns()) / _NS))
            try:
                if not await self._before_deadline(self._lease.renew(), self._stop_work_ns()):
                    return
                wait = self._quarter
            except (LapseError, TimeoutError) as error:
                _log.warning("renewal_failed", error=type(error).__name__, reason=str(error))
                wait = min(_RETRY_SECONDS, self._quarter)

    def _stop_work_ns(self) -> int:
        return self._lease.deadline_ns - round(self._quarter * _NS)

    def _ttl_ns(self) -> int:
        return self._lease.ttl_seconds * _NS

    async def _before_deadline(self, attempt: Coroutine[Any, Any, bool], deadline_ns: int) -> bool:
        """Bound one call by the time that is left: a store that never answers must not hold up a step-down."""
        trying = asyncio.create_task(attempt)
        left = max(0.0, (deadline_ns - self._clock.boottime_ns()) / _NS)
        timer = asyncio.create_task(self._clock.sleep(left))
        try:
            await asyncio.wait({trying, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not trying.done():
                raise TimeoutError
            return trying.result()
        finally:
            timer.cancel()
            await _stopped(trying)


async def _stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it is over, whatever its outcome; that is read by whoever wants it.

    A cancellation of the caller is raised when the task is over: it would go on alone otherwise.
    """
    task.cancel()
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None:
        raise interruption
