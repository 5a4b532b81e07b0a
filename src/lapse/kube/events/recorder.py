"""Recorder of Events on a cluster, beside the work that they tell of: it never delays that work, and may drop Events.

Whoever reports puts a value into memory and goes on. One task writes, so many calls a second; what happened twice
meanwhile, or happens again within some minutes, is one Event with a series. What is aggregated (deletions, of which
there may be thousands) is told as a handful of Events, however many items there are.

What does not fit into the queue, is refused, or fails again and again is dropped, counted and logged once a minute.
Failures make the writer pause, longer each time, so a right that was taken away costs a call now and then. On a stop,
what waits is written for a second or two; what is left is dropped. Not guaranteed: that anything is ever written.

Aggregation: the first item opens an aggregate, which is told some seconds later with all that came meanwhile; after
that the same aggregate is told once in a longer while at the most. So the number of Events depends on time and on the
number of objects, and not on how many items there are. With too many objects at a time, new ones are counted together,
under no object. An aggregate waits for nothing and calls nobody: the recorder asks for what is due.

A report is written as a new Event, or as one more in the series of the last one that said the same: one call, or two
when the cluster has forgotten the Event whose series was to go on. A report that is written again after a response was
lost is still there once: an Event has its name from the start, and a series has its total.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lapse.core.identity import uuid
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger
from lapse.kube.api.transport import RateLimit
from lapse.kube.errors import AlreadyExistsError, NotFoundError, ObjectError, StoreUnavailableError
from lapse.kube.events.event import EVENT, Regarding, Report, Times, event_body, event_key, series
from lapse.kube.resources import Kind, Object, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lapse.core.clock import Clock
    from lapse.kube.resources import Json

T = TypeVar("T", bound=Object)
_NS: Final = 1_000_000_000


class EventStore(Protocol):
    """The part of an object store that Events need."""

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        """See `lapse.objects.port.ObjectStore`."""
        ...

    async def patch(self, kind: Kind[T], key: ObjectKey, changes: Json) -> T:
        """See `lapse.objects.port.ObjectStore`."""
        ...


@dataclass(frozen=True, slots=True)
class _Written:
    key: ObjectKey
    times: Times
    at_ns: int


class SeriesWriter:
    """See the module. Remembers so many Events, each for so long."""

    def __init__(self, store: EventStore, *, instance: str, clock: Clock, remembered: int, seconds: float) -> None:
        """Write to ``store`` as ``instance``."""
        self._store, self._instance, self._clock = store, instance, clock
        self._remembered, self._lasts_ns = remembered, seconds * _NS
        self._written: OrderedDict[Report, _Written] = OrderedDict()

    async def write(self, key: ObjectKey, report: Report, times: Times, *, regarding: Regarding) -> None:
        """Write ``report``, about ``regarding``; if it is a new Event, under ``key``. Raises `ObjectError`."""
        now_ns = self._clock.monotonic_ns()
        written = self._written.get(report)
        if written is not None and now_ns - written.at_ns < self._lasts_ns:
            total = Times(written.times.first_ns, times.last_ns, written.times.count + times.count)
            try:
                await self._store.patch(EVENT, written.key, {"series": series(total)})
            except NotFoundError:
                self._written.pop(report, None)
            else:
                self._remember(report, _Written(written.key, total, now_ns))
                return
        body = event_body(key, report, times, regarding=regarding, instance=self._instance)
        with suppress(AlreadyExistsError):
            await self._store.create(EVENT, body)
        self._remember(report, _Written(key, times, now_ns))

    def _remember(self, report: Report, written: _Written) -> None:
        self._written.pop(report, None)
        self._written[report] = written
        if len(self._written) > self._remembered:
            self._written.popitem(last=False)


_NAMED: Final = 5
"""Items that are named; the others are counted."""


@dataclass
class _Aggregate:
    due_ns: int
    first_ns: int
    last_ns: int
    count: int = 0
    named: list[str] = field(default_factory=list)


class EventAggregates:
    """See the module. ``places`` is how many objects are counted apart at a time."""

    def __init__(self, clock: Clock, *, gather_seconds: float, quiet_seconds: float, places: int) -> None:
        """Count nothing yet."""
        self._clock, self._places = clock, places
        self._gather_ns, self._quiet_ns = round(gather_seconds * _NS), round(quiet_seconds * _NS)
        self._open: dict[Report, _Aggregate] = {}
        self._told: dict[Report, int] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, report: Report, item: str) -> bool:
        """Count an item; return whether that opened an aggregate."""
        found, opens = self._open.get(report), False
        if found is None:
            if len(self._open) >= self._places and report.regarding is not None:
                return self.add(replace(report, regarding=None), item)
            found, opens = self._begin(report), True
            self._open[report] = found
        found.count += 1
        found.last_ns = self._clock.wall_ns()
        if len(found.named) < _NAMED:
            found.named.append(item)
        return opens

    def _begin(self, report: Report) -> _Aggregate:
        due_ns = self._clock.monotonic_ns() + self._gather_ns
        told_ns = self._told.get(report)
        if told_ns is not None:
            due_ns = max(due_ns, told_ns + self._quiet_ns)
        now = self._clock.wall_ns()
        return _Aggregate(due_ns, now, now)

    def seconds_left(self) -> float | None:
        """Return how long until something is ripe; None when nothing is open."""
        if not self._open:
            return None
        return max(0.0, (min(aggregate.due_ns for aggregate in self._open.values()) - self._clock.monotonic_ns()) / _NS)

    def ripe(self, *, everything: bool = False) -> list[tuple[Report, Times]]:
        """Close the aggregates whose time has come, and return what is to be told."""
        now_ns = self._clock.monotonic_ns()
        self._told = {report: told for report, told in self._told.items() if now_ns - told < self._quiet_ns}
        due = [report for report, aggregate in self._open.items() if everything or aggregate.due_ns <= now_ns]
        self._told |= dict.fromkeys(due, now_ns)
        return [_summary(report, self._open.pop(report)) for report in due]

    def clear(self) -> None:
        """Forget what is open."""
        self._open.clear()


def _summary(report: Report, aggregate: _Aggregate) -> tuple[Report, Times]:
    more = ", ..." if aggregate.count > len(aggregate.named) else ""
    note = f"{report.note}: {aggregate.count} ({', '.join(aggregate.named)}{more})"
    return replace(report, note=note), Times(aggregate.first_ns, aggregate.last_ns)


_WORD_SECONDS: Final = 60.0
"""How often at the most the log says that Events were dropped."""
_STOPS: Final = "this process stops, or leads no longer"
_log = get_logger("lapse.kube.events.recorder")


@dataclass(frozen=True, kw_only=True)
class RecorderLimits:
    """How many, how often, how long."""

    per_second: float = 50.0
    burst: int = 100
    waiting: int = 2_000
    """Different reports in memory."""
    attempts: int = 4
    longest_pause: float = 30.0
    remembered: int = 1_000
    """Events whose series may go on."""
    series_seconds: float = 360.0
    gather_seconds: float = 5.0
    """From the first item of an aggregate to its Event."""
    quiet_seconds: float = 60.0
    """From one Event of an aggregate to the next."""
    places: int = 100
    """Aggregates at a time; what comes on top is told on the object that stands for the process."""
    drain_seconds: float = 2.0
    linger_seconds: float = 0.2
    """On a stop, how long to wait for work that is just being finished."""


_LIMITS: Final = RecorderLimits()


class EventRecorder:
    """See the module; a `lapse.kube.events.event.Recorder`, and a service of the leader. Belongs to one event loop."""

    name = "events"

    def __init__(
        self,
        store: EventStore,
        *,
        reporter: Regarding,
        instance: str,
        clock: Clock,
        dropped: Callable[[], None],
        limits: RecorderLimits = _LIMITS,
        chance: Chance = chance,
    ) -> None:
        """Write to ``store``; ``reporter`` stands for this process, and ``dropped`` is called for each lost Event."""
        self._reporter, self._clock, self._dropped = reporter, clock, dropped
        self._limits, self._chance = limits, chance
        self._rate = RateLimit(limits.per_second, burst=limits.burst, clock=clock)
        self._queue: OrderedDict[Report, Times] = OrderedDict()
        self._aggregates = EventAggregates(
            clock,
            gather_seconds=limits.gather_seconds,
            quiet_seconds=limits.quiet_seconds,
            places=limits.places,
        )
        self._writer = SeriesWriter(
            store, instance=instance, clock=clock, remembered=limits.remembered, seconds=limits.series_seconds
        )
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._failures = self._lost = self._next_word_ns = 0

    # --- what is told -------------------------------------------------------------------------------------------------

    def record(self, report: Report) -> None:
        """See `Recorder`."""
        now = self._clock.wall_ns()
        self._enqueue(report, Times(now, now))

    def aggregate(self, report: Report, item: str) -> None:
        """See `Recorder`."""
        if self._aggregates.add(report, item):
            self._wake.set()

    def _enqueue(self, report: Report, times: Times) -> None:
        found = self._queue.get(report)
        if found is None and len(self._queue) >= self._limits.waiting:
            self._drop("the queue is full")
            return
        first, count = (times.first_ns, 0) if found is None else (found.first_ns, found.count)
        self._queue[report] = Times(first, times.last_ns, count + times.count)
        self._idle.clear()
        self._wake.set()

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        writing = asyncio.create_task(self._write_on(), name="lapse-events-writer")
        try:
            await _first_of(asyncio.wait({writing}), stopping.wait())
            if stopping.is_set():
                await _first_of(self._drain(), self._clock.sleep(self._limits.drain_seconds))
        finally:
            writing.cancel()
            await asyncio.wait({writing})
            for _ in range(len(self._queue) + len(self._aggregates)):
                self._drop(_STOPS)
            self._queue.clear()
            self._aggregates.clear()
            self._say_lost()
        if not stopping.is_set():
            writing.result()

    async def _drain(self) -> None:
        while True:
            self._ripen(everything=True)
            await self._idle.wait()
            await self._clock.sleep(self._limits.linger_seconds)
            if self._idle.is_set() and not self._aggregates:
                return

    async def _write_on(self) -> None:
        while True:
            self._wake.clear()
            self._ripen()
            report = next(iter(self._queue), None)
            if report is None:
                self._idle.set()
                await self._until_woken()
                continue
            await self._rate.wait()
            # Taken only now: what came again while it waited is part of it.
            times = self._queue.pop(report)
            try:
                await self._send(report, times)
            except asyncio.CancelledError:
                self._drop(_STOPS)
                raise

    async def _until_woken(self) -> None:
        left = self._aggregates.seconds_left()
        if left is None:
            await self._wake.wait()
        else:
            await _first_of(self._wake.wait(), self._clock.sleep(left))

    def _ripen(self, *, everything: bool = False) -> None:
        for report, times in self._aggregates.ripe(everything=everything):
            self._enqueue(report, times)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _send(self, report: Report, times: Times) -> None:
        regarding = report.regarding or self._reporter
        # One name for all attempts: if an answer was lost, the next attempt finds that it is there.
        key = event_key(regarding, uuid())
        problem = ""
        for _attempt in range(self._limits.attempts):
            try:
                await self._writer.write(key, report, times, regarding=regarding)
            except StoreUnavailableError as error:
                problem = str(error)
                await self._pause(error.retry_after or 0.0)
            except ObjectError as error:
                problem = str(error)
                await self._pause()
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody's work may end by it
                _log.warning("event_failed", error=type(error).__name__, exc_info=True)
                problem = type(error).__name__
                await self._pause()
                break
            else:
                self._failures = 0
                return
        self._drop(problem)

    async def _pause(self, at_least: float = 0.0) -> None:
        pause = backoff(self._failures, longest=self._limits.longest_pause, chance=self._chance)
        self._failures += 1
        await self._clock.sleep(max(pause, at_least))

    # --- dropping -----------------------------------------------------------------------------------------------------

    def _drop(self, problem: str) -> None:
        self._dropped()
        self._lost += 1
        if self._clock.monotonic_ns() >= self._next_word_ns:
            self._say_lost(problem)

    def _say_lost(self, problem: str = "") -> None:
        if self._lost:
            _log.warning("events_dropped", count=self._lost, **({"reason": problem} if problem else {}))
            self._lost = 0
            self._next_word_ns = self._clock.monotonic_ns() + round(_WORD_SECONDS * _NS)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one is done and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
