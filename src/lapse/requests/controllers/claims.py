"""Claims of restores: which claim is the answer to which request. Pure.

A claim is the restore only if it says so: by the annotation with the uid of the request, and by the place that its data
comes from. Its name proves nothing, nor does its age: anybody may make a claim of that name, in the same second. Where
a foreign provisioner carries restores out, it knows nothing of our annotation; there a claim that is not older than the
request counts, as the founding document has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.timestamps import from_timestamp
from lapse.kube.resources import ConditionStatus, ObjectKey
from lapse.requests.api.kinds import RESTORED_FROM
from lapse.requests.api.upstream import PERSISTENT_VOLUME, VOLUME_SNAPSHOT, DataSourceRef
from lapse.requests.controllers.provisioning import PROVISIONING_FAILED
from lapse.requests.lifecycle.policy import RestoreExecutor

if TYPE_CHECKING:
    from lapse.requests.api.kinds import VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolumeClaim

_BRIDGE: Final = "restore-"
RESTORED: Final = "restored from"
"""The index of the cache of claims that finds those of a restore, by the uid of its request."""


def wanted_claim(request: VolumeRestoreRequest) -> ObjectKey:
    """Return where the claim is to be that a request asks for."""
    return ObjectKey(request.metadata.namespace, request.spec.pvc_template.metadata.name)


def bridge_name(uid: str) -> str:
    """Return the name of the VolumeSnapshot and of the content that are made for a restore."""
    return f"{_BRIDGE}{uid}"


def restored_by(claim: PersistentVolumeClaim) -> list[str]:
    """Return the uid of the restore that a claim says it is for."""
    uid = claim.metadata.annotations.get(RESTORED_FROM)
    return [uid] if uid else []


def filled_for(claim: PersistentVolumeClaim) -> list[str]:
    """Return the uids of the restores that a claim is filled by, for the index `RESTORED`.

    By its annotation, and by its data source, which nobody can take off: a claim that still waits for its volume must
    not lose what it is filled from because somebody has tidied up its annotations.
    """
    source = claim.spec.data_source
    is_ours = source is not None and (source.api_group, source.kind) == (VOLUME_SNAPSHOT.group, VOLUME_SNAPSHOT.kind)
    name = (source.name or "") if source is not None and is_ours else ""
    by_source = [name.removeprefix(_BRIDGE)] if name.startswith(_BRIDGE) else []
    return [*dict.fromkeys([*restored_by(claim), *by_source])]


def is_awaited(claim: PersistentVolumeClaim, uid: str) -> bool:
    """Whether a claim of a restore is still to get its volume."""
    return uid in filled_for(claim) and not (is_bound(claim) or is_lost(claim))


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim has its volume."""
    return claim.status is not None and claim.status.phase == "Bound"


def is_lost(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim had a volume that is gone."""
    return claim.status is not None and claim.status.phase == "Lost"


def failure_of(claim: PersistentVolumeClaim) -> str | None:
    """Return what the local executor says on a claim that it has given up; None while it has not."""
    for condition in (claim.status.conditions if claim.status is not None else None) or ():
        if condition.type == PROVISIONING_FAILED and condition.status == ConditionStatus.TRUE:
            return condition.message or f"the provisioner gave up on {claim.metadata.key}"
    return None


def is_restore_of(claim: PersistentVolumeClaim, request: VolumeRestoreRequest, executor: RestoreExecutor) -> bool:
    """Whether a claim is the answer to a request."""
    if executor is RestoreExecutor.EXTERNAL:
        return not _is_older(claim, request)
    if claim.metadata.annotations.get(RESTORED_FROM) != request.metadata.uid:
        return False
    source = request.spec.source_ref
    if executor is RestoreExecutor.LOCAL:
        return claim.spec.data_source_ref == local_source(request)
    if source.kind == PERSISTENT_VOLUME.kind:
        return claim.spec.volume_name == source.name
    return claim.spec.data_source == snapshot_source(request.metadata.uid)


def snapshot_source(uid: str) -> DataSourceRef:
    """Return what a claim is filled from on a cluster."""
    return DataSourceRef(api_group=VOLUME_SNAPSHOT.group, kind=VOLUME_SNAPSHOT.kind, name=bridge_name(uid))


def local_source(request: VolumeRestoreRequest) -> DataSourceRef:
    """Return what a claim is filled from by the local executor: the source itself."""
    source = request.spec.source_ref
    group = source.api_version.rpartition("/")[0]
    return DataSourceRef(api_group=group or None, kind=source.kind, name=source.name)


def _is_older(claim: PersistentVolumeClaim, request: VolumeRestoreRequest) -> bool:
    """Whether a claim was there before the request. Doubt is no reason to refuse it."""
    made = from_timestamp(claim.metadata.creation_timestamp or "")
    asked = from_timestamp(request.metadata.creation_timestamp or "")
    return made is not None and asked is not None and made < asked
