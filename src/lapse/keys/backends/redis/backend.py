"""The keys backend on Redis or Valkey: an opened store, and one application's records in it.

Each operation is the command or the Lua script (in scripts.lua) that does it. See the package for what it promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from redis import exceptions as driver

from lapse.db.redis.client import RedisClient, ScriptCall, load_scripts, packed
from lapse.db.redis.failures import Errors, impossible
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.base import NetworkBackend
from lapse.keys.backends.layout import Prefix, bucket_of, partition_keys
from lapse.keys.errors import (
    BackendClosedError,
    BackendError,
    BackendMisfitError,
    BackendUnavailableError,
    OutcomeUnknownError,
)
from lapse.keys.port import Capabilities, Item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lapse.db.redis.address import RedisAddress
    from lapse.db.redis.client import Argument, Script
    from lapse.keys.port import NewItem

# What is repeated safely. That `scan` prunes and `check` tries to write nothing makes no difference to that.
SCRIPTS: Final = load_scripts("lapse.keys.backends.redis", "scripts.lua", repeatable={"check", "find", "scan"})

T = TypeVar("T")

# These bound how long one command keeps the server from others (a few milliseconds), and what one round trip carries.
_READ_KEYS: Final = 256
_INSERT_ITEMS: Final = 100
_INSERT_CHARACTERS: Final = 1024 * 1024
_SCAN_RECORDS: Final = 1000
_COMMANDS: Final = 16

_DELETE: Final = SCRIPTS["delete"]
_DELETE_IF: Final = SCRIPTS["delete_if"]
_FIND: Final = SCRIPTS["find"]
_INSERT: Final = SCRIPTS["insert"]
_INSERT_MANY: Final = SCRIPTS["insert_many"]
_PUT: Final = SCRIPTS["put"]
_SCAN: Final = SCRIPTS["scan"]
_SWAP: Final = SCRIPTS["swap"]
_TOUCH: Final = SCRIPTS["touch"]


class Partition(NamedTuple):
    """The names under which one partition is stored. The braces are a hash tag: a cluster keeps them together."""

    names: str
    ends: str
    records: str
    """What a key is appended to."""

    @classmethod
    def of(cls, namespace: str, partition_key: bytes) -> Partition:
        """Name a partition; in hexadecimal, so that no byte of it ends the hash tag or disturbs a terminal."""
        base = f"{namespace}:{{{partition_key.hex()}}}"
        return cls(f"{base}#names", f"{base}#ends", f"{base}:")


@dataclass(slots=True)
class _Walk:
    """How far a scan has come in one partition."""

    partition: Partition
    start: bytes
    """The lower bound of what is left, as ZRANGE BYLEX takes it."""
    reached: bytes = b""
    """The last name that was looked at."""
    is_over: bool = False
    rows: list[tuple[bytes, bytes, int]] = field(default_factory=list)

    def call(self, beyond: bytes, limit: int) -> ScriptCall:
        """Return what fetches the next records."""
        names, ends, records = self.partition
        return ScriptCall(_SCAN, (names, ends), (self.start, beyond, limit, records))


class RedisSpace:
    """See the module. Every answer is a coroutine."""

    __slots__ = ("_client", "_only", "_partitions")

    def __init__(self, client: RedisClient, partitions: Sequence[Partition]) -> None:
        """Made by `RedisBackend`."""
        self._client = client
        self._partitions = partitions
        self._only = partitions[0] if len(partitions) == 1 else None

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> str | None:
        """See `Space`."""
        request = packed("GET", self._partition(key).records + key)
        (value,) = await self._client.ask((request,), writes=False)
        return None if value is None else self._text(value)

    async def find(self, key: str) -> Item | None:
        """See `Space`."""
        found = await self._client.run(self._call(_FIND, key))
        return None if found is None else Item(key, self._text(found[0]), found[1])

    async def ttl(self, key: str) -> float | None:
        """See `Space`."""
        request = packed("PTTL", self._partition(key).records + key)
        (left_ms,) = await self._client.ask((request,), writes=False)
        # The server has rounded up already; during the last millisecond it says 0.
        return None if left_ms < 0 else max(1, left_ms) / 1000

    async def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`."""
        found: dict[str, str] = {}
        chunks = [
            (partition.records, chunk)
            for partition, places in self._grouped(keys)
            for chunk in _pieces(keys if self._only else [keys[place] for place in places], _READ_KEYS)
        ]
        for batch in _pieces(chunks, _COMMANDS):
            requests = [packed("MGET", *[records + key for key in chunk]) for records, chunk in batch]
            answers = await self._client.ask(requests, writes=False)
            for (_, chunk), values in zip(batch, answers, strict=True):
                found |= self._texts(chunk, values)
        return found

    async def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`. One round trip for a page; more when it is larger than a megabyte or the buckets are uneven."""
        beyond = b"+" if stop is None else b"(" + stop.encode()
        # Keys are spread evenly, so a bucket's share of the page and a little more will nearly always do.
        share = limit if self._only else 2 * limit // len(self._partitions) + 4
        piece = min(limit, share, _SCAN_RECORDS)
        walks = [_Walk(partition, b"[" + start.encode()) for partition in self._partitions]
        rows: list[tuple[bytes, bytes, int]] = []
        behind = walks
        while behind:
            for batch in _pieces(behind, _COMMANDS):
                await self._advance(batch, beyond, piece)
            rows = sorted((row for walk in walks for row in walk.rows), key=itemgetter(0))
            edge = rows[limit - 1][0] if len(rows) >= limit else None
            behind = [walk for walk in walks if not walk.is_over and (edge is None or walk.reached < edge)]
        return [Item(self._text(name), self._text(value), expires) for name, value, expires in rows[:limit]]

    # --- writing -----------------------------------------------------------------------------------------------------

    async def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        return bool(await self._client.run(self._call(_INSERT, key, value, ttl_seconds * 1000)))

    async def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """See `Space`."""
        await self._client.run(self._call(_PUT, key, value, ttl_seconds * 1000))

    async def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        return bool(await self._client.run(self._call(_SWAP, key, value, ttl_seconds * 1000, expected)))

    async def delete(self, key: str) -> bool:
        """See `Space`."""
        return bool(await self._client.run(self._call(_DELETE, key)))

    async def delete_if(self, key: str, expected: str) -> bool:
        """See `Space`."""
        return bool(await self._client.run(self._call(_DELETE_IF, key, expected)))

    async def touch(self, key: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        return bool(await self._client.run(self._call(_TOUCH, key, ttl_seconds * 1000)))

    async def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """See `Space`. One script per chunk; a failure after a part was done is an `OutcomeUnknownError`."""
        answers: dict[int, bool] = {}
        groups = self._grouped([item.key for item in items])
        chunks = [chunk for _, places in groups for chunk in _insertable(places, items)]
        for batch in _pieces(chunks, _COMMANDS):
            try:
                await self._insert_chunks(batch, items, answers)
            except BackendError as error:
                if not answers:
                    raise
                problem = f"{len(answers)} of {len(items)} items are written if they were absent; then: {error}"
                raise OutcomeUnknownError(backend=self._client.name, problem=problem) from error
        return [answers[place] for place in range(len(items))]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _partition(self, key: str) -> Partition:
        return self._only or self._partitions[bucket_of(key, len(self._partitions))]

    def _call(self, script: Script, key: str, *arguments: Argument) -> ScriptCall:
        partition = self._partition(key)
        return ScriptCall(script, (partition.names, partition.ends, partition.records + key), arguments)

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._foreign() from error

    def _texts(self, keys: Sequence[str], values: Sequence[bytes | None]) -> dict[str, str]:
        try:
            return {key: data.decode() for key, data in zip(keys, values, strict=True) if data is not None}
        except UnicodeDecodeError as error:
            raise self._foreign() from error

    def _foreign(self) -> BackendMisfitError:
        problem = "another program writes under this namespace; choose another with ?namespace="
        return BackendMisfitError(backend=self._client.name, problem=problem)

    def _grouped(self, keys: Sequence[str]) -> list[tuple[Partition, Sequence[int]]]:
        """Return the places of keys by partition, in order."""
        if self._only:
            return [(self._only, range(len(keys)))]
        groups: dict[Partition, list[int]] = {}
        for place, key in enumerate(keys):
            groups.setdefault(self._partition(key), []).append(place)
        return list(groups.items())

    async def _advance(self, walks: Sequence[_Walk], beyond: bytes, piece: int) -> None:
        calls = [
            ScriptCall(
                _SCAN, (walk.partition.names, walk.partition.ends), (walk.start, beyond, piece, walk.partition.records)
            )
            for walk in walks
        ]
        for walk, (reached, *found) in zip(walks, self._sound(await self._client.run_all(calls)), strict=True):
            fields = iter(found)
            walk.rows += zip(fields, fields, fields, strict=True)
            walk.reached, walk.start, walk.is_over = reached, b"(" + reached, not reached

    async def _insert_chunks(
        self, chunks: Sequence[list[int]], items: Sequence[NewItem], answers: dict[int, bool]
    ) -> None:
        calls = [self._insertion([items[place] for place in chunk]) for chunk in chunks]
        failed: driver.ResponseError | None = None
        for chunk, done in zip(chunks, await self._client.run_all(calls), strict=True):
            if isinstance(done, driver.ResponseError):
                failed = failed or done
            else:
                answers.update(zip(chunk, map(bool, done), strict=True))
        if failed is not None:
            raise self._client.refused(failed, in_script=True) from failed

    def _insertion(self, items: Sequence[NewItem]) -> ScriptCall:
        partition = self._partition(items[0].key)
        records = (partition.records + item.key for item in items)
        arguments = [argument for item in items for argument in (item.value, item.ttl_seconds * 1000)]
        return ScriptCall(_INSERT_MANY, (partition.names, partition.ends, *records), arguments)

    def _sound(self, answers: list[Any]) -> list[Any]:
        for answer in answers:
            if isinstance(answer, driver.ResponseError):
                raise self._client.refused(answer) from answer
        return answers


def _pieces(sequence: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(sequence), size):
        yield sequence[start : start + size]


def _insertable(places: Sequence[int], items: Sequence[NewItem]) -> Iterator[list[int]]:
    """Cut a partition's items into chunks, each small enough for one script."""
    chunk: list[int] = []
    size = 0
    for place in places:
        chunk.append(place)
        size += len(items[place].value)
        if len(chunk) == _INSERT_ITEMS or size >= _INSERT_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


_ERRORS: Final = Errors(
    unavailable=BackendUnavailableError,
    outcome_unknown=OutcomeUnknownError,
    misfit=BackendMisfitError,
    closed=BackendClosedError,
    foreign="data of another program is stored under this namespace; choose another with ?namespace=",
)


class RedisBackend(NetworkBackend):
    """See the package."""

    capabilities = Capabilities(
        atomicity="one command or Lua script per operation",
        clock="the server's",
        precision="never early, 1 ms late at most by the server's clock",
        cleanup="by the server; the scan index is pruned by writes and scans and ends with its last record",
        scan="in byte order, from a sorted set per bucket",
        multi_key="one round trip for some thousand keys",
        shared=True,
        late_by_seconds=0.01,
    )

    def __init__(self, address: RedisAddress, *, namespace: str, buckets: int) -> None:
        """Connect nothing yet."""
        self._client = RedisClient(address, _ERRORS)
        self._namespace = namespace
        self._buckets = buckets

    def async_space(self, prefix: Prefix, app_id: int) -> RedisSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return RedisSpace(self._client, [Partition.of(self._namespace, key) for key in partitions])

    async def async_check(self) -> None:
        """See `Backend`. The first to open a store records its number of buckets."""
        record = f"{self._namespace}:buckets"
        (number,) = await self._client.ask([packed("GET", record)], writes=False)
        unable = await self._client.run(ScriptCall(SCRIPTS["check"], [f"{self._namespace}:check"] * 3, ()))
        if unable:
            command, reason = unable
            raise impossible(command, reason, self._client.name, _ERRORS)
        if number is None:
            # Repeating this is harmless, so it counts as a read.
            requests = [packed("SET", record, self._buckets, "NX"), packed("GET", record)]
            _, number = await self._client.ask(requests, writes=False)
        if int(number) != self._buckets:
            made = f"it was made with buckets={int(number)} and is opened with buckets={self._buckets}"
            hint = f"open it with ?buckets={int(number)}, or use another ?namespace="
            raise BackendMisfitError(backend=self._client.name, problem=f"{made}; {hint}")

    async def async_close(self) -> None:
        """See `Backend`."""
        await self._client.close()

    def eviction_policy(self) -> str | None:
        """Return what the server removes when its memory is full; None when this user may not know. Blocks."""
        try:
            (info,) = run_blocking(self._client.ask([packed("INFO", "memory")], writes=False))
        except BackendUnavailableError:
            return None
        lines = dict(line.partition(":")[::2] for line in info.decode().splitlines())
        return lines.get("maxmemory_policy")
