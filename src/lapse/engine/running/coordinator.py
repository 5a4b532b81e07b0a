"""The coordinator: runs every loop and every service of a process, and ends them together.

A *loop* is periodic work, cut into ticks. A tick that fails is logged and counted, and the loop runs again at its
next time: one bad round never ends a loop, and one bad loop never ends another. A *service* runs until it is told
to stop (an HTTP listener); one that ends by itself takes the process down, because a half-alive process is worse
than a restarted one.

Stopping: no new tick begins, services stop taking work, the tick at hand is finished. What is not done after
``grace_seconds`` is cancelled. Not guaranteed: a tick that blocks the event loop cannot be stopped by anybody;
blocking work belongs in a thread.

Leadership. Loops and services that only one process may run do so during this process's terms. When a term is lost,
its services are cancelled and its loops stop between items; they start anew with the next term. When the process
stops, leadership is released after its work has ended, so that the next leader need not wait. Without anything that
decides who leads, such work is refused instead of run everywhere. A process that acts on two stores takes part in two
elections, each with work of its own (`ElectedWork`): what it leads in one it may leave to another in the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, around, chance
from lapse.core.log import get_logger, piece_of_work
from lapse.engine.running.metrics import ErrorKind, Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.running.election import Leadership, Term

GRACE_SECONDS: Final = 5.0
"""Half of the ten seconds that a process has to end: the other half is for closing stores."""
STEP_DOWN_SECONDS: Final = 1.0
"""What the item at hand has to end after leadership was lost: less than the last quarter of a lease of five seconds."""

_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.running.coordinator")


class LeadershipMissingError(LapseError):
    """{work} may run in one process only, and this process has no way to decide which process leads."""


class ServiceEndedError(LapseError):
    """The service {service} ended although it was not told to stop."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a loop may know about the time that it is given: the life of the process, or one term."""

    proceed: Callable[[], bool]
    """Whether another item may be begun: False when the process stops or its leadership is lost."""
    wake: Callable[[], None]
    """Ends the wait for the next tick; during a tick, brings on another one. For use on the event loop."""


class Loop(Protocol):
    """Periodic work of one domain, or of the engine itself (`EngineLoop`)."""

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


@runtime_checkable
class Steered(Protocol):
    """A loop that wants to know its `Turn`."""

    def begin(self, turn: Turn) -> None:
        """Take note of the turn that begins; an earlier one is over."""
        ...


@runtime_checkable
class EngineLoop(Protocol):
    """A loop of the engine itself, and of no domain: its `Loop.domain` only says whose failures its own are."""

    @property
    def of_engine(self) -> bool:
        """That it is one."""
        ...


class Service(Protocol):
    """Something that runs until it is told to stop. As a leader's service it is run anew in every term."""

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
    domain: str | None
    """None: the engine's own."""
    interval: float
    ticks: int = 0
    errors: int = 0
    last_run_ns: int | None = None
    last_success_ns: int | None = None
    next_run_ns: int | None = None
    last_error: str | None = None
    """The class of the last tick's error; None when it succeeded."""


@dataclass(frozen=True, slots=True)
class ElectedWork:
    """Work on another store than that of the process's own election, in an election of that store."""

    leadership: Leadership
    loops: Sequence[Loop] = ()
    services: Sequence[Service] = ()


class Coordinator:
    """Made once per process; `run` returns after `stop`."""

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        loops: Sequence[Loop] = (),
        leadership: Leadership | None = None,
        beside: ElectedWork | None = None,
        grace_seconds: float = GRACE_SECONDS,
        chance: Chance = chance,
    ) -> None:
        """Check what is to run; nothing starts before `run`.

        Whether the process leads is said of ``leadership``, or else of ``beside``, if there is nothing but that.
        """
        for loop in loops:
            if loop.leader_only and leadership is None:
                raise LeadershipMissingError(work=f"The loop {loop.name}")
        self._clock, self._metrics, self._chance = clock, metrics, chance
        self._leadership, self._beside = leadership, beside
        self._own = beside.leadership if leadership is None and beside is not None else leadership
        self._led = [loop for loop in loops if loop.leader_only]
        self._loops = loops = (*loops, *(() if beside is None else beside.loops))
        self._term: Term | None = None
        self._at_work: set[Leadership] = set()
        """Those whose work runs, or has not ended yet."""
        self._grace = grace_seconds
        self._stopping = asyncio.Event()
        self._status = {loop.name: LoopStatus(loop.name, _domain_of(loop), loop.interval) for loop in loops}
        self._wakes = {loop.name: asyncio.Event() for loop in loops}
        metrics.expect_loops({loop.name: loop.interval for loop in loops})
        if self._own is not None:
            metrics.leading(leads=False)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    @property
    def leading(self) -> bool:
        """Whether this process leads now, and has work for a leader."""
        return self._term is not None and not self._term.lost

    def loops(self) -> list[LoopStatus]:
        """Return what each loop has done so far."""
        return list(self._status.values())

    def wake(self, loop: str) -> None:
        """Let a loop tick now instead of at its next time. Must be called on the event loop."""
        self._wakes[loop].set()

    def stop(self) -> None:
        """Ask everything to end. Idempotent; must be called on the event loop."""
        self._stopping.set()

    async def run(self, services: Sequence[Service] = (), leader_services: Sequence[Service] = ()) -> None:
        """Run the loops and services until `stop`. The error of a service is raised after the rest has ended."""
        if leader_services and self._leadership is None:
            raise LeadershipMissingError(work=f"The service {leader_services[0].name}")
        failures: list[BaseException] = []
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._keep_ticking(loop, self._stopping, self._may_go_on), name=_task_name(loop))
                for loop in self._loops
                if not loop.leader_only
            ]
            tasks += [
                group.create_task(
                    self._serve(service, self._stopping, failures.append), name=f"lapse-service-{service.name}"
                )
                for service in services
            ]
            elections = {
                work.leadership: group.create_task(self._keep_standing(work, failures.append), name="lapse-leadership")
                for work in self._elected(leader_services)
            }
            await self._stopping.wait()
            for leadership, task in elections.items():
                if leadership not in self._at_work:  # a candidate has nothing to finish; a leader returns when it has
                    task.cancel()
            await self._end([*tasks, *elections.values()])
        if failures:
            raise failures[0]

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        _log.info("stopping")
        await first_of(_all_of(tasks), self._clock.sleep(self._grace))
        for task in tasks:
            if not task.done():
                _log.warning("stopped_by_force", task=task.get_name())
                task.cancel()

    def _may_go_on(self) -> bool:
        return not self._stopping.is_set()

    async def _serve(self, service: Service, halt: asyncio.Event, failed: Callable[[BaseException], None]) -> None:
        try:
            await service.run(halt)
        except Exception as error:  # noqa: BLE001 - whatever it was, the rest must end in order before it is raised again
            if halt.is_set() and not self._stopping.is_set():  # its term is lost, and the process goes on
                _log.warning("leader_service_failed", service=service.name, error=type(error).__name__, exc_info=True)
                return
            failed(error)
        else:
            if halt.is_set():
                return
            failed(ServiceEndedError(service=service.name))
        self.stop()

    # --- leading ------------------------------------------------------------------------------------------------------

    def _elected(self, services: Sequence[Service]) -> list[ElectedWork]:
        """Return what is done by whoever leads, by election; nothing for an election without work."""
        works = [] if self._leadership is None else [ElectedWork(self._leadership, self._led, services)]
        if self._beside is not None:
            works.append(replace(self._beside, loops=[loop for loop in self._beside.loops if loop.leader_only]))
        return [work for work in works if work.loops or work.services]

    async def _keep_standing(self, work: ElectedWork, failed: Callable[[BaseException], None]) -> None:
        try:
            await work.leadership.campaign(partial(self._lead, work, failed))
        except Exception as error:  # noqa: BLE001 - as for a service
            failed(error)
        else:
            if not self._stopping.is_set():
                failed(ServiceEndedError(service="leadership"))
        self.stop()

    async def _lead(self, work: ElectedWork, failed: Callable[[BaseException], None], term: Term) -> None:
        """Do a leader's work until the process stops; cancelled when the term is lost."""
        over = asyncio.Event()

        def proceed() -> bool:
            return not (over.is_set() or term.lost or self._stopping.is_set())

        self._at_work.add(work.leadership)
        self._tell(work, term)
        ticking = [
            asyncio.create_task(self._keep_ticking(loop, over, proceed), name=_task_name(loop)) for loop in work.loops
        ]
        serving = [
            asyncio.create_task(self._serve(service, over, failed), name=f"lapse-leader-{service.name}")
            for service in work.services
        ]
        try:
            await self._stopping.wait()
            over.set()
            await _all_of([*ticking, *serving])
        finally:
            over.set()
            self._tell(work, None)
            await self._step_down(ticking, serving)
            self._at_work.discard(work.leadership)
            for loop in work.loops:
                self._metrics.rested(loop.name)

    def _tell(self, work: ElectedWork, term: Term | None) -> None:
        """Take note of who leads, where it is the process's own election."""
        if work.leadership is self._own:
            self._term = term
            self._metrics.leading(leads=term is not None)

    async def _step_down(self, ticking: Sequence[asyncio.Task[None]], serving: Sequence[asyncio.Task[None]]) -> None:
        """End what still runs: services at once, loops after the item at hand."""
        for task in serving:
            task.cancel()
        try:
            if not all(task.done() for task in ticking) and not self._stopping.is_set():
                await first_of(_all_of(ticking), self._clock.sleep(STEP_DOWN_SECONDS))
        finally:
            for task in ticking:
                if not task.done():
                    _log.warning("stopped_by_force", task=task.get_name())
                    task.cancel()
            await asyncio.gather(*ticking, *serving, return_exceptions=True)

    # --- ticking ------------------------------------------------------------------------------------------------------

    async def _keep_ticking(self, loop: Loop, halt: asyncio.Event, proceed: Callable[[], bool]) -> None:
        wait, wake = 0.0, self._wakes[loop.name]
        if isinstance(loop, Steered):
            loop.begin(Turn(proceed, wake.set))
        while not halt.is_set():
            self._plan(loop, self._clock.wall_ns() + round(wait * _NS))
            await first_of(halt.wait(), wake.wait(), self._clock.sleep(wait))
            if halt.is_set():
                break
            wake.clear()
            with piece_of_work("tick", loop=loop.name):
                asked = await self._tick(loop)
            wait = around(loop.interval, chance=self._chance) if asked is None else asked
        self._plan(loop, None)

    def _plan(self, loop: Loop, next_run_ns: int | None) -> None:
        self._status[loop.name] = replace(self._status[loop.name], next_run_ns=next_run_ns)

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


def _domain_of(loop: Loop) -> str | None:
    return None if isinstance(loop, EngineLoop) and loop.of_engine else loop.domain


def _task_name(loop: Loop) -> str:
    return f"lapse-loop-{loop.name}"


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
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
