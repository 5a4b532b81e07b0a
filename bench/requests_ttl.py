"""The cost of the TTL of requests: while nothing is due, when much is, and how late it is when a little always is.

``python -m bench.requests_ttl [--quick]`` prints its progress, then one line of JSON, and says by its exit status
whether the limits were kept.

- *idle*: finished requests, none due. A process of its own fills its caches from the store (how long that takes, how
  long the event loop stood still at the most, what it costs in memory); then a tick of the scanner must make no call to
  the store, and cost less than a millisecond.
- *due*: so many requests are due at once. The sweep, with journal, metrics and caches that follow, against bare
  deletions by uid and version through the same store, 64 in flight; and, to know where the difference comes from,
  against the same in a process whose caches follow as well. Rounds in turn.
- *lag*: requests fall due all the time, in whole seconds as controllers write them; how long after its moment is each
  one gone. The whole service runs, as `lapse up` runs it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.contest import Contender, contenders, require_linux, resident_bytes, step
from lapse.core.clock import SystemClock
from lapse.core.duration import Duration
from lapse.core.identity import uuid
from lapse.core.timestamps import to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.coordinator import Coordinator
from lapse.engine.running.election import SoleLeader
from lapse.engine.running.metrics import Metrics
from lapse.kube.resources import ObjectKey
from lapse.objects.documents import encode
from lapse.objects.embedded import open_embedded
from lapse.objects.tables import NO_OWNERS, ChangeRetention, ObjectRecord, Tables, next_version, place_of
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import ALL_KINDS
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.service import Requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    import apsw

    from lapse.objects.embedded import EmbeddedStore

TICK_MILLISECONDS: Final = 1.0
RATE: Final = 0.5
LAG_SECONDS: Final = 1.0
STANDSTILL_SECONDS: Final = 0.05
_WIDTH: Final = 64
_TICKS: Final = 200
_SECOND: Final = 1_000_000_000
_TTL: Final = Duration.parse("10m")
_POLICY: Final = RequestPolicy(request_ttl=_TTL)
_BATCH: Final = 1_000
_CALLS: Final = frozenset({"get", "list", "resolve", "create", "patch", "patch_status", "delete"})
_ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    idle: tuple[int, ...] = (10_000, 100_000)
    due: tuple[int, ...] = (1_000, 10_000)
    rounds: int = 3
    lag: tuple[int, ...] = (50, 500)
    """Requests that fall due in each second."""
    lag_seconds: int = 15


QUICK: Final = Plan(idle=(1_000,), due=(500,), rounds=1, lag=(20,), lag_seconds=3)


# --- a store full of finished requests -----------------------------------------------------------------------------


def fill(store: EmbeddedStore, completions: Iterator[int]) -> list[tuple[ObjectKey, str, str]]:
    """Store finished requests, complete at these moments; return key, uid and version of each.

    Straight into the tables, a thousand in a transaction: what is measured comes later.
    """
    tables = Tables(ChangeRetention(changes=100_000, bytes=1 << 40))
    made: list[tuple[ObjectKey, str, str]] = []

    def some(cursor: apsw.Cursor) -> None:
        for completed in islice(completions, _BATCH):
            key, uid, version = ObjectKey("shop", f"nightly-{len(made):06}"), uuid(), next_version(cursor)
            body = encode(_finished(key, uid, version, to_timestamp(completed)))
            tables.insert(
                cursor,
                place_of(VOLUME_CAPTURE_REQUEST, key),
                record=ObjectRecord(uid, version, len(body), NO_OWNERS, body),
            )
            made.append((key, uid, str(version)))

    before = -1
    while len(made) != before:
        before = len(made)
        store.database.write_and_wait(some)
    return made


def _finished(key: ObjectKey, uid: str, version: int, completed: str) -> dict[str, Any]:
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "uid": uid,
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": completed,
        "annotations": {"storage.deckhouse.io/ttl": str(_TTL)},
    }
    content = f"snapshot-{uid}-0123456789ab"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Completed",
        "message": f"the snapshot is in VolumeSnapshotContent {content}",
        "lastTransitionTime": completed,
        "observedGeneration": 1,
    }
    return {
        "apiVersion": VOLUME_CAPTURE_REQUEST.api_version,
        "kind": VOLUME_CAPTURE_REQUEST.kind,
        "metadata": metadata,
        "spec": {
            "mode": "Snapshot",
            "target": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": uid},
        },
        "status": {
            "completionTimestamp": completed,
            "conditions": [ready],
            "observedGeneration": 1,
            "artifactRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshotContent",
                "name": content,
                "uid": uid,
            },
        },
    }


def _open(path: Path, synchronous: Synchronous = Synchronous.FULL) -> EmbeddedStore:
    return open_embedded(path, kinds=ALL_KINDS, clock=SystemClock(), synchronous=synchronous)


class Counting:
    """A store that counts the calls made to it."""

    def __init__(self, store: EmbeddedStore) -> None:
        """Pass everything on to ``store``."""
        self._store, self.calls = store, 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        self.calls += name in _CALLS
        return getattr(self._store, name)


def _requests(store: EmbeddedStore) -> Requests:
    journal, clock = SQLiteJournal(store.database), SystemClock()
    return Requests(store, policy=_POLICY, journal=journal, metrics=Metrics("bench"), clock=clock)


@asynccontextmanager
async def _caches_of(requests: Requests) -> AsyncIterator[None]:
    filling = asyncio.create_task(requests.caches.run())
    try:
        await requests.caches.wait_until_synced()
        yield
    finally:
        filling.cancel()
        await asyncio.wait([filling])


# --- idle ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """What many finished requests cost while none is due."""

    requests: int
    load_seconds: float
    standstill_seconds: float
    """The longest time for which the event loop let nobody else have a turn while the caches were filled."""
    kilobytes_each: float
    tick_milliseconds: float
    calls: int


class IdleBench:
    """A process that does nothing but wait for deadlines."""

    def __init__(self, path: str) -> None:
        """Open the store."""
        self._path = Path(path)

    def run(self) -> Idle:
        """Fill the caches, then tick."""
        return asyncio.run(self._run())

    async def _run(self) -> Idle:
        counting: Any = Counting(_open(self._path))
        requests = _requests(counting)
        before = resident_bytes()
        longest: list[float] = [0.0]
        watching = asyncio.create_task(_watch_the_loop(longest))
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        async with _caches_of(requests):
            load = time.perf_counter() - start
            await asyncio.sleep(0.05)
            watching.cancel()
            known = len(requests.caches.of(VOLUME_CAPTURE_REQUEST))
            memory = resident_bytes() - before
            calls, cpu = counting.calls, time.process_time()
            for _ in range(_TICKS):
                for loop in requests.loops:
                    await loop.tick()
            cpu = time.process_time() - cpu
            calls = counting.calls - calls
        await counting.close()
        return Idle(known, load, longest[0], memory / known / 1024, cpu / _TICKS * 1000, calls)


async def _watch_the_loop(longest: list[float]) -> None:
    # The thread's own time: what other processes take from a busy machine says nothing about this one.
    while True:
        start = time.thread_time()
        await asyncio.sleep(0.001)
        longest[0] = max(longest[0], time.thread_time() - start)


def idle(folder: Path, count: int) -> Idle:
    """Measure in a process of its own, whose memory is then all its own."""
    path = folder / f"idle-{count}.db"

    async def prepare() -> None:
        store = _open(path)
        now = SystemClock().wall_ns()
        await asyncio.to_thread(fill, store, iter([now] * count))
        await store.close()

    with step(f"{count:,} finished requests, none due"):
        asyncio.run(prepare())
        with contenders([Contender("idle", "bench.requests_ttl:IdleBench", str(path))]) as (contender,):
            measured: Idle = contender.ask("run")
    assert measured.requests == count
    return measured


# --- due -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Due:
    """Deletions per second, median of all rounds; and microseconds of CPU for each, best of all."""

    requests: int
    synchronous: str
    raw: float
    raw_cached: float
    """The same, with the caches of the service following."""
    sweep: float
    raw_cpu: float
    raw_cached_cpu: float
    sweep_cpu: float

    @property
    def ratio(self) -> float:
        """What is left of the store's own rate: this is what was promised."""
        return self.sweep / self.raw

    @property
    def ratio_cached(self) -> float:
        """What is left of it in a process with the same caches: the sweep's own part in the loss."""
        return self.sweep / self.raw_cached


Made = list[tuple[ObjectKey, str, str]]


async def _delete_raw(store: EmbeddedStore, made: Made) -> tuple[float, float]:
    todo = iter(made)

    async def work() -> None:
        for key, uid, version in todo:
            await store.delete(VOLUME_CAPTURE_REQUEST, key, uid=uid, version=version)

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(_WIDTH)))
    return time.perf_counter() - start, time.process_time() - cpu


async def _delete_beside_caches(store: EmbeddedStore, made: Made) -> tuple[float, float]:
    async with _caches_of(_requests(store)):
        return await _delete_raw(store, made)


async def _sweep(store: EmbeddedStore, made: Made) -> tuple[float, float]:
    requests = _requests(store)
    async with _caches_of(requests):
        sweep = next(loop for loop in requests.loops if loop.name == "request-ttl").sweeps[0]
        start, cpu = time.perf_counter(), time.process_time()
        report = await sweep.run(proceed=lambda: True)
        taken = time.perf_counter() - start, time.process_time() - cpu
    assert report.ended == len(made)
    return taken


_WAYS: Final[dict[str, Callable[[EmbeddedStore, Made], Coroutine[Any, Any, tuple[float, float]]]]] = {
    "raw": _delete_raw,
    "raw_cached": _delete_beside_caches,
    "sweep": _sweep,
}


async def _delete_all(path: Path, way: str, count: int, synchronous: Synchronous) -> tuple[float, float]:
    store = _open(path, synchronous)
    overdue = SystemClock().wall_ns() - 2 * (_TTL.nanoseconds or 0)
    made = await asyncio.to_thread(fill, store, iter([overdue] * count))
    taken = await _WAYS[way](store, made)
    await store.close()
    return taken


def due(folder: Path, count: int, synchronous: Synchronous, rounds: int) -> Due:
    """Delete as many, one way and the others, in turn."""
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    with step(f"{count:,} due, sync={synchronous}"):
        for number in range(rounds):
            for way, measured in taken.items():
                path = folder / f"due-{way}-{count}-{synchronous}-{number}.db"
                measured.append(asyncio.run(_delete_all(path, way, count, synchronous)))
    rates = {way: statistics.median(count / wall for wall, _ in measured) for way, measured in taken.items()}
    cpu = {f"{way}_cpu": min(cpu / count * 1e6 for _, cpu in measured) for way, measured in taken.items()}
    return Due(count, synchronous, **rates, **cpu)


# --- lag -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds from the moment something was due to the one at which it was removed."""

    each_second: int
    requests: int
    p50: float
    p99: float
    longest: float


def lag(folder: Path, each_second: int, seconds: int) -> Lag:
    """Let requests fall due while the whole service runs."""
    with step(f"{each_second} fall due in each second, for {seconds} s"):
        return asyncio.run(_lag(folder / f"lag-{each_second}.db", each_second, seconds))


async def _lag(path: Path, each_second: int, seconds: int) -> Lag:
    store, ttl = _open(path), _TTL.nanoseconds or 0
    first = SystemClock().wall_ns() // _SECOND * _SECOND - ttl + 3 * _SECOND
    moments = [first + number * _SECOND for number in range(seconds) for _ in range(each_second)]
    await asyncio.to_thread(fill, store, iter(moments))
    requests = _requests(store)
    coordinator = Coordinator(
        clock=SystemClock(), metrics=Metrics("bench"), loops=requests.loops, leadership=SoleLeader()
    )
    running = asyncio.create_task(coordinator.run(requests.services, requests.leader_services))
    last = (moments[-1] + ttl) / _SECOND
    await asyncio.sleep(last + 2 - time.time())
    coordinator.stop()
    await running
    rows = await SQLiteJournal(store.database).entries(limit=len(moments) + 1)
    lags = sorted((row.time_ns - (row.anchor_ns or 0) - ttl) / _SECOND for row in rows if row.outcome is Outcome.ENDED)
    assert len(lags) == len(moments), f"{len(lags)} of {len(moments)} were removed"
    await store.close()
    return Lag(each_second, len(lags), lags[len(lags) // 2], lags[len(lags) * 99 // 100], lags[-1])


# --- all -------------------------------------------------------------------------------------------------------------


def run(plan: Plan, folder: Path) -> tuple[list[Idle], list[Due], list[Lag]]:
    """Measure everything."""
    return (
        [idle(folder, count) for count in plan.idle],
        [due(folder, count, sync, plan.rounds) for count in plan.due for sync in Synchronous],
        [lag(folder, each_second, plan.lag_seconds) for each_second in plan.lag],
    )


def main() -> None:
    """Print the figures; the exit status says whether the limits were kept."""
    require_linux()
    (_ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_ROOT / "build") as folder:
        idles, dues, lags = run(QUICK if "--quick" in sys.argv[1:] else Plan(), Path(folder))
    kept = {
        "tick": all(one.calls == 0 and one.tick_milliseconds < TICK_MILLISECONDS for one in idles),
        "standstill": all(one.standstill_seconds < STANDSTILL_SECONDS for one in idles),
        "rate": all(one.ratio >= RATE for one in dues),
        "lag": all(one.p99 < LAG_SECONDS for one in lags),
    }
    figures = {
        "idle": [_rounded(one) for one in idles],
        "due": [
            {**_rounded(one), "ratio": round(one.ratio, 2), "ratio_cached": round(one.ratio_cached, 2)} for one in dues
        ],
        "lag": [_rounded(one) for one in lags],
    }
    print(json.dumps({"bench": "requests_ttl", **figures, "kept": kept}))
    sys.exit(not all(kept.values()))


def _rounded(figures: Idle | Due | Lag) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(figures).items()}


if __name__ == "__main__":
    main()
