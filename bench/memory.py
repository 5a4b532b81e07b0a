"""How quick and how large is a store in memory? Ours, and what else one could take in Python.

Each contender is called in its own quickest way for the same purpose, straight from a loop: a wrapper around the call
would cost as much as the lookup that it measures. What a contender cannot do it does not show: nobody but Lapse has
compare-and-swap.
"""

# ruff: noqa: D102 - contenders have their methods in common; the class says what is special about each

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from bench.contest import (
    APP_ID,
    TTL_SECONDS,
    Contender,
    best,
    contenders,
    cpu_seconds,
    make_keys,
    make_values,
    resident_bytes,
    step,
)
from bench.loops import (
    BlockingLapse,
    over_keys,
    over_keys_awaited,
    over_pairs,
    over_pairs_awaited,
    over_pairs_with_ttl,
    set_items,
    swap_pairs_awaited,
)

NAMES: Final = ("lapse", "lapse awaited", "dict", "cachebox", "moka-py", "cachetools", "theine")
OPERATIONS: Final = ("get", "insert", "put", "swap")
_READS: Final = 300_000
_SLICE: Final = 10_000  # short enough that some of them run undisturbed on a busy machine
_CHECKED: Final = 1_000
_SHUFFLE_SEED: Final = 7

Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: tuple[tuple[int, int], ...] = ((10_000, 7), (1_000_000, 3))
    """Size, and how many rounds at that size."""
    reads: int = _READS
    repeat_writes_to: int = 100_000
    """A small store is filled again and again, fresh each time, until this many writes are timed."""


QUICK: Final = Plan(rounds=((1_000, 2), (10_000, 2)), reads=10_000, repeat_writes_to=5_000)


@dataclass(slots=True)
class Figures:
    """What one contender reached at one size."""

    rates: dict[str, float] = field(default_factory=dict)
    """Operations per second of CPU time, by operation; one that is missing is one it does not have."""
    bytes_per_key: float = 0.0


Results = dict[int, dict[str, Figures]]


def run(plan: Plan) -> Results:
    """Let all contenders take turns, at each size."""
    results: Results = {}
    for size, times in plan.rounds:
        with contenders([Contender(name, "bench.memory:Bench", name, size, plan) for name in NAMES]) as started:
            results[size] = {name: Figures() for name in NAMES}
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
            for number in range(times):
                with step(f"memory, {size:,} keys, round {number + 1} of {times}, {len(NAMES)} contenders in turn"):
                    for contender in started:
                        rates, bytes_per_key = contender.ask("round")
                        rounds[contender.name].append(rates)
                        if number == 0:  # later rounds find memory that the first one left behind
                            results[size][contender.name].bytes_per_key = bytes_per_key
            for name in NAMES:
                results[size][name].rates = {
                    operation: best([rates[operation] for rates in rounds[name]]) for operation in rounds[name][0]
                }
    return results


class Bench:
    """One contender in its process."""

    def __init__(self, name: str, size: int, plan: Plan) -> None:
        """Prepare keys and values, so that making them is not measured."""
        self._make: Callable[[int], Any] = _CONTENDERS[name]
        self._size = size
        self._keys, self._values = make_keys(size), make_values(size)
        # Random order: in the order of insertion the processor would guess what comes next.
        order = self._keys.copy()
        random.Random(_SHUFFLE_SEED).shuffle(order)
        order = (order * (plan.reads // size + 1))[: plan.reads]
        self._slices = [order[start : start + _SLICE] for start in range(0, len(order), _SLICE)]
        self._repeats = max(1, plan.repeat_writes_to // size)
        warm = self._make(10)  # imports and first-use costs are not the store's memory
        warm.insert([("warm", "up")])
        warm.close()

    def round(self) -> tuple[dict[str, float], float]:
        """Fill fresh stores, then read and write one of them; return rates, and memory per key."""
        before = resident_bytes()
        stores = [self._make(2 * self._size) for _ in range(self._repeats)]  # room for twice as many: nobody evicts
        rates = {"insert": best([self._size / cpu_seconds(store.insert, self._pairs()) for store in stores])}
        bytes_per_key = (resident_bytes() - before) / (self._repeats * self._size)
        store = stores[0]
        for name in ("get", "subscript"):
            if hasattr(store, name):
                read = getattr(store, name)
                rates[name] = best([len(keys) / cpu_seconds(read, keys) for keys in self._slices])
        for name in ("put", "swap"):
            if hasattr(store, name):
                write = getattr(store, name)
                rates[name] = best([self._size / cpu_seconds(write, self._pairs()) for _ in stores])
        self._check(store)
        for each in stores:
            each.close()
        return rates, bytes_per_key

    def _pairs(self) -> Pairs:
        return zip(self._keys, self._values, strict=True)

    def _check(self, store: Any) -> None:  # noqa: ANN401 - any of the classes below
        sample = range(0, self._size, max(1, self._size // _CHECKED))
        missing = sum(store.value(self._keys[place]) != self._values[place] for place in sample)
        if missing:
            raise AssertionError(f"{missing} of {len(sample)} keys are not there: the figures mean nothing")


# --- the contenders --------------------------------------------------------------------------------------------------


class Lapse(BlockingLapse):
    """The blocking face."""

    def __init__(self, room: int) -> None:
        super().__init__("memory://")


class LapseAwaited:
    """The awaitable face on an event loop, one call awaited after the other."""

    def __init__(self, room: int) -> None:
        import lapse

        self._loop = asyncio.new_event_loop()
        self._store = lapse.open_keys_async("memory://")
        self._keys = self._store.app(APP_ID)

    def get(self, keys: list[str]) -> None:
        self._loop.run_until_complete(over_keys_awaited(self._keys.ttl_get, keys))

    def insert(self, pairs: Pairs) -> None:
        self._loop.run_until_complete(over_pairs_awaited(self._keys.insert_if_not_exists, pairs))

    def put(self, pairs: Pairs) -> None:
        self._loop.run_until_complete(over_pairs_awaited(self._keys.put, pairs))

    def swap(self, pairs: Pairs) -> None:
        self._loop.run_until_complete(swap_pairs_awaited(self._keys.compare_and_swap, pairs))

    def value(self, key: str) -> str | None:
        return self._loop.run_until_complete(self._keys.ttl_get(key))

    def close(self) -> None:
        self._loop.run_until_complete(self._store.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class _Cache:
    """What peers have in common: `get` answers a value or None, `clear` empties."""

    _cache: Any

    def get(self, keys: list[str]) -> None:
        over_keys(self._cache.get, keys)

    def value(self, key: str) -> str | None:
        value: str | None = self._cache.get(key)
        return value

    def close(self) -> None:
        self._cache.clear()


class _Mapping(_Cache):
    """A peer that is used like a dict."""

    def insert(self, pairs: Pairs) -> None:
        over_pairs(self._cache.setdefault, pairs)

    def put(self, pairs: Pairs) -> None:
        set_items(self._cache, pairs)


class Dict(_Mapping):
    """No expiry, no validation, no lock beyond the interpreter's: the floor under everything written in Python."""

    def __init__(self, room: int) -> None:
        self._cache = {}


class Cachetools(_Mapping):
    """One TTL for all keys, given at construction; not thread-safe, and measured without the lock that it asks for."""

    def __init__(self, room: int) -> None:
        import cachetools

        self._cache = cachetools.TTLCache(room, TTL_SECONDS)

    def subscript(self, keys: list[str]) -> None:
        cache = self._cache
        for key in keys:
            cache[key]


class Theine(_Cache):
    """A TTL per key. Has no insert-if-absent: a look and a set, which another thread may come between."""

    def __init__(self, room: int) -> None:
        import theine

        self._cache = theine.Cache(room)
        self._ttl = timedelta(seconds=TTL_SECONDS)

    def insert(self, pairs: Pairs) -> None:
        get, put, ttl = self._cache.get, self._cache.set, self._ttl
        for key, value in pairs:
            if not get(key)[1]:
                put(key, value, ttl)

    def put(self, pairs: Pairs) -> None:
        put, ttl = self._cache.set, self._ttl
        for key, value in pairs:
            put(key, value, ttl)

    def value(self, key: str) -> str | None:
        value: str | None = self._cache.get(key)[0]
        return value

    def close(self) -> None:
        self._cache.close()


class Moka(_Cache):
    """A compiled library (Rust). Insert-if-absent is `get_with`, which calls for the value."""

    def __init__(self, room: int) -> None:
        import moka_py

        self._cache = moka_py.Moka(room, ttl=TTL_SECONDS)

    def insert(self, pairs: Pairs) -> None:
        get_with = self._cache.get_with
        for key, value in pairs:
            get_with(key, lambda: value)  # noqa: B023 - called at once

    def put(self, pairs: Pairs) -> None:
        over_pairs(self._cache.set, pairs)


class Cachebox(_Cache):
    """A compiled library (Rust), with a TTL per key."""

    def __init__(self, room: int) -> None:
        import cachebox

        self._cache = cachebox.VTTLCache(room)

    def insert(self, pairs: Pairs) -> None:
        over_pairs_with_ttl(self._cache.setdefault, pairs)

    def put(self, pairs: Pairs) -> None:
        over_pairs_with_ttl(self._cache.insert, pairs)


_CONTENDERS: Final[dict[str, Callable[[int], Any]]] = {
    "lapse": Lapse,
    "lapse awaited": LapseAwaited,
    "dict": Dict,
    "cachetools": Cachetools,
    "theine": Theine,
    "moka-py": Moka,
    "cachebox": Cachebox,
}
