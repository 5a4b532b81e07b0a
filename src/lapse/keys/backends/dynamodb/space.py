"""One application's records in a DynamoDB table. Each operation is one request; `get_many` one per 100 keys.

A scan (`Merge`) gives records in byte order: a Query per bucket, page by page, merged. A Query reads one partition in
the order of its sort key, at most 1 MB at a time; expired items count towards its limit and are left out of its answer.
So pages are fetched until there are enough live records, or no more items.

Bounds of a scan. A sort key has at most 1024 bytes, and so has a bound in a Query; ours may be longer (the smallest key
after a key of 1024 bytes is that key and a NUL). A bound that is cut off at 1024 bytes lets at most the one key pass
that is equal to what is left of it, so every record is compared with the whole bounds once more.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from lapse.keys.backends.dynamodb.calls import run_together
from lapse.keys.backends.dynamodb.items import SORT, live_expiry, live_record, place, text
from lapse.keys.backends.layout import bucket_of
from lapse.keys.errors import BackendUnavailableError, OutcomeUnknownError
from lapse.keys.port import NS_PER_MS, NS_PER_SECOND, Item, seconds_left
from lapse.keys.validation import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lapse.core.clock import Clock
    from lapse.keys.backends.dynamodb.calls import Calls
    from lapse.keys.backends.dynamodb.items import Attributes, Request, RequestFactory
    from lapse.keys.port import NewItem

_BATCH: Final = 100
"""Keys in one BatchGetItem: the service's limit."""

_WIDTH: Final = 32
"""Buckets that are read at once."""


class DynamoDBSpace:
    """Implements `Space` with coroutines."""

    def __init__(self, calls: Calls, requests: RequestFactory, partitions: Sequence[bytes], clock: Clock) -> None:
        """Work on the given partitions, one per bucket."""
        self._calls, self._requests = calls, requests
        self._partitions = partitions
        self._wall_ns, self._monotonic_ns = clock.wall_ns, clock.monotonic_ns

    def _place(self, key: str) -> Attributes:
        partitions = self._partitions
        bucket = 0 if len(partitions) == 1 else bucket_of(key, len(partitions))
        return place(partitions[bucket], key.encode())

    # --- reading: the expiry is judged when the answer is there, so that no dead record is passed on ------------------

    async def get(self, key: str) -> str | None:
        """See `Space`."""
        request = self._requests.get(self._place(key))
        item = (await self._calls.read("get_item", lambda _: request)).get("Item")
        return None if live_expiry(item, self._wall_ns()) is None else text(item)

    async def find(self, key: str) -> Item | None:
        """See `Space`."""
        request = self._requests.get(self._place(key))
        item = (await self._calls.read("get_item", lambda _: request)).get("Item")
        expires_ms = live_expiry(item, self._wall_ns())
        return None if expires_ms is None else Item(key, text(item), expires_ms)

    async def ttl(self, key: str) -> float | None:
        """See `Space`. The value does not travel."""
        request = self._requests.get(self._place(key), "expires_ms")
        item = (await self._calls.read("get_item", lambda _: request)).get("Item")
        now_ns = self._wall_ns()
        expires_ms = live_expiry(item, now_ns)
        return None if expires_ms is None else seconds_left(expires_ms * NS_PER_MS, now_ns)

    async def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`. One request per 100 keys, several at once."""
        found: dict[str, str] = {}
        places = [self._place(key) for key in keys]
        batches = [places[at : at + _BATCH] for at in range(0, len(places), _BATCH)]
        if batches:
            failures = await run_together([partial(self._get_batch, batch, found) for batch in batches], _WIDTH)
            if failures:
                raise failures[0]
        return found

    async def _get_batch(self, places: list[Attributes], found: dict[str, str]) -> None:
        """Read until the server has left no key out; it does so when it is busy."""
        timeout = self._calls.settings.timeout
        last_progress_ns = self._monotonic_ns()
        for attempt in count():
            answer = await self._calls.read("batch_get_item", partial(self._batch_request, places))
            now_ns = self._wall_ns()
            for item in answer["Responses"].get(self._requests.table, ()):
                if live_expiry(item, now_ns) is not None:
                    found[item[SORT]["B"].decode()] = text(item)
            left = answer.get("UnprocessedKeys", {}).get(self._requests.table, {}).get("Keys", [])
            if not left:
                return
            if len(left) < len(places):
                last_progress_ns = self._monotonic_ns()
            elif self._monotonic_ns() - last_progress_ns > timeout * NS_PER_SECOND:
                problem = f"it left {len(left)} keys of a batch out for longer than the timeout of {timeout:g} s"
                raise BackendUnavailableError(backend=self._calls.settings.name, problem=problem)
            places = left
            await self._calls.pause(attempt)

    def _batch_request(self, places: list[Attributes], now_ns: int) -> Request:
        return self._requests.get_many(places)

    async def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`."""
        bounds = Bounds(start.encode(), None if stop is None else stop.encode())
        if bounds.are_empty:
            return []
        source = RecordSource(self._calls, self._requests, self._wall_ns)
        return await Merge(source, bounds, self._partitions).take(limit)

    # --- writing: the time is read when a request is sent, and with it goes the condition that decides ----------------

    async def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        where, data = self._place(key), value.encode()
        return await self._calls.write("put_item", lambda now: self._requests.insert(where, data, ttl_seconds, now))

    async def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """See `Space`."""
        where, data = self._place(key), value.encode()
        await self._calls.write("put_item", lambda now: self._requests.put(where, data, ttl_seconds, now))

    async def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        where, old, record = self._place(key), expected.encode(), (value.encode(), ttl_seconds)
        return await self._calls.write("put_item", lambda now: self._requests.swap(where, old, record, now))

    async def touch(self, key: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        where = self._place(key)
        return await self._calls.write("update_item", lambda now: self._requests.touch(where, ttl_seconds, now))

    async def delete(self, key: str) -> bool:
        """See `Space`. An expired item is left to the server's own cleanup."""
        where = self._place(key)
        return await self._calls.write("delete_item", lambda now: self._requests.delete(where, now))

    async def delete_if(self, key: str, expected: str) -> bool:
        """See `Space`."""
        where, old = self._place(key), expected.encode()
        return await self._calls.write("delete_item", lambda now: self._requests.delete_if(where, old, now))

    async def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """See `Space`. A request per item, several at once; items with the same key one after the other."""
        answers: list[bool | None] = [None] * len(items)
        numbers: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            numbers.setdefault(item.key, []).append(number)

        async def insert_in_turn(same_key: list[int]) -> None:
            for number in same_key:
                answers[number] = await self.insert(*items[number])

        if items:
            failures = await run_together([partial(insert_in_turn, same_key) for same_key in numbers.values()], _WIDTH)
            if failures:
                unknown = [error for error in failures if isinstance(error, OutcomeUnknownError)]
                if not unknown and True not in answers:
                    raise failures[0]
                error = (unknown or failures)[0]
                problem = f"{answers.count(True)} of {len(items)} items are written for certain; then: {error}"
                raise OutcomeUnknownError(backend=self._calls.settings.name, problem=problem) from error
        return [answer is True for answer in answers]


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


class RecordSource(NamedTuple):
    """Where records are read."""

    calls: Calls
    requests: RequestFactory
    wall_ns: Callable[[], int]


class _Reader:
    """Reads one bucket, ahead of the merge."""

    def __init__(self, source: RecordSource, bounds: Bounds, partition: bytes) -> None:
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

    def __init__(self, source: RecordSource, bounds: Bounds, partitions: Sequence[bytes]) -> None:
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
