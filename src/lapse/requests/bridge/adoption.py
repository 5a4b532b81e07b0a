"""Restores from a PersistentVolume, the artifact of a Detach: it is adopted, not copied.

One patch under its version reserves the volume for the new claim and replaces the keeper of the capture by that of the
restore, so that the capture cannot lapse underneath; what was there before is noted on the volume. When the claim is
bound, ownership ends: from then on the volume is the user's, and no keeper takes it along. When the restore fails, both
changes are undone. A volume that nobody owns gets no owner: it must not go with a keeper of ours.

Not guaranteed: the keeper of the capture may have lapsed when a restore fails; then the volume stays with the keeper of
the restore, and goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lapse.kube.resources import ObjectKey, OwnerReference, Struct
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import BEFORE_RESTORE, OBJECT_KEEPER
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, ObjectReference
from lapse.requests.controllers.claims import wanted_claim
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import owned_by
from lapse.requests.controllers.sources import phase_of, reserved_by

if TYPE_CHECKING:
    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import ObjectKeeper, VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolume
    from lapse.requests.controllers.caches import Caches

ADOPTED: Final = "adopted by"
"""The index of the cache of volumes that finds those that a restore has reserved, by the uid of its request."""


class Before(Struct, frozen=True):
    """What a volume was before a restore reserved it."""

    request: str
    claim_ref: ObjectReference | None = None
    owner: OwnerReference | None = None


def before_of(volume: PersistentVolume) -> Before | None:
    """Return what is noted on a volume; None when nothing is, or it cannot be read."""
    try:
        return msgspec.json.decode(volume.metadata.annotations.get(BEFORE_RESTORE, ""), type=Before)
    except msgspec.MsgspecError:
        return None


def adopted_by(volume: PersistentVolume) -> list[str]:
    """Return the uid of the restore that has reserved a volume, for the index `ADOPTED`."""
    uid = reserved_by(volume)
    return [uid] if uid else []


class Adoption:
    """Reserves volumes for claims, and lets them go."""

    def __init__(self, store: ObjectStore, caches: Caches) -> None:
        """Write to ``store``."""
        self._store, self._caches = store, caches

    async def reserve(
        self, request: VolumeRestoreRequest, keeper: ObjectKeeper, volume: PersistentVolume
    ) -> End | bool:
        """Reserve a volume for the claim of a request; return whether it is, or why it cannot be."""
        if request.metadata.uid in adopted_by(volume):
            return True
        if phase_of(volume) == "Bound":
            return False
        meta, owner = volume.metadata, volume.metadata.controller
        if owner is not None and (owner.api_version, owner.kind) != (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind):
            message = f"the PersistentVolume {meta.name} is managed by the {owner.kind} {owner.name}"
            return End(ConditionReason.INCOMPATIBLE, message)
        wanted = wanted_claim(request)
        kind = PERSISTENT_VOLUME_CLAIM
        claim = ObjectReference(
            api_version=kind.api_version, kind=kind.kind, namespace=wanted.namespace, name=wanted.name
        )
        before = Before(request=request.metadata.uid, claim_ref=volume.spec.claim_ref, owner=owner)
        metadata: Json = {"annotations": {BEFORE_RESTORE: msgspec.json.encode(before).decode()}}
        if owner is not None:
            metadata["ownerReferences"] = _replaced(volume, owner.uid, owned_by(keeper))
        if not await self._is_there(keeper):
            return False
        reserved = await self._patch(volume, {"metadata": metadata, "spec": {"claimRef": _whole(claim)}})
        if owner is None or await self._is_there(keeper):
            return True
        # It went in the same moment, and garbage collection would take the volume along.
        await self._undo(reserved, keeper)
        return False

    async def clear(self, uid: str, keeper: ObjectKeeper) -> None:
        """End the reservation of a restore: the volume is its claim's, or as it was before."""
        for volume in self._caches.of(PERSISTENT_VOLUME).indexed(ADOPTED, uid):
            if _was_bound(volume):
                await self.let_go(volume, keeper)
            else:
                await self._undo(volume, keeper)

    async def let_go(self, volume: PersistentVolume, keeper: ObjectKeeper) -> None:
        """End the ownership of a volume that has its claim."""
        metadata: Json = {"annotations": {BEFORE_RESTORE: None}}
        if any(owner.uid == keeper.metadata.uid for owner in volume.metadata.owner_references):
            metadata["ownerReferences"] = _replaced(volume, keeper.metadata.uid, None)
        await self._patch(volume, {"metadata": metadata})

    async def _undo(self, volume: PersistentVolume, keeper: ObjectKeeper) -> None:
        before = before_of(volume)
        if before is None:
            return
        claim = None if before.claim_ref is None else _whole(before.claim_ref)
        metadata: Json = {"annotations": {BEFORE_RESTORE: None}}
        owner = before.owner
        if owner is not None:
            captured = await self._caches.read(OBJECT_KEEPER, ObjectKey(None, owner.name))
            if captured is not None and captured.metadata.uid == owner.uid:
                metadata["ownerReferences"] = _replaced(volume, keeper.metadata.uid, owner)
        await self._patch(volume, {"metadata": metadata, "spec": {"claimRef": claim}})

    async def _is_there(self, keeper: ObjectKeeper) -> bool:
        """Whether the store itself has a keeper, and keeps it: a volume must not be given to one that is going."""
        found = await self._caches.read(OBJECT_KEEPER, keeper.metadata.key)
        if found is None or found.metadata.uid != keeper.metadata.uid:
            return False
        return not found.metadata.deletion_timestamp

    async def _patch(self, volume: PersistentVolume, changes: Json) -> PersistentVolume:
        meta = volume.metadata
        return await self._store.patch(
            PERSISTENT_VOLUME, meta.key, changes, uid=meta.uid, version=meta.resource_version
        )


def _was_bound(volume: PersistentVolume) -> bool:
    """Whether the cluster has given a volume to the claim that it was reserved for: then it is the user's for good.

    A reservation has no uid; that of the claim before is noted. Also when the new claim is gone again: what was
    restored does not go back to the capture.
    """
    ref, before = volume.spec.claim_ref, before_of(volume)
    known = before.claim_ref.uid if before is not None and before.claim_ref is not None else None
    return ref is not None and ref.uid not in {None, known}


def _whole(claim: ObjectReference) -> Json:
    """Return a reference with every field: a merge would keep the uid of a claim that is gone."""
    return {
        "apiVersion": claim.api_version,
        "kind": claim.kind,
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
    }


def _replaced(volume: PersistentVolume, uid: str, by: OwnerReference | None) -> list[Json]:
    """Return the owners of a volume without one of them, and with another in its place."""
    others = [owner for owner in volume.metadata.owner_references if owner.uid != uid]
    return [msgspec.to_builtins(owner) for owner in (*others, *(() if by is None else (by,)))]
