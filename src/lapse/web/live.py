"""Changes of the stores of a process, told to everybody who looks at them: for server-sent events and for pages.

A `Source` is a store with a number or value that is another one after every change. While anybody subscribes, one task
looks at all sources, whatever the number of subscribers, and tells them the topics of those that have changed.
Subscribers are told that something changed, never what: they read for themselves, with their own rights.

Guarantees: a change that is committed after `LiveChanges.subscribe` has begun is told, by this process and by others
that write to the same store. Who reads after `LiveChanges.seen` has read all that those numbers stand for: as long as
they are the same, what was read is still so. What a subscriber does not take is one set of topics, whatever happens,
and holds nobody up. A source that cannot be read is left out and asked again later, less and less often, and one that
takes its time (``is_slow``) keeps no other waiting.

Not guaranteed: how often: changes of one tick, or while a subscriber was busy, are told once. That something has
really changed: a value may differ although nobody can see a difference. The first look at a slow source may come after
its first change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lapse.core.clock import Clock
from lapse.core.jitter import backoff
from lapse.core.log import get_logger
from lapse.db.sqlite.writes import Writes
from lapse.web.api.errors import StoppingError, TooManyStreamsError

TICK_SECONDS: Final = 0.25
"""How often sources are looked at, at most; without `lapse.db.sqlite.writes.Writes`, also at least."""
UNTOLD_SECONDS: Final = 0.75
"""How often they are looked at although no file of theirs was written."""
CHECK_SECONDS: Final = 5.0
"""How often subscribers are woken although nothing has changed: to see whether they still may look."""
MOST_SUBSCRIBERS: Final = 240
MOST_PER_HOLDER: Final = 80
_NS: Final = 1_000_000_000
_EARLY_NS: Final = _NS // 20
_MS: Final = 1_000_000
_LONGEST_PAUSE: Final = 30.0
_UNKNOWN: Final = object()
_log = get_logger("lapse.web.live")


@dataclass(frozen=True, slots=True)
class Source:
    """A store that can be asked, cheaply, whether it has changed."""

    topic: str
    """What subscribers are told; several sources may have one topic."""
    version: Callable[[], Awaitable[Hashable]]
    """Returns a value that differs from the one before after every change; raises where it cannot be read."""
    gate: Callable[[], Hashable] | None = None
    """Returns something cheap: while that is the same, nothing has changed. Read once for all sources that share it."""
    seconds: float = TICK_SECONDS
    """How often it is asked at most."""
    is_slow: bool = False
    """Whether an answer may have to be waited for: then it is asked beside the others."""
    close: Callable[[], None] = lambda: None
    """Gives back what asking has opened."""


@dataclass(slots=True, eq=False)
class _Watched:
    source: Source
    version: object = _UNKNOWN
    gate: object = _UNKNOWN
    """What the gate was before the last look that succeeded."""
    due_ns: int = 0
    failures: int = 0
    looking: asyncio.Task[None] | None = None

    @property
    def is_looking(self) -> bool:
        """Whether it is being read now; a look that was cancelled, even before it began, is over."""
        return self.looking is not None and not self.looking.done()


@dataclass(slots=True, eq=False)
class Subscription:
    """An iterator over sets of topics that have changed since the last one; it ends when the process stops.

    A set may be empty: that is a reminder, every `CHECK_SECONDS`.
    """

    holder: str
    closed: bool = False
    _topics: set[str] = field(default_factory=set)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def __aiter__(self) -> Subscription:
        """Return itself."""
        return self

    async def __anext__(self) -> frozenset[str]:
        """Wait for the next change or reminder."""
        if not self.closed:
            await self._woken.wait()
        self._woken.clear()
        if self.closed:
            raise StopAsyncIteration
        topics = frozenset(self._topics)
        self._topics.clear()
        return topics

    def wake(self, topic: str | None = None) -> None:
        """Tell of a change, or remind."""
        if topic is not None:
            self._topics.add(topic)
        self._woken.set()

    def close(self) -> None:
        """End the iteration."""
        self.closed = True
        self._woken.set()


class LiveChanges:
    """See the module. A `lapse.engine.running.coordinator.Service`: it ends all subscriptions when a process stops."""

    name: Final = "live"

    def __init__(
        self, sources: Iterable[Source], *, clock: Clock, is_whole: bool = True, writes: Writes | None = None
    ) -> None:
        """Look at nothing yet. Belongs to one event loop.

        ``is_whole``: whether every store has a source. ``writes`` tells when files were written: it spares most looks.
        """
        self._writes = writes
        self._watched = [_Watched(one) for one in sources]
        self.clock = clock
        self.is_whole = is_whole
        """Whether nothing that a page shows can change untold."""
        # From the time of the start on, so that a number of the process before this one is not taken for one of this.
        self._first = clock.wall_ns() // _MS
        self._numbers = dict.fromkeys((one.source.topic for one in self._watched), self._first)
        self._open: dict[Subscription, None] = {}
        """In the order in which they began."""
        self._ticking: asyncio.Task[None] | None = None
        self._reminded_ns = 0
        self._postponed_ns: int | None = None
        """When a source is to be read that was written too early for that; the next write may be far."""
        self._is_closed = False

    async def run(self, stopping: asyncio.Event) -> None:
        """End every subscription as soon as the process stops: those who wait would keep it from ending."""
        await stopping.wait()
        await self.close()

    async def close(self) -> None:
        """End every subscription, and begin none any more. Idempotent."""
        self._is_closed = True
        for one in self._open:
            one.close()
        await self._stop()
        for watched in self._watched:
            watched.source.close()

    @property
    def versions(self) -> Mapping[str, int]:
        """The number of each topic at the last look, which goes up with every change; old while nobody subscribes."""
        return MappingProxyType(self._numbers)

    @property
    def subscribers(self) -> int:
        """How many subscribers there are."""
        return len(self._open)

    def tell(self, topic: str) -> None:
        """Tell every subscriber that something has changed; it need not be a store's."""
        self._numbers[topic] = self._numbers.get(topic, self._first) + 1
        for one in self._open:
            one.wake(topic)

    async def seen(self) -> Mapping[str, int]:
        """Look at what can be looked at at once, and return `versions` but of topics with a source not yet read."""
        await self._look()
        unread = {one.source.topic for one in self._watched if one.version is _UNKNOWN}
        return {topic: number for topic, number in self._numbers.items() if topic not in unread}

    @asynccontextmanager
    async def subscribe(self, holder: str = "") -> AsyncIterator[Subscription]:
        """Enter a block in which changes are told; ``holder`` names who has so many of the subscriptions.

        Where there are `MOST_SUBSCRIBERS`, the youngest ends of whoever has the most, so that a few cannot keep others
        out. Raises `TooManyStreamsError`, and `StoppingError` when the process stops.
        """
        if self._is_closed:
            raise StoppingError
        self._make_room(holder)
        one = Subscription(holder)
        self._open[one] = None
        try:
            await self._look()  # what is there now is no change
            if self._ticking is None:
                self._ticking = asyncio.create_task(self._keep_looking(), name="lapse-live-changes")
            yield one
        finally:
            self._open.pop(one, None)
            if not self._open:
                await self._stop()

    def _make_room(self, holder: str) -> None:
        held = Counter(one.holder for one in self._open)
        if held[holder] >= MOST_PER_HOLDER:
            raise TooManyStreamsError
        if held.total() < MOST_SUBSCRIBERS:
            return
        ((greatest, count),) = held.most_common(1)
        if count <= held[holder] + 1:
            raise TooManyStreamsError
        youngest = next(one for one in reversed(self._open) if one.holder == greatest)
        del self._open[youngest]
        youngest.close()

    async def _stop(self) -> None:
        if self._writes is not None:
            self._writes.close()
        tasks = [self._ticking, *(one.looking for one in self._watched)]
        self._ticking = None
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _keep_looking(self) -> None:
        while True:
            await self._pause()
            await self._look()
            now = self.clock.monotonic_ns()
            if now - self._reminded_ns >= CHECK_SECONDS * _NS:
                self._reminded_ns = now
                for one in self._open:
                    one.wake()

    async def _pause(self) -> None:
        if self._writes is None:
            await self.clock.sleep(TICK_SECONDS)
            return
        left = None if self._postponed_ns is None else (self._postponed_ns - self.clock.monotonic_ns()) / _NS
        most = UNTOLD_SECONDS if left is None else min(UNTOLD_SECONDS, max(0.0, left))
        await self._writes.pause(self.clock, least=min(TICK_SECONDS, most), most=most)

    async def _look(self) -> None:
        now = self.clock.monotonic_ns()
        gates: dict[Callable[[], Hashable], Hashable] = {}
        self._postponed_ns = None
        for one in self._watched:
            is_early = one.due_ns > now or one.is_looking
            if is_early and (one.source.gate is None or one.failures):
                continue
            try:
                gate = _read_gate(one.source.gate, gates)
            except Exception as error:  # noqa: BLE001 - see `_look_at`
                self._failed(one, error)
                continue
            if gate is not None and gate == one.gate:
                continue
            if is_early:
                again = max(one.due_ns, now + _EARLY_NS)
                self._postponed_ns = again if self._postponed_ns is None else min(again, self._postponed_ns)
                continue
            one.due_ns = now + round(one.source.seconds * _NS)
            if one.source.is_slow:
                one.looking = asyncio.create_task(self._look_at(one, gate), name=f"lapse-live-{one.source.topic}")
            else:
                await self._look_at(one, gate)

    async def _look_at(self, one: _Watched, gate: Hashable) -> None:
        """Read a source; ``gate`` was read before that: what is written in between is seen the next time."""
        try:
            found = await one.source.version()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the others are looked at
            self._failed(one, error)
            return
        one.failures = 0
        one.gate = gate
        before, one.version = one.version, found
        if before is not _UNKNOWN and before != found:
            self.tell(one.source.topic)

    def _failed(self, one: _Watched, error: Exception) -> None:
        pause = backoff(one.failures, first=1.0, longest=_LONGEST_PAUSE)
        one.due_ns = self.clock.monotonic_ns() + round(pause * _NS)
        one.gate = _UNKNOWN
        one.failures += 1
        if one.failures == 1:
            _log.warning("changes_unknown", topic=one.source.topic, error=type(error).__name__, reason=str(error))


def _read_gate(gate: Callable[[], Hashable] | None, known: dict[Callable[[], Hashable], Hashable]) -> Hashable:
    """Read a gate, unless it is among those ``known`` by now; None where there is none."""
    if gate is None:
        return None
    if gate not in known:
        known[gate] = gate()
    return known[gate]
