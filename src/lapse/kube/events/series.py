"""One report, written: as a new Event, or as one more in the series of the last one that said the same.

One call, or two when the cluster has forgotten the Event whose series was to go on. A report that is written again
after an answer was lost is still there once: an Event has its name from the start, and a series has its total.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
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
