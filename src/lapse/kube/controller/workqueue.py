"""The work queue of a controller: which keys are to be looked at, now or later, each by one worker at a time.

A key says where to look, never what happened; so a key that is added ten times before a worker comes is looked at once,
and a key that is added while it is worked on is looked at once more afterwards: no change is missed, none is handled
twice at the same time.

Delayed keys wait in one heap with one timer, whatever their number: O(log n) for each. They count boot time, so a
laptop that was closed does not stretch them; after it wakes, the timer notices within a minute.

Not guaranteed: order among keys beyond first come, first served; survival of the process (whoever fills the queue fills
it again from what exists). Belongs to one event loop; no method may be called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, backoff, chance

if TYPE_CHECKING:
    from lapse.core.clock import Clock

K = TypeVar("K", bound=Hashable)

# `backoff` waits between half and all of these, so retries lie between 0.05 and 60 seconds.
_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 60.0
_LONGEST_NAP: Final = 60.0
"""Sleeping stands still while a machine is suspended, boot time does not: look at least this often."""
_STALE_ALLOWED: Final = 64
_NS: Final = 1_000_000_000


class QueueClosedError(LapseError):
    """The work queue is closed and has no more work."""


class WorkQueue(Generic[K]):
    """See the module. Made anywhere, used within one event loop."""

    def __init__(self, clock: Clock, chance: Chance = chance) -> None:
        """Begin empty."""
        self._clock, self._chance = clock, chance
        self._ready: deque[K] = deque()
        self._wanted: set[K] = set()  # in _ready, or added while worked on
        self._working: set[K] = set()
        self._permits = asyncio.Semaphore(0)  # one for each ready key, and one more for ever once closed
        self._closed = False
        self._attempts: dict[K, int] = {}
        self._deadlines: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []  # may hold deadlines that an earlier one has replaced
        self._serial = count()  # keys need not be comparable
        self._timer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Count the keys that are to be looked at now; neither those at work nor those that are delayed."""
        return len(self._wanted)

    @property
    def delayed(self) -> int:
        """How many keys wait for their time."""
        return len(self._deadlines)

    def add(self, key: K) -> None:
        """Have ``key`` looked at as soon as a worker is free. Ignored after `close`."""
        if self._closed or key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._hand_out(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``; when it waits already, the earlier time counts."""
        if seconds <= 0:
            self.add(key)
            return
        when = self._clock.boottime_ns() + round(seconds * _NS)
        if self._closed or self._deadlines.get(key, when + 1) <= when:
            return
        self._deadlines[key] = when
        entry = (when, next(self._serial), key)
        heappush(self._heap, entry)
        self._drop_stale()
        if self._heap[0] is entry:
            self._set_timer()

    def retry(self, key: K, *, at_least: float = 0.0) -> None:
        """Have ``key`` looked at again after a failure, later each time until `forget`; ``at_least`` is in seconds."""
        attempt = self._attempts.get(key, 0)
        self._attempts[key] = attempt + 1
        wait = backoff(attempt, first=_FIRST_RETRY, longest=_LONGEST_RETRY, chance=self._chance)
        self.add_after(key, max(wait, at_least))

    def forget(self, key: K) -> None:
        """Let the next `retry` of ``key`` be its first one again."""
        self._attempts.pop(key, None)

    async def get(self) -> K:
        """Wait for a key and take it; `done` must follow. Raises `QueueClosedError` when closed and empty.

        May be cancelled at any time; no key is lost by that.
        """
        await self._clock.sleep(0)  # work that never waits must not keep the event loop from everybody else
        await self._permits.acquire()
        if not self._ready:
            self._permits.release()  # the permit of `close` goes from hand to hand
            raise QueueClosedError
        key = self._ready.popleft()
        self._wanted.remove(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Say that the worker who took ``key`` has finished with it, in whatever way."""
        self._working.remove(key)
        if key in self._wanted:
            self._hand_out(key)

    def close(self) -> None:
        """Take nothing more; what is ready is still handed out, what is delayed is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.clear()
        self._heap.clear()
        self._permits.release()

    def _hand_out(self, key: K) -> None:
        self._ready.append(key)
        self._permits.release()

    def _drop_stale(self) -> None:
        """Bound the heap by what really waits: a key that is moved forward leaves its old entry behind."""
        if len(self._heap) > 2 * len(self._deadlines) + _STALE_ALLOWED:
            self._heap = [entry for entry in self._heap if self._deadlines.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().create_task(self._keep_time(), name="lapse-workqueue-timer")

    async def _keep_time(self) -> None:
        while self._heap:
            wait = (self._heap[0][0] - self._clock.boottime_ns()) / _NS
            if wait > 0:
                await self._clock.sleep(min(wait, _LONGEST_NAP))
            self._add_due()

    def _add_due(self) -> None:
        now = self._clock.boottime_ns()
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heappop(self._heap)
            if self._deadlines.get(key) == when:
                del self._deadlines[key]
                self.add(key)
