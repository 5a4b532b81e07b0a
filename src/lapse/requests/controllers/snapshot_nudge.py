"""Contents whose deletion their snapshotter has overlooked: a note on them makes it look again.

The stock external-snapshotter can miss that a VolumeSnapshotContent is deleted while its snapshot is being made: both
then stay until its next resync, a quarter of an hour later, or until anything about the content changes but its status
and finalizers. So a content of a keeper's that is still there some seconds after its deletion gets an annotation; a
snapshotter that is busy or away gets another one later, after twice as long each time.

Nothing else is touched. The finalizer is the snapshotter's, and only it knows when the physical snapshot is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.controller.controller import Result
from lapse.kube.errors import NotFoundError
from lapse.requests.api.annotations import OVERLOOKED
from lapse.requests.api.kinds import OBJECT_KEEPER
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from lapse.requests.errors import require

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.resources import ObjectKey, ObjectMeta
    from lapse.objects.port import ObjectStore
    from lapse.requests.controllers.caches import Caches

_NS: Final = 1_000_000_000
_PATIENCE_NS: Final = 5 * _NS
"""A deletion that was noticed takes a tenth of a second, or what the driver needs."""
_LONGEST_NS: Final = 900 * _NS
"""The snapshotter's own resync."""
_log = get_logger("lapse.requests.controllers.snapshot_nudge")


def next_note(deleted: UnixNs, noted: UnixNs | None) -> UnixNs:
    """Say when a content that was deleted, and last noted, is due for a note."""
    since = deleted if noted is None else max(deleted, noted)
    return UnixNs(since + min(_LONGEST_NS, max(_PATIENCE_NS, since - deleted)))


class OverlookedContents:
    """Reconciles VolumeSnapshotContents that are being deleted; costs no call of the store for any other."""

    def __init__(self, *, store: ObjectStore, caches: Caches, clock: Clock) -> None:
        """Take what is needed, all of it."""
        require(self, store=store, caches=caches, clock=clock)
        self._store, self._caches, self._clock = store, caches, clock

    async def reconcile(self, key: ObjectKey) -> Result:
        """Note on one content that it is deleted, if it has been so for too long."""
        content = self._caches.of(VOLUME_SNAPSHOT_CONTENT).get(key)
        deleted = from_timestamp(content.metadata.deletion_timestamp or "") if content is not None else None
        if content is None or deleted is None or not _is_ours(content.metadata):
            return Result()
        meta, now = content.metadata, UnixNs(self._clock.wall_ns())
        due = next_note(UnixNs(deleted), from_timestamp(meta.annotations.get(OVERLOOKED, "")))
        if now < due:
            return Result(requeue_after=(due - now) / _NS)
        changes = {"metadata": {"annotations": {OVERLOOKED: to_timestamp(now)}}}
        try:
            await self._store.patch(VOLUME_SNAPSHOT_CONTENT, key, changes, uid=meta.uid)
        except NotFoundError:
            return Result()
        _log.info("deletion_overlooked", content=key.name)
        return Result(requeue_after=_PATIENCE_NS / _NS)


def _is_ours(meta: ObjectMeta) -> bool:
    owner = meta.controller
    return owner is not None and (owner.api_version, owner.kind) == (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind)
