"""A small world for the tests of requests: the real embedded store, the real controllers, virtual time.

    async with opened(tmp_path) as world:
        claim = await world.volume("data")             # a bound claim and its volume, with their classes
        request = await world.capture("nightly", claim)
        await world.settle()                           # controllers work until nothing is left to do
        await world.snapshot_ready(request)            # what a CSI driver would report
        await world.settle()
        assert await world.outcome(request) == ("Completed", ...)
        await world.live(hours=1)                      # time passes; controllers and sweeps do their work in it
        assert await world.journal_rows() ...

Nothing runs behind the back of a test but the caches and the store's garbage collection: reconciles happen in `settle`,
one after the other, by the real `Controller` with the real queues; sweeps happen in `sweep`, time passes in `advance`
and `live`. `restart` gives up the process (caches, queues, everything in memory) and begins a new one on the same file.

`Wire` stands between the controllers and the store: it counts, records, fails and cuts off on order.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lapse.core.clock import SystemClock, VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Json, Kind, Object, ObjectKey, ready_condition
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.tables import SQL, kind_name, place_of, rows
from lapse.requests.addresses import keeper_name, snapshot_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    RESTORE,
    RESTORE_TO,
    RESTORED_FROM,
    SNAPSHOT_CLASS,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    ManifestCaptureRequest,
    ObjectKeeper,
    VolumeCaptureRequest,
    VolumeRestoreRequest,
)
from lapse.requests.api.upstream import (
    ALL_KINDS,
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
    PersistentVolume,
    PersistentVolumeClaim,
)
from lapse.requests.controllers.claims import local_source
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.local.executor import LocalExecutor
from lapse.requests.local.places import ExecutorFolders
from lapse.requests.service import Requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from lapse.core.jitter import Chance
    from lapse.engine.journal.port import Row
    from lapse.engine.sweep import SweepReport
    from lapse.kube.controller.controller import Controller, ReconcileResult
    from lapse.objects.port import Deletion

T = TypeVar("T", bound=Object)

NAMESPACE = "shop"
DRIVER = "csi.example.com"
CLASS = "fast"
_REAL = SystemClock()
_CALLS = frozenset({"get", "list", "resolve", "create", "patch", "patch_status", "delete"})
_WRITES = frozenset({"create", "patch", "patch_status", "delete"})
NO_SERVICES: Mapping[str, Any] = {}
_MOST_RECONCILES = 20_000
"""A world that needs more to become quiet never will."""


class Crash(BaseException):
    """The process ends here."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the store by a controller or a sweep (not those of the caches)."""

    method: str
    kind: str
    key: ObjectKey | None = None
    body: Json | None = None
    """What a write would write."""

    @property
    def writes(self) -> bool:
        return self.method in _WRITES

    def __str__(self) -> str:
        return f"{self.method} {self.kind}"


@dataclass
class Wire:
    """Passes every call on to the store, unless a test says what happens instead, before or after it."""

    store: Any
    calls: list[Call] = field(default_factory=list)
    crash_at: int | None = None
    """The number of the call (from 1) at which the process ends; `applied` says whether the store still does it."""
    applied: bool = False
    before: Callable[[Call], None] = lambda _call: None
    """May raise instead of the call."""
    after: Callable[[Call, Any], Any] = lambda _call, answer: answer
    """May raise, or change the answer, after the call was done."""
    dead: bool = False

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.writes]

    def __getattr__(self, method: str) -> Any:  # noqa: ANN401 - stands for any method
        real = getattr(self.store, method)
        if method not in _CALLS:
            return real

        async def call(kind: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method has it
            if method == "list" and kwargs.get("limit"):  # a cache that fills itself
                return await real(kind, *args, **kwargs)
            this = _call(method, kind, args)
            return self.after(this, await self.pass_on([this], lambda: real(kind, *args, **kwargs)))

        return call

    async def delete_all(self, deletions: Sequence[Deletion], *, also: Any) -> Any:  # noqa: ANN401 - as the store has it
        """Several deletions in one transaction: each counts, and a crash at any of them is one of all."""
        these = [Call("delete", one.kind.kind, one.key) for one in deletions]
        answer = await self.pass_on(these, lambda: self.store.delete_all(deletions, also=also))
        for this in these:
            self.after(this, None)
        return answer

    async def pass_on(self, these: list[Call], real: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Let calls, which are one of the store, happen or not."""
        if self.dead:
            raise Crash
        made = len(self.calls)
        self.calls += these
        self.dead = self.crash_at is not None and made < self.crash_at <= len(self.calls)
        if self.dead and not self.applied:
            raise Crash
        for this in these:
            self.before(this)
        try:
            return await real()
        finally:
            if self.dead:
                raise Crash


def _call(method: str, kind: Any, args: tuple[Any, ...]) -> Call:  # noqa: ANN401 - a kind, or its apiVersion
    name = kind.kind if isinstance(kind, Kind) else str(args[0])
    if method == "create":
        body = kind.body(args[0])
        meta = body.get("metadata", {})
        return Call(method, name, ObjectKey(meta.get("namespace"), meta.get("name", "")), body)
    key = args[0] if args and isinstance(args[0], ObjectKey) else None
    return Call(method, name, key, args[1] if method.startswith("patch") else None)


class World:
    """See the module."""

    def __init__(
        self,
        store: EmbeddedStore,
        clock: VirtualClock,
        folder: Path,
        *,
        policy: RequestPolicy,
        wire: Wire | None = None,
        local: bool = False,
        chance: Chance = lambda: 0.5,
        services: Mapping[str, Any] = NO_SERVICES,
    ) -> None:
        """Build everything on an open store. ``local`` adds the local executor, which writes through the wire, too.

        ``services`` are arguments of `Requests` that the embedded store does without.
        """
        self.store, self.clock, self.folder = store, clock, folder
        self.journal = SQLiteJournal(store.database)
        self._chance, self._local, self._services = chance, local, services
        self._filling: asyncio.Task[None] | None = None
        self._build(policy, wire)

    def _build(self, policy: RequestPolicy, wire: Wire | None) -> None:
        self.policy = policy
        self.wire = Wire(self.store) if wire is None else wire
        self.metrics = Metrics("test")
        self.requests = Requests(
            self.wire,
            policy=policy,
            metrics=self.metrics,
            clock=self.clock,
            chance=self._chance,
            **{"journal": self.journal, **self._services},
        )
        self.controllers: list[Controller[ObjectKey]] = [*self.requests.controllers]
        self.executor: LocalExecutor | None = None
        if self._local:
            caches = self.requests.caches
            self.executor = LocalExecutor(
                self.wire, caches, places=ExecutorFolders(self.folder), clock=self.clock, metrics=self.metrics
            )
            self.controllers += [service._controller for service in self.executor._services]

    # --- the process --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fill the caches."""
        self._filling = asyncio.create_task(self.requests.caches.run())
        await self.caught_up()
        if self.executor is not None:
            await self.executor._prepare()

    async def stop(self) -> None:
        """End the process as a kill does: nothing in memory survives."""
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.wait([filling])
        for controller in self.controllers:
            controller._queue.close()

    async def restart(self, *, policy: RequestPolicy | None = None, wire: Wire | None = None) -> None:
        """Begin a new process on the same store: new caches, new queues, new controllers."""
        await self.stop()
        self._build(policy or self.policy, wire)
        await self.start()

    async def caught_up(self) -> None:
        """Return when the caches show what the store has, and its garbage is collected."""
        async with asyncio.timeout(20):
            while not self._is_caught_up():
                await _REAL.sleep(0)

    def _is_caught_up(self) -> bool:
        """Compare names and versions of everything, in one look at the file."""
        caches = self.requests.caches._informers
        if not all(cache.synced.is_set() for cache in caches.values()):
            return False
        if self.store._read(lambda cursor: rows(cursor, SQL["is_anything_queued"]))[0][0]:
            return False
        names = {kind_name(kind) for kind in caches}
        found = self.store._read(lambda cursor: rows(cursor, "SELECT kind, namespace, name, version FROM objects"))
        stored = {(*place, str(version)) for *place, version in found if place[0] in names}
        return stored == {
            (*place_of(kind, obj.metadata.key), obj.metadata.resource_version)
            for kind, cache in caches.items()
            for obj in cache.items()
        }

    async def settle(self) -> None:
        """Let the controllers work until nothing is left to do at this moment."""
        for _ in range(_MOST_RECONCILES):
            if not await self.work_once():
                return
        raise AssertionError("the controllers never come to rest")

    async def work_once(self, pick: Callable[[int], int] = lambda _count: 0) -> bool:
        """Do one reconcile, of those that are asked for; ``pick`` chooses the controller. False: there is none."""
        await self.caught_up()
        await _REAL.sleep(0)  # the timers of the queues
        busy = [controller for controller in self.controllers if len(controller._queue)]
        if not busy:
            return False
        controller = busy[pick(len(busy))]
        await controller._process(await controller._queue.get())
        return True

    async def reconcile(self, request: Object) -> ReconcileResult:
        """Reconcile one request or keeper directly, whether or not anything asks for it; errors are raised."""
        kind = kind_of(request)
        by_kind: dict[str, Any] = {
            VOLUME_CAPTURE_REQUEST.kind: self.requests.capture,
            VOLUME_RESTORE_REQUEST.kind: self.requests.restore,
            MANIFEST_CAPTURE_REQUEST.kind: self.requests.manifests,
            OBJECT_KEEPER.kind: self.requests.keeper,
        }
        result: ReconcileResult = await by_kind[kind.kind].reconcile(request.metadata.key)
        return result

    async def sweep(self) -> dict[str, SweepReport]:
        """Run every sweep once, over everything that is due; return what each did, by the name of its loop."""
        await self.caught_up()
        reports = {loop.name: await loop.sweeps[0].run(proceed=lambda: True) for loop in self.requests.loops}
        await self.caught_up()
        return reports

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float = 0, *, ns: int = 0) -> None:
        """Let time pass; nobody does anything meanwhile."""
        self.clock.advance(seconds, ns=ns)

    async def live(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, step: float = 60) -> None:
        """Let time pass in steps, in each of which controllers and sweeps do all they have to do."""
        left = seconds + 60 * minutes + 3600 * hours
        while left > 0:
            self.clock.advance(min(step, left))
            left -= step
            await self.rest()

    async def rest(self) -> None:
        """Let controllers and sweeps do all that they have to do at this moment."""
        await self.settle()
        await self.sweep()
        await self.settle()

    async def until_quiet(self, *, seconds: float = 3600, step: float = 10) -> None:
        """Let time pass until every retry and every wait has had its turn."""
        await self.live(seconds, step=step)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every object of a kind, straight from the store."""
        found: list[T] = []
        after = None
        while True:
            page = await self.store.list(kind, limit=500, after=after)
            found += page.items
            if page.next is None:
                return found
            after = page.next

    async def names(self, kind: Kind[Any]) -> list[str]:
        return [obj.metadata.name for obj in await self.all(kind)]

    async def fresh(self, obj: T) -> T:
        """The same object as the store has it now; raises `NotFoundError`, also when another has its name."""
        kind = kind_of(obj)
        found = await self.store.get(kind, obj.metadata.key)
        if found.metadata.uid != obj.metadata.uid:
            raise NotFoundError(kind=kind.kind, name=obj.metadata.key)
        return found  # type: ignore[no-any-return]

    async def exists(self, obj: Object) -> bool:
        with suppress(NotFoundError):
            await self.fresh(obj)
            return True
        return False

    async def outcome(self, request: Any) -> tuple[str, str] | None:  # noqa: ANN401 - any request
        """Reason and message of the final condition; None while there is no Ready condition."""
        status = (await self.fresh(request)).status
        ready = ready_condition(status.conditions) if status is not None else None
        if ready is None:
            return None
        assert status.completion_timestamp, "a final condition comes with the time of completion"
        assert ready.status == ("True" if ready.reason == "Completed" else "False")
        return ready.reason, ready.message

    async def reason(self, request: Any) -> str | None:  # noqa: ANN401 - any request
        found = await self.outcome(request)
        return None if found is None else found[0]

    async def message(self, request: Any) -> str:  # noqa: ANN401 - any request
        """What a final request says."""
        found = await self.outcome(request)
        assert found is not None
        return found[1]

    async def keeper(self, request: Object) -> ObjectKeeper:
        """The keeper of a request; raises `NotFoundError`."""
        return await self.store.get(OBJECT_KEEPER, keeper_key(request))

    async def journal_rows(self, *, domain: str | None = None, uid: str | None = None) -> list[Row]:
        """Journal rows, oldest first."""
        return (await self.journal.entries(domain=domain, uid=uid, limit=10_000))[::-1]

    async def state(self) -> dict[str, Json]:
        """Everything in the store as one comparable value, without what differs between two runs."""
        return {f"{kind.kind}/{obj.metadata.key}": kind.body(obj) for kind in ALL_KINDS for obj in await self.all(kind)}

    # --- what users and executors do ----------------------------------------------------------------------------------

    async def apply(self, kind: Kind[T], body: Json) -> T:
        """Create an object, or patch it if it is there; a status is written as well."""
        meta = body["metadata"]
        key = ObjectKey(meta.get("namespace"), meta["name"])
        try:
            await self.store.get(kind, key)
        except NotFoundError:
            found = await self.store.create(kind, body)
        else:
            found = await self.store.patch(kind, key, body)
        if "status" in body and kind.status:
            found = await self.store.patch_status(kind, key, body["status"])
        return found

    async def report(self, kind: Kind[T], key: ObjectKey, status: Json) -> T:
        """Write a status, as an executor does."""
        return await self.store.patch_status(kind, key, status)

    async def delete(self, obj: Object) -> None:
        """Delete an object, as a user does."""
        await self.store.delete(kind_of(obj), obj.metadata.key, uid=obj.metadata.uid)

    async def annotate(self, obj: T, changes: dict[str, str | None]) -> T:
        """Set annotations; None removes one."""
        patched: T = await self.store.patch(kind_of(obj), obj.metadata.key, {"metadata": {"annotations": changes}})
        return patched

    async def hold(self, obj: T, *, until: str | None = None) -> T:
        """Hold an object against everything that lapses."""
        return await self.annotate(obj, {"lapse.dev/hold": "true", "lapse.dev/hold-until": until})

    async def release(self, obj: T) -> T:
        return await self.annotate(obj, {"lapse.dev/hold": None, "lapse.dev/hold-until": None})

    async def classes(
        self, *, driver: str = DRIVER, snapshot_class: str | None = CLASS, policy: str = "Delete"
    ) -> None:
        """The configuration that a capture needs."""
        annotations = {} if snapshot_class is None else {SNAPSHOT_CLASS: snapshot_class}
        await self.apply(
            STORAGE_CLASS, {"metadata": {"name": CLASS, "annotations": annotations}, "provisioner": driver}
        )
        await self.apply(
            VOLUME_SNAPSHOT_CLASS, {"metadata": {"name": CLASS}, "driver": driver, "deletionPolicy": policy}
        )

    async def volume(
        self,
        name: str = "data",
        *,
        namespace: str = NAMESPACE,
        reclaim: str = "Retain",
        phase: str = "Bound",
        storage_class: str | None = CLASS,
        csi: bool = True,
    ) -> PersistentVolumeClaim:
        """A claim with its volume ``pv-NAME``, and the classes if there are none."""
        if not await self.names(STORAGE_CLASS):
            await self.classes()
        spec = {"storageClassName": storage_class, "volumeName": f"pv-{name}" if phase == "Bound" else None}
        claim = await self.apply(
            PERSISTENT_VOLUME_CLAIM,
            {"metadata": {"namespace": namespace, "name": name}, "spec": spec, "status": {"phase": phase}},
        )
        bound = {"namespace": namespace, "name": name, "uid": claim.metadata.uid}
        source = {"csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"}} if csi else {"hostPath": {"path": "/x"}}
        volume = {"claimRef": bound, "persistentVolumeReclaimPolicy": reclaim, "storageClassName": storage_class}
        await self.apply(
            PERSISTENT_VOLUME,
            {"metadata": {"name": f"pv-{name}"}, "spec": {**volume, **source}, "status": {"phase": phase}},
        )
        return claim

    async def released(self, name: str = "data") -> PersistentVolume:
        """The volume of a claim that is gone, which somebody has granted to the namespace."""
        key = ObjectKey(None, f"pv-{name}")
        await self.store.patch(PERSISTENT_VOLUME, key, {"metadata": {"annotations": {RESTORE_TO: NAMESPACE}}})
        return await self.report(PERSISTENT_VOLUME, key, {"phase": "Released"})

    async def capture(
        self,
        name: str,
        claim: Object | None = None,
        *,
        mode: str = "Snapshot",
        annotations: dict[str, str] | None = None,
        target: Json | None = None,
    ) -> VolumeCaptureRequest:
        """Ask for a capture of a claim, or of whatever ``target`` says."""
        if claim is not None:
            target = {"name": claim.metadata.name, "uid": claim.metadata.uid, **(target or {})}
        asked = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **(target or {})}
        return await self.store.create(
            VOLUME_CAPTURE_REQUEST, _request(name, {"mode": mode, "target": asked}, annotations)
        )

    async def restore(
        self,
        name: str,
        source: Object | None = None,
        *,
        claim: str = "restored",
        annotations: dict[str, str] | None = None,
        source_ref: Json | None = None,
        template: Json | None = None,
        spec: Json | None = None,
    ) -> VolumeRestoreRequest:
        """Ask for a restore of a VolumeSnapshotContent or PersistentVolume into a new claim."""
        if source is not None:
            kind = kind_of(source)
            found = {"apiVersion": kind.api_version, "kind": kind.kind, "name": source.metadata.name}
            source_ref = {**found, "uid": source.metadata.uid, **(source_ref or {})}
        wanted: Json = {"metadata": {"name": claim, **(template or {})}, **({"spec": spec} if spec else {})}
        asked = {"sourceRef": source_ref, "pvcTemplate": wanted}
        return await self.store.create(VOLUME_RESTORE_REQUEST, _request(name, asked, annotations))

    async def capture_manifests(
        self, name: str, *targets: Object, annotations: dict[str, str] | None = None
    ) -> ManifestCaptureRequest:
        """Ask for the manifests of some objects."""
        kinds = [(kind_of(target), target.metadata.name) for target in targets]
        asked = [{"apiVersion": kind.api_version, "kind": kind.kind, "name": found} for kind, found in kinds]
        return await self.store.create(MANIFEST_CAPTURE_REQUEST, _request(name, {"targets": asked}, annotations))

    async def config_map(self, name: str, value: str = "") -> Any:  # noqa: ANN401 - a document
        return await self.apply(
            CONFIG_MAP, {"metadata": {"namespace": NAMESPACE, "name": name}, "data": {"value": value}}
        )

    async def snapshot(self, name: str = "snap", *, namespace: str = NAMESPACE, ready: bool = True) -> Any:  # noqa: ANN401 - a content
        """A VolumeSnapshotContent of somebody else, to restore from."""
        spec = {
            "driver": DRIVER,
            "deletionPolicy": "Retain",
            "source": {"snapshotHandle": f"handle-{name}"},
            "volumeSnapshotRef": {"namespace": namespace, "name": name},
        }
        return await self.apply(
            VOLUME_SNAPSHOT_CONTENT, {"metadata": {"name": name}, "spec": spec, "status": {"readyToUse": ready}}
        )

    async def snapshot_ready(self, request: VolumeCaptureRequest) -> None:
        """What a CSI snapshotter reports when it is done."""
        await self.report(VOLUME_SNAPSHOT_CONTENT, content_key(request), {"readyToUse": True, "snapshotHandle": "h"})

    async def snapshot_failed(self, request: VolumeCaptureRequest, message: str | None) -> None:
        """What a CSI snapshotter reports when it cannot do it."""
        status = {"readyToUse": False, "error": {"message": message} if message is not None else {}}
        await self.report(VOLUME_SNAPSHOT_CONTENT, content_key(request), status)

    async def provision(self, request: VolumeRestoreRequest, *, status: Json | None = None) -> PersistentVolumeClaim:
        """What a provisioner does about a restore: it makes the claim, and says how it went (Bound, unless told)."""
        meta = request.metadata
        metadata = {
            "namespace": meta.namespace,
            "name": request.spec.pvc_template.metadata.name,
            "labels": {RESTORE: meta.uid},
            "annotations": {RESTORED_FROM: meta.uid},
        }
        source = msgspec.to_builtins(local_source(request))
        body: Json = {"metadata": metadata, "spec": {"volumeName": "x", "dataSourceRef": source}}
        return await self.apply(PERSISTENT_VOLUME_CLAIM, {**body, "status": status or {"phase": "Bound"}})

    async def completed(self, kind: Kind[Any], name: str = "done", *, fail: bool = False) -> Any:  # noqa: ANN401 - a request
        """A request of any kind that has just come to its end, good or bad, by its own controller."""
        if kind is VOLUME_CAPTURE_REQUEST:
            request: Any = await self.capture(name, await self.volume(f"{name}-data"))
            await self.settle()
            await (self.snapshot_failed(request, "broken") if fail else self.snapshot_ready(request))
        elif kind is VOLUME_RESTORE_REQUEST:
            request = await self.restore(name, await self.snapshot(f"{name}-snap"), claim=f"{name}-restored")
            await self.settle()
            await self.provision(request, status={"phase": "Lost"} if fail else None)
        else:
            target = await self.config_map(f"{name}-map")
            if fail:
                await self.delete(target)
            request = await self.capture_manifests(name, target)
        await self.settle()
        assert await self.outcome(request) is not None
        return await self.fresh(request)


def _request(name: str, spec: Json, annotations: dict[str, str] | None) -> Json:
    return {"metadata": {"namespace": NAMESPACE, "name": name, "annotations": annotations or {}}, "spec": spec}


def kind_of(obj: Any) -> Kind[Any]:  # noqa: ANN401 - any object of ours or of Kubernetes
    """The kind of an object; a document says it itself."""
    if hasattr(obj, "body"):
        return next(kind for kind in ALL_KINDS if kind.kind == obj.body["kind"])
    return next(kind for kind in ALL_KINDS if kind.type is type(obj))


def keeper_key(request: Object) -> ObjectKey:
    """Where the keeper of a request is found."""
    return ObjectKey(None, keeper_name(kind_of(request).short, request.metadata.uid))


def content_key(request: VolumeCaptureRequest) -> ObjectKey:
    """Where the VolumeSnapshotContent of a capture is found."""
    return ObjectKey(None, snapshot_name(request.metadata.uid, request.spec.target.uid or ""))


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    policy: RequestPolicy | None = None,
    wire: Callable[[EmbeddedStore], Wire] | None = None,
    clock: VirtualClock | None = None,
    local: bool = False,
    chance: Chance = lambda: 0.5,
    services: Mapping[str, Any] = NO_SERVICES,
) -> AsyncIterator[World]:
    """Open a store in ``folder`` and build a world on it; several worlds on one folder are several processes."""
    clock = clock or VirtualClock()
    store = open_embedded(folder / "objects.db", kinds=ALL_KINDS, clock=clock, synchronous=Synchronous.NORMAL)
    world = World(
        store,
        clock,
        folder,
        policy=policy or RequestPolicy(),
        wire=None if wire is None else wire(store),
        local=local,
        chance=chance,
        services=services,
    )
    try:
        await world.start()
        yield world
    finally:
        await world.stop()
        await store.close()
