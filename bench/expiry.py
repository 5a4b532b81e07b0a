"""Expiry beside a reader: what does it notice while a million keys expire, and does their memory come back.

A thread reads live keys as fast as it can and counts its latencies, first while the other keys are there and none is
due, then from the moment they are due until the last of them is gone. Each contender cleans up in its own way: Lapse
and theine by themselves, the others when somebody calls, which a second thread does.
"""

# ruff: noqa: D102 - contenders have their methods in common; the class says what is special about each

from __future__ import annotations

import random
import threading
import time
from array import array
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from bench.contest import (
    APP_ID,
    Contender,
    contenders,
    resident_bytes,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NAMES: Final = ("lapse", "cachebox", "moka-py", "cachetools", "theine")
_LIVE_KEYS: Final = 10_000
_LIVE_SECONDS: Final = 3_600
_ROOM: Final = 2_100_000
_BIN_NS: Final = 20
_BINS: Final = 100_000  # up to 2 ms; what is slower is kept one by one
_POLL_SECONDS: Final = 0.05
_GIVE_UP_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    keys: int = 1_000_000
    calm_seconds: float = 4.0
    spare_seconds: float = 2.0
    """Between the calm reading and the first expiry, in case the filling takes longer than expected."""
    settle_seconds: float = 2.5
    """For what a contender still tidies up by itself, before its memory is looked at."""
    at_once: bool = False
    """All contenders side by side: quicker, and useless as a measurement."""


QUICK: Final = Plan(keys=20_000, calm_seconds=0.3, spare_seconds=1.5, settle_seconds=0.5, at_once=True)


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a reader saw, in nanoseconds."""

    reads: int
    p50: float
    p99: float
    p999: float
    p9999: float
    worst: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What one contender reached."""

    calm: Latencies
    sweeping: Latencies
    sweep_seconds: float | None
    """From the moment the last key was due until none was stored; None when some were never removed."""
    left: int
    bytes_before: int
    bytes_peak: int
    bytes_after: int


Results = dict[str, Figures]


def run(plan: Plan) -> Results:
    """Ask one contender after the other: two at a time would disturb each other's readers."""
    results: Results = {}
    for names in [NAMES] if plan.at_once else [(name,) for name in NAMES]:
        started = [Contender(name, "bench.expiry:Bench", name) for name in names]
        with step(f"expiry of {plan.keys:,} keys beside a reader, {', '.join(names)}"), contenders(started):
            for contender in started:
                contender.tell("run", plan)
            results |= {contender.name: contender.wait() for contender in started}
    return results


class Bench:
    """One contender in its process."""

    def __init__(self, name: str) -> None:
        """Make nothing yet."""
        self._make: Callable[[int], Any] = _CONTENDERS[name]

    def run(self, plan: Plan) -> Figures:
        """Fill, read in calm, read while all of it expires."""
        live = [f"live:{number:06X}" for number in range(_LIVE_KEYS)]
        random.Random(7).shuffle(live)
        ttl = self._ttl_for(plan, live)
        store = self._make(ttl)
        _put_all(store, live, _LIVE_SECONDS)
        reader = Reader(store.get, live)
        reader.read_during(lambda: time.sleep(0.2))
        before = resident_bytes()
        first_due = time.monotonic() + ttl
        _put_all(store, (f"alpha:{number:06X}" for number in range(plan.keys)), ttl)
        last_due = time.monotonic() + ttl
        peak = resident_bytes("VmHWM")
        calm = reader.read_during(lambda: _watch(store, plan.calm_seconds))
        if hasattr(store, "renew"):
            store.renew(live)
        if (spare := first_due - time.monotonic()) < 0:
            raise AssertionError(f"the first key was due {-spare:.1f} s too early: the machine is too busy for figures")
        time.sleep(spare)
        gone: list[float] = []
        sweeping = reader.read_during(lambda: gone.append(_wait_until_gone(store, last_due)))
        left = store.stored() - _LIVE_KEYS
        time.sleep(plan.settle_seconds)
        return Figures(
            calm,
            sweeping,
            sweep_seconds=gone[0] - last_due if left <= 0 else None,
            left=max(left, 0),
            bytes_before=before,
            bytes_peak=peak,
            bytes_after=resident_bytes(),
        )

    def _ttl_for(self, plan: Plan, keys: Sequence[str]) -> int:
        """Return a TTL that is long enough to fill the store and to read it in calm."""
        trial = self._make(_LIVE_SECONDS)
        start = time.monotonic()
        _put_all(trial, keys, _LIVE_SECONDS)
        filling = (time.monotonic() - start) / len(keys) * plan.keys
        trial.close()
        return ceil(3 * filling + plan.calm_seconds + plan.spare_seconds)


def _put_all(store: Any, keys: Iterable[str], ttl_seconds: int) -> None:  # noqa: ANN401 - any of the classes below
    # Nothing but the store holds on to keys and values: their memory, too, must come back.
    put = store.put
    for number, key in enumerate(keys):
        put(key, f"device:{number:013d}", ttl_seconds)


def _watch(store: Any, seconds: float) -> None:  # noqa: ANN401 - any of the classes below
    """Do for a while what `_wait_until_gone` does, so that both readings are disturbed alike."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        store.stored()
        time.sleep(_POLL_SECONDS)


def _wait_until_gone(store: Any, due: float) -> float:  # noqa: ANN401 - any of the classes below
    """Wait until only the live keys are stored; return when that was. Calls for the cleanup where nothing else does."""
    expire = getattr(store, "expire", None)
    if expire is not None:
        time.sleep(max(0.0, due + 0.1 - time.monotonic()))
    while store.stored() > _LIVE_KEYS and time.monotonic() < due + _GIVE_UP_SECONDS:
        if expire is not None:
            expire()
        else:
            time.sleep(_POLL_SECONDS)
    return time.monotonic()


class Reader:
    """A thread that reads at full speed and counts latencies in bins: a list of them would be memory that grows."""

    def __init__(self, get: Callable[[str], object], keys: Sequence[str]) -> None:
        """Prepare; each `read_during` is a thread of its own."""
        self._get = get
        self._keys = keys
        self._bins = array("Q", bytes(8 * (_BINS + 1)))
        self._slow: list[int] = []
        self._stop = False

    def read_during(self, work: Callable[[], None]) -> Latencies:
        """Read while ``work`` runs in this thread."""
        for number in range(_BINS + 1):
            self._bins[number] = 0
        self._slow, self._stop = [], False
        thread = threading.Thread(target=self._read, name="reader")
        thread.start()
        try:
            work()
        finally:
            self._stop = True
            thread.join()
        return self._latencies()

    def _read(self) -> None:
        get, keys, bins, slow, clock = self._get, self._keys, self._bins, self._slow, time.perf_counter_ns
        while not self._stop:
            for key in keys:
                start = clock()
                get(key)
                taken = clock() - start
                number = taken // _BIN_NS
                if number < _BINS:
                    bins[number] += 1
                else:
                    slow.append(taken)
            if get(keys[0]) is None:
                raise AssertionError("a live key is gone: the figures mean nothing")

    def _latencies(self) -> Latencies:
        reads = sum(self._bins) + len(self._slow)
        slow = sorted(self._slow)

        def quantile(share: float) -> float:
            rank = share * reads
            for number, count in enumerate(self._bins):
                rank -= count
                if rank <= 0 and count:
                    return (number + 0.5) * _BIN_NS
            return slow[min(int(rank), len(slow) - 1)]

        worst = slow[-1] if slow else quantile(1)
        return Latencies(reads, quantile(0.5), quantile(0.99), quantile(0.999), quantile(0.9999), worst)


# --- the contenders --------------------------------------------------------------------------------------------------


class Lapse:
    """Sweeps in the background, by default."""

    def __init__(self, ttl_seconds: int) -> None:
        import lapse

        self._store = lapse.open_keys("memory://")
        self._keys = self._store.app(APP_ID)
        self.get = self._keys.ttl_get
        self.put = self._keys.put

    def stored(self) -> int:
        return sum(count for _, _, count in self._store.backend.counts())

    def close(self) -> None:
        self._store.close()


class Cachetools:
    """Not thread-safe, so readers and cleanup share a lock, as its documentation asks for."""

    def __init__(self, ttl_seconds: int) -> None:
        import cachetools

        self._cache: cachetools.TTLCache[str, str] = cachetools.TTLCache(_ROOM, ttl_seconds)
        self._lock = threading.Lock()

    def get(self, key: str) -> str | None:
        with self._lock:
            return self._cache.get(key)

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        with self._lock:
            self._cache[key] = value

    def renew(self, keys: Iterable[str]) -> None:
        """It knows one TTL only, so what is to stay has to start anew before the others end."""
        _put_all(self, keys, _LIVE_SECONDS)

    def expire(self) -> None:
        with self._lock:
            self._cache.expire()

    def stored(self) -> int:
        with self._lock:
            return len(self._cache)

    def close(self) -> None:
        self._cache.clear()


class Theine:
    """Removes expired keys in a thread of its own."""

    def __init__(self, ttl_seconds: int) -> None:
        import theine

        self._cache: theine.Cache[str, str] = theine.Cache(_ROOM)

    def get(self, key: str) -> str | None:
        return self._cache.get(key)[0]

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        self._cache.set(key, value, timedelta(seconds=ttl_seconds))

    def stored(self) -> int:
        return len(self._cache)

    def close(self) -> None:
        self._cache.close()


class Moka:
    """Removes a share of the expired keys with every operation, and all when asked."""

    def __init__(self, ttl_seconds: int) -> None:
        import moka_py

        self._cache: moka_py.Moka[str, str] = moka_py.Moka(_ROOM)
        self.get = self._cache.get
        self.put = self._cache.set

    def expire(self) -> None:
        self._cache.run_pending_tasks()

    def stored(self) -> int:
        return self._cache.count()

    def close(self) -> None:
        self._cache.clear()


class Cachebox:
    """Removes expired keys when asked."""

    def __init__(self, ttl_seconds: int) -> None:
        import cachebox

        self._cache: cachebox.VTTLCache[str, str] = cachebox.VTTLCache(_ROOM)
        self.get = self._cache.get
        self.put = self._cache.insert

    def expire(self) -> None:
        self._cache.expire()

    def stored(self) -> int:
        return len(self._cache)

    def close(self) -> None:
        self._cache.clear()


_CONTENDERS: Final[dict[str, Callable[[int], Any]]] = {
    "lapse": Lapse,
    "cachetools": Cachetools,
    "theine": Theine,
    "moka-py": Moka,
    "cachebox": Cachebox,
}
