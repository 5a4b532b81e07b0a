"""Plays the stock controllers of a cluster on the embedded store: snapshot controller, provisioner and volume binder.

Just enough of each for the bridge to work with: a VolumeSnapshot is ready when a content is bound to its uid, a claim
is filled from one that is ready, and a claim that names a volume gets it if that is reserved for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.kube.resources import ObjectKey
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.controllers.base import STOCK, Conventions
from lapse.requests.lifecycle.policy import RestoreExecutor
from tests.integration.requests.world import DRIVER

if TYPE_CHECKING:
    from lapse.requests.api.upstream import PersistentVolume, PersistentVolumeClaim, VolumeSnapshotContent
    from tests.integration.requests.world import World

MARKS = Conventions(annotations=STOCK.annotations)
"""Without finalizers, which the embedded store does not have."""
BRIDGED: dict[str, Any] = {"restore_executor": RestoreExecutor.BRIDGE, "conventions": MARKS}


async def play(world: World, *, provisions: bool = True) -> None:
    """Let the controllers of the cluster do what they have to do at this moment."""
    contents = {one.metadata.name: one for one in await world.all(VOLUME_SNAPSHOT_CONTENT)}
    for snapshot in await world.all(VOLUME_SNAPSHOT):
        content = contents.get(snapshot.spec.source.volume_snapshot_content_name or "")
        if content is not None and content.spec.volume_snapshot_ref.uid == snapshot.metadata.uid:
            ready = {"readyToUse": True, "boundVolumeSnapshotContentName": content.metadata.name}
            await world.report(VOLUME_SNAPSHOT, snapshot.metadata.key, ready)
    for claim in await world.all(PERSISTENT_VOLUME_CLAIM):
        if claim.status is None or claim.status.phase != "Bound":
            volume = await _reserved(world, claim) if claim.spec.volume_name else None
            if volume is None and provisions:
                volume = await _provisioned(world, claim, contents)
            if volume is not None:
                await _bind(world, claim, volume)


async def _reserved(world: World, claim: PersistentVolumeClaim) -> PersistentVolume | None:
    for volume in await world.all(PERSISTENT_VOLUME):
        ref = volume.spec.claim_ref
        reserved = ref is not None and (ref.namespace, ref.name) == claim.metadata.key
        if volume.metadata.name == claim.spec.volume_name and reserved and not (ref and ref.uid):
            return volume
    return None


async def _provisioned(
    world: World, claim: PersistentVolumeClaim, contents: dict[str, VolumeSnapshotContent]
) -> PersistentVolume | None:
    source = claim.spec.data_source
    if source is None or source.kind != VOLUME_SNAPSHOT.kind:
        return None
    names = {one.metadata.key: one for one in await world.all(VOLUME_SNAPSHOT)}
    snapshot = names.get(ObjectKey(claim.metadata.namespace, source.name or ""))
    if snapshot is None or snapshot.status is None or not snapshot.status.ready_to_use:
        return None
    content = contents[snapshot.status.bound_volume_snapshot_content_name or ""]
    spec = {
        "csi": {"driver": DRIVER, "volumeHandle": f"from-{content.spec.source.snapshot_handle}"},
        "persistentVolumeReclaimPolicy": "Delete",
    }
    return await world.apply(PERSISTENT_VOLUME, {"metadata": {"name": f"pvc-{claim.metadata.name}"}, "spec": spec})


async def _bind(world: World, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
    meta, name = claim.metadata, volume.metadata.name
    reference = {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
    await world.store.patch(PERSISTENT_VOLUME, volume.metadata.key, {"spec": {"claimRef": reference}})
    await world.report(PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Bound"})
    await world.store.patch(PERSISTENT_VOLUME_CLAIM, meta.key, {"spec": {"volumeName": name}})
    await world.report(PERSISTENT_VOLUME_CLAIM, meta.key, {"phase": "Bound"})
