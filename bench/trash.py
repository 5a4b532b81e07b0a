"""The cost of the trash: a pass that ends 10 000 records, with a trash and without one, in turn.

``python -m bench.trash [--quick] [--only PART ...]`` measures, prints one line of JSON, and exits with 1 if a pass with
a trash takes more than 1.5 times as long.

- *embedded*: the state folder, its journal in the same transactions.
- *cluster*: a real API server, where each deletion is a call of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.contest import require_linux, step
from bench.domain import ROOT
from bench.history import _record, fill
from bench.kube_cluster import each
from lapse.app.process import settle_memory
from lapse.core.clock import SystemClock
from lapse.core.duration import Duration
from lapse.db.sqlite.file import Synchronous
from lapse.domains import object_kinds
from lapse.engine.executor import Executor
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
from lapse.history.policy.default_policy import DEFAULT_NAMESPACE, history_document
from lapse.history.policy.policy import Policy
from lapse.history.retention.passes import Pass
from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import load_config
from lapse.objects.embedded import open_embedded
from lapse.objects.holds.cluster import Dependants, ListedDependants, listed_holds
from lapse.objects.kubernetes import KubernetesStore
from lapse.objects.target import ObjectTarget
from lapse.requests.trash import trash_of
from tests.servers import kube_server

if TYPE_CHECKING:
    from lapse.engine.journal.port import Journal
    from lapse.objects.port import ObjectStore

PARTS: Final = ("embedded", "cluster")
BOUND: Final = 1.5
_COUNT: Final = 10_000
_ROUNDS: Final = 3
_POLICY: Final = Policy.read(history_document(limit=1, ttl=Duration.parse("never")))
_TTLS: Final = {"without": Duration.parse("never"), "with": Duration.parse("7d")}


async def _pass(store: ObjectStore, journal: Journal, ttl: Duration, count: int) -> float:
    """End all records but the newest one; return how long that took, in seconds."""
    clock, metrics = SystemClock(), Metrics("bench")
    dependants = store if isinstance(store, Dependants) else ListedDependants(store, (), clock=clock)
    trash = trash_of(store, ttl, dependants=dependants, clock=clock)
    target = ObjectTarget(store, listed_holds(store, dependants), trash=trash)
    executor = Executor(target, journal, clock=clock, metrics=metrics, actor="bench")
    passing = Pass([_POLICY], direct=store, executor=executor, journal=journal, metrics=metrics, clock=clock)
    start = time.perf_counter()
    report = (await passing.run())["history"]
    seconds = time.perf_counter() - start
    assert report.outcomes["ended"] == count - 1, report.outcomes
    return seconds


async def _embedded(folder: Path, name: str, ttl: Duration, count: int) -> float:
    path = folder / f"{name}.db"
    store = open_embedded(path, kinds=object_kinds(), clock=SystemClock(), synchronous=Synchronous.FULL)
    try:
        await asyncio.to_thread(fill, store, count, 1)
        return await _pass(store, SQLiteJournal(store.database), ttl, count)
    finally:
        await store.close()
        path.unlink()


async def _on_cluster(server: Any, ttl: Duration, count: int) -> float:  # noqa: ANN401 - a KubeServer
    client = KubeClient(load_config(file=server.kubeconfig, environ={}), limits=CallLimits(request_seconds=120.0))
    store = KubernetesStore(client, kinds=object_kinds())
    try:
        left = {one.metadata.name for one in (await store.list(CHAOS_EXPERIMENT_HISTORY)).items}
        made = [one for number in range(count) if (one := _record(number, 1)).metadata.name not in left]
        await each(made, lambda one: client.create(CHAOS_EXPERIMENT_HISTORY, one))
        return await _pass(store, LogJournal(), ttl, count)
    finally:
        await client.close()


def embedded(count: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each way, the best of some rounds in turn."""
    found: dict[str, list[float]] = {name: [] for name in _TTLS}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        for number in range(rounds):
            with step(f"{count:,} records in a state folder, round {number + 1} of {rounds}"):
                for name, ttl in _TTLS.items():
                    found[name].append(asyncio.run(_embedded(Path(folder), name, ttl, count)))
    return {name: min(seconds) for name, seconds in found.items()}


def cluster(count: int, rounds: int) -> dict[str, float]:
    """Return the same over an API server."""
    found: dict[str, list[float]] = {name: [] for name in _TTLS}
    with kube_server() as server:
        server.kubectl("apply", "-f", str(ROOT / "deploy" / "crds"))
        server.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "deploy" / "crds"))
        server.kubectl("create", "namespace", DEFAULT_NAMESPACE)
        for number in range(rounds):
            with step(f"{count:,} records on an API server, round {number + 1} of {rounds}"):
                for name, ttl in _TTLS.items():
                    found[name].append(asyncio.run(_on_cluster(server, ttl, count)))
    return {name: min(seconds) for name, seconds in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.trash", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: their figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    require_linux()
    settle_memory()  # as in every process that stays
    (ROOT / "build").mkdir(exist_ok=True)
    count, rounds = (1_000, 1) if options.quick else (_COUNT, _ROUNDS)
    ways = {"embedded": embedded, "cluster": cluster}
    seconds = {part: ways[part](count, rounds) for part in options.only or PARTS}
    ratios = {part: round(found["with"] / found["without"], 2) for part, found in seconds.items()}
    print(json.dumps({"bench": "trash", "records": count, "seconds": seconds, "ratio": ratios, "bound": BOUND}))
    sys.exit(any(ratio > BOUND for ratio in ratios.values()))


if __name__ == "__main__":
    main()
