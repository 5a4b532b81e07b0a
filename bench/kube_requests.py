"""Requests on a Kubernetes cluster: when much is due at once, while nothing is, and when much is asked for at once.

``python -m bench.kube_requests [--quick] [--only PART ...] [--out FOLDER]`` starts a control plane with a CSI driver,
measures, prints one line of JSON and writes ``benchmarks-kubernetes.md``. Its exit status says whether all claims held.

- *due*: objects that fall due at one moment. Kubernetes' own ttl-after-finished controller, tuned, deletes Jobs; a real
  ``lapse operator`` deletes VolumeCaptureRequests; in turn, on the same API server, with the same limit on calls.
- *idle*: finished requests, none due. What the operator asks in a quiet minute, and the memory that it takes.
- *captures*: captures that are asked for at once, of real claims, with the stock snapshotter.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.contest import median, require_linux, step, this_machine
from bench.domain import ROOT, options_of, publish
from bench.kube_cluster import MANAGER, Calls, Cluster, each, memory_of, running_operator
from bench.kube_page import Capture, Due, Idle, Results, claims_of, write
from lapse.core.timestamps import to_timestamp
from lapse.kube.resources import Document, Kind, ObjectKey, ready_condition
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import EXPIRES_AT, TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.servers import kube_server
from tests.servers.kube.csi import CLASS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from bench.kube_cluster import Operator
    from lapse.kube.resources import Json
    from tests.servers import KubeServer

QPS: Final = 1000
BURST: Final = 2000
WORKERS: Final = 20
PARTS: Final = ("due", "idle", "captures")
_MANAGER_FLAGS: Final = (
    "--controllers=ttl-after-finished-controller",  # beside those that it has anyway
    f"--concurrent-ttl-after-finished-syncs={WORKERS}",
    *(f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}"),
)
_LIMITS: Final = (f"--kube-qps={QPS}", f"--kube-burst={BURST}")
_JOB: Final = Kind("batch/v1", "Job", "jobs", Document)
_CAPTURES: Final = f"/apis/{VOLUME_CAPTURE_REQUEST.api_version}"
_SECOND: Final = 1_000_000_000
_SERVERS: Final = ("apiserver", "etcd", MANAGER)
_BEFORE_SECONDS: Final = 1.0
"""When measuring begins, before the moment at which all are due."""
_AFTER_SECONDS: Final = 2.0
"""How long it goes on after the last one is gone: whoever has something left to do for it, does it now."""
_HEAD_START_SECONDS: Final = 30
"""What an operator has to start and to fill its caches before its requests are due."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    due: int = 5_000
    rounds: int = 3
    idle: int = 10_000
    quiet_seconds: float = 60.0
    captures: int = 500
    claims: int = 5
    parts: Sequence[str] = PARTS


QUICK: Final = Plan(due=200, rounds=1, idle=200, quiet_seconds=5.0, captures=20, claims=2)


# --- objects that are finished ---------------------------------------------------------------------------------------


def _job(space: str, name: str, ttl_seconds: int) -> Json:
    container = {"name": "main", "image": "example.org/none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"ttlSecondsAfterFinished": ttl_seconds, "template": template}
    return {"metadata": {"name": name, "namespace": space}, "spec": spec}


def _job_status(completed: str) -> Json:
    met = {"status": "True", "lastProbeTime": completed, "lastTransitionTime": completed}
    conditions = [{"type": "SuccessCriteriaMet", **met}, {"type": "Complete", **met}]
    return {"startTime": completed, "completionTime": completed, "succeeded": 1, "conditions": conditions}


def _request(space: str, name: str, ttl: str, expires: str) -> Json:
    """Return a request with what the controller notes on it when it ends."""
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": f"claim-of-{name}"}
    annotations = {TTL: ttl, EXPIRES_AT: expires}
    metadata = {"name": name, "namespace": space, "annotations": annotations}
    return {"metadata": metadata, "spec": {"mode": "Snapshot", "target": target}}


def _request_status(completed: str) -> Json:
    content = "snapshot-0123456789abcdef0123456789abcdef01234567"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Completed",
        "message": f"the snapshot is in VolumeSnapshotContent {content}",
        "lastTransitionTime": completed,
        "observedGeneration": 1,
    }
    artifact = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": content}
    return {
        "completionTimestamp": completed,
        "conditions": [ready],
        "observedGeneration": 1,
        "artifactRef": {**artifact, "uid": "0123"},
    }


async def _space(cluster: Cluster, name: str) -> str:
    await asyncio.to_thread(cluster.server.kubectl, "create", "namespace", name)
    return name


async def _create(cluster: Cluster, kind: Kind[Any], bodies: Iterable[Json]) -> None:
    async def one(body: Json) -> None:
        await cluster.client.create(kind, body)

    await each(bodies, one)


async def _finish(cluster: Cluster, kind: Kind[Any], keys: Iterable[ObjectKey], status: Json) -> None:
    async def one(key: ObjectKey) -> None:
        await cluster.client.patch_status(kind, key, status)

    await each(keys, one)


async def _finished_requests(cluster: Cluster, space: str, count: int, completed: int) -> None:
    moment = to_timestamp(completed * _SECOND)
    names = [f"nightly-{number:05}" for number in range(count)]
    await _create(cluster, VOLUME_CAPTURE_REQUEST, (_request(space, name, "24h0m0s", moment) for name in names))
    keys = (ObjectKey(space, name) for name in names)
    await _finish(cluster, VOLUME_CAPTURE_REQUEST, keys, _request_status(moment))


# --- due -------------------------------------------------------------------------------------------------------------


async def _measure_due(cluster: Cluster, path: str, count: int, *, moment: int, operator: Operator | None) -> Due:
    """Watch objects that are there already go, from their moment to the end."""
    version = await _version_of(cluster, path)
    gone: list[float] = []
    watching = asyncio.create_task(cluster.watch_deletions(path, version, gone))
    await asyncio.sleep(moment - _BEFORE_SECONDS - time.time())
    assert not gone, "the machine is too slow: objects were due before all of them were there"
    before, cpu, total = await cluster.calls(), _client_cpu(cluster, operator), _all_cpu(cluster, operator)
    while len(gone) < count and time.time() < moment + 600:
        assert not watching.done(), watching.exception()
        await asyncio.sleep(0.05)
    await asyncio.sleep(_AFTER_SECONDS)
    cpu, total = _client_cpu(cluster, operator) - cpu, _all_cpu(cluster, operator) - total
    calls = (await cluster.calls()).since(before)
    watching.cancel()
    await asyncio.wait([watching])
    assert len(gone) == count, f"{len(gone)} of {count} were deleted"
    return _due(gone, moment, calls, cpu=cpu, total=total)


def _due(gone: Sequence[float], moment: int, calls: Calls, *, cpu: float, total: float) -> Due:
    count, lags = len(gone), sorted(one - moment for one in gone)
    return Due(
        objects=count,
        per_second=count / lags[-1],
        calls=calls.all_but_watches_and_leases / count,
        client_cpu=cpu / count * 1000,
        total_cpu=total / count * 1000,
        first=lags[0],
        p50=lags[count // 2],
        p99=lags[count * 99 // 100],
    )


async def _version_of(cluster: Cluster, path: str) -> str:
    found = await cluster.client.fetch(f"{path}?limit=1", dict[str, Any])
    return str(found["metadata"]["resourceVersion"])


def _client_cpu(cluster: Cluster, operator: Operator | None) -> float:
    return cluster.cpu(MANAGER) if operator is None else operator.cpu


def _all_cpu(cluster: Cluster, operator: Operator | None) -> float:
    return cluster.cpu(*_SERVERS) + (0 if operator is None else operator.cpu)


async def _due_theirs(cluster: Cluster, count: int, number: int | str) -> Due:
    space = await _space(cluster, f"jobs-{number}")
    ttl = 1200
    names = [f"nightly-{one:05}" for one in range(count)]
    with step(f"round {number}: {count:,} Jobs are made"):
        start = time.time()
        await _create(cluster, _JOB, (_job(space, name, ttl) for name in names))
        moment = int(time.time() + 2 * (time.time() - start)) + 10
        status = _job_status(to_timestamp((moment - ttl) * _SECOND))
        await _finish(cluster, _JOB, (ObjectKey(space, name) for name in names), status)
    with step(f"round {number}: ttl-after-finished deletes them"):
        return await _measure_due(
            cluster, f"/apis/batch/v1/namespaces/{space}/jobs", count, moment=moment, operator=None
        )


async def _due_ours(cluster: Cluster, folder: Path, count: int, number: int | str) -> Due:
    space = await _space(cluster, f"captures-{number}")
    completed = int(time.time())
    with step(f"round {number}: {count:,} VolumeCaptureRequests are made"):
        await _finished_requests(cluster, space, count, completed)
    # The policy says when they are due, so an operator that starts now finds all of them, and none due.
    moment = int(time.time()) + _HEAD_START_SECONDS + count // 250
    flags = (f"--request-ttl={moment - completed}s", *_LIMITS)
    with step(f"round {number}: lapse operator deletes them"), running_operator(cluster, folder, *flags) as operator:
        await operator.ready()
        assert time.time() < moment - _BEFORE_SECONDS, "the machine is too slow: it was due before the operator led"
        path = f"{_CAPTURES}/namespaces/{space}/{VOLUME_CAPTURE_REQUEST.plural}"
        found = await _measure_due(cluster, path, count, moment=moment, operator=operator)
        outcomes = Counter(event["outcome"] for event in operator.events("journal"))
        told = "".join(line for line in operator.log.open(encoding="utf-8") if '"event": "journal"' not in line)
    assert outcomes == {"intent": count, "ended": count}, f"the journal says {outcomes}\n{told[-4000:]}"
    return found


async def due(cluster: Cluster, folder: Path, plan: Plan) -> tuple[Due, Due]:
    """Let both have their turns; return the medians, theirs first."""
    theirs, ours = [], []
    for number in range(1, plan.rounds + 1):
        theirs.append(await _due_theirs(cluster, plan.due, number))
        ours.append(await _due_ours(cluster, folder, plan.due, number))
    return _median(theirs), _median(ours)


def _median(rounds: Sequence[Due]) -> Due:
    middle: dict[str, Any] = {name: median([asdict(one)[name] for one in rounds]) for name in asdict(rounds[0])}
    return Due(**{**middle, "objects": rounds[0].objects})


# --- idle ------------------------------------------------------------------------------------------------------------


async def idle(cluster: Cluster, folder: Path, plan: Plan) -> Idle:
    """Let an operator know many finished requests, and do nothing."""
    space = await _space(cluster, "idle")
    with step(f"{plan.idle:,} finished requests are made"):
        await _finished_requests(cluster, space, plan.idle, int(time.time()))
    with (
        step(f"lapse operator is left alone with them for {plan.quiet_seconds:g} s"),
        running_operator(cluster, folder, "--request-ttl=24h", *_LIMITS) as operator,
    ):
        start = time.time()
        await operator.ready()
        load = time.time() - start
        await asyncio.sleep(min(10.0, plan.quiet_seconds))
        before, cpu = await cluster.calls(), operator.cpu
        await asyncio.sleep(plan.quiet_seconds)
        calls, cpu = (await cluster.calls()).since(before), operator.cpu - cpu
        memory, peak = memory_of(operator.pid), memory_of(operator.pid, "VmHWM")
    return Idle(
        requests=plan.idle,
        seconds=plan.quiet_seconds,
        start_seconds=load,
        calls=max(0, calls.of_operator - calls.leases),
        lease_calls=calls.leases,
        cpu_milliseconds=cpu * 1000,
        memory=memory / 2**20,
        peak=peak / 2**20,
    )


# --- captures --------------------------------------------------------------------------------------------------------


async def captures(cluster: Cluster, folder: Path, plan: Plan) -> Capture:
    """Ask for captures of a few claims, all at once."""
    space = await _space(cluster, "captured")
    with step(f"{plan.claims} claims are bound"):
        claims = await _bound_claims(cluster, space, plan.claims)
    with (
        step(f"{plan.captures:,} captures are asked for at once"),
        running_operator(cluster, folder, "--request-ttl=24h", *_LIMITS) as operator,
    ):
        await operator.ready()
        before, cpu, start = await cluster.calls(), operator.cpu, time.time()
        bodies = [_asked(space, number, claims[number % len(claims)]) for number in range(plan.captures)]
        await _create(cluster, VOLUME_CAPTURE_REQUEST, bodies)
        created = time.time() - start
        await _all_final(cluster, space, plan.captures)
        seconds, cpu = time.time() - start, operator.cpu - cpu
        calls = (await cluster.calls()).since(before)
    found = await _check_artifacts(cluster, space)
    return Capture(
        captures=plan.captures,
        claims=plan.claims,
        ready=found.ready,
        artifacts=found.artifacts,
        snapshots=len(cluster.server.storage.snapshots()),
        create_seconds=created,
        seconds=seconds,
        operator_calls=(calls.of_operator - calls.leases) / plan.captures,
        all_calls=calls.all_but_watches_and_leases / plan.captures,
        cpu_milliseconds=cpu / plan.captures * 1000,
    )


def _asked(space: str, number: int, claim: Any) -> Json:  # noqa: ANN401 - a claim
    meta = claim.metadata
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": meta.name, "uid": meta.uid}
    metadata = {"name": f"nightly-{number:05}", "namespace": space}
    return {"metadata": metadata, "spec": {"mode": "Snapshot", "target": target}}


async def _bound_claims(cluster: Cluster, space: str, count: int) -> list[Any]:
    access, resources = ["ReadWriteOnce"], {"requests": {"storage": "1Mi"}}
    spec = {"storageClassName": CLASS, "accessModes": access, "resources": resources}
    bodies = [{"metadata": {"name": f"data-{number}", "namespace": space}, "spec": spec} for number in range(count)]
    await _create(cluster, PERSISTENT_VOLUME_CLAIM, bodies)
    async with asyncio.timeout(120):
        while True:
            page = await cluster.client.list(PERSISTENT_VOLUME_CLAIM, namespace=space)
            if all(one.status is not None and one.status.phase == "Bound" for one in page.items):
                return list(page.items)
            await asyncio.sleep(0.2)


async def _all_final(cluster: Cluster, space: str, count: int) -> None:
    """Wait by the captures' own reports: lists again and again would be load that belongs to nobody."""
    page = await cluster.client.list(VOLUME_CAPTURE_REQUEST, namespace=space)
    final = {one.metadata.name for one in page.items if _is_final(one)}
    async with asyncio.timeout(600):
        while len(final) < count:
            async for event in cluster.client.watch(
                VOLUME_CAPTURE_REQUEST, namespace=space, since=page.resource_version
            ):
                if event.object is not None and _is_final(event.object):
                    final.add(event.object.metadata.name)
                if len(final) == count:
                    return


def _is_final(request: Any) -> bool:  # noqa: ANN401 - a request
    return request.status is not None and is_final(request.status.conditions)


@dataclass(frozen=True, slots=True)
class _Artifacts:
    ready: int
    artifacts: int


async def _check_artifacts(cluster: Cluster, space: str) -> _Artifacts:
    """Count requests that succeeded, and the contents that exactly one of them calls its own."""
    requests = (await cluster.client.list(VOLUME_CAPTURE_REQUEST, namespace=space)).items
    contents = (await cluster.client.list(VOLUME_SNAPSHOT_CONTENT)).items
    ready = 0
    named: Counter[str] = Counter()
    for one in requests:
        condition = ready_condition(one.status.conditions) if one.status is not None else None
        ready += condition is not None and condition.status == "True"
        if one.status is not None and one.status.artifact_ref is not None:
            named[one.status.artifact_ref.uid or ""] += 1
    there = {one.metadata.uid for one in contents}
    assert len(there) == len(contents) == len(named), f"{len(contents)} contents, {len(named)} of them named"
    return _Artifacts(ready, sum(uid in there and count == 1 for uid, count in named.items()))


# --- all -------------------------------------------------------------------------------------------------------------


def _measure(plan: Plan, folder: Path) -> Results:
    """Measure each part on a control plane of its own: what one leaves behind is work for the operator of the next."""
    results = Results(plan_rounds=plan.rounds)
    for part in plan.parts:
        with kube_server(csi=True, manager_flags=_MANAGER_FLAGS) as server:
            results = asyncio.run(_measure_part(part, plan, folder, server, results=results))
    return results


async def _measure_part(part: str, plan: Plan, folder: Path, server: KubeServer, *, results: Results) -> Results:
    cluster = await Cluster.open(server)
    results = replace(results, version=server.version)
    try:
        if part == "due":
            theirs, ours = await due(cluster, folder, plan)
            return replace(results, theirs=theirs, ours=ours)
        if part == "idle":
            return replace(results, idle=await idle(cluster, folder, plan))
        return replace(results, captures=await captures(cluster, folder, plan))
    finally:
        await cluster.close()


def main() -> None:
    """Measure, print, write."""
    options = _options()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    plan = replace(QUICK if options.quick else Plan(), parts=options.only or PARTS)
    plan = replace(plan, **_given(options))
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        results = _measure(plan, Path(folder))
    publish(
        "kube_requests",
        options,
        figures=results.figures(),
        claims=claims_of(results),
        page="benchmarks-kubernetes.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


def _options() -> argparse.Namespace:
    parser = options_of("kube_requests", __doc__, PARTS)
    for name in ("due", "rounds", "idle", "captures"):
        parser.add_argument(f"--{name}", type=int, help="so many")
    return parser.parse_args()


def _given(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in ("due", "rounds", "idle", "captures")}
    return {name: value for name, value in given.items() if value is not None}


if __name__ == "__main__":
    main()
