"""Keys in this process's memory: ``memory://``.

Each application is a `_Partition`: a dict of records, a timing wheel that knows when to look at which, and, once
somebody scans, the keys in order. One lock per store serves writes; reads take none, because a record is an immutable
tuple that is replaced as a whole, so a reader sees the old record or the new one and never a mixture.

Guarantees: every operation is atomic across threads; expiry is exact to the clock's resolution; cleanup costs what has
expired, in slices, and the memory of a dict that has shrunk is returned. Not guaranteed: anything beyond this process.

Interruption. A signal handler may raise at any instruction of a call: the lock is free then, and the call was applied
or not. Three things see to that. The lock is taken by `with` alone: the interpreter runs no handler between taking a
lock written in C and entering the block. A write puts its record in place last, with one store; what helps to find
the record comes before, and may name a key that has none. A renewal, a sweep and a scan, which move what is there,
leave a mark meanwhile (`_unsure`, `_in_hand`, no `_order`) by which the next one knows that it has to build anew.

After a fork a store is the parent's: in the child every call is refused.

Freed memory. A table of a million entries is one block of the C heap. After it was freed, glibc keeps such blocks for
later unless they lie at the very end of the heap, so a store that has shrunk would look as large as ever from outside.
So ``malloc_trim`` is called; it takes milliseconds and needs no Python, so other threads run meanwhile. Elsewhere than
on glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import heapq
import sys
import threading
from bisect import bisect_left
from itertools import count
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakValueDictionary

from lapse.db.sqlite.forks import FORKED, guard_against_forks
from lapse.keys.backends.base import EmbeddedBackend
from lapse.keys.backends.layout import BUCKETS, SWEEP_INTERVAL, Prefix, bucket_of, interval_seconds
from lapse.keys.backends.ordered import OrderedKeys
from lapse.keys.backends.wheel import TICK_NS_BITS, TimingWheel
from lapse.keys.errors import BackendClosedError, BackendError, BackendUnavailableError, KeysURLError
from lapse.keys.port import (
    NS_PER_MS,
    NS_PER_SECOND,
    Capabilities,
    CleanupReport,
    ExpiringCount,
    Item,
    NewItem,
    Space,
    seconds_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.db.urls import Option, StoreURL

OPTIONS: Final[Mapping[str, Option]] = {"buckets": BUCKETS, "sweep_interval": SWEEP_INTERVAL}

_Record = tuple[int, str]
"""Moment of writing plus TTL in Unix nanoseconds, and the value. Its expiry is that moment rounded up to the
millisecond; the rounding is left to `_is_over`, which needs it only within the last millisecond, because it would
make an insert a sixth slower."""

_Place = tuple[Prefix, int]
"""Whose records a partition holds."""

_NO_TICK: Final = sys.maxsize
_ROOMY_BYTES: Final = 200  # a healthy dict takes less than 50 bytes of table per record, right after it has grown
_SMALL_BYTES: Final = 65_536
_LOOKUP_COST: Final = 8  # to look up a record by a key of a slot, beside reading all in the order of the dict
_WORTH_RETURNING: Final = 100_000
"""So many records removed are some ten megabytes, worth the milliseconds that returning them takes."""


def _expires_ns(record: _Record) -> int:
    return record[0] + -record[0] % NS_PER_MS


def _is_over(record: _Record, now_ns: int) -> bool:
    return now_ns >= record[0] and now_ns >= _expires_ns(record)


def _item(key: str, record: _Record) -> Item:
    return Item(key, record[1], _expires_ns(record) // NS_PER_MS)


class _Partition:
    """The records of one application, or of one bucket of it. Implements `Space`."""

    __slots__ = (
        "__weakref__",
        "_acquire",
        "_lock",
        "_now_ns",
        "_order",
        "_records",
        "_release",
        "_store",
        "_unsure",
        "_wheel",
        "group",
        "next_tick",
        "place",
    )

    def __init__(self, store: MemoryBackend, place: _Place, group: _Buckets | None = None) -> None:
        self._store = store
        self._lock = store.lock
        self._acquire, self._release = store.lock.acquire, store.lock.release
        self._now_ns = store.now_ns
        self._records: dict[str, _Record] = {}
        self._wheel = TimingWheel(self._now_ns() >> TICK_NS_BITS)
        self._order: OrderedKeys | None = None
        self._unsure = False
        """Whether the wheel may lack a key: an interruption came when one was out of it."""
        self.place = place
        self.group = group  # kept alive with this bucket, so that its other buckets are found again
        self.next_tick = _NO_TICK
        """The tick for which the store has this partition in its agenda."""

    def get(self, key: str) -> str | None:
        """See `Space`. Takes no lock."""
        record = self._records.get(key)
        if record is None:
            return None
        now_ns = self._now_ns  # a local first: Python calls what it finds in a slot more slowly
        now = now_ns()
        # _is_over() with its first compare spelled out: a call would be a fifth of the cost of a read
        return None if now >= record[0] and _is_over(record, now) else record[1]

    def find(self, key: str) -> Item | None:
        """See `Space`. Takes no lock."""
        record = self._records.get(key)
        return None if record is None or _is_over(record, self._now_ns()) else _item(key, record)

    def ttl(self, key: str) -> float | None:
        """See `Space`. Takes no lock."""
        record = self._records.get(key)
        return None if record is None else seconds_left(_expires_ns(record), self._now_ns())

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        acquire, release, now_ns = self._acquire, self._release, self._now_ns  # locals, as in get
        # What `with` does, written out, because `with` is dearer by a tenth of an insert. In this form, because an
        # exception of a signal handler may come right after acquire(), or out of it: so it stands in the `try`, and
        # a release() of what was not acquired is refused by the lock, which knows its owner.
        try:
            acquire()
            now = now_ns()
            old = self._records.get(key)
            absent = old is None or _is_over(old, now)
            if absent:
                self._write_locked(key, value, now + ttl_seconds * NS_PER_SECOND, old)
        except BaseException:
            try:  # noqa: SIM105 - suppress() is Python code, in which the next interruption could come
                release()
            except RuntimeError:
                pass
            raise
        release()
        return absent

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """See `Space`."""
        acquire, release, now_ns = self._acquire, self._release, self._now_ns  # as in insert
        try:
            acquire()
            self._write_locked(key, value, now_ns() + ttl_seconds * NS_PER_SECOND, self._records.get(key))
        except BaseException:
            try:  # noqa: SIM105 - suppress() is Python code, in which the next interruption could come
                release()
            except RuntimeError:
                pass
            raise
        release()

    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        acquire, release, now_ns = self._acquire, self._release, self._now_ns  # as in insert
        try:
            acquire()
            now = now_ns()
            old = self._records.get(key)
            equal = old is not None and not _is_over(old, now) and old[1] == expected
            if equal:
                self._write_locked(key, value, now + ttl_seconds * NS_PER_SECOND, old)
        except BaseException:
            try:  # noqa: SIM105 - suppress() is Python code, in which the next interruption could come
                release()
            except RuntimeError:
                pass
            raise
        release()
        return equal

    def touch(self, key: str, ttl_seconds: int) -> bool:
        """See `Space`."""
        with self._lock:
            now = self._now_ns()
            old = self._records.get(key)
            if old is None or _is_over(old, now):
                return False
            self._write_locked(key, old[1], now + ttl_seconds * NS_PER_SECOND, old)
            return True

    def delete(self, key: str) -> bool:
        """See `Space`."""
        with self._lock:
            old = self._records.get(key)
            if old is None:
                return False
            self._remove_locked(key, old)
            return not _is_over(old, self._now_ns())

    def delete_if(self, key: str, expected: str) -> bool:
        """See `Space`."""
        with self._lock:
            old = self._records.get(key)
            if old is None or _is_over(old, self._now_ns()) or old[1] != expected:
                return False
            self._remove_locked(key, old)
            return True

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """See `Space`."""
        found = ((key, self.get(key)) for key in keys)
        return {key: value for key, value in found if value is not None}

    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """See `Space`."""
        return [self.insert(*item) for item in items]

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """See `Space`. The first scan of a partition puts its keys in order, while writers wait; readers do not."""
        page: list[Item] = []
        with self._lock:
            now, records = self._now_ns(), self._records
            order, self._order = self._order, None  # not kept if this is interrupted: a chunk may be half tidied
            if order is None:
                order = OrderedKeys(records)
            for key in order.from_key(start, records):
                if stop is not None and key >= stop:
                    break
                record = records.get(key)
                if record is not None and not _is_over(record, now):
                    page.append(_item(key, record))
                    if len(page) == limit:
                        break
            self._order = order
        return page

    def _write_locked(self, key: str, value: str, until_ns: int, old: _Record | None) -> None:
        # The record last, as the module says.
        tick = until_ns >> TICK_NS_BITS
        if old is not None:
            old_tick = old[0] >> TICK_NS_BITS
            if old_tick == tick:
                self._records[key] = (until_ns, value)
                return
            self._unsure = True
            self._wheel.discard(key, old_tick)
        elif self._order is not None:
            self._note_in_order_locked(key)
        wheel = self._wheel
        if tick == wheel.recent_tick:
            wheel.recent.add(key)
        else:
            wheel.add(key, tick)
            if tick < self.next_tick:
                self._store.note_locked(self, tick)
        self._records[key] = (until_ns, value)
        if old is not None:
            self._unsure = False

    def _note_in_order_locked(self, key: str) -> None:
        """Add a key to the order; drop the order when removed keys outnumber the live ones: the next scan makes one."""
        order = self._order
        if order is not None:
            order.add(key)
            if order.entries > 2 * len(self._records) + _SMALL_BYTES:
                self._order = None

    def _remove_locked(self, key: str, record: _Record) -> None:
        del self._records[key]
        self._wheel.discard(key, record[0] >> TICK_NS_BITS)
        if not len(self._records) & 1023:
            self.return_memory_locked()

    def sweep_locked(self, now_ns: int, limit: int) -> tuple[int, bool, int]:
        """Remove expired records; return how many, whether there is more to do now, and the earliest expiry removed."""
        records = self._records
        now_tick = now_ns >> TICK_NS_BITS
        removed, earliest = 0, now_ns
        if self._unsure:
            self._wheel = TimingWheel(now_tick)
            for key, (until_ns, _) in records.items():
                self._wheel.add(key, until_ns >> TICK_NS_BITS)
        self._unsure = True
        for key in self._wheel.take(now_tick, limit, self._tick_of):
            record = records.get(key)
            if record is None:
                continue
            if not _is_over(record, now_ns):  # doubt means keep: look again when its own time has come
                self._wheel.add(key, record[0] >> TICK_NS_BITS)
                continue
            del records[key]
            removed += 1
            earliest = min(earliest, _expires_ns(record))
        tick = self._wheel.next_tick()
        more = tick is not None and tick < now_tick
        if not more:
            self.return_memory_locked()
        self.next_tick = _NO_TICK
        if tick is not None:
            self._store.note_locked(self, tick)
        self._unsure = False
        return removed, more, earliest

    def _tick_of(self, key: str) -> int | None:
        record = self._records.get(key)
        return None if record is None else record[0] >> TICK_NS_BITS

    def expiring(self, until_ns: int, edges_ns: Sequence[int]) -> tuple[list[int], int]:
        """Return the numbers of live records that are over at ``until_ns``, by part, and the earliest expiry of them.

        Holds the lock while it notes which records to look at, or their keys, and looks at them without it.
        """
        with self._lock:
            now_ns, slots = self._now_ns(), self._wheel.until(until_ns >> TICK_NS_BITS)
            looked_at: Iterable[_Record | None]
            if self._unsure or sum(map(len, slots)) * _LOOKUP_COST > len(self._records):
                looked_at = list(self._records.values())
            else:  # each key once: an interrupted write may have left one in two slots
                looked_at = map(self._records.get, set[str]().union(*slots))
        # _is_over() for both moments without a call for each record: an expiry is the next whole millisecond, so it has
        # come if the moment in the record is not after the last whole one.
        over, due = now_ns - now_ns % NS_PER_MS, until_ns - until_ns % NS_PER_MS
        found = [record for record in looked_at if record is not None and over < record[0] <= due]
        numbers = [0] * (len(edges_ns) + 1)
        if edges_ns:
            edges = [one - one % NS_PER_MS for one in edges_ns]
            for record in found:
                numbers[bisect_left(edges, record[0])] += 1
        else:
            numbers[0] = len(found)
        return numbers, _expires_ns(min(found)) if found else until_ns

    def return_memory_locked(self) -> None:
        """Rebuild what has shrunk: a dict keeps the table of its largest size until it is copied."""
        count, size = len(self._records), sys.getsizeof(self._records)
        if size > _SMALL_BYTES and size > _ROOMY_BYTES * count:
            self._records = self._records.copy()
        if self._order is not None and self._order.entries > 2 * count + _SMALL_BYTES:
            self._order = None

    def __len__(self) -> int:
        return len(self._records)

    def end_locked(self, records: _EndedRecords) -> None:
        """Let go of everything; later calls fail as ``records`` say."""
        self._lock = self._store.lock
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._records = records
        self._order = None
        self._wheel = TimingWheel(0)


class _EndedRecords(dict[str, _Record]):
    """Stands in for the records of a store that is closed or forked, so that others pay nothing for the check."""

    def __init__(self, error: Callable[[], BackendError]) -> None:
        super().__init__()
        self._error = error

    def get(self, key: object, default: object = None) -> NoReturn:
        raise self._error()

    def __iter__(self) -> NoReturn:
        raise self._error()


def _forked() -> BackendError:
    return BackendUnavailableError(backend="memory://", problem=FORKED)


class _Buckets:
    """Several partitions that look like one. Implements `Space`."""

    def __init__(self, store: MemoryBackend, place: _Place, number: int) -> None:
        self._partitions = [_Partition(store, place, self) for _ in range(number)]

    def _home(self, key: str) -> _Partition:
        return self._partitions[bucket_of(key, len(self._partitions))]

    def get(self, key: str) -> str | None:
        return self._home(key).get(key)

    def find(self, key: str) -> Item | None:
        return self._home(key).find(key)

    def ttl(self, key: str) -> float | None:
        return self._home(key).ttl(key)

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        return self._home(key).insert(key, value, ttl_seconds)

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        self._home(key).put(key, value, ttl_seconds)

    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        return self._home(key).swap(key, expected, value, ttl_seconds)

    def touch(self, key: str, ttl_seconds: int) -> bool:
        return self._home(key).touch(key, ttl_seconds)

    def delete(self, key: str) -> bool:
        return self._home(key).delete(key)

    def delete_if(self, key: str, expected: str) -> bool:
        return self._home(key).delete_if(key, expected)

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        found = ((key, self.get(key)) for key in keys)
        return {key: value for key, value in found if value is not None}

    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        return [self.insert(*item) for item in items]

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        pages = (partition.scan(start, stop, limit) for partition in self._partitions)
        return heapq.nsmallest(limit, (item for page in pages for item in page), key=attrgetter("key"))

    def end_locked(self, records: _EndedRecords) -> None:
        for partition in self._partitions:
            partition.end_locked(records)

    def __len__(self) -> int:
        return sum(map(len, self._partitions))


class MemoryBackend(EmbeddedBackend):
    """All applications of one ``memory://`` store. Implements `Backend`."""

    capabilities: Final = Capabilities(
        atomicity="one lock per store; safe across threads",
        clock="this process's wall clock",
        precision="exact: gone at the instant of expiry",
        cleanup="background sweep, costs what has expired; memory returns",
        scan="in byte order; the first one sorts, later pages do not",
        multi_key="in one call, each key by itself",
        shared=False,
    )

    def __init__(self, *, clock: Clock, buckets: int = 1, sweep_interval: float | None = None) -> None:
        self.lock = threading.RLock()  # one that knows its owner: see _Partition.insert
        self.now_ns = clock.wall_ns
        self.sweep_interval = sweep_interval
        self._buckets = buckets
        # Weak: an application that has no records and that nobody uses takes no memory. One that has records is kept
        # alive by the agenda, a heap that tells which partition has something to do from which tick on.
        self._spaces: WeakValueDictionary[_Place, _Partition | _Buckets] = WeakValueDictionary()
        self._agenda: list[tuple[int, int, _Partition]] = []
        self._order_of_notes = count()
        self._in_hand: _Partition | None = None
        self._removed = 0  # by sweeps, since memory was last returned to the system
        self._closed = self._forked = False
        guard_against_forks(self)

    def space(self, prefix: Prefix, app_id: int) -> Space:
        """See `Backend`."""
        with self.lock:
            self._check_usable()
            place = prefix, app_id
            space = self._spaces.get(place)
            if space is None:
                space = _Partition(self, place) if self._buckets == 1 else _Buckets(self, place, self._buckets)
                self._spaces[place] = space
            return space

    async_space = space  # nothing here ever waits, so the answers are plain in both colours

    def note_locked(self, partition: _Partition, tick: int) -> None:
        """Put a partition on the agenda. An earlier note for it stays and is skipped when its turn comes."""
        heapq.heappush(self._agenda, (tick, next(self._order_of_notes), partition))
        partition.next_tick = tick

    def sweep(self, limit: int) -> CleanupReport:
        """See `Backend`. Holds the lock for one slice."""
        report = self._sweep_slice(limit)
        self._removed += report.removed
        if not report.more and self._removed >= _WORTH_RETURNING:
            self._removed = 0
            return_free_memory()
        return report

    def _sweep_slice(self, limit: int) -> CleanupReport:
        with self.lock:
            self._check_usable()
            now_ns = self.now_ns()
            now_tick = now_ns >> TICK_NS_BITS
            if self._in_hand is not None:  # an interrupted sweep took it from the agenda
                self.note_locked(self._in_hand, 0)
            while self._agenda and self._agenda[0][0] < now_tick:
                self._in_hand = self._agenda[0][2]
                tick, _, partition = heapq.heappop(self._agenda)
                if tick != partition.next_tick:
                    self._in_hand = None
                    continue  # a later note replaced this one
                removed, more, earliest = partition.sweep_locked(now_ns, limit)
                self._in_hand = None
                if removed or more:
                    more = more or bool(self._agenda and self._agenda[0][0] < now_tick)
                    lag = (now_ns - earliest) / NS_PER_SECOND if removed else None
                    prefix, app_id = partition.place
                    is_key = removed and prefix is Prefix.APPLICATION_TTL
                    return CleanupReport(removed, more, lag, {app_id: removed} if is_key else {})
        return CleanupReport(0, more=False)

    def counts(self) -> Iterable[tuple[Prefix, int, int]]:
        """See `Backend`."""
        with self.lock:
            self._check_usable()
            sizes = [(prefix, app_id, len(space)) for (prefix, app_id), space in self._spaces.items()]
        return sorted(size for size in sizes if size[2])

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount]:
        """See `Backend`. Looks at what is due by then and, at most, at the rest of one slot of each timing wheel."""
        with self.lock:
            self._check_usable()
            agenda = [*self._agenda] if self._in_hand is None else [*self._agenda, (0, 0, self._in_hand)]
        until_tick = until_ns >> TICK_NS_BITS
        found: dict[_Place, tuple[list[int], int]] = {}
        for partition in {one for tick, _, one in agenda if tick <= until_tick}:
            numbers, first_ns = partition.expiring(until_ns, edges_ns)
            before, earliest_ns = found.get(partition.place, ([0] * len(numbers), until_ns))
            found[partition.place] = [*map(add, before, numbers)], min(earliest_ns, first_ns)
        return [
            ExpiringCount(*place, sum(numbers), first_ns, tuple(numbers) if edges_ns else ())
            for place, (numbers, first_ns) in sorted(found.items())
            if any(numbers)
        ]

    def check(self) -> None:
        """See `Backend`."""
        self._check_usable()

    def close(self) -> None:
        """See `Backend`."""
        with self.lock:
            self._closed = True
            self._empty_locked(_EndedRecords(BackendClosedError))

    def become_forked(self) -> list[Any]:
        """See `lapse.db.sqlite.forks`. Another lock: a thread that the child does not have may hold this one."""
        self._forked = True
        self.lock = threading.RLock()
        self._empty_locked(_EndedRecords(_forked))
        return []

    def _empty_locked(self, records: _EndedRecords) -> None:
        for space in self._spaces.values():
            space.end_locked(records)
        self._agenda, self._in_hand = [], None

    def _check_usable(self) -> None:
        if self._forked:
            raise _forked()
        if self._closed:
            raise BackendClosedError


def open_backend(url: StoreURL, clock: Clock) -> MemoryBackend:
    """Open a new, empty store; every call makes another one."""
    if url.location or url.path:
        raise KeysURLError(url=url, problem="a memory store has no name; write memory://")
    options: Mapping[str, Any] = url.options
    return MemoryBackend(
        clock=clock, buckets=options["buckets"], sweep_interval=interval_seconds(options["sweep_interval"])
    )


def init_store(url: StoreURL, clock: Clock) -> str:
    """Say that there is nothing to make."""
    open_backend(url, clock).close()
    return "nothing to make: a memory store is made when it is opened, and ends with its process"


def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_malloc_trim = _find_malloc_trim()


def return_free_memory() -> None:
    """Ask the C library to return what it does not use."""
    if _malloc_trim is not None:
        _malloc_trim(0)
