"""Sources of restores: whether the data that a request names is there, can be used, and may be used by its namespace.

One judgement for the controller, which ends a request by it, and for the executors, which make nothing without it.

**The tenant rule.** VolumeSnapshotContents and PersistentVolumes belong to the whole cluster, and as soon as Lapse
itself carries out restores, whoever may make a request could name the data of another namespace. So a content must be
for a snapshot of the request's namespace (a capture makes it so), and a volume must be kept by a keeper that follows an
object of it. Otherwise the source itself must name the namespace in the annotation ``lapse.dev/restore-to``: whoever
may annotate it grants it. Where a foreign provisioner carries restores out, the rule is its own.

A cache may say that a source is fine; that it is missing, failed, in use or another's is read from the store first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.kube.resources import ObjectKey, Struct
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import BEFORE_RESTORE, OBJECT_KEEPER, RESTORE, RESTORE_TO
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT_CONTENT,
    PersistentVolume,
    VolumeSnapshotContent,
)
from lapse.requests.controllers.base import Wait
from lapse.requests.controllers.claims import wanted_claim
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import requested_from
from lapse.requests.lifecycle.policy import RestoreExecutor

if TYPE_CHECKING:
    from lapse.kube.resources import Kind, ObjectMeta
    from lapse.requests.api.kinds import ObjectRef, VolumeRestoreRequest
    from lapse.requests.controllers.caches import Caches

Source = VolumeSnapshotContent | PersistentVolume
NOT_READY: Final = "waiting for the source to be ready"


def phase_of(volume: PersistentVolume) -> str | None:
    """Return Available, Bound, Released, Failed or nothing yet."""
    return volume.status.phase if volume.status is not None else None


class _Reservation(Struct, frozen=True):
    request: str


def reserved_by(volume: PersistentVolume) -> str | None:
    """Return the uid of the restore that has reserved a volume; empty when there is one and it cannot be read."""
    noted = volume.metadata.annotations.get(BEFORE_RESTORE)
    try:
        return None if noted is None else msgspec.json.decode(noted, type=_Reservation).request
    except msgspec.MsgspecError:
        return ""


class Sources:
    """Judges sources; see the module."""

    def __init__(self, caches: Caches, *, executor: RestoreExecutor) -> None:
        """Judge for ``executor``."""
        self._caches, self._executor = caches, executor

    async def judge(self, request: VolumeRestoreRequest) -> Source | End | Wait:
        """Return the source, or what stands in the way."""
        ref = request.spec.source_ref
        if (ref.api_version, ref.kind) == (VOLUME_SNAPSHOT_CONTENT.api_version, VOLUME_SNAPSHOT_CONTENT.kind):
            return await self._content(request, ref)
        if (ref.api_version, ref.kind) == (PERSISTENT_VOLUME.api_version, PERSISTENT_VOLUME.kind):
            return await self._volume(request, ref)
        message = f"cannot restore from a {ref.kind} of {ref.api_version}"
        return End(ConditionReason.INVALID_SOURCE, f"{message}: expected a VolumeSnapshotContent or a PersistentVolume")

    async def _content(self, request: VolumeRestoreRequest, ref: ObjectRef) -> Source | End | Wait:
        content = await self._caches.find(
            VOLUME_SNAPSHOT_CONTENT,
            ObjectKey(None, ref.name),
            uid=ref.uid,
            suits=lambda cached: self._judge_content(request, cached) is None,
        )
        if content is None:
            return _missing(VOLUME_SNAPSHOT_CONTENT, ref)
        status = content.status
        return self._judge_content(request, content) or (
            content if status is not None and status.ready_to_use else Wait(status={"progress": NOT_READY})
        )

    def _judge_content(self, request: VolumeRestoreRequest, content: VolumeSnapshotContent) -> End | None:
        name, status = content.metadata.name, content.status
        namespace = content.spec.volume_snapshot_ref.namespace
        if foreign := self._judge_tenant(request, VOLUME_SNAPSHOT_CONTENT, content.metadata, namespace):
            return foreign
        if content.metadata.deletion_timestamp:
            return _going(VOLUME_SNAPSHOT_CONTENT, name)
        if RESTORE in content.metadata.labels:
            message = f"the VolumeSnapshotContent {name} was made for another restore, and goes with it"
            return End(ConditionReason.INVALID_SOURCE, f"{message}: name the snapshot that was captured")
        if status is not None and status.error is not None and not status.ready_to_use:
            message = f"the VolumeSnapshotContent {name} has failed: {status.error.message}"
            return End(ConditionReason.INVALID_SOURCE, message)
        return None

    async def _volume(self, request: VolumeRestoreRequest, ref: ObjectRef) -> Source | End | Wait:
        volume = await self._caches.find(
            PERSISTENT_VOLUME,
            ObjectKey(None, ref.name),
            uid=ref.uid,
            suits=lambda cached: phase_of(cached) != "Bound" and self._judge_volume(request, cached) is None,
        )
        if volume is None:
            return _missing(PERSISTENT_VOLUME, ref)
        # Whose it is comes first: a tenant is told nothing about what is another's.
        foreign = self._judge_tenant(request, PERSISTENT_VOLUME, volume.metadata, await self._namespace_of(volume))
        problem = foreign or await self._in_use(request, volume) or self._judge_volume(request, volume)
        if problem is not None:
            return problem
        is_free = phase_of(volume) in {"Available", "Released"} or await self._has_claim(volume)
        return volume if is_free else Wait(status={"progress": NOT_READY})

    async def _in_use(self, request: VolumeRestoreRequest, volume: PersistentVolume) -> End | None:
        if _is_for(volume, request) or not await self._has_claim(volume):
            return None
        by = volume.spec.claim_ref
        whose = f" by {by.namespace}/{by.name}" if by is not None else ""
        message = f"the PersistentVolume {volume.metadata.name} is in use{whose}: detach it first"
        return End(ConditionReason.PV_BOUND, message)

    async def _has_claim(self, volume: PersistentVolume) -> bool:
        """Whether a volume that is Bound has its claim: it is still called so for a moment after that has gone."""
        ref = volume.spec.claim_ref
        if ref is None or phase_of(volume) != "Bound":
            return False
        key = ObjectKey(ref.namespace, ref.name or "")
        return await self._caches.find(PERSISTENT_VOLUME_CLAIM, key, uid=ref.uid) is not None

    def _judge_volume(self, request: VolumeRestoreRequest, volume: PersistentVolume) -> End | None:
        name, claimed = volume.metadata.name, volume.spec.claim_ref
        if volume.metadata.deletion_timestamp:
            return _going(PERSISTENT_VOLUME, name)
        if reserved_by(volume) not in {None, request.metadata.uid}:
            to = f" to {claimed.namespace}/{claimed.name}" if claimed is not None else ""
            return End(
                ConditionReason.PV_BOUND, f"the PersistentVolume {name} is being restored{to} by another request"
            )
        policy = volume.spec.persistent_volume_reclaim_policy
        if self._executor is RestoreExecutor.BRIDGE and policy != "Retain":
            message = f"the PersistentVolume {name} would go with its next claim: its reclaim policy is {policy}"
            return End(ConditionReason.INCOMPATIBLE, f"{message}, expected Retain")
        return None

    async def _namespace_of(self, volume: PersistentVolume) -> str | None:
        """Return the namespace of what the keeper of a volume follows, or of the claim that it is bound to."""
        owner, claimed = volume.metadata.controller, volume.spec.claim_ref
        if owner is None and claimed is not None and phase_of(volume) == "Bound":
            return claimed.namespace
        if owner is None or (owner.api_version, owner.kind) != (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind):
            return None
        keeper = await self._caches.find(OBJECT_KEEPER, ObjectKey(None, owner.name), uid=owner.uid)
        return None if keeper is None else requested_from(OBJECT_KEEPER, keeper)

    def _judge_tenant(
        self, request: VolumeRestoreRequest, kind: Kind[Any], source: ObjectMeta, namespace: str | None
    ) -> End | None:
        """Refuse what is another namespace's, without saying whose."""
        asking = request.metadata.namespace
        if self._executor is RestoreExecutor.EXTERNAL or asking in {namespace, *_granted(source)}:
            return None
        message = f"the {kind.kind} {source.name} was not captured in the namespace {asking} of this request"
        allow = f"somebody who may change it can allow this by the annotation {RESTORE_TO}: {asking}"
        return End(ConditionReason.INVALID_SOURCE, f"{message}; {allow}")


def _is_for(volume: PersistentVolume, request: VolumeRestoreRequest) -> bool:
    """Whether a volume is bound to, or reserved for, the claim that a request asks for."""
    claimed = volume.spec.claim_ref
    return claimed is not None and (claimed.namespace, claimed.name) == wanted_claim(request)


def _granted(source: ObjectMeta) -> list[str]:
    return [name.strip() for name in source.annotations.get(RESTORE_TO, "").split(",") if name.strip()]


def _missing(kind: Kind[Any], ref: ObjectRef) -> End:
    with_uid = f" with uid {ref.uid}" if ref.uid else ""
    return End(ConditionReason.NOT_FOUND, f"there is no {kind.kind} {ref.name}{with_uid}")


def _going(kind: Kind[Any], name: str) -> End:
    return End(ConditionReason.INVALID_SOURCE, f"the {kind.kind} {name} is being deleted")
