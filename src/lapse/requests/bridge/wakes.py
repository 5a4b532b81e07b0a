"""Changes that wake the bridge of a restore: of its request, its keeper, its source, what it made, and its claim."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lapse.requests.api.kinds import OBJECT_KEEPER, RESTORE, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.bridge.adoption import ADOPTED, adopted_by
from lapse.requests.bridge.executor import BY_UID
from lapse.requests.controllers.claims import filled_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lapse.kube.controller.workqueue import WorkQueue
    from lapse.kube.resources import Kind, Object
    from lapse.requests.api.kinds import ObjectKeeper, VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolumeClaim
    from lapse.requests.controllers.caches import Caches

SOURCE: Final = "source"
"""The index of the cache of restore requests that finds those of a source."""


def source_of(request: VolumeRestoreRequest) -> list[str]:
    """Return the source of a restore, for the index `SOURCE`."""
    return [f"{request.spec.source_ref.kind}/{request.spec.source_ref.name}"]


def wake_bridges(caches: Caches, queue: WorkQueue[str]) -> None:
    """Let everything that the bridge of a restore looks at put the uid of its request into the queue."""
    caches.of(VOLUME_RESTORE_REQUEST).index(BY_UID, lambda request: [request.metadata.uid])
    caches.of(PERSISTENT_VOLUME).index(ADOPTED, adopted_by)
    caches.of(VOLUME_RESTORE_REQUEST).subscribe(partial(_request_changed, queue))
    caches.of(OBJECT_KEEPER).subscribe(partial(_keeper_changed, queue))
    caches.of(PERSISTENT_VOLUME_CLAIM).subscribe(partial(_claim_changed, queue))
    made: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT, VOLUME_SNAPSHOT_CONTENT)
    for kind in made:
        caches.of(kind).subscribe(partial(_made_changed, queue))
    sources: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME)
    for kind in sources:
        caches.of(kind).subscribe(partial(_source_changed, queue, partial(_restores_from, caches, kind)))


def _request_changed(queue: WorkQueue[str], old: VolumeRestoreRequest | None, new: VolumeRestoreRequest | None) -> None:
    for one in (old, new):
        if one is not None:
            queue.add(one.metadata.uid)


def _keeper_changed(queue: WorkQueue[str], old: ObjectKeeper | None, new: ObjectKeeper | None) -> None:
    ref = new.spec.follow_object_ref if new is not None and old is None else None
    if ref is not None and ref.kind == VOLUME_RESTORE_REQUEST.kind and ref.uid:
        queue.add(ref.uid)


def _claim_changed(queue: WorkQueue[str], old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
    for one in (old, new):
        for uid in () if one is None else filled_for(one):
            queue.add(uid)


def _made_changed(queue: WorkQueue[str], old: Object | None, new: Object | None) -> None:
    for one in (old, new):
        if one is not None and (uid := one.metadata.labels.get(RESTORE)):
            queue.add(uid)


def _source_changed(
    queue: WorkQueue[str],
    restores: Callable[[str], Iterable[VolumeRestoreRequest]],
    old: Object | None,
    new: Object | None,
) -> None:
    for one in (old, new):
        for request in () if one is None else restores(one.metadata.name):
            queue.add(request.metadata.uid)


def _restores_from(caches: Caches, kind: Kind[Any], name: str) -> list[VolumeRestoreRequest]:
    return caches.of(VOLUME_RESTORE_REQUEST).indexed(SOURCE, f"{kind.kind}/{name}")
