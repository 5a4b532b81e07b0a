"""Deadlines: which of many things is due next, when each has one moment that may move or vanish.

A heap with lazy deletion. A change costs O(log n), the next deadline O(1), and finding what is due costs what is due,
however much is known. Not safe to share between threads: it belongs to one event loop.
"""

from __future__ import annotations

import heapq
from contextlib import closing
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Hashable

    from lapse.core.clock import UnixNs

    K = TypeVar("K", bound=Hashable)
    C = TypeVar("C")
else:
    K = TypeVar("K")

_ALWAYS_ALLOWED: Final = 64
"""Outdated entries that are never worth a rebuild."""


class Deadlines(Generic[K]):
    """One deadline per key."""

    def __init__(self, on_earlier: Callable[[], None] = lambda: None) -> None:
        """Call ``on_earlier``, which may be replaced later, when a deadline is set that comes before all others."""
        self.on_earlier = on_earlier
        self._heap: list[tuple[UnixNs, int, K]] = []
        # The serial tells the entry that counts from those that a change has outdated, and keeps keys from being
        # compared, which need no order of their own.
        self._current: dict[K, int] = {}
        # What is due and stays for now, in the order in which that was found out.
        self._put_off: dict[K, None] = {}
        # What an iterator of `due` has given out, and the moment of a `hurry` since then.
        self._taken: dict[K, UnixNs | None] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: K) -> bool:
        return key in self._current

    def set(self, key: K, when: UnixNs) -> None:
        """Give a key its deadline, instead of any that it had."""
        earliest = self.next()
        self._put_off.pop(key, None)
        self._serial += 1
        self._current[key] = self._serial
        heapq.heappush(self._heap, (when, self._serial, key))
        self._drop_outdated()
        if earliest is None or when < earliest:
            self.on_earlier()

    def discard(self, key: K) -> None:
        """Forget a key, known or not."""
        self._put_off.pop(key, None)
        if self._current.pop(key, None) is not None:
            self._drop_outdated()

    def next(self) -> UnixNs | None:
        """Return the earliest deadline; None when there is none."""
        while self._heap and self._is_outdated(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: UnixNs) -> Generator[K, None, None]:
        """Yield the keys whose deadline is not after ``now``, earliest first.

        Keys may be set and discarded meanwhile; that is how a caller says that it is done with one. A key that was
        neither is due again, at the same moment, once the iterator is closed.
        """
        taken = []
        try:
            while (when := self.next()) is not None and when <= now:
                entry = heapq.heappop(self._heap)
                taken.append(entry)
                self._taken[entry[2]] = None
                yield entry[2]
        finally:
            for entry in taken:
                self._taken.pop(entry[2], None)
                if not self._is_outdated(entry):
                    heapq.heappush(self._heap, entry)

    def until(self, moment: UnixNs) -> Generator[K, None, None]:
        """Yield the keys whose deadline is not after a moment, earliest first; nothing changes by it.

        Those that were put off are among them, first: they are due, whenever they are looked at again. So are those
        that an iterator of `due` has given out just now. They are those of the moment at which the first one is asked
        for, whatever changes meanwhile. Beside a copy of the index it costs what is yielded, as it is yielded: of a
        heap, only what is not after the moment is looked at.
        """
        heap, current = self._heap.copy(), self._current.copy()
        first = dict.fromkeys((*self._put_off, *(key for key in self._taken if key in current)))
        yield from first
        ahead = [(*heap[0][:2], 0)] if heap else []
        while ahead and ahead[0][0] <= moment:
            _, serial, place = ahead[0]
            below = [(*heap[one][:2], one) for one in (2 * place + 1, 2 * place + 2) if one < len(heap)]
            if below:
                heapq.heapreplace(ahead, below[0])
            else:
                heapq.heappop(ahead)
            for one in below[1:]:
                heapq.heappush(ahead, one)
            key = heap[place][2]
            if current.get(key) == serial and key not in first:
                yield key

    async def pages(self, now: UnixNs, *, size: int, find: Callable[[K], C | None]) -> AsyncGenerator[list[C], None]:
        """Yield what `find` returns for the keys that are due, in pages, as `due` does; None is left out."""
        page: list[C] = []
        with closing(self.due(now)) as keys:
            for key in keys:
                found = find(key)
                if found is not None:
                    page.append(found)
                if len(page) == size:
                    yield page
                    page = []
            if page:
                yield page

    def look_again(self, key: K, when: UnixNs | None) -> None:
        """Move the deadline of a key that is still known; None: forget it."""
        if when is None:
            self.discard(key)
        elif key in self._current:
            self.set(key, when)

    def put_off(self, key: K, when: UnixNs | None) -> None:
        """Look again at a key that is due and stays for now; None: not before it is set again. `until` still has it."""
        if key in self._current:
            self.look_again(key, self._taken.get(key) or when)
            self._put_off[key] = None

    def hurry(self, key: K, when: UnixNs) -> None:
        """Look at a key that was put off by ``when``; also if it is being looked at just now, and put off after that.

        For whoever knows that what kept it may be over. A key that was not put off keeps its deadline.
        """
        if key in self._taken:
            self._taken[key] = when
        if key in self._put_off:
            self.set(key, when)

    def _is_outdated(self, entry: tuple[UnixNs, int, K]) -> bool:
        return self._current.get(entry[2]) != entry[1]

    def _drop_outdated(self) -> None:
        # Deadlines that keep moving would otherwise fill the heap with what they were. Paid for by the changes since.
        if len(self._heap) > 2 * len(self._current) + _ALWAYS_ALLOWED:
            self._heap = [entry for entry in self._heap if not self._is_outdated(entry)]
            heapq.heapify(self._heap)
