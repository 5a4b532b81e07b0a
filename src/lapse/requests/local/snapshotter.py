"""Snapshots of directories: plays the CSI snapshotter for contents of our driver.

A content that is neither ready nor failed is captured; one that was there and is gone loses its archive, once the store
itself has confirmed that it is gone. An archive is removed for no other reason; one that is to be retained lies where
nothing is removed.

An archive whose content was never seen by this process is kept, with a warning: a store that was lost, or restored from
an older backup, knows nothing of its snapshots, and must not cost them. The price is that an archive stays when its
content goes while no executor runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.files.archive import ArchiveError, pack
from lapse.files.work import in_thread
from lapse.kube.controller.controller import ReconcileResult
from lapse.kube.errors import ConflictError, NotFoundError
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from lapse.requests.local.places import DRIVER, snapshot_handle

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.resources import Json, ObjectKey
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.upstream import VolumeSnapshotContent
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.local.places import ExecutorFolders

_log = get_logger("lapse.requests.local.snapshotter")


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
