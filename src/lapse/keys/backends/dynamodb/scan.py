"""Records in byte order: a Query per bucket, page by page, merged.

A Query reads one partition in the order of its sort key, at most 1 MB at a time; expired items count towards its limit
and are left out of its answer. So pages are fetched until there are enough live records, or no more items.

Bounds. A sort key has at most 1024 bytes, and so has a bound in a Query; ours may be longer (the smallest key after a
key of 1024 bytes is that key and a NUL). A bound that is cut off at 1024 bytes lets at most the one key pass that is
equal to what is left of it, so every record is compared with the whole bounds once more.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from lapse.keys.backends.dynamodb.items import SORT, live_record
from lapse.keys.backends.dynamodb.together import run_together
from lapse.keys.validation import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lapse.keys.backends.dynamodb.calls import Calls
    from lapse.keys.backends.dynamodb.items import Attributes, Request, Requests
    from lapse.keys.port import Item

_WIDTH: Final = 32
"""Buckets that are read at once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``start <= key < stop``, in bytes; None for no upper bound."""

    start: bytes
    stop: bytes | None

    def hold(self, key: bytes) -> bool:
        """Whether a key lies within."""
        return self.start <= key and (self.stop is None or key < self.stop)

    @property
    def are_empty(self) -> bool:
        """Whether no key can lie within; the server takes such bounds for a mistake."""
        return self.stop is not None and self.start >= self.stop

    def condition(self, partition: bytes) -> tuple[str, Attributes]:
        """Return the key condition and its values. A sort key takes one comparison, and none with an empty value."""
        values: Attributes = {":pk": {"B": partition}}
        if self.start:
            values[":start"] = {"B": self.start[:MAX_KEY_BYTES]}
        if self.stop is not None:
            values[":stop"] = {"B": self.stop[:MAX_KEY_BYTES]}
        match self.start, self.stop:
            case b"", None:
                return "pk = :pk", values
            case b"", _:
                return "pk = :pk AND sk <= :stop", values
            case _, None:
                return "pk = :pk AND sk >= :start", values
        return "pk = :pk AND sk BETWEEN :start AND :stop", values


class Source(NamedTuple):
    """Where records are read."""

    calls: Calls
    requests: Requests
    wall_ns: Callable[[], int]


class _Reader:
    """Reads one bucket, ahead of the merge."""

    def __init__(self, source: Source, bounds: Bounds, partition: bytes) -> None:
        self._source = source
        self._bounds = bounds
        self._condition, self._values = bounds.condition(partition)
        self._after: Attributes | None = None
        self._stretch = 1
        self.records: deque[Item] = deque()
        self.at_end = False

    async def fetch(self, wanted: int) -> None:
        """Read on until there is a live record, or the end; about ``wanted`` items at a time."""
        while not self.records and not self.at_end:
            answer = await self._source.calls.read("query", lambda now_ns: self._request(wanted, now_ns))
            now_ns = self._source.wall_ns()
            for item in answer["Items"]:
                record = live_record(item, now_ns) if self._bounds.hold(item[SORT]["B"]) else None
                if record is not None:
                    self.records.append(record)
            self._after = answer.get("LastEvaluatedKey")
            self.at_end = self._after is None
            self._stretch *= 2  # through a desert of expired items: many small pages would be many requests
        self._stretch = 1

    def _request(self, wanted: int, now_ns: int) -> Request:
        limit = wanted * self._stretch
        return self._source.requests.query(self._condition, self._values, limit=limit, after=self._after, now_ns=now_ns)


class Merge:
    """The records of several buckets in one order."""

    def __init__(self, source: Source, bounds: Bounds, partitions: Sequence[bytes]) -> None:
        """Read nothing yet."""
        self._readers = [_Reader(source, bounds, partition) for partition in partitions]
        self._heads: list[tuple[str, int]] = []

    async def take(self, limit: int) -> list[Item]:
        """Return the first ``limit`` live records, fewer if there are no more."""
        page: list[Item] = []
        await self._fetch(range(len(self._readers)), limit)
        while self._heads and len(page) < limit:
            _, number = heapq.heappop(self._heads)
            reader = self._readers[number]
            page.append(reader.records.popleft())
            if reader.records:
                self._offer(number)
            elif not reader.at_end and len(page) < limit:
                await self._fetch([number], limit - len(page))
        return page

    def _offer(self, number: int) -> None:
        heapq.heappush(self._heads, (self._readers[number].records[0].key, number))

    async def _fetch(self, numbers: Sequence[int], limit: int) -> None:
        # Keys are spread evenly, so a bucket's share of the page and a little more will nearly always do.
        share = limit if len(self._readers) == 1 else min(limit, 2 * limit // len(self._readers) + 4)
        failures = await run_together([partial(self._readers[number].fetch, share) for number in numbers], _WIDTH)
        if failures:
            raise failures[0]
        for number in numbers:
            if self._readers[number].records:
                self._offer(number)
