"""Volumes from directories: plays the provisioner and the binder for claims of our driver.

A claim that names a directory is bound to a volume that is this directory. A restore request whose source is ready gets
a claim, a new directory with the data and a volume. Directories are never removed: what is in them is the user's.

After a crash in the middle of a restore, the next look finds by the noted identity of the directory that it was made by
this very restore, and goes on; a directory of anybody else is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.timestamps import to_timestamp
from lapse.files.archive import ArchiveError, Stop, copy, unpack
from lapse.files.work import in_thread
from lapse.kube.controller.controller import ReconcileResult
from lapse.kube.errors import AlreadyExistsError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, RESTORE, RESTORED_FROM, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    PersistentVolume,
    VolumeSnapshotContent,
)
from lapse.requests.controllers.claims import (
    failure_of,
    is_bound,
    is_restore_of,
    local_source,
    restored_by,
    wanted_claim,
)
from lapse.requests.controllers.finalise import is_over
from lapse.requests.controllers.ownership import keeper_key
from lapse.requests.controllers.provisioning import PROVISIONING_FAILED
from lapse.requests.controllers.sources import Sources, phase_of
from lapse.requests.lifecycle.policy import RestoreExecutor
from lapse.requests.local.places import CLASS, DIRECTORY, DRIVER, digest_of

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolumeClaim
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.local.places import ExecutorFolders

CLAIM: Final = "claim of a volume"
"""The index of the cache of volumes that finds the volume of a claim."""
Fill = Callable[[Path, Callable[[Path], None], Stop], object]
"""Fills a directory; tells of it before it gets its name; may be stopped."""


class Provisioner:
    """Reconciles claims and restore requests, of which it writes the claims only."""

    def __init__(self, store: ObjectStore, caches: Caches, *, places: ExecutorFolders, clock: Clock) -> None:
        """Make volumes in ``places`` unless a claim says where."""
        self._store, self._caches, self._places, self._clock = store, caches, places, clock
        self._sources = Sources(caches, executor=RestoreExecutor.LOCAL)

    # --- claims -----------------------------------------------------------------------------------------------------

    async def reconcile_claim(self, key: ObjectKey) -> ReconcileResult:
        """Bind a claim that names a directory; release the volume of a claim that is gone."""
        claim = await self._caches.find(PERSISTENT_VOLUME_CLAIM, key, suits=is_bound)
        await self._release(key, None if claim is None else claim.metadata.uid)
        if claim is None:
            return ReconcileResult()
        if DIRECTORY in claim.metadata.annotations and not restored_by(claim):
            await self._adopt(claim)
        return ReconcileResult()

    async def _adopt(self, claim: PersistentVolumeClaim) -> None:
        if is_bound(claim) or failure_of(claim):
            return
        directory = Path(claim.metadata.annotations[DIRECTORY])
        if not await in_thread(lambda _stop: directory.is_absolute() and directory.is_dir()):
            await self._fail(claim, f"{directory} is not a directory: expected the absolute path of one that exists")
        else:
            await self._bind(claim, directory)

    async def _release(self, key: ObjectKey, uid: str | None) -> None:
        """Release what was bound to a claim of that name that is gone; ``uid`` is of the one that is there now."""
        for volume in self._caches.of(PERSISTENT_VOLUME).indexed(CLAIM, str(key)):
            claimed, csi = volume.spec.claim_ref, volume.spec.csi
            ours = csi is not None and csi.driver == DRIVER
            if ours and claimed is not None and claimed.uid != uid and phase_of(volume) != "Released":
                meta = volume.metadata
                await self._store.patch_status(PERSISTENT_VOLUME, meta.key, {"phase": "Released"}, uid=meta.uid)

    async def _bind(self, claim: PersistentVolumeClaim, directory: Path) -> None:
        """Make the volume, then say on both sides that they belong together. Every step can be repeated."""
        meta = claim.metadata
        name = f"local-{meta.uid}"
        spec: Json = {
            "csi": {"driver": DRIVER, "volumeHandle": str(directory)},
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta.namespace,
                         "name": meta.name, "uid": meta.uid},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
        }  # fmt: skip
        try:
            volume = await self._store.create(PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": spec})
        except AlreadyExistsError:
            volume = await self._store.get(PERSISTENT_VOLUME, ObjectKey(None, name))
        await self._store.patch_status(
            PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Bound"}, uid=volume.metadata.uid
        )
        changes = {"spec": {"volumeName": name, "storageClassName": claim.spec.storage_class_name or CLASS}}
        await self._store.patch(PERSISTENT_VOLUME_CLAIM, meta.key, changes, uid=meta.uid)
        await self._store.patch_status(PERSISTENT_VOLUME_CLAIM, meta.key, {"phase": "Bound"}, uid=meta.uid)

    async def _fail(self, claim: PersistentVolumeClaim, message: str) -> None:
        condition = {
            "type": PROVISIONING_FAILED,
            "status": "True",
            "reason": PROVISIONING_FAILED,
            "message": message,
            "lastTransitionTime": to_timestamp(self._clock.wall_ns()),
        }
        changes = {"phase": "Pending", "conditions": [condition]}
        await self._store.patch_status(PERSISTENT_VOLUME_CLAIM, claim.metadata.key, changes, uid=claim.metadata.uid)

    # --- restores ---------------------------------------------------------------------------------------------------

    async def reconcile_restore(self, key: ObjectKey) -> ReconcileResult:
        """Make the claim that a restore request asks for."""
        request = await self._caches.find(VOLUME_RESTORE_REQUEST, key)
        if request is None or is_over(request):
            return ReconcileResult()
        if await self._caches.find(OBJECT_KEEPER, keeper_key(VOLUME_RESTORE_REQUEST, request)) is None:
            return ReconcileResult()  # its controller has not judged it yet
        fill = await self._source(request)
        if fill is None:
            return ReconcileResult()
        claim = await self._claim_for(request)
        if claim is None or not is_restore_of(claim, request, RestoreExecutor.LOCAL):
            return ReconcileResult()
        if is_bound(claim) or failure_of(claim):
            return ReconcileResult()
        directory = Path(claim.metadata.annotations[DIRECTORY])
        noted = self._places.arrival(request.metadata.uid)
        try:
            if not _is_ours(directory, noted):
                await in_thread(lambda stop: fill(directory, lambda path: _note(path, noted), stop))
        except ArchiveError as error:
            await self._fail(claim, str(error))
        else:
            await self._bind(claim, directory)
            noted.unlink(missing_ok=True)
        return ReconcileResult()

    async def _source(self, request: VolumeRestoreRequest) -> Fill | None:
        """Return what fills a directory with the data; None while there is nothing of ours to restore from."""
        source = await self._sources.judge(request)
        if isinstance(source, PersistentVolume):
            return self._volume_source(source)
        return self._snapshot_source(source) if isinstance(source, VolumeSnapshotContent) else None

    def _snapshot_source(self, content: VolumeSnapshotContent) -> Fill | None:
        digest = digest_of((content.status and content.status.snapshot_handle) or "")
        if content.spec.driver != DRIVER or digest is None:
            return None
        archive = self._places.found(content)
        return lambda directory, arrived, stop: unpack(archive, digest, directory, arrived=arrived, stop=stop)

    def _volume_source(self, volume: PersistentVolume) -> Fill | None:
        csi = volume.spec.csi
        if csi is None or csi.driver != DRIVER or phase_of(volume) == "Bound":
            return None
        source = Path(csi.volume_handle or "")
        return lambda directory, arrived, stop: copy(source, directory, arrived=arrived, stop=stop)

    async def _claim_for(self, request: VolumeRestoreRequest) -> PersistentVolumeClaim | None:
        """Return the claim of a restore, made if there never was one; None when it is gone."""
        template, meta, key = request.spec.pvc_template, request.metadata, wanted_claim(request)
        # A cache that is behind would have us fill the directory of a claim that is bound by now, and fail.
        found = await self._caches.find(PERSISTENT_VOLUME_CLAIM, key, suits=is_bound)
        if found is not None or (request.status is not None and request.status.pvc_ref is not None):
            return found
        given = template.metadata.annotations or {}
        directory = given.get(DIRECTORY) or str(self._places.volume(key))
        annotations = {**given, DIRECTORY: directory, RESTORED_FROM: meta.uid}
        body: Json = {
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": {**(template.metadata.labels or {}), RESTORE: meta.uid},
                "annotations": annotations,
            },
            "spec": {
                **msgspec.to_builtins(template.spec),
                "storageClassName": template.spec.storage_class_name or CLASS,
                "volumeMode": "Filesystem",
                "dataSourceRef": msgspec.to_builtins(local_source(request)),
            },
        }
        try:
            return await self._store.create(PERSISTENT_VOLUME_CLAIM, body)
        except AlreadyExistsError:
            return await self._store.get(PERSISTENT_VOLUME_CLAIM, key)


def _note(directory: Path, noted: Path) -> None:
    """Write down which directory is about to get its name: a rename does not change its identity."""
    found = directory.stat()
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(f"{found.st_dev}:{found.st_ino}")


def _is_ours(directory: Path, noted: Path) -> bool:
    try:
        found = directory.stat()
        return noted.read_text() == f"{found.st_dev}:{found.st_ino}"
    except OSError:
        return False
