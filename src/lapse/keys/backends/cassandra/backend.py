"""The keys backend on Cassandra: an opened store, one application's records, scans over buckets, the clock check.

`CassandraSpace`. Reads judge expiry when the answer is here; swaps and deletes carry the moment of sending in their
condition. Every operation is one transaction on one partition; each statement is explained beside it in statements.cql.
Cassandra orders transactions per partition, not per row, so many writers of one application wait for each other:
buckets spread them.

`merged` scans. Each bucket is read in order and in chunks, and the chunks are merged. A bucket is asked for its share
of the page and a little more, because shares are never quite even; it is asked again only when the merge has used up
what it gave. One bucket is asked for exactly what the page lacks.

`ClockWatch`. The client's clock decides about expiry. So the server is asked for the time when a store is opened and
every half minute from then on, and the store refuses to work while the two clocks are further apart than the user
allows: a clock five minutes ahead would bury live records, one five minutes behind would show dead ones. Between two
measurements a jump is seen at once, because the wall clock and the monotonic clock then move apart. Not guaranteed:
that two machines agree. Each may be off by the bound, so they may differ by twice the bound.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lapse.keys.backends.base import BlockingSpace, NetworkBackend
from lapse.keys.backends.cassandra.driver import (
    BlockingClient,
    CassandraClient,
    CassandraSession,
    ContactPoints,
    Row,
    completed,
)
from lapse.keys.backends.cassandra.schema import check_buckets, statement
from lapse.keys.backends.layout import Prefix, bucket_of, partition_keys
from lapse.keys.errors import BackendError, BackendUnavailableError, OutcomeUnknownError
from lapse.keys.port import NS_PER_MS, NS_PER_SECOND, Capabilities, Item, NewItem, expiry_ms, is_over, seconds_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from lapse.core.clock import Clock

    Read = Callable[[bytes, bytes, int], Awaitable[tuple[Sequence[tuple[bytes, Item]], bytes | None]]]
    """Reads a partition from a key on, at most so many rows: the live ones, and where to go on (None at the end)."""

MAX_CHUNK: Final = 500
"""Rows of one answer: 32 MB when all values have the greatest length."""

T = TypeVar("T")

_READS: Final = ("find", "find_many", "scan", "recorded_buckets", "server_clock")
_WRITES: Final = ("insert", "put", "swap", "delete", "delete_if")

_IN_FLIGHT: Final = 32
"""Requests that one call keeps going at a time, over all its buckets."""
_KEYS_TOGETHER: Final = 100  # 6.5 MB when all values have the greatest length
_INSERTS_TOGETHER: Final = 50
_BYTES_TOGETHER: Final = 262_144
_TOUCHES: Final = 64
_NO_END: Final = b"\xff"  # greater than any UTF-8

MEASURE_EVERY_NS: Final = 30 * NS_PER_SECOND


class CassandraBackend(NetworkBackend):
    """An opened store on Cassandra. One session serves every loop and thread."""

    def __init__(self, address: ContactPoints, *, keyspace: str, clock: Clock, buckets: int, max_skew: float) -> None:
        """Prepare; nothing is connected yet."""
        self.capabilities = Capabilities(
            atomicity="one lightweight transaction per operation",
            clock=f"this machine's wall clock, at most {max_skew:g} s from the server's (refused beyond)",
            precision=f"to the millisecond by the stored expiry; two machines differ by {2 * max_skew:g} s at most",
            cleanup="server TTL and compaction, after the table's grace time",
            scan="in byte order, buckets read in parallel and merged",
            multi_key="reads and inserts together per partition, 100 and 50 at a time",
            shared=True,
            late_by_seconds=2 * max_skew,
        )
        self.name = address.shown
        self.connection = CassandraSession(
            address,
            reads={name: statement(name, keyspace) for name in _READS},
            writes={name: statement(name, keyspace) for name in _WRITES},
        )
        self.client = CassandraClient(self.connection)
        self._blocking_client = BlockingClient(self.connection)
        self.watch = ClockWatch(clock, round(max_skew * NS_PER_SECOND), self._measure_later)
        self._clock = clock
        self._buckets = buckets

    def async_space(self, prefix: Prefix, app_id: int) -> CassandraSpace:
        """See `Backend`."""
        return CassandraSpace(self, self.client, partition_keys(prefix, app_id, self._buckets))

    def space(self, prefix: Prefix, app_id: int) -> BlockingCassandraSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return BlockingCassandraSpace(
            CassandraSpace(self, self.client, partitions), CassandraSpace(self, self._blocking_client, partitions)
        )

    async def async_check(self) -> None:
        """See `Backend`."""
        rows = await self.client.read("recorded_buckets")
        check_buckets(self.name, recorded=rows[0][0] if rows else None, wanted=self._buckets)
        await self.measured_now_ns(self.client)

    async def async_close(self) -> None:
        """See `Backend`. The session is shared, so this closes the store on every loop."""
        await asyncio.to_thread(self.connection.close)

    async def measured_now_ns(self, client: CassandraClient) -> int:
        """Measure this machine's clock against the server's and return its time; raises if they are too far apart."""
        sent_ns = self._clock.wall_ns()
        rows = await client.read("server_clock")
        received_ns = self._clock.wall_ns()
        self.watch.note(sent_ns=sent_ns, received_ns=received_ns, server_ms=rows[0][0])
        if self.watch.refusal is not None:
            raise BackendUnavailableError(backend=self.name, problem=self.watch.refusal)
        return received_ns

    def _measure_later(self) -> None:
        sent_ns = self._clock.wall_ns()

        def note(rows: list[Row]) -> None:
            self.watch.note(sent_ns=sent_ns, received_ns=self._clock.wall_ns(), server_ms=rows[0][0])

        self.client.read_later("server_clock", note)


class CassandraSpace:
    """One application's records. Implements `Space` with coroutines."""

    def __init__(self, backend: CassandraBackend, client: CassandraClient, partitions: Sequence[bytes]) -> None:
        """Work in these partitions, one per bucket."""
        self._backend = backend
        self._client = client
        self._watch = backend.watch
        self._partitions = partitions

    async def get(self, key: str) -> str | None:
        """See `Space`."""
        rows = await self._client.read("find", (self._home(key), key.encode()))
        if not rows:
            return None
        value: str
        value, expires_ms = rows[0]
        return None if is_over(expires_ms * NS_PER_MS, await self._now_ns()) else value

    async def find(self, key: str) -> Item | None:
        """See `Space`."""
        rows = await self._client.read("find", (self._home(key), key.encode()))
        if not rows or is_over(rows[0][1] * NS_PER_MS, await self._now_ns()):
            return None
        return Item(key, *rows[0])

    async def ttl(self, key: str) -> float | None:
        """See `Space`."""
        rows = await self._client.read("find", (self._home(key), key.encode()))
        return seconds_left(rows[0][1] * NS_PER_MS, await self._now_ns()) if rows else None

    async def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`. Another round trip only if a record is in the way that is over and not removed yet."""
        partition, name = self._home(key), key.encode()
        in_the_way: int | None = None
        while True:
            expires_ms = expiry_ms(await self._now_ns(), ttl_seconds)
            values = (ttl_seconds + 1, value, expires_ms, partition, name, in_the_way)
            applied, *shown = (await self._client.write("insert", values))[0]
            if applied:
                return True
            in_the_way = shown[0] if shown else None  # None: it was removed meanwhile
            if in_the_way is not None and not is_over(in_the_way * NS_PER_MS, await self._now_ns()):
                return False

    async def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """See `Space`."""
        expires_ms = expiry_ms(await self._now_ns(), ttl_seconds)
        await self._client.write("put", (ttl_seconds + 1, value, expires_ms, self._home(key), key.encode()))

    async def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        return bool((await self._swap(key, expected, value, ttl_seconds))[0])

    async def delete(self, key: str) -> bool:
        """See `Space`. A record that is over is left to the server."""
        now_ms = await self._now_ns() // NS_PER_MS
        rows = await self._client.write("delete", (self._home(key), key.encode(), now_ms))
        return bool(rows[0][0])

    async def delete_if(self, key: str, expected: str) -> bool:
        """See `Space`."""
        now_ms = await self._now_ns() // NS_PER_MS
        rows = await self._client.write("delete_if", (self._home(key), key.encode(), expected, now_ms))
        return bool(rows[0][0])

    async def touch(self, key: str, ttl_seconds: int) -> bool:
        """See `Space`. Reads the value and swaps it for itself: a server TTL cannot be renewed without the value."""
        value = await self.get(key)
        for _ in range(_TOUCHES):
            if value is None:
                return False
            applied, *shown = await self._swap(key, value, value, ttl_seconds)
            if applied:
                return True
            live = bool(shown) and not is_over(shown[1] * NS_PER_MS, await self._now_ns())
            value = shown[0] if live else None  # somebody changed it meanwhile: what stands there now is to be renewed
        problem = f"the record was changed by other clients {_TOUCHES} times while its TTL was being renewed"
        raise BackendUnavailableError(backend=self._backend.name, problem=problem)

    async def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`. One round trip per 100 keys of a bucket, in parallel."""
        chunks = [
            (partition, names[at : at + _KEYS_TOGETHER])
            for partition, names in self._by_partition(keys).items()
            for at in range(0, len(names), _KEYS_TOGETHER)
        ]
        answers = _all_of(await _in_parallel([self._client.read("find_many", chunk) for chunk in chunks]))
        now_ns = await self._now_ns()
        found = {
            key: value
            for rows in answers
            for key, value, expires_ms in rows
            if not is_over(expires_ms * NS_PER_MS, now_ns)
        }
        encoded = ((key, found.get(key.encode())) for key in keys)
        return {key: value for key, value in encoded if value is not None}

    async def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """See `Space`. One round trip per 50 inserts of a bucket if all of them are new; buckets in parallel."""
        inserted = [False] * len(items)
        jobs = [
            self._insert_chunk(partition, [(index, items[index]) for index in chunk], inserted)
            for partition, indexes in self._first_ones(items).items()
            for chunk in _chunks(indexes, items)
        ]
        errors = [answer for answer in await _in_parallel(jobs) if isinstance(answer, Exception)]
        if errors:
            raise self._partly(errors, done=sum(inserted), asked=len(items)) from errors[0]
        return inserted

    async def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`."""
        end = _NO_END if stop is None else stop.encode()

        async def read(partition: bytes, first: bytes, count: int) -> tuple[list[tuple[bytes, Item]], bytes | None]:
            rows = await self._client.read("scan", (partition, first, end, count))
            now_ns = await self._now_ns()
            live = [
                (key, Item(key.decode(), value, expires_ms))
                for key, value, expires_ms in rows
                if not is_over(expires_ms * NS_PER_MS, now_ns)
            ]
            return live, rows[-1][0] + b"\0" if len(rows) == count else None

        readers = [BucketReader(partition, start.encode(), read) for partition in self._partitions]
        share = share_of(limit, len(readers))
        _all_of(await _in_parallel([reader.head(share) for reader in readers]))
        return await merged(readers, limit)

    def _home(self, key: str) -> bytes:
        partitions = self._partitions
        return partitions[0] if len(partitions) == 1 else partitions[bucket_of(key, len(partitions))]

    def _by_partition(self, keys: Iterable[str]) -> dict[bytes, list[bytes]]:
        names: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for key in keys:
            names[self._home(key)].append(key.encode())
        return names

    async def _now_ns(self) -> int:
        now_ns = self._watch.now_ns()
        return now_ns if now_ns is not None else await self._backend.measured_now_ns(self._client)

    async def _swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> Row:
        now_ns = await self._now_ns()
        values = (
            ttl_seconds + 1,
            value,
            expiry_ms(now_ns, ttl_seconds),
            self._home(key),
            key.encode(),
            expected,
            now_ns // NS_PER_MS,
        )
        return (await self._client.write("swap", values))[0]

    def _first_ones(self, items: Sequence[NewItem]) -> dict[bytes, list[int]]:
        """Return the indexes of items by partition. A key that comes again is left out: its first insert wins."""
        indexes: defaultdict[bytes, list[int]] = defaultdict(list)
        seen: set[str] = set()
        for index, item in enumerate(items):
            if item.key not in seen:
                seen.add(item.key)
                indexes[self._home(item.key)].append(index)
        return indexes

    async def _insert_chunk(self, partition: bytes, chunk: list[tuple[int, NewItem]], inserted: list[bool]) -> None:
        """Insert those items of one partition that nothing live is in the way of, all in one transaction.

        A transaction with a condition that fails does nothing, and shows what is in the way: those are left out (or,
        when they are over, expected) the next time, until all that is left is applied.
        """
        in_the_way: dict[bytes, int] = {}
        todo = {item.key.encode(): (index, item) for index, item in chunk}
        while todo:
            now_ns = await self._now_ns()
            rows = await self._client.write_together(
                "insert",
                [
                    (ttl + 1, value, expiry_ms(now_ns, ttl), partition, name, in_the_way.get(name))
                    for name, (_, (_, value, ttl)) in todo.items()
                ],
            )
            if rows[0][0]:
                for index, _ in todo.values():
                    inserted[index] = True
                return
            in_the_way = {name: expires_ms for _, _, name, expires_ms in rows}
            now_ns = await self._now_ns()
            for name, expires_ms in in_the_way.items():
                if not is_over(expires_ms * NS_PER_MS, now_ns):
                    todo.pop(name, None)

    def _partly(self, errors: list[Exception], *, done: int, asked: int) -> Exception:
        """Return the error of several inserts of which some failed; it must not claim that nothing was changed."""
        unforeseen = [error for error in errors if not isinstance(error, BackendError)]
        if unforeseen:
            return unforeseen[0]
        if not done and all(isinstance(error, BackendUnavailableError) for error in errors):
            return errors[0]
        problem = f"{done} of {asked} inserts were applied, and others failed ({errors[0]})"
        return OutcomeUnknownError(backend=self._backend.name, problem=problem)


class BlockingCassandraSpace(BlockingSpace):
    """The blocking API: single operations on the caller's thread; what works in parallel on the background loop."""

    def __init__(self, parallel: CassandraSpace, single: CassandraSpace) -> None:
        """Take the same partitions twice: as coroutines, and as coroutines that never suspend."""
        super().__init__(parallel)  # type: ignore[arg-type]  # a Space whose answers are coroutines
        self._single = single


def _on_this_thread(name: str) -> Callable[..., Any]:
    def call(self: BlockingCassandraSpace, *args: Any) -> Any:  # noqa: ANN401 - stands for every single operation
        return completed(getattr(self._single, name)(*args))

    call.__name__ = name
    return call


for _name in ("get", "find", "ttl", "insert", "put", "swap", "delete", "delete_if", "touch"):
    setattr(BlockingCassandraSpace, _name, _on_this_thread(_name))


def _chunks(indexes: Sequence[int], items: Sequence[NewItem]) -> Iterable[list[int]]:
    """Cut into pieces that one transaction can carry, by number and by size."""
    chunk: list[int] = []
    size = 0
    for index in indexes:
        item = items[index]
        if chunk and (len(chunk) == _INSERTS_TOGETHER or size + len(item.value) > _BYTES_TOGETHER):
            yield chunk
            chunk, size = [], 0
        chunk.append(index)
        size += len(item.key) + len(item.value)
    if chunk:
        yield chunk


async def _in_parallel(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T | Exception]:
    """Run all to their end, a bounded number at a time, and return answers or errors in order."""
    room = asyncio.Semaphore(_IN_FLIGHT)

    async def run(job: Coroutine[Any, Any, T]) -> T | Exception:
        async with room:
            try:
                return await job
            except Exception as error:  # noqa: BLE001 - handed to the caller, who knows what the others did
                return error

    if len(jobs) == 1:  # by far the most frequent case needs no task
        return [await run(jobs[0])]
    return await asyncio.gather(*(run(job) for job in jobs))


def _all_of(answers: Iterable[T | Exception]) -> list[T]:
    """Return the answers of reads, or raise the first error among them."""
    good: list[T] = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        good.append(answer)
    return good


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


class ClockWatch:
    """Knows the last measurement. Safe to use from any thread: every field is replaced as a whole."""

    def __init__(self, clock: Clock, max_skew_ns: int, measure_later: Callable[[], None]) -> None:
        """Watch ``clock``; ``measure_later`` starts a measurement and returns at once, its end calls `note`."""
        self._wall_ns, self._monotonic_ns = clock.wall_ns, clock.monotonic_ns
        self._max_skew_ns = max_skew_ns
        self._measure_later = measure_later
        self._distance_ns: int | None = None
        """Wall minus monotonic when it was last measured; None before the first time."""
        self._due_ns = 0
        self.refusal: str | None = None
        """What is wrong with this machine's clock, in words; None while it may decide."""

    def now_ns(self) -> int | None:
        """Return the wall clock; None when it must be measured before it may be used."""
        wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
        if self.refusal is not None or self._distance_ns is None:
            return None
        if abs(wall_ns - monotonic_ns - self._distance_ns) > self._max_skew_ns:
            return None
        if monotonic_ns >= self._due_ns:
            self._due_ns = monotonic_ns + MEASURE_EVERY_NS  # before it starts, so that one caller alone starts it
            self._measure_later()
        return wall_ns

    def note(self, *, sent_ns: int, received_ns: int, server_ms: int) -> None:
        """Take in a measurement: the server read its clock (in whole milliseconds) between two reads of ours."""
        monotonic_ns = self._monotonic_ns()
        self.refusal = self._judge(sent_ns - (server_ms + 1) * NS_PER_MS, received_ns - server_ms * NS_PER_MS)
        self._distance_ns = received_ns - monotonic_ns
        self._due_ns = monotonic_ns + MEASURE_EVERY_NS

    def _judge(self, least_ns: int, most_ns: int) -> str | None:
        # How far ahead we are lies between the two; a slow answer is no proof of a wrong clock, so doubt is no refusal.
        if least_ns > self._max_skew_ns:
            ahead_ns, direction = least_ns, "ahead of"
        elif most_ns < -self._max_skew_ns:
            ahead_ns, direction = -most_ns, "behind"
        else:
            return None
        return (
            f"the clock of this machine is {ahead_ns / NS_PER_SECOND:.1f} s {direction} the server's, and "
            f"max_skew allows {self._max_skew_ns / NS_PER_SECOND:g} s; set the clock, or let NTP do it"
        )
