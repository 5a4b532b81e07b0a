"""Scans over buckets: each bucket is read in order and in chunks, and the chunks are merged.

A bucket is asked for its share of the page and a little more, because shares are never quite even; it is asked again
only when the merge has used up what it gave. One bucket is asked for exactly what the page lacks.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lapse.keys.port import Item

    Read = Callable[[bytes, bytes, int], Awaitable[tuple[Sequence[tuple[bytes, Item]], bytes | None]]]
    """Reads a partition from a key on, at most so many rows: the live ones, and where to go on (None at the end)."""

MAX_CHUNK: Final = 500
"""Rows of one answer: 32 MB when all values have the greatest length."""


class BucketReader:
    """One bucket on its way through a scan."""

    def __init__(self, partition: bytes, start: bytes, read: Read) -> None:
        """Begin at ``start``."""
        self._partition = partition
        self._read = read
        self._following: bytes | None = start
        self._rows: deque[tuple[bytes, Item]] = deque()

    async def head(self, share: int) -> bytes | None:
        """Return the smallest key that was not taken yet, reading up to ``share`` rows if need be; None at the end."""
        while not self._rows and self._following is not None:
            rows, self._following = await self._read(self._partition, self._following, min(share, MAX_CHUNK))
            self._rows.extend(rows)
        return self._rows[0][0] if self._rows else None

    def take(self) -> Item:
        """Remove the item of `head`."""
        return self._rows.popleft()[1]


def share_of(limit: int, buckets: int) -> int:
    """Return how many rows to ask one bucket for."""
    if buckets == 1:
        return limit
    mean = limit / buckets
    return math.ceil(mean + 2 * math.sqrt(mean))  # two deviations of a hash's spread: few buckets are asked twice


async def merged(readers: Sequence[BucketReader], limit: int) -> list[Item]:
    """Return the first ``limit`` items in order. Every reader's first head should have been asked for already."""
    share = share_of(limit, len(readers))
    heap: list[tuple[bytes, int]] = []
    for index, reader in enumerate(readers):
        if (key := await reader.head(share)) is not None:
            heap.append((key, index))
    heapq.heapify(heap)
    page: list[Item] = []
    while heap:
        index = heap[0][1]
        page.append(readers[index].take())
        if len(page) == limit:
            break
        key = await readers[index].head(share_of(limit - len(page), len(readers)))
        if key is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (key, index))
    return page
