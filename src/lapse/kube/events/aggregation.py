"""Aggregation of Events: many things that happen to one object are told together, and repetitions become a series.

The first item opens a tally, which is told some seconds later with all that came meanwhile; after that the same tally
is told once in a longer while at the most. So the number of Events depends on time and on the number of objects, and
not on how many items there are. With too many objects at a time, new ones are counted together, under no object. A
tally waits for nothing and calls nobody: the recorder asks for what is due.

A report is written as a new Event, or as one more in the series of the last one that said the same: one call, or two
when the cluster has forgotten the Event whose series was to go on. A report that is written again after a response was
lost is still there once: an Event has its name from the start, and a series has its total.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.events.event import EVENT, Regarding, Report, Times, event_body, series
from lapse.kube.resources import Kind, Object, ObjectKey

if TYPE_CHECKING:
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
class _Tally:
    due_ns: int
    first_ns: int
    last_ns: int
    count: int = 0
    named: list[str] = field(default_factory=list)


class Tallies:
    """See the module. ``places`` is how many objects are counted apart at a time."""

    def __init__(self, clock: Clock, *, gather_seconds: float, quiet_seconds: float, places: int) -> None:
        """Count nothing yet."""
        self._clock, self._places = clock, places
        self._gather_ns, self._quiet_ns = round(gather_seconds * _NS), round(quiet_seconds * _NS)
        self._open: dict[Report, _Tally] = {}
        self._told: dict[Report, int] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, report: Report, item: str) -> bool:
        """Count an item; return whether that opened a tally."""
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

    def _begin(self, report: Report) -> _Tally:
        due_ns = self._clock.monotonic_ns() + self._gather_ns
        told_ns = self._told.get(report)
        if told_ns is not None:
            due_ns = max(due_ns, told_ns + self._quiet_ns)
        now = self._clock.wall_ns()
        return _Tally(due_ns, now, now)

    def seconds_left(self) -> float | None:
        """Return how long until something is ripe; None when nothing is open."""
        if not self._open:
            return None
        return max(0.0, (min(tally.due_ns for tally in self._open.values()) - self._clock.monotonic_ns()) / _NS)

    def ripe(self, *, everything: bool = False) -> list[tuple[Report, Times]]:
        """Close the tallies whose time has come, and return what is to be told."""
        now_ns = self._clock.monotonic_ns()
        self._told = {report: told for report, told in self._told.items() if now_ns - told < self._quiet_ns}
        due = [report for report, tally in self._open.items() if everything or tally.due_ns <= now_ns]
        self._told |= dict.fromkeys(due, now_ns)
        return [_summary(report, self._open.pop(report)) for report in due]

    def clear(self) -> None:
        """Forget what is open."""
        self._open.clear()


def _summary(report: Report, tally: _Tally) -> tuple[Report, Times]:
    more = ", ..." if tally.count > len(tally.named) else ""
    note = f"{report.note}: {tally.count} ({', '.join(tally.named)}{more})"
    return replace(report, note=note), Times(tally.first_ns, tally.last_ns)
