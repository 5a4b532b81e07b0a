"""Restores on a Kubernetes cluster: one beside the same steps by hand, and many that are asked for at once.

``python -m bench.kube_restore [--quick] [--only PART ...] [--out FOLDER]`` starts a control plane with a CSI driver,
measures, prints one line of JSON and writes ``benchmarks-restore.md``. Its exit status says whether all claims held.

- *one*: a captured snapshot becomes a bound claim. Asked of a real ``lapse operator`` by a request, and made by hand
  from the handle of the same snapshot: content, VolumeSnapshot, claim. Each in two ways, all in turn in every round: as
  a person's script does it, with ``kubectl`` and ``kubectl wait``; and as one process with connections and watches.
- *many*: restores that are asked for at once, each of a snapshot of its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.contest import median, require_linux, step, this_machine
from bench.domain import ROOT, options_of, publish
from bench.kube_cluster import Cluster, each, running_operator
from bench.kube_restore_page import WAYS, Many, One, Results, Way, claims_of, write
from lapse.kube.resources import Document, Kind, ObjectKey, ready_condition
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.servers import kube_server
from tests.servers.kube.csi import CLASS, DRIVER

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from lapse.kube.resources import Json
    from tests.servers import KubeServer

PARTS: Final = ("one", "many")
SPACE: Final = "restores"
_SNAPSHOTS: Final = "snapshot.storage.k8s.io"
_SNAPSHOT: Final = Kind(f"{_SNAPSHOTS}/v1", "VolumeSnapshot", "volumesnapshots", Document)
_CLAIMS: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", Document)
_REQUESTS: Final = Kind(VOLUME_RESTORE_REQUEST.api_version, "VolumeRestoreRequest", "volumerestorerequests", Document)
_WAIT: Final = "--timeout=60s"
_BEING_DELETED: Final = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
_FLAGS: Final = ("--request-ttl=24h",)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 15
    many: int = 100
    parts: Sequence[str] = PARTS


QUICK: Final = Plan(rounds=2, many=8)


@dataclass(frozen=True, slots=True)
class Source:
    """A captured snapshot: its content, how the driver knows it, and what was captured."""

    content: str
    handle: str
    data: bytes


# --- captures --------------------------------------------------------------------------------------------------------


async def _captured(cluster: Cluster, count: int) -> list[Source]:
    """Make so many claims with something on them, and capture each.

    A claim for each snapshot, because of two snapshots of one volume the driver forgets the first.
    """
    names = [f"data-{number:05}" for number in range(count)]
    bodies = [{"metadata": {"name": name, "namespace": SPACE}, "spec": _claim_spec()} for name in names]
    await _create(cluster, PERSISTENT_VOLUME_CLAIM, bodies)
    await _until_all(cluster, _CLAIMS, set(names), _is_bound)
    datas: dict[str, bytes] = {}
    for name in names:
        datas[name] = name.encode() * 100
        (await _folder(cluster, name) / "data").write_bytes(datas[name])
    claims = {one.metadata.name: one for one in (await cluster.client.list(PERSISTENT_VOLUME_CLAIM)).items}
    await _create(cluster, VOLUME_CAPTURE_REQUEST, (_capture(name, claims[name].metadata.uid) for name in names))
    captures = Kind(VOLUME_CAPTURE_REQUEST.api_version, "VolumeCaptureRequest", "volumecapturerequests", Document)
    done = await _until_all(cluster, captures, set(names), _is_ready)
    contents = {one.metadata.name: one for one in (await cluster.client.list(VOLUME_SNAPSHOT_CONTENT)).items}
    found = []
    for name in names:
        content = done[name]["status"]["artifactRef"]["name"]
        status = contents[content].status
        assert status is not None
        assert status.snapshot_handle
        found.append(Source(content, status.snapshot_handle, datas[name]))
    return found


def _capture(name: str, uid: str) -> Json:
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "uid": uid}
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"mode": "Snapshot", "target": target}}


def _claim_spec(source: str | None = None) -> Json:
    asked = {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    filled = {"apiGroup": _SNAPSHOTS, "kind": "VolumeSnapshot", "name": source}
    return asked if source is None else {**asked, "dataSource": filled}


async def _folder(cluster: Cluster, name: str) -> Path:
    claim = await cluster.client.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(SPACE, name))
    volume = await cluster.client.get(PERSISTENT_VOLUME, ObjectKey(None, claim.spec.volume_name or ""))
    assert volume.spec.csi is not None
    return cluster.server.storage.volume(volume.spec.csi.volume_handle or "")


async def _create(cluster: Cluster, kind: Kind[Any], bodies: Iterable[Json]) -> None:
    async def one(body: Json) -> None:
        await cluster.client.create(kind, body)

    await each(bodies, one)


# --- waiting ---------------------------------------------------------------------------------------------------------


def _is_bound(body: Json) -> bool:
    return bool(body.get("status", {}).get("phase") == "Bound")


def _is_usable(body: Json) -> bool:
    return bool(body.get("status", {}).get("readyToUse"))


def _is_ready(body: Json) -> bool:
    conditions = body.get("status", {}).get("conditions", [])
    ready = next((one for one in conditions if one["type"] == "Ready"), None)
    assert ready is None or ready["status"] == "True", ready
    return ready is not None


async def _until_all(
    cluster: Cluster, kind: Kind[Document], names: set[str], suits: Callable[[Json], bool]
) -> dict[str, Json]:
    """Wait by a watch until objects of the namespace are as wanted; returns them."""
    found: dict[str, Json] = {}
    async with asyncio.timeout(300):
        while True:
            page = await cluster.client.list(kind, namespace=SPACE)
            found |= {one.metadata.name: one.body for one in page.items if suits(one.body)}
            if names <= set(found):
                return found
            async for event in cluster.client.watch(kind, namespace=SPACE, since=page.resource_version):
                if event.object is not None and suits(event.object.body):
                    found[event.object.metadata.name] = event.object.body
                    if names <= set(found):
                        return found


# --- one -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Restore:
    """One restore to do: from which snapshot, into a claim of which name."""

    cluster: Cluster
    source: Source
    name: str

    async def kubectl(self, *arguments: str, manifests: Sequence[Json] = ()) -> str:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}) if manifests else ""
        return await asyncio.to_thread(self.cluster.server.kubectl, *arguments, "-n", SPACE, stdin=text)

    @property
    def request(self) -> Json:
        source = {"apiVersion": f"{_SNAPSHOTS}/v1", "kind": "VolumeSnapshotContent", "name": self.source.content}
        template = {"metadata": {"name": self.name}, "spec": {}}
        kind = {"apiVersion": VOLUME_RESTORE_REQUEST.api_version, "kind": VOLUME_RESTORE_REQUEST.kind}
        spec = {"sourceRef": source, "pvcTemplate": template}
        return {**kind, "metadata": {"name": self.name, "namespace": SPACE}, "spec": spec}

    def bridge(self, handle: str) -> tuple[Json, Json]:
        """A second content for the snapshot, and the VolumeSnapshot that takes it."""
        spec = {
            "driver": DRIVER,
            "deletionPolicy": "Retain",
            "volumeSnapshotClassName": CLASS,
            "sourceVolumeMode": "Filesystem",
            "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": self.name, "namespace": SPACE},
        }
        meta = {"name": self.name, "annotations": {_BEING_DELETED: "yes"}}
        content = {"apiVersion": f"{_SNAPSHOTS}/v1", "kind": "VolumeSnapshotContent", "metadata": meta, "spec": spec}
        taken = {"volumeSnapshotClassName": CLASS, "source": {"volumeSnapshotContentName": self.name}}
        place = {"name": self.name, "namespace": SPACE}
        return content, {**_body(_SNAPSHOT), "metadata": place, "spec": taken}

    @property
    def claim(self) -> Json:
        return {**_body(_CLAIMS), "metadata": {"name": self.name, "namespace": SPACE}, "spec": _claim_spec(self.name)}

    async def request_with_kubectl(self) -> None:
        await self.kubectl("create", "-f", "-", manifests=[self.request])
        await self.kubectl("wait", f"vrr/{self.name}", "--for=condition=Ready", _WAIT)

    async def hand_with_kubectl(self) -> None:
        path = "jsonpath={.status.snapshotHandle}"
        handle = await self.kubectl("get", "volumesnapshotcontent", self.source.content, "-o", path)
        await self.kubectl("create", "-f", "-", manifests=self.bridge(handle))
        await self.kubectl("wait", f"volumesnapshot/{self.name}", "--for=jsonpath={.status.readyToUse}=true", _WAIT)
        await self.kubectl("create", "-f", "-", manifests=[self.claim])
        await self.kubectl("wait", f"pvc/{self.name}", "--for=jsonpath={.status.phase}=Bound", _WAIT)

    async def request_with_watches(self) -> None:
        await self.cluster.client.create(_REQUESTS, self.request)
        await _until_all(self.cluster, _REQUESTS, {self.name}, _is_ready)

    async def hand_with_watches(self) -> None:
        client = self.cluster.client
        source = await client.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, self.source.content))
        assert source.status is not None
        content, snapshot = self.bridge(source.status.snapshot_handle or "")
        await client.create(VOLUME_SNAPSHOT_CONTENT, content)
        await client.create(_SNAPSHOT, snapshot)
        await _until_all(self.cluster, _SNAPSHOT, {self.name}, _is_usable)
        await client.create(_CLAIMS, self.claim)
        await _until_all(self.cluster, _CLAIMS, {self.name}, _is_bound)

    async def do(self, way: Way) -> float:
        """Return the seconds from the first call until the claim is known to be bound."""
        start = time.perf_counter()
        await {
            Way.REQUEST_KUBECTL: self.request_with_kubectl,
            Way.HAND_KUBECTL: self.hand_with_kubectl,
            Way.REQUEST_WATCHES: self.request_with_watches,
            Way.HAND_WATCHES: self.hand_with_watches,
        }[way]()
        return time.perf_counter() - start

    async def check(self) -> None:
        """The data is there."""
        assert (await _folder(self.cluster, self.name) / "data").read_bytes() == self.source.data

    async def clear_up(self, way: Way) -> None:
        """Let nothing of it be left to do when the next one begins."""
        client = self.cluster.client
        if way in {Way.HAND_KUBECTL, Way.HAND_WATCHES}:
            await client.delete(_SNAPSHOT, ObjectKey(SPACE, self.name))
            await client.delete(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, self.name))
            return await _until_bridges_gone(self.cluster, {self.name})
        uid = (await client.get(_REQUESTS, ObjectKey(SPACE, self.name))).metadata.uid
        return await _until_bridges_gone(self.cluster, {f"restore-{uid}"})


def _body(kind: Kind[Any]) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind}


async def _until_bridges_gone(cluster: Cluster, names: set[str]) -> None:
    """Wait until no VolumeSnapshot and no content of these names is left."""
    async with asyncio.timeout(300):
        while True:
            snapshots = (await cluster.client.list(_SNAPSHOT, namespace=SPACE)).items
            contents = (await cluster.client.list(VOLUME_SNAPSHOT_CONTENT)).items
            there = {one.metadata.name for one in snapshots} | {one.metadata.name for one in contents}
            if names.isdisjoint(there):
                return
            await asyncio.sleep(0.05)


async def one(cluster: Cluster, folder: Path, plan: Plan) -> One:
    """Restore one snapshot again and again, each way once in every round, and who begins changes."""
    seconds: dict[Way, list[float]] = {way: [] for way in WAYS}
    with running_operator(cluster, folder, *_FLAGS) as operator:
        await operator.ready()
        (source,) = await _captured(cluster, 1)
        for number in range(-1, plan.rounds):  # the first warms everything up, and does not count
            turn = number % len(WAYS)
            with step(f"round {number + 1}"):
                for way in (*WAYS[turn:], *WAYS[:turn]):
                    restore = _Restore(cluster, source, f"{way}-{number + 1:03}")
                    took = await restore.do(way)
                    await restore.check()
                    await restore.clear_up(way)
                    if number >= 0:
                        seconds[way].append(took)
    return One(
        rounds=plan.rounds,
        seconds={way: median(found) for way, found in seconds.items()},
        kubectl=_ratios(seconds[Way.REQUEST_KUBECTL], seconds[Way.HAND_KUBECTL]),
        watches=_ratios(seconds[Way.REQUEST_WATCHES], seconds[Way.HAND_WATCHES]),
    )


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Compare round by round: the median, and where the middle half lies."""
    found = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return middle, low, high


# --- many ------------------------------------------------------------------------------------------------------------


async def many(cluster: Cluster, folder: Path, plan: Plan) -> Many:
    """Ask for many restores at once."""
    with running_operator(cluster, folder, *_FLAGS) as operator:
        await operator.ready()
        with step(f"{plan.many:,} claims are captured"):
            sources = await _captured(cluster, plan.many)
        restores = [_Restore(cluster, source, f"back-{number:05}") for number, source in enumerate(sources)]
        names = {one.name for one in restores}
        with step(f"{plan.many:,} restores are asked for at once"):
            before, cpu, start = await cluster.calls(), operator.cpu, time.time()
            bound = asyncio.create_task(_until_all(cluster, _CLAIMS, names, _is_bound))
            await _create(cluster, _REQUESTS, [one.request for one in restores])
            created = time.time() - start
            await bound
            all_bound = time.time() - start
            await _until_final(cluster, names)
            final = time.time() - start
            requests = (await cluster.client.list(VOLUME_RESTORE_REQUEST, namespace=SPACE)).items
            await _until_bridges_gone(cluster, {f"restore-{one.metadata.uid}" for one in requests})
            clear, cpu = time.time() - start, operator.cpu - cpu
            calls = (await cluster.calls()).since(before)
    ready = [ready_condition(one.status.conditions) for one in requests if one.status is not None]
    right = [(await _folder(cluster, one.name) / "data").read_bytes() == one.source.data for one in restores]
    return Many(
        restores=plan.many,
        ready=sum(one is not None and one.status == "True" for one in ready),
        right=sum(right),
        create_seconds=created,
        bound_seconds=all_bound,
        final_seconds=final,
        clear_seconds=clear,
        operator_calls=(calls.of_operator - calls.leases) / plan.many,
        all_calls=calls.all_but_watches_and_leases / plan.many,
        cpu_milliseconds=cpu / plan.many * 1000,
    )


async def _until_final(cluster: Cluster, names: set[str]) -> None:
    def final(body: Json) -> bool:
        found = VOLUME_RESTORE_REQUEST.convert(body)
        return found.status is not None and is_final(found.status.conditions)

    await _until_all(cluster, _REQUESTS, names, final)


# --- all -------------------------------------------------------------------------------------------------------------


def _measure(plan: Plan, folder: Path) -> Results:
    """Measure each part on a control plane of its own."""
    results = Results()
    for part in plan.parts:
        with kube_server(csi=True) as server:
            results = asyncio.run(_measure_part(part, plan, folder, server, results=results))
    return results


async def _measure_part(part: str, plan: Plan, folder: Path, server: KubeServer, *, results: Results) -> Results:
    cluster = await Cluster.open(server)
    await asyncio.to_thread(server.kubectl, "create", "namespace", SPACE)
    results = replace(results, version=server.version)
    try:
        if part == "one":
            return replace(results, one=await one(cluster, folder, plan))
        return replace(results, many=await many(cluster, folder, plan))
    finally:
        await cluster.close()


def main() -> None:
    """Measure, print, write."""
    options = _options()
    require_linux()
    (ROOT / "build").mkdir(exist_ok=True)
    plan = replace(QUICK if options.quick else Plan(), parts=options.only or PARTS)
    given = {name: getattr(options, name) for name in ("rounds", "many")}
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    machine, start = this_machine(ROOT / "build"), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        results = _measure(plan, Path(folder))
    publish(
        "kube_restore",
        options,
        figures=results.figures(),
        claims=claims_of(results),
        page="benchmarks-restore.md",
        write=lambda command: write(results, machine, command=command, seconds=time.perf_counter() - start),
    )


def _options() -> argparse.Namespace:
    parser = options_of("kube_restore", __doc__, PARTS)
    for name in ("rounds", "many"):
        parser.add_argument(f"--{name}", type=int, help="so many")
    return parser.parse_args()


if __name__ == "__main__":
    main()
