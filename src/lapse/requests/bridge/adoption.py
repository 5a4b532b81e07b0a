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
from lapse.requests.controllers.claims import is_bound, wanted_claim
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import owned_by
from lapse.requests.controllers.sources import phase_of

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
    before = before_of(volume)
    return [] if before is None else [before.request]


class Adoption:
    """Reserves volumes for claims, and lets them go."""

    def __init__(self, store: ObjectStore, caches: Caches) -> None:
        """Write to ``store``."""
        self._store, self._caches = store, caches

    async def reserve(
        self, request: VolumeRestoreRequest, keeper: ObjectKeeper, volume: PersistentVolume
    ) -> End | None:
        """Reserve a volume for the claim of a request; None when it is."""
        if request.metadata.uid in adopted_by(volume) or phase_of(volume) == "Bound":
            return None
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
        await self._patch(volume, {"metadata": metadata, "spec": {"claimRef": _whole(claim)}})
        return None

    async def clear(self, uid: str, keeper: ObjectKeeper) -> None:
        """End the reservation of a restore: the volume is its claim's, or as it was before."""
        for volume in self._caches.of(PERSISTENT_VOLUME).indexed(ADOPTED, uid):
            if await self._is_taken(volume):
                await self.let_go(volume, keeper)
            else:
                await self._undo(volume, keeper)

    async def let_go(self, volume: PersistentVolume, keeper: ObjectKeeper) -> None:
        """End the ownership of a volume that has its claim."""
        metadata: Json = {"annotations": {BEFORE_RESTORE: None}}
        if any(owner.uid == keeper.metadata.uid for owner in volume.metadata.owner_references):
            metadata["ownerReferences"] = _replaced(volume, keeper.metadata.uid, None)
        await self._patch(volume, {"metadata": metadata})

    async def _is_taken(self, volume: PersistentVolume) -> bool:
        """Whether the claim of a volume is there, asked of the store: an undone binding would lose it."""
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            return False
        claim = await self._caches.read(PERSISTENT_VOLUME_CLAIM, ObjectKey(ref.namespace, ref.name or ""))
        return claim is not None and claim.metadata.uid == ref.uid and is_bound(claim)

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

    async def _patch(self, volume: PersistentVolume, changes: Json) -> None:
        meta = volume.metadata
        await self._store.patch(PERSISTENT_VOLUME, meta.key, changes, uid=meta.uid, version=meta.resource_version)


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
