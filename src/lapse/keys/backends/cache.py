"""A cache in front of a network backend: ``?cache=100000&cache_max_age=500ms``. Off by default, as others may write.

Guarantees, within this process: a read that starts after a write was answered sees that write or a later one; an entry
never outlives its record's TTL, nor ``cache_max_age``; what was found absent is remembered no longer than that either.
Not guaranteed: that a write of another process is seen before ``cache_max_age`` is over. Conditional writes are always
decided by the backend, so a stale entry can mislead a reader, never a writer.

How staleness creeps in, and what stops it here:

- A read that was sent before a write and comes back after it would bring the old value in; so would the slower of two
  writes. So reads and writes announce themselves, and a write to the same key strikes out, at its start and at its end,
  whatever else is announced there: what was struck out fills nothing.
- A write whose outcome is unknown, or whose comparison failed, says nothing about the value: the entry goes.
- Two keys that look the same when written one after the other. Places here are pairs of partition and key, never
  concatenated, which does what a length prefix does.
- An entry without its expiry would serve a dead key. Entries carry a deadline on this machine's boottime, counted from
  before the request was sent, so neither a slow answer nor a jump of the wall clock makes them live longer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.duration import SECOND, Duration
from lapse.db.sqlite.forks import guard_against_forks
from lapse.keys.backends.base import NetworkBackend
from lapse.keys.backends.layout import Prefix, partition_keys
from lapse.keys.port import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from lapse.core.clock import Clock
    from lapse.keys.port import Capabilities, Item, NewItem

Place = tuple[bytes, str]


class _Unknown:
    """The cache cannot tell."""


UNKNOWN: Final = _Unknown()


class CacheEntry(NamedTuple):
    """What is known about a key, and how long that may be used."""

    value: str | None
    """None: known to be absent."""
    deadline_ns: int


class Cache:
    """An LRU of what is known about keys. Safe to share between threads and event loops."""

    def __init__(self, *, size: int, max_age: Duration, clock: Clock) -> None:
        self._size = size
        self._max_age_ns = max_age.nanoseconds or 0
        self._now_ns = clock.boottime_ns
        self._lock = threading.Lock()
        self._entries: OrderedDict[Place, CacheEntry] = OrderedDict()
        self._announced: dict[Place, list[object]] = {}  # reads and writes under way that nothing has overtaken
        guard_against_forks(self)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.sqlite.forks`: begins empty. A thread that is gone may have held the lock."""
        self._lock, self._entries, self._announced = threading.Lock(), OrderedDict(), {}
        return []

    def look(self, place: Place) -> str | _Unknown | None:
        """Return what is known now: a value, None for absent, or `UNKNOWN`."""
        with self._lock:
            entry = self._entries.get(place)
            if entry is None:
                return UNKNOWN
            if self._now_ns() >= entry.deadline_ns:
                del self._entries[place]
                return UNKNOWN
            self._entries.move_to_end(place)
            return entry.value

    def announce(self, place: Place) -> object:
        """Take note of a read that is about to be sent."""
        with self._lock:
            return self._announce_locked(place)

    def end_read(self, place: Place, read: object, entry: CacheEntry | None) -> None:
        """End an announced read; remember what it found, unless a write struck it out."""
        with self._lock:
            if self._withdraw_locked(place, read) and entry is not None:
                self._remember_locked(place, entry)

    def begin_write(self, place: Place) -> object:
        """Forget a place, strike out what is under way there, and take note of a write that is about to be sent."""
        with self._lock:
            self._forget_locked(place)
            return self._announce_locked(place)

    def end_write(self, place: Place, write: object, entry: CacheEntry | None) -> None:
        """Forget a place once more; remember what was written there, unless another write struck this one out."""
        with self._lock:
            alone = self._withdraw_locked(place, write)
            self._forget_locked(place)
            if alone and entry is not None:
                self._remember_locked(place, entry)

    def deadline_ns(self, started_ns: int, left_ns: int | None) -> int:
        """Return until when an answer may be used whose request started then; ``left_ns`` is the record's own TTL."""
        return started_ns + (self._max_age_ns if left_ns is None else min(left_ns, self._max_age_ns))

    def __len__(self) -> int:
        return len(self._entries)

    def _announce_locked(self, place: Place) -> object:
        token = object()
        self._announced.setdefault(place, []).append(token)
        return token

    def _withdraw_locked(self, place: Place, token: object) -> bool:
        tokens = self._announced.get(place, [])
        if token not in tokens:
            return False
        tokens.remove(token)
        if not tokens:
            del self._announced[place]
        return True

    def _forget_locked(self, place: Place) -> None:
        self._entries.pop(place, None)
        self._announced.pop(place, None)

    def _remember_locked(self, place: Place, entry: CacheEntry) -> None:
        self._entries[place] = entry
        self._entries.move_to_end(place)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)


class CachedSpace:
    """A space of coroutines behind a cache; known values are answered at once. Implements `lapse.keys.port.Space`."""

    def __init__(self, space: Any, partition: bytes, *, cache: Cache, clock: Clock) -> None:  # noqa: ANN401 - coroutines
        self._space = space
        self._partition = partition
        self._cache = cache
        self._clock = clock

    def get(self, key: str) -> Any:  # noqa: ANN401 - the value, now or pending; see `Space`
        """See `Space`."""
        known = self._cache.look((self._partition, key))
        return self._read(key) if isinstance(known, _Unknown) else known

    async def _read(self, key: str) -> str | None:
        place = (self._partition, key)
        read, started_ns = self._cache.announce(place), self._clock.boottime_ns()
        wall_ns = self._clock.wall_ns()
        entry = None
        try:
            item: Item | None = await self._space.find(key)
            left_ns = None if item is None else max(0, item.expires_ms * NS_PER_MS - wall_ns)
            entry = CacheEntry(item and item.value, self._cache.deadline_ns(started_ns, left_ns))
        finally:
            self._cache.end_read(place, read, entry)
        return entry.value

    async def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`. Asks the backend for the unknown ones only.

        What it answers is passed on and not remembered: it comes without expiries, and a dead key must not be served.
        """
        known = {key: self._cache.look((self._partition, key)) for key in keys}
        unknown = [key for key, value in known.items() if isinstance(value, _Unknown)]
        fresh = await self._space.get_many(unknown) if unknown else {}
        values = {key: fresh.get(key) if isinstance(value, _Unknown) else value for key, value in known.items()}
        return {key: value for key, value in values.items() if value is not None}

    async def find(self, key: str) -> Item | None:
        """See `Space`. Always the backend's answer."""
        item: Item | None = await self._space.find(key)
        return item

    async def ttl(self, key: str) -> float | None:
        """See `Space`. Always the backend's answer."""
        left: float | None = await self._space.ttl(key)
        return left

    async def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`. Always the backend's answer."""
        page: list[Item] = await self._space.scan(start, stop, limit)
        return page

    async def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`. Remembers what it wrote."""
        entry = self._entry(value, ttl_seconds)
        inserted: bool = await self._write([key], self._space.insert(key, value, ttl_seconds), entry)
        return inserted

    async def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """See `Space`. Remembers what it wrote."""
        await self._write([key], self._space.put(key, value, ttl_seconds), self._entry(value, ttl_seconds))

    async def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """See `Space`."""
        answers: list[bool] = await self._write([item.key for item in items], self._space.insert_many(items))
        return answers

    async def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`. Forgets, whatever the outcome."""
        swapped: bool = await self._write([key], self._space.swap(key, expected, value, ttl_seconds))
        return swapped

    async def delete(self, key: str) -> bool:
        """See `Space`. Forgets."""
        deleted: bool = await self._write([key], self._space.delete(key))
        return deleted

    async def delete_if(self, key: str, expected: str) -> bool:
        """See `Space`. Forgets, whatever the outcome."""
        deleted: bool = await self._write([key], self._space.delete_if(key, expected))
        return deleted

    async def touch(self, key: str, ttl_seconds: int) -> bool:
        """See `Space`. Forgets: the entry's deadline is no longer the record's."""
        touched: bool = await self._write([key], self._space.touch(key, ttl_seconds))
        return touched

    async def _write(
        self,
        keys: Iterable[str],
        writing: Coroutine[Any, Any, Any],
        entry: CacheEntry | None = None,
    ) -> Any:  # noqa: ANN401 - what the backend answers
        """Write, and remember ``entry`` if the backend did not refuse."""
        writes = [(place := (self._partition, key), self._cache.begin_write(place)) for key in keys]
        known = None
        try:
            answer = await writing
            known = None if answer is False else entry
        finally:
            for place, write in writes:
                self._cache.end_write(place, write, known)
        return answer

    def _entry(self, value: str, ttl_seconds: int) -> CacheEntry:
        return CacheEntry(value, self._cache.deadline_ns(self._clock.boottime_ns(), ttl_seconds * SECOND))


class CachedBackend(NetworkBackend):
    """A network backend whose applications are read through one cache. Elections are not: they need the truth."""

    def __init__(self, backend: NetworkBackend, *, size: int, max_age: Duration, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._cache = Cache(size=size, max_age=max_age, clock=clock)
        promised: Capabilities = backend.capabilities
        self.capabilities = replace(
            promised,
            precision=f"{promised.precision}; behind the cache {max_age} later",
            late_by_seconds=promised.late_by_seconds + max_age.seconds,
        )

    def async_space(self, prefix: Prefix, app_id: int) -> Any:  # noqa: ANN401 - see `NetworkBackend`
        """See `Backend`."""
        space = self._backend.async_space(prefix, app_id)
        if prefix is not Prefix.APPLICATION_TTL:
            return space
        partition = partition_keys(prefix, app_id)[0]
        return CachedSpace(space, partition, cache=self._cache, clock=self._clock)

    async def async_check(self) -> None:
        """See `Backend`."""
        await self._backend.async_check()

    async def async_close(self) -> None:
        """See `Backend`."""
        await self._backend.async_close()
