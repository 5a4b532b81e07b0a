"""Requests on one machine: the controllers on an embedded object store, and the local executor that carries them out.

The executor plays the CSI provisioner and the CSI snapshotter for objects of our driver; before it begins it makes its
folders and its classes. The snapshotter captures a content that is neither ready nor failed. An archive is removed for
one reason only: its content was there and is gone, and the store itself has confirmed it. One that is to be retained
lies where nothing is removed.

Not guaranteed: that an archive goes when its content goes while no executor runs. An archive whose content was never
seen by this process is kept, with a warning: a store that was lost, or restored from an older backup, knows nothing of
its snapshots, and must not cost them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.core.duration import NEVER
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.engine.running.metrics import ErrorKind
from lapse.files.archive import ArchiveError, pack, remove_leftovers
from lapse.files.work import in_thread
from lapse.kube.controller.controller import Controller, ReconcileResult
from lapse.kube.controller.workqueue import WorkQueue
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, SNAPSHOT_CLASS, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.expiry import DOMAIN
from lapse.requests.local.places import CLASS, DRIVER, ExecutorFolders, snapshot_handle
from lapse.requests.local.provisioner import CLAIM, Provisioner
from lapse.requests.service import ControllerService, Requests

if TYPE_CHECKING:
    import asyncio

    from lapse.core.clock import Clock
    from lapse.core.duration import Duration
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Service
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.gate import Gate
    from lapse.kube.resources import Json, Kind, Object
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.api.upstream import PersistentVolume, VolumeSnapshotContent
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.policy import RequestPolicy

_log = get_logger("lapse.requests.local.executor")


class Snapshotter:
    """Reconciles VolumeSnapshotContents."""

    def __init__(self, store: ObjectStore, caches: Caches, *, places: ExecutorFolders, clock: Clock) -> None:
        """Keep archives in ``places``."""
        self._store, self._caches, self._places, self._clock = store, caches, places, clock
        self._seen: set[str] = set()
        """The names of contents that were there at some time of this run."""

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Capture what is to be captured, remove what nobody wants any more."""
        # A cache that is behind would have us capture again, and replace an archive whose checksum is known by now.
        content = await self._caches.find(VOLUME_SNAPSHOT_CONTENT, key, suits=_is_settled)
        if content is None:
            self._remove(key.name)
            return ReconcileResult()
        self._seen.add(key.name)
        if content.spec.driver == DRIVER:
            if _is_settled(content):
                self._put_in_place(content)
            else:
                await self._report(content, await self._capture(content))
        return ReconcileResult()

    def _put_in_place(self, content: VolumeSnapshotContent) -> None:
        """Follow a deletion policy that was changed after the capture."""
        wanted, misplaced = self._places.archive(content), self._places.misplaced(content)
        if misplaced.exists() and not wanted.exists():
            wanted.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            misplaced.replace(wanted)

    async def _capture(self, content: VolumeSnapshotContent) -> Json:
        target = self._places.archive(content)
        source = Path(content.spec.source.volume_handle or "")
        try:
            archive = await in_thread(lambda stop: pack(source, target, stop=stop))
        except ArchiveError as error:
            failed = {"message": str(error), "time": to_timestamp(self._clock.wall_ns())}
            return {"readyToUse": False, "error": failed}
        return {
            "readyToUse": True,
            "snapshotHandle": snapshot_handle(archive.path, archive.sha256),
            "restoreSize": archive.unpacked_bytes,
            "creationTime": self._clock.wall_ns(),
        }

    async def _report(self, content: VolumeSnapshotContent, status: Json) -> None:
        meta = content.metadata
        try:
            await self._store.patch_status(VOLUME_SNAPSHOT_CONTENT, meta.key, status, uid=meta.uid)
        except (ConflictError, NotFoundError):
            _log.info("snapshot_unwanted", content=meta.name)  # its deletion brings us back to remove the archive

    def _remove(self, name: str) -> None:
        archive = self._places.removable(name)
        if not archive.exists():
            return
        if name not in self._seen:
            _log.warning("archive_kept", content=name, why="the object store does not know its snapshot")
            return
        archive.unlink(missing_ok=True)
        self._seen.discard(name)
        _log.info("archive_removed", content=name)


def _is_settled(content: VolumeSnapshotContent) -> bool:
    status = content.status
    return status is not None and (bool(status.ready_to_use) or status.error is not None)


@dataclass(frozen=True)
class LocalRequests:
    """Everything that `lapse up` runs for requests."""

    store: EmbeddedStore
    journal: Journal
    requests: Requests
    executor: LocalExecutor

    @classmethod
    def build(
        cls,
        store: EmbeddedStore,
        folder: Path,
        *,
        policy: RequestPolicy,
        journal: Journal,
        gate: Gate,
        clock: Clock,
        metrics: Metrics,
        trash_ttl: Duration = NEVER,
    ) -> LocalRequests:
        """Put it together on an open store; archives and volumes go to ``folder``."""
        requests = Requests(
            store, policy=policy, journal=journal, metrics=metrics, clock=clock, gate=gate, trash_ttl=trash_ttl
        )
        places = ExecutorFolders(folder)
        executor = LocalExecutor(store, requests.caches, places=places, clock=clock, metrics=metrics)
        return cls(store, journal, requests, executor)

    @property
    def leader_services(self) -> list[Service]:
        """What runs in the process that leads."""
        return [*self.requests.leader_services, self.executor]


class LocalExecutor:
    """A leader-only service of the coordinator."""

    name = "local-executor"

    def __init__(
        self, store: ObjectStore, caches: Caches, *, places: ExecutorFolders, clock: Clock, metrics: Metrics
    ) -> None:
        """Share the caches of the controllers; nothing runs yet."""
        self._store, self._places, self._metrics = store, places, metrics
        provisioner = Provisioner(store, caches, places=places, clock=clock)
        snapshotter = Snapshotter(store, caches, places=places, clock=clock)
        self._contents: WorkQueue[ObjectKey] = WorkQueue(clock)
        self._claims: WorkQueue[ObjectKey] = WorkQueue(clock)
        self._restores: WorkQueue[ObjectKey] = WorkQueue(clock)
        self._services = [
            ControllerService(Controller(name, reconcile, queue=queue, workers=2, on_error=self._count_error), caches)
            for name, reconcile, queue in (
                ("local-snapshots", snapshotter.reconcile, self._contents),
                ("local-claims", provisioner.reconcile_claim, self._claims),
                ("local-restores", provisioner.reconcile_restore, self._restores),
            )
        ]
        caches.of(PERSISTENT_VOLUME).index(CLAIM, _claim_of)
        caches.of(VOLUME_SNAPSHOT_CONTENT).subscribe(partial(_add, self._contents))
        caches.of(PERSISTENT_VOLUME_CLAIM).subscribe(partial(_add, self._claims))
        caches.of(PERSISTENT_VOLUME).subscribe(self._volume_changed)
        caches.of(VOLUME_RESTORE_REQUEST).subscribe(partial(_add, self._restores))
        caches.of(OBJECT_KEEPER).subscribe(self._keeper_changed)
        self._caches = caches
        sources: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM)
        for kind in sources:
            caches.of(kind).subscribe(self._source_changed)

    def _count_error(self, error: Exception) -> None:
        if not isinstance(error, ConflictError):  # somebody else was quicker: it is looked at again
            self._metrics.failed(DOMAIN, ErrorKind.RECONCILE)

    def _volume_changed(self, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Look at the claim of a volume: it may have gone while nobody was here to see it."""
        ref = new.spec.claim_ref if new is not None else None
        if ref is not None and ref.name:
            self._claims.add(ObjectKey(ref.namespace, ref.name))

    def _keeper_changed(self, old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
        """Look at a restore whose keeper has come: its controller has judged it, and it can be carried out."""
        ref = new.spec.follow_object_ref if new is not None and old is None else None
        if ref is not None and ref.kind == VOLUME_RESTORE_REQUEST.kind:
            self._restores.add(ObjectKey(ref.namespace, ref.name))

    def _source_changed(self, _old: Object | None, _new: Object | None) -> None:
        """Look at all restores that wait: on one machine there are few."""
        for request in self._caches.of(VOLUME_RESTORE_REQUEST).items():
            self._restores.add(request.metadata.key)

    async def run(self, stopping: asyncio.Event) -> None:
        """See `lapse.engine.running.coordinator.Service`."""
        import asyncio

        await self._prepare()
        async with asyncio.TaskGroup() as group:
            for service in self._services:
                group.create_task(service.run(stopping), name=f"lapse-{service.name}")

    async def _prepare(self) -> None:
        """Make the classes, and look again at what an earlier run may have left."""
        for folder in self._places.may_hold_leftovers():
            remove_leftovers(folder)
        for name in self._places.contents():
            self._contents.add(ObjectKey(None, name))
        storage = {"metadata": {"name": CLASS, "annotations": {SNAPSHOT_CLASS: CLASS}}, "provisioner": DRIVER}
        snapshots = {"metadata": {"name": CLASS}, "driver": DRIVER, "deletionPolicy": "Delete"}
        for kind, body in ((STORAGE_CLASS, storage), (VOLUME_SNAPSHOT_CLASS, snapshots)):
            wanted: Any = body
            with suppress(AlreadyExistsError):
                await self._store.create(kind, wanted)


def _add(queue: WorkQueue[ObjectKey], old: Object | None, new: Object | None) -> None:
    found = old if new is None else new
    if found is not None:
        queue.add(found.metadata.key)


def _claim_of(volume: PersistentVolume) -> list[str]:
    ref = volume.spec.claim_ref
    return [] if ref is None or not ref.name else [str(ObjectKey(ref.namespace, ref.name))]
