"""One application's records in a DynamoDB table. Each operation is one request; `get_many` one per 100 keys."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from lapse.keys.backends.dynamodb.items import SORT, live_expiry, place, text
from lapse.keys.backends.dynamodb.scan import Bounds, Merge, Source
from lapse.keys.backends.dynamodb.together import run_together
from lapse.keys.backends.layout import bucket_of
from lapse.keys.errors import BackendUnavailableError, OutcomeUnknownError
from lapse.keys.expiry import NS_PER_MS, NS_PER_SECOND, seconds_left
from lapse.keys.port import Item, NewItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import Clock
    from lapse.keys.backends.dynamodb.calls import Calls
    from lapse.keys.backends.dynamodb.items import Attributes, Request, Requests

_BATCH: Final = 100
"""Keys in one BatchGetItem: the service's limit."""
_WIDTH: Final = 32
"""Requests of one call that are under way at once: BatchWriteItem knows no conditions, so inserts go one by one."""


class DynamoDBSpace:
    """Implements `Space` with coroutines."""

    def __init__(self, calls: Calls, requests: Requests, partitions: Sequence[bytes], clock: Clock) -> None:
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
        source = Source(self._calls, self._requests, self._wall_ns)
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
