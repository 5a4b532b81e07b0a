"""The coordinator: runs every loop and every service of a process, and ends them together.

A *loop* is periodic work, cut into ticks. A tick that fails is logged and counted, and the loop runs again at its
next time: one bad round never ends a loop, and one bad loop never ends another. A *service* runs until it is told
to stop (an HTTP listener); one that ends by itself takes the process down, because a half-alive process is worse
than a restarted one.

Stopping: no new tick begins, services stop taking work, the tick at hand is finished. What is not done after
``grace_seconds`` is cancelled. Not guaranteed: a tick that blocks the event loop cannot be stopped by anybody;
blocking work belongs in a thread.

Leadership is not here yet. A loop may say that only one process should run it; the coordinator refuses such a loop
until it is given something that decides who leads, instead of running it everywhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from structlog.contextvars import bound_contextvars

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.jitter import Chance, around, chance
from lapse.core.log import get_logger
from lapse.engine.metrics import ErrorKind, Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lapse.core.clock import Clock

GRACE_SECONDS: Final = 5.0
"""Half of the ten seconds that a process has to end: the other half is for closing stores."""

_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.coordinator")


class LeadershipMissingError(LapseError):
    """The loop {loop} may run in one process only, and this process has no way to decide who leads."""


class ServiceEndedError(LapseError):
    """The service {service} ended although nobody asked it to."""


class Loop(Protocol):
    """Periodic work of one domain."""

    @property
    def name(self) -> str:
        """What it is called; constant, and a metric label."""
        ...

    @property
    def domain(self) -> str:
        """Whose work it is; a metric label."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between ticks when a tick does not say otherwise."""
        ...

    @property
    def leader_only(self) -> bool:
        """Whether one process at most may run it."""
        ...

    async def tick(self) -> float | None:
        """Do one bounded piece of work; return the seconds to the next tick, or None for `interval`."""
        ...


class Service(Protocol):
    """Something that runs until it is told to stop."""

    @property
    def name(self) -> str:
        """What it is called, in messages."""
        ...

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until ``stopping`` is set, then finish the work at hand and return."""
        ...


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """What a loop has done so far. Times are Unix nanoseconds."""

    name: str
    domain: str
    interval: float
    ticks: int = 0
    errors: int = 0
    last_run_ns: int | None = None
    last_success_ns: int | None = None
    next_run_ns: int | None = None
    last_error: str | None = None
    """The class of the last tick's error; None when it succeeded."""


class Coordinator:
    """Made once per process; `run` returns after `stop`."""

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        loops: Sequence[Loop] = (),
        grace_seconds: float = GRACE_SECONDS,
        chance: Chance = chance,
    ) -> None:
        """Check what is to run; nothing starts before `run`."""
        for loop in loops:
            if loop.leader_only:
                raise LeadershipMissingError(loop=loop.name)
        self._clock, self._metrics, self._chance = clock, metrics, chance
        self._loops = tuple(loops)
        self._grace = grace_seconds
        self._stopping = asyncio.Event()
        self._status = {loop.name: LoopStatus(loop.name, loop.domain, loop.interval) for loop in loops}
        metrics.expect_loops(self._status)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def loops(self) -> list[LoopStatus]:
        """Return what each loop has done so far."""
        return list(self._status.values())

    def stop(self) -> None:
        """Ask everything to end. Idempotent; must be called on the event loop."""
        self._stopping.set()

    async def run(self, services: Sequence[Service] = ()) -> None:
        """Run the loops and ``services`` until `stop`. The error of a service is raised after the rest has ended."""
        failures: list[BaseException] = []
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._keep_ticking(loop), name=f"lapse-loop-{loop.name}") for loop in self._loops
            ]
            tasks += [
                group.create_task(self._serve(service, failures.append), name=f"lapse-service-{service.name}")
                for service in services
            ]
            await self._stopping.wait()
            await self._end(tasks)
        if failures:
            raise failures[0]

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        _log.info("stopping")
        await _first_of(_all_of(tasks), self._clock.sleep(self._grace))
        for task in tasks:
            if not task.done():
                _log.warning("stopped_by_force", task=task.get_name())
                task.cancel()

    async def _serve(self, service: Service, failed: Callable[[BaseException], None]) -> None:
        try:
            await service.run(self._stopping)
        except Exception as error:  # noqa: BLE001 - whatever it was, the rest must end in order before it is raised again
            failed(error)
        else:
            if not self._stopping.is_set():
                failed(ServiceEndedError(service=service.name))
        self.stop()

    async def _keep_ticking(self, loop: Loop) -> None:
        wait = 0.0
        while not self._stopping.is_set():
            next_run_ns = self._clock.wall_ns() + round(wait * _NS)
            self._status[loop.name] = replace(self._status[loop.name], next_run_ns=next_run_ns)
            await _first_of(self._stopping.wait(), self._clock.sleep(wait))
            if self._stopping.is_set():
                return
            with bound_contextvars(tick=owner_token(), loop=loop.name):
                asked = await self._tick(loop)
            wait = around(loop.interval, chance=self._chance) if asked is None else asked

    async def _tick(self, loop: Loop) -> float | None:
        status = self._status[loop.name]
        started_ns, started_wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        asked, failure = None, None
        try:
            asked = await loop.tick()
        except Exception as error:  # noqa: BLE001 - one bad round must not end the loop
            failure = type(error).__name__
            # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
            _log.warning("tick_failed", error=failure, reason=str(error), exc_info=not isinstance(error, LapseError))
            self._metrics.failed(loop.domain, ErrorKind.TICK)
        ended_wall_ns = self._clock.wall_ns()
        seconds = (self._clock.monotonic_ns() - started_ns) / _NS
        self._metrics.ticked(loop.name, seconds=seconds, succeeded_at=None if failure else ended_wall_ns / _NS)
        self._status[loop.name] = replace(
            status,
            ticks=status.ticks + 1,
            errors=status.errors + (failure is not None),
            last_run_ns=started_wall_ns,
            last_success_ns=status.last_success_ns if failure else ended_wall_ns,
            last_error=failure,
        )
        return asked


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one is done and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)  # unlike gather, being cancelled here does not cancel them
