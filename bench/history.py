"""The cost of retention: a pass that finds nothing to do, one that finds everything, and one over an API server.

``python -m bench.history [--quick] [--only PART ...] [--out FOLDER]`` measures, prints one line of JSON and writes
``benchmarks-history.md``. Its exit status says whether all claims held.

- *clear*: records on the embedded store, none due. A pass, against the naive way through the same store: list all
  records, whole and typed, sort those of each experiment, look at each. In between stands a pass that has to list, as
  it does whenever something may be due. Rounds in turn, each contender in a process of its own.
- *worst*: all records in one group, all but a hundred due by their number, and really deleted.
- *cluster*: records on a real API server; the calls and bytes of a pass beside those of a full list.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from bench.contest import Contender, contenders, require_linux, resident_bytes, step, this_machine
from bench.domain import ROOT, options_of, publish
from bench.history_page import Clear, OnCluster, Results, Worst, claims_of, write
from bench.kube_cluster import each
from lapse.core.clock import SystemClock
from lapse.core.identity import uuid
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.db.sqlite.file import Synchronous
from lapse.engine.executor import Executor
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    OUR_KINDS,
    AffectedResource,
    Audit,
    Execution,
    ExperimentRef,
    HistorySpec,
)
from lapse.history.policy.default_policy import DEFAULT_LIMIT, DEFAULT_NAMESPACE, DEFAULT_TTL, history_document
from lapse.history.policy.policy import Policy
from lapse.history.records import record
from lapse.history.retention.listing import PAGE
from lapse.history.retention.passes import Pass
from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import load_config
from lapse.kube.resources import ObjectKey
from lapse.objects.documents import encode
from lapse.objects.embedded import open_embedded
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.kubernetes import KubernetesStore
from lapse.objects.tables import NO_OWNERS, ChangeRetention, ObjectRecord, Tables, next_version, place_of
from lapse.objects.target import ObjectTarget
from tests.servers import kube_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import apsw

    from lapse.history.api.kinds import ChaosExperimentHistory
    from lapse.history.retention.passes import PassReport
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.port import Reader

PARTS: Final = ("clear", "worst", "cluster")
_WAYS: Final = ("pass", "listed", "naive")
_SECOND: Final = 1_000_000_000
_BATCH: Final = 1_000
_NAIVE_PAGE: Final = 10_000
_POLICY: Final = Policy.read(history_document())
_CRD: Final = ROOT / "deploy" / "crds" / f"{CHAOS_EXPERIMENT_HISTORY.plural}.yaml"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    clear: tuple[int, ...] = (100_000, 1_000_000)
    rounds: int = 3
    worst: tuple[int, ...] = (100_000, 300_000)
    cluster: int = 10_000
    parts: Sequence[str] = PARTS


QUICK: Final = Plan(clear=(2_000, 5_000), rounds=2, worst=(2_000,), cluster=1_200)


# --- records ---------------------------------------------------------------------------------------------------------


def _record(number: int, experiments: int) -> ChaosExperimentHistory:
    """Return what one run of one of so many experiments leaves behind: some 1,500 bytes."""
    which = number % experiments
    began = 1_700_000_000 * _SECOND + number * 60 * _SECOND
    ref = ExperimentRef(name=f"pod-kill-{which:05}", namespace=f"team-{which % 20}", uid=f"{which:08}-5ca1-4ab1e")
    pods = tuple(
        AffectedResource(kind="Pod", name=f"checkout-6f7c9d8b5-{number % 97:03}-{pod}", namespace="shop", action="kill")
        for pod in range(5)
    )
    spec = HistorySpec(
        experiment_ref=ref,
        execution=Execution(
            start_time=to_timestamp(began),
            end_time=to_timestamp(began + 60 * _SECOND),
            status="failure" if number // experiments % 7 == 0 else "success",
            message="5 of 5 pods were killed, and all were ready again after 41 s",
        ),
        experiment_spec={
            "action": "pod-kill",
            "count": 5,
            "duration": "60s",
            "schedule": "*/10 * * * *",
            "selector": {"namespace": "shop", "labels": {"app": "checkout"}},
        },
        affected_resources=pods,
        audit=Audit(initiated_by="system:serviceaccount:chaos-system:runner", scheduled_execution=True),
    )
    return record(spec, namespace=DEFAULT_NAMESPACE)


def fill(store: EmbeddedStore, count: int, experiments: int, *, seconds: int = 10 * 86_400) -> None:
    """Store records of the last days, straight into the tables, a thousand in a transaction."""
    tables = Tables(ChangeRetention(changes=100_000, bytes=1 << 40))
    kind, now = CHAOS_EXPERIMENT_HISTORY, SystemClock().wall_ns()

    def some(cursor: apsw.Cursor, numbers: range) -> None:
        for number in numbers:
            body = kind.body(_record(number, experiments))
            uid, version = uuid(), next_version(cursor)
            age = (count - number) * seconds // count
            body["metadata"] |= {
                "uid": uid,
                "resourceVersion": str(version),
                "generation": 1,
                "creationTimestamp": to_timestamp(now - age * _SECOND),
            }
            content, key = encode(body), ObjectKey(DEFAULT_NAMESPACE, body["metadata"]["name"])
            tables.insert(
                cursor, place_of(kind, key), record=ObjectRecord(uid, version, len(content), NO_OWNERS, content)
            )

    for start in range(0, count, _BATCH):
        numbers = range(start, min(count, start + _BATCH))
        store.database.write_and_wait(partial(some, numbers=numbers))


def _open(path: Path) -> EmbeddedStore:
    return open_embedded(path, kinds=OUR_KINDS, clock=SystemClock(), synchronous=Synchronous.NORMAL)


async def _filled(path: Path, count: int, experiments: int) -> None:
    store = _open(path)
    await asyncio.to_thread(fill, store, count, experiments)
    await store.close()


# --- ways to look at them --------------------------------------------------------------------------------------------


class _Listing:
    """A store that can list, and not count."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.list, self.resolve, self.get = store.list, store.resolve, store.get


async def _pass(store: EmbeddedStore, direct: Reader) -> PassReport:
    journal, clock = SQLiteJournal(store.database), SystemClock()
    metrics = Metrics("bench")
    executor = Executor(ObjectTarget(store, store), journal, clock=clock, metrics=metrics, actor="bench")
    passing = Pass([_POLICY], direct=direct, executor=executor, journal=journal, metrics=metrics, clock=clock)
    return (await passing.run())["history"]


async def _naive(store: EmbeddedStore) -> int:
    """Return how many are due, as one would find out at first."""
    groups: dict[tuple[str, str, str | None], list[tuple[int, str]]] = {}
    after, pages = None, 0
    while pages == 0 or after is not None:  # in large pages: a million whole records would not fit in memory
        page = await store.list(CHAOS_EXPERIMENT_HISTORY, namespace=DEFAULT_NAMESPACE, limit=_NAIVE_PAGE, after=after)
        after, pages = page.next, pages + 1
        for one in page.items:
            ref = one.spec.experiment_ref
            created = from_timestamp(one.metadata.creation_timestamp or "") or 0
            groups.setdefault((ref.namespace, ref.name, ref.uid), []).append((created, one.metadata.name))
    oldest, due = SystemClock().wall_ns() - (DEFAULT_TTL.nanoseconds or 0), 0
    for group in groups.values():
        group.sort(reverse=True)
        due += sum(place >= DEFAULT_LIMIT or created < oldest for place, (created, _) in enumerate(group))
    return due


class Bench:
    """One way, in its process."""

    def __init__(self, way: str, path: str) -> None:
        """Take where the records are."""
        self._way, self._path = way, Path(path)

    def round(self) -> tuple[float, float, int]:
        """Look at everything once; return seconds, the most bytes above idle so far, and how many were due."""
        return asyncio.run(self._round())

    async def _round(self) -> tuple[float, float, int]:
        store = _open(self._path)
        await store.check()
        before, start = resident_bytes(), time.perf_counter()
        if self._way == "naive":
            due = await _naive(store)
        else:
            direct = store if self._way == "pass" else cast("Reader", _Listing(store))
            due = (await _pass(store, direct)).due.total()
        seconds = time.perf_counter() - start
        peak = resident_bytes("VmHWM") - before
        await store.close()
        return seconds, peak, due


def clear(folder: Path, count: int, rounds: int) -> list[Clear]:
    """Let the ways take turns."""
    path = folder / f"clear-{count}.db"
    with step(f"{count:,} records are made"):
        asyncio.run(_filled(path, count, max(1, count // DEFAULT_LIMIT)))
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    with contenders([Contender(way, "bench.history:Bench", way, str(path)) for way in _WAYS]) as started:
        for number in range(rounds):
            with step(f"{count:,} records, none due, round {number + 1} of {rounds}, {len(_WAYS)} ways in turn"):
                for contender in started:
                    seconds, peak, due = contender.ask("round")
                    assert due == 0
                    found[contender.name].append((seconds, peak))
    path.unlink()
    # The memory of the first round: later ones find what it left behind.
    return [
        Clear(count, way, min(seconds for seconds, _ in each_round), each_round[0][1] / 2**20)
        for way, each_round in found.items()
    ]


def worst(folder: Path, count: int) -> Worst:
    """End all but a hundred records of one experiment."""
    path = folder / f"worst-{count}.db"
    with step(f"{count:,} records of one experiment are made"):
        asyncio.run(_filled(path, count, 1))
    with (
        step(f"{count:,} records of one experiment, all but {DEFAULT_LIMIT} due by their number"),
        contenders([Contender("pass", "bench.history:Bench", "pass", str(path))]) as (contender,),
    ):
        contender.tell("round")
        seconds, peak, due = contender.wait()
    assert due == count - DEFAULT_LIMIT
    path.unlink()
    return Worst(count, seconds, peak / 2**20)


# --- cluster ---------------------------------------------------------------------------------------------------------


class _Weighing(KubeClient):
    """A client that counts what it asks for and what it gets."""

    calls = 0
    size = 0

    async def _read(self, *args: Any, **more: Any) -> bytes:  # noqa: ANN401 - as it is
        content = await super()._read(*args, **more)
        self.calls += 1
        self.size += len(content)
        return content


async def _on_cluster(server: Any, count: int) -> OnCluster:  # noqa: ANN401 - a KubeServer
    await asyncio.to_thread(server.kubectl, "apply", "-f", str(_CRD))
    await asyncio.to_thread(server.kubectl, "wait", "--for=condition=Established", "-f", str(_CRD))
    await asyncio.to_thread(server.kubectl, "create", "namespace", DEFAULT_NAMESPACE)
    client = _Weighing(load_config(file=server.kubeconfig, environ={}), limits=CallLimits(request_seconds=120.0))
    store, kind = KubernetesStore(client, kinds=OUR_KINDS), CHAOS_EXPERIMENT_HISTORY
    try:
        with step(f"{count:,} records are made on an API server"):
            experiments = max(1, count // DEFAULT_LIMIT)
            await each(range(count), lambda number: client.create(kind, _record(number, experiments)))
        with step("a pass, and full lists"):
            return await _compared(store, client, count)
    finally:
        await client.close()


async def _compared(store: KubernetesStore, client: _Weighing, count: int) -> OnCluster:
    clock, metrics = SystemClock(), Metrics("bench")
    holds = listed_holds(store, ListedDependants(store, (), clock=clock))
    journal = LogJournal()
    executor = Executor(ObjectTarget(store, holds), journal, clock=clock, metrics=metrics, actor="bench")
    passing = Pass([_POLICY], direct=store, executor=executor, journal=journal, metrics=metrics, clock=clock)
    client.calls = client.size = 0
    start = time.perf_counter()
    report = (await passing.run())["history"]
    seconds, calls, read = time.perf_counter() - start, client.calls, client.size
    assert (report.matched, report.due.total()) == (count, 0)
    client.calls = client.size = 0
    start, after, pages = time.perf_counter(), None, 0
    while pages == 0 or after is not None:
        page = await store.list(CHAOS_EXPERIMENT_HISTORY, namespace=DEFAULT_NAMESPACE, limit=PAGE, after=after)
        after, pages = page.next, pages + 1
    return OnCluster(count, PAGE, calls, seconds, read / 2**20, time.perf_counter() - start, client.size / 2**20)


# --- all -------------------------------------------------------------------------------------------------------------


def run(plan: Plan, folder: Path) -> Results:
    """Measure everything."""
    results = Results(rounds=plan.rounds)
    if "clear" in plan.parts:
        results = replace(results, clear=[one for size in plan.clear for one in clear(folder, size, plan.rounds)])
    if "worst" in plan.parts:
        results = replace(results, worst=[worst(folder, size) for size in plan.worst])
    if "cluster" in plan.parts:
        with kube_server() as server:
            results = replace(results, cluster=asyncio.run(_on_cluster(server, plan.cluster)), version=server.version)
    return results


def main() -> None:
    """Measure, print, write."""
    options = _options()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    plan = replace(QUICK if options.quick else Plan(), parts=options.only or PARTS)
    if options.sizes:
        plan = replace(plan, clear=tuple(options.sizes), worst=tuple(options.sizes))
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        results = run(plan, Path(folder))
    publish(
        "history",
        options,
        figures=results.figures(),
        claims=claims_of(results),
        page="benchmarks-history.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


def _options() -> argparse.Namespace:
    parser = options_of("history", __doc__, PARTS)
    parser.add_argument("--sizes", nargs="+", type=int, help="so many records on the embedded store")
    return parser.parse_args()


if __name__ == "__main__":
    main()
