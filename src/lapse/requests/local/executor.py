"""Requests on one machine: the controllers on an embedded object store, and the local executor that carries them out.

The executor plays provisioner and snapshotter; before it begins it makes its folders and its classes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lapse.engine.running.metrics import ErrorKind
from lapse.files.archive import remove_leftovers
from lapse.kube.controller.controller import Controller
from lapse.kube.controller.workqueue import WorkQueue
from lapse.kube.errors import AlreadyExistsError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import SNAPSHOT_CLASS, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.expiry import DOMAIN
from lapse.requests.local.places import CLASS, DRIVER, ExecutorFolders
from lapse.requests.local.provisioner import CLAIM, Provisioner
from lapse.requests.local.snapshotter import Snapshotter
from lapse.requests.service import ControllerService, Requests

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Service
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.gate import Gate
    from lapse.kube.resources import Kind, Object
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.upstream import PersistentVolume
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.lifecycle.policy import RequestPolicy


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
    ) -> LocalRequests:
        """Put it together on an open store; archives and volumes go to ``folder``."""
        requests = Requests(store, policy=policy, journal=journal, metrics=metrics, clock=clock, gate=gate)
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
        self._caches = caches
        sources: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM)
        for kind in sources:
            caches.of(kind).subscribe(self._source_changed)

    def _count_error(self, _error: Exception) -> None:
        self._metrics.failed(DOMAIN, ErrorKind.RECONCILE)

    def _volume_changed(self, _old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Look at the claim of a volume: it may have gone while nobody was here to see it."""
        ref = new.spec.claim_ref if new is not None else None
        if ref is not None and ref.name:
            self._claims.add(ObjectKey(ref.namespace, ref.name))

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
