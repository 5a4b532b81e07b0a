"""How quick is a store in a file? Ours, the same SQL statements on bare apsw, and diskcache.

Bare apsw opens its file with our own pragmas and runs our own statements, each a transaction of its own: what is
between it and Lapse is validation, and safety for many threads. diskcache runs as it comes: SQLite, WAL,
``synchronous=NORMAL``, so its peer is ``sync=normal``.
"""

# ruff: noqa: D102 - contenders have their methods in common; the class says what is special about each

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.contest import (
    APP_ID,
    TTL_SECONDS,
    Contender,
    best,
    contenders,
    cpu_seconds,
    make_keys,
    make_values,
    median,
    step,
    wall_seconds,
)
from bench.loops import BlockingLapse, over_keys

T = TypeVar("T")
NAMES: Final = ("lapse normal", "lapse full", "apsw normal", "apsw full", "diskcache")
OPERATIONS: Final = ("get", "insert", "swap")
_READ_SLICE: Final = 1_000
_WRITE_SLICE: Final = 250
_FILL_TTL_SECONDS: Final = 86_400  # what is read must outlive a run on a slow machine


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    sizes: tuple[int, ...] = (10_000, 1_000_000)
    rounds: int = 5
    reads: int = 30_000
    writes: int = 3_000
    """New keys per round: the smaller store is two and a half times as large at the end, for everybody alike."""


QUICK: Final = Plan(sizes=(1_000, 5_000), rounds=2, reads=2_000, writes=300)

Rates = dict[str, float]
Results = dict[int, dict[str, Rates]]


def run(plan: Plan, folder: Path) -> Results:
    """Let all contenders take turns, at each size; their files lie in ``folder``."""
    results: Results = {}
    for size in plan.sizes:
        home = folder / f"file-{size}"
        home.mkdir()
        with step(f"file, building {size:,} rows, each contender's own way"):
            build(home, size)
        pooled: dict[str, dict[str, list[float]]] = {name: {} for name in NAMES}
        started = [Contender(name, "bench.file:Bench", name, str(home), size, plan) for name in NAMES]
        with contenders(started):
            for number in range(plan.rounds):
                with step(f"file, {size:,} rows, round {number + 1} of {plan.rounds}, {len(NAMES)} contenders in turn"):
                    for contender in started:
                        for operation, rates in contender.ask("round", number).items():
                            pooled[contender.name].setdefault(operation, []).extend(rates)
        results[size] = {
            name: {operation: (best if operation == "get" else median)(rates) for operation, rates in found.items()}
            for name, found in pooled.items()
        }
        shutil.rmtree(home)
    return results


def build(home: Path, size: int) -> None:
    """Make one file per contender; those of Lapse and apsw have the same content, so one is built and copied."""
    builders = [
        Contender(name, "bench.file:Bench", name, str(home), size, Plan()) for name in ("lapse normal", "diskcache")
    ]
    with contenders(builders):
        for builder in builders:
            builder.tell("fill")
        for builder in builders:
            builder.wait()
    for name in NAMES[1:4]:
        shutil.copyfile(home / f"{NAMES[0]}.db", home / f"{name}.db")
    os.sync()  # else writing all of it to the disk would fall into the rounds


class Bench:
    """One contender in its process."""

    def __init__(self, name: str, home: str, size: int, plan: Plan) -> None:
        """Open the contender's file."""
        self._plan = plan
        self._size = size
        self._keys = make_keys(size)
        kind, _, sync = name.partition(" ")
        self._store: Any = _CONTENDERS[kind](Path(home) / f"{name}.db", sync)

    def fill(self) -> None:
        """Write all keys, in the quickest way the contender has."""
        self._store.fill(zip(self._keys, make_values(self._size), strict=True))
        self._store.close()

    def round(self, number: int) -> dict[str, list[float]]:
        """Read, insert and swap, in slices; return the rates of the slices.

        Reading is work for the processor only, so it is CPU time; writing waits for the disk, so it is wall time.
        """
        plan, store = self._plan, self._store
        sample = random.Random(number).choices(self._keys, k=plan.reads)
        pairs = list(zip(make_keys(plan.writes, f"round{number}"), make_values(plan.writes), strict=True))
        rates = {"get": [len(part) / cpu_seconds(store.get, part) for part in _slices(sample, _READ_SLICE)]}
        for name in ("insert", "swap"):
            if hasattr(store, name):
                write = getattr(store, name)
                rates[name] = [len(part) / wall_seconds(write, part) for part in _slices(pairs, _WRITE_SLICE)]
        missing = sum(store.value(key) != value for key, value in pairs)
        if missing or store.value(sample[0]) is None:
            raise AssertionError(f"{missing} of {plan.writes} keys are not there: the figures mean nothing")
        return rates


def _slices(things: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    return (things[start : start + length] for start in range(0, len(things), length))


# --- the contenders --------------------------------------------------------------------------------------------------

Pairs = Iterable[tuple[str, str]]


class Lapse(BlockingLapse):
    """The blocking face."""

    def __init__(self, path: Path, sync: str) -> None:
        super().__init__(f"file://{path}?sync={sync}".replace(" ", "%20"))

    def fill(self, pairs: Pairs) -> None:
        left = iter(pairs)
        while items := [(key, value, _FILL_TTL_SECONDS) for key, value in islice(left, 10_000)]:
            assert all(self._keys.insert_many(items))


class Apsw:
    """Our statements and pragmas without us: one connection, one thread, each statement its own transaction."""

    def __init__(self, path: Path, sync: str) -> None:
        from lapse.db.sqlite.file import SQLiteFile, Synchronous, open_writer
        from lapse.keys.backends.file import SCHEMA, SQL
        from lapse.keys.backends.layout import Prefix, partition_keys

        self._db = open_writer(SQLiteFile(path, synchronous=Synchronous(sync)), SCHEMA)
        self._sql = SQL
        self._partition = partition_keys(Prefix.APPLICATION_TTL, APP_ID)[0]

    def get(self, keys: Sequence[str]) -> None:
        execute, sql, partition, now_ns = self._db.cursor().execute, self._sql["find"], self._partition, time.time_ns
        for key in keys:
            for value, expires_ms in execute(sql, (partition, key.encode())):
                if expires_ms > now_ns() // 1_000_000:
                    value.decode()

    def insert(self, pairs: Pairs) -> None:
        execute, sql, partition, now_ns = self._db.cursor().execute, self._sql["insert"], self._partition, time.time_ns
        changes = self._db.changes
        for key, value in pairs:
            now_ms = now_ns() // 1_000_000
            execute(sql, (partition, key.encode(), value.encode(), now_ms + 1000 * TTL_SECONDS, now_ms))
            changes()

    def swap(self, pairs: Pairs) -> None:
        execute, sql, partition, now_ns = self._db.cursor().execute, self._sql["swap"], self._partition, time.time_ns
        changes = self._db.changes
        for key, text in pairs:
            now_ms, value = now_ns() // 1_000_000, text.encode()
            execute(sql, (partition, key.encode(), value, value, now_ms + 1000 * TTL_SECONDS, now_ms))
            changes()

    def value(self, key: str) -> str | None:
        found: list[Any] = self._db.execute(self._sql["find"], (self._partition, key.encode())).fetchall()
        return found[0][0].decode() if found else None

    def close(self) -> None:
        self._db.close()


class Diskcache:
    """As it comes, with room enough that nothing is evicted. Has no compare-and-swap."""

    def __init__(self, path: Path, sync: str) -> None:
        import diskcache

        self._cache: Any = diskcache.Cache(str(path), size_limit=2**40)

    def fill(self, pairs: Pairs) -> None:
        left = iter(pairs)
        while items := list(islice(left, 10_000)):
            with self._cache.transact():
                for key, value in items:
                    self._cache.set(key, value, expire=_FILL_TTL_SECONDS)

    def get(self, keys: Sequence[str]) -> None:
        over_keys(self._cache.get, keys)

    def insert(self, pairs: Pairs) -> None:
        add = self._cache.add
        for key, value in pairs:
            add(key, value, expire=TTL_SECONDS)

    def value(self, key: str) -> str | None:
        value: str | None = self._cache.get(key)
        return value

    def close(self) -> None:
        self._cache.close()


_CONTENDERS: Final[dict[str, Callable[[Path, str], Any]]] = {"lapse": Lapse, "apsw": Apsw, "diskcache": Diskcache}
