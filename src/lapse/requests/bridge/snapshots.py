"""Restores from a VolumeSnapshotContent: a VolumeSnapshot and a second content stand between it and the new claim.

The stock provisioner fills claims from VolumeSnapshots only, and a captured content cannot have one: it was made from a
volume, and one content belongs to one snapshot. So a second content names the same physical snapshot. It is *always*
one that retains: its end must not destroy the capture.

The steps, each found again by its name after a crash: pin the source, make the VolumeSnapshot, make the content that is
bound to the uid of it, wait until the snapshotter says that both are ready. The way back: the VolumeSnapshot first,
then the content, then the pin.

**The pin.** The keeper of the restore becomes a second owner of the source, so that no TTL takes the snapshot away in
the middle. It is taken back only while there is another owner: without any, garbage collection would never collect the
source, and so it goes with the keeper of the restore. For the same reason a source that nobody owns is not pinned: it
is not of Lapse, and must not go with a keeper of ours.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.core.timestamps import from_timestamp
from lapse.kube.errors import AlreadyExistsError, ConflictError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import RESTORE
from lapse.requests.api.upstream import VOLUME_SNAPSHOT, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.bridge.removal import BridgeReason
from lapse.requests.bridge.template import MODE_MAY_CHANGE
from lapse.requests.controllers.claims import bridge_name
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import is_kept_by, owned_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import ObjectKeeper, VolumeRestoreRequest
    from lapse.requests.api.upstream import VolumeSnapshot, VolumeSnapshotContent
    from lapse.requests.bridge.removal import Removal
    from lapse.requests.controllers.base import Conventions
    from lapse.requests.controllers.caches import Caches

_PREFIX: Final = "snapshot.storage.kubernetes.io/"
_COPIED_LABELS: Final = (f"{_PREFIX}managed-by",)
_COPIED_ANNOTATIONS: Final = (
    f"{_PREFIX}deletion-secret-name",
    f"{_PREFIX}deletion-secret-namespace",
    MODE_MAY_CHANGE,
)
_ATTEMPTS: Final = 5
_PATIENCE_NS: Final = 10_000_000_000
_MOST_CHARACTERS: Final = 1_000
"""Of an error in a column for people."""
_OFFERED: Final = "waiting for its VolumeSnapshot to be ready"
_AGAIN: Final = "its VolumeSnapshot was deleted, and is made again"


class Snapshots:
    """Makes what stands between a captured content and a new claim, and clears it away."""

    def __init__(
        self, store: ObjectStore, caches: Caches, *, removal: Removal, conventions: Conventions, clock: Clock
    ) -> None:
        """Write to ``store``, contents with the marks of ``conventions``; take away by ``removal``."""
        self._clock = clock
        self._store, self._caches, self._removal, self._conventions = store, caches, removal, conventions
        self._turn = asyncio.Lock()
        self._last: VolumeSnapshotContent | None = None
        """The source that was changed last, as it was then; the cache may not have heard of it yet."""

    async def offer(
        self, request: VolumeRestoreRequest, keeper: ObjectKeeper, source: VolumeSnapshotContent
    ) -> End | str | None:
        """Make the source available to claims; return why it cannot be, or what it waits for; None when it is."""
        problem = await self._pin(source, keeper)
        if problem is not None:
            return problem
        snapshot = await self._snapshot(request, keeper, source)
        if isinstance(snapshot, End | str):
            return snapshot
        content = await self._content(request, keeper, source, snapshot)
        if isinstance(content, End | str):
            return content
        status = snapshot.status
        if status is not None and status.ready_to_use and status.bound_volume_snapshot_content_name == _name(content):
            return None
        return f"{_OFFERED}: {error}" if (error := self._lasting_error(snapshot)) else _OFFERED

    def _lasting_error(self, snapshot: VolumeSnapshot) -> str | None:
        """Return an error that has lasted for a while: at first there is one always, before the content is made.

        None is final while the snapshotter tries again: the deadline of the request ends it.
        """
        made = from_timestamp(snapshot.metadata.creation_timestamp or "")
        error = snapshot.status.error if snapshot.status is not None else None
        is_new = made is None or self._clock.wall_ns() - made < _PATIENCE_NS
        return None if error is None or is_new else (error.message or "")[:_MOST_CHARACTERS]

    async def clear(self, uid: str, keeper: ObjectKeeper) -> bool:
        """Take one step back; return whether nothing is in its way. The next change brings the next step."""
        ref = keeper.spec.follow_object_ref
        snapshot_key = ObjectKey(ref.namespace if ref is not None else None, bridge_name(uid))
        way_back: tuple[tuple[Kind[Any], ObjectKey], ...] = (
            (VOLUME_SNAPSHOT, snapshot_key),
            (VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, bridge_name(uid))),
        )
        for kind, key in way_back:
            found = self._caches.of(kind).get(key)
            if found is None or not is_kept_by(keeper, found.metadata):
                continue
            return await self._removal.remove(kind, found, BridgeReason.RESTORE_OVER, uid=uid)
        self._removal.forget(uid)
        for kind, obj in self._caches.owned_by(keeper.metadata.uid):
            if kind is VOLUME_SNAPSHOT_CONTENT:
                await self._unpin(obj, keeper)
        return True

    # --- the pin ----------------------------------------------------------------------------------------------------

    async def _pin(self, source: VolumeSnapshotContent, keeper: ObjectKeeper) -> End | None:
        def pinned(content: VolumeSnapshotContent) -> Json | None:
            owners = content.metadata.owner_references
            if not owners or any(owner.uid == keeper.metadata.uid for owner in owners):
                return None
            return _owners(*owners, owned_by(keeper, controller=False))

        found = await self._change(source, pinned)
        if found is None or found.metadata.deletion_timestamp:  # its end has begun: our pin came too late
            message = f"the VolumeSnapshotContent {_name(source)} is being deleted"
            return End(ConditionReason.INVALID_SOURCE, message)
        return None

    async def _unpin(self, source: VolumeSnapshotContent, keeper: ObjectKeeper) -> None:
        def unpinned(content: VolumeSnapshotContent) -> Json | None:
            owners = content.metadata.owner_references
            others = [owner for owner in owners if owner.uid != keeper.metadata.uid]
            return _owners(*others) if others and len(others) < len(owners) else None

        await self._change(source, unpinned)

    async def _change(
        self, content: VolumeSnapshotContent, wanted: Callable[[VolumeSnapshotContent], Json | None]
    ) -> VolumeSnapshotContent | None:
        """Change a content as ``wanted`` says, again if somebody was quicker; return it; None if it is gone.

        One after the other, and on what the last one has left: a hundred restores of one snapshot all change it.
        """
        if content.metadata.deletion_timestamp or wanted(content) is None:
            return content
        async with self._turn:
            last = self._last
            if last is not None and last.metadata.uid == content.metadata.uid and wanted(last) is not None:
                content = last
            self._last = await self._changed(content, wanted)
            return self._last

    async def _changed(
        self, content: VolumeSnapshotContent, wanted: Callable[[VolumeSnapshotContent], Json | None]
    ) -> VolumeSnapshotContent | None:
        meta, found = content.metadata, content
        for attempt in range(_ATTEMPTS):
            changes = None if found.metadata.deletion_timestamp else wanted(found)
            if changes is None:
                return found
            try:
                version = found.metadata.resource_version
                found = await self._store.patch(
                    VOLUME_SNAPSHOT_CONTENT, meta.key, changes, uid=meta.uid, version=version
                )
            except ConflictError:
                again = await self._caches.read(VOLUME_SNAPSHOT_CONTENT, meta.key)
                if again is None or again.metadata.uid != meta.uid:
                    return None
                if attempt == _ATTEMPTS - 1:
                    raise
                found = again
        return found

    # --- what is made -----------------------------------------------------------------------------------------------

    async def _snapshot(
        self, request: VolumeRestoreRequest, keeper: ObjectKeeper, source: VolumeSnapshotContent
    ) -> VolumeSnapshot | End | str:
        meta = request.metadata
        key = ObjectKey(meta.namespace, bridge_name(meta.uid))
        spec: Json = {"source": {"volumeSnapshotContentName": key.name}}
        if source.spec.volume_snapshot_class_name:
            spec["volumeSnapshotClassName"] = source.spec.volume_snapshot_class_name
        found = self._caches.of(VOLUME_SNAPSHOT).get(key)
        if found is None:
            try:
                body = {"metadata": _metadata(key, meta.uid, keeper), "spec": spec}
                found = await self._store.create(VOLUME_SNAPSHOT, body)
            except AlreadyExistsError:
                found = await self._store.get(VOLUME_SNAPSHOT, key)
        if found.metadata.deletion_timestamp:
            return _AGAIN
        if not is_kept_by(keeper, found.metadata) or found.spec.source.volume_snapshot_content_name != key.name:
            return _not_ours(VOLUME_SNAPSHOT, key)
        return found if found.metadata.uid else _OFFERED

    async def _content(
        self,
        request: VolumeRestoreRequest,
        keeper: ObjectKeeper,
        source: VolumeSnapshotContent,
        snapshot: VolumeSnapshot,
    ) -> VolumeSnapshotContent | End | str:
        uid = request.metadata.uid
        key = ObjectKey(None, bridge_name(uid))
        found = self._caches.of(VOLUME_SNAPSHOT_CONTENT).get(key)
        if found is None:
            metadata = _marked(_metadata(key, uid, keeper), source, self._conventions)
            body = {"metadata": metadata, "spec": _content_spec(source, snapshot)}
            try:
                found = await self._store.create(VOLUME_SNAPSHOT_CONTENT, body)
            except AlreadyExistsError:
                found = await self._store.get(VOLUME_SNAPSHOT_CONTENT, key)
        if not is_kept_by(keeper, found.metadata):
            return _not_ours(VOLUME_SNAPSHOT_CONTENT, key)
        if found.metadata.deletion_timestamp:
            return _AGAIN
        if found.spec.volume_snapshot_ref.uid != snapshot.metadata.uid:
            await self._removal.remove(VOLUME_SNAPSHOT_CONTENT, found, BridgeReason.SNAPSHOT_REPLACED, uid=uid)
            return _AGAIN
        handle = source.status.snapshot_handle if source.status is not None else None
        made = (found.spec.deletion_policy, found.spec.source.snapshot_handle, found.spec.driver)
        return found if made == ("Retain", handle, source.spec.driver) else _not_ours(VOLUME_SNAPSHOT_CONTENT, key)


def _name(content: VolumeSnapshotContent) -> str:
    return content.metadata.name


def _owners(*owners: Any) -> Json:  # noqa: ANN401 - references
    return {"metadata": {"ownerReferences": [msgspec.to_builtins(one) for one in owners]}}


def _metadata(key: ObjectKey, uid: str, keeper: ObjectKeeper) -> Json:
    owners = [msgspec.to_builtins(owned_by(keeper))]
    place: Json = {"name": key.name} if key.namespace is None else {"name": key.name, "namespace": key.namespace}
    return {**place, "labels": {RESTORE: uid}, "ownerReferences": owners}


def _marked(metadata: Json, source: VolumeSnapshotContent, conventions: Conventions) -> Json:
    """Copy what the snapshotter needs to know; its own marks let the content go when it is deleted."""
    given = source.metadata
    labels = {name: given.labels[name] for name in _COPIED_LABELS if name in given.labels}
    notes = {name: given.annotations[name] for name in _COPIED_ANNOTATIONS if name in given.annotations}
    marked = {
        **metadata,
        "labels": {**metadata["labels"], **labels},
        "annotations": {**notes, **conventions.annotations},
    }
    return {**marked, "finalizers": list(conventions.finalizers)} if conventions.finalizers else marked


def _content_spec(source: VolumeSnapshotContent, snapshot: VolumeSnapshot) -> Json:
    """Name the same physical snapshot; Retain, because Delete would destroy the capture."""
    spec: Json = {
        "driver": source.spec.driver,
        "deletionPolicy": "Retain",
        "source": {"snapshotHandle": source.status.snapshot_handle if source.status is not None else None},
        "volumeSnapshotRef": {
            "apiVersion": VOLUME_SNAPSHOT.api_version,
            "kind": VOLUME_SNAPSHOT.kind,
            "namespace": snapshot.metadata.namespace,
            "name": snapshot.metadata.name,
            "uid": snapshot.metadata.uid,
        },
    }
    if source.spec.volume_snapshot_class_name:
        spec["volumeSnapshotClassName"] = source.spec.volume_snapshot_class_name
    if source.spec.source_volume_mode:
        spec["sourceVolumeMode"] = source.spec.source_volume_mode
    return spec


def _not_ours(kind: Kind[Any], key: ObjectKey) -> End:
    message = f"the {kind.kind} {key} is there already, and was not made for this request: ask again"
    return End(ConditionReason.INCOMPATIBLE, message)
