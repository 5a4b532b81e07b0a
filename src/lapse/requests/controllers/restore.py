"""Volume restore: wait for the claim that a provisioner makes from a source, and say what became of it.

The controller makes a keeper and nothing else; the claim is made by the provisioner, which watches these requests. A
restored claim is the user's: it is given to the keeper only where the policy says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from lapse.core.timestamps import from_timestamp
from lapse.kube.controller.controller import require
from lapse.kube.resources import ConditionStatus, ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST, VolumeRestoreRequest
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.base import RequestController, Wait
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import UID_BARRIER_SECONDS, ensure_keeper, keeper_key, owned_by
from lapse.requests.controllers.provisioning import NO_REPORTS, PROVISIONING_FAILED
from lapse.requests.lifecycle.policy import RestoreOwnership

if TYPE_CHECKING:
    from lapse.kube.resources import Kind
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.api.upstream import PersistentVolume, PersistentVolumeClaim
    from lapse.requests.controllers.provisioning import ClaimReports

_NS: Final = 1_000_000_000


class VolumeRestore(RequestController[VolumeRestoreRequest]):
    """Reconciles VolumeRestoreRequests."""

    kind: ClassVar[Kind[Any]] = VOLUME_RESTORE_REQUEST

    def __init__(
        self,
        *,
        reports: ClaimReports = NO_REPORTS,
        **dependencies: Any,  # noqa: ANN401 - those of the base class
    ) -> None:
        """Take what the base takes, and who knows what a provisioner says beside what it writes into a claim."""
        super().__init__(**dependencies)
        require(self, reports=reports)
        self._reports = reports

    async def advance(self, request: VolumeRestoreRequest) -> End | Wait:
        """See `RequestController`."""
        key = _wanted(request)
        unready = await self._judge_source(request)
        if unready is not None and not await self._has_arrived(request, key):
            return unready
        keeper = await ensure_keeper(self._store, self.kind, request, policy=self._policy, recorder=self._recorder)
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        claim = await self._claim(request, key)
        if claim is None:
            return Wait()
        if _is_older(claim, request):
            message = f"the PersistentVolumeClaim {key} was there before this request: name one that does not exist"
            return End(ConditionReason.INCOMPATIBLE, message)
        return await self._outcome(claim, keeper)

    async def has_begun(self, request: VolumeRestoreRequest) -> bool:
        """See `RequestController`."""
        return await self._caches.find(OBJECT_KEEPER, keeper_key(self.kind, request)) is not None

    async def _claim(self, request: VolumeRestoreRequest, key: ObjectKey) -> PersistentVolumeClaim | None:
        """Return the claim; the cache may only say that it is the right one and bound."""
        return await self._caches.find(
            PERSISTENT_VOLUME_CLAIM, key, suits=lambda cached: _is_bound(cached) and not _is_older(cached, request)
        )

    async def _has_arrived(self, request: VolumeRestoreRequest, key: ObjectKey) -> bool:
        """Whether the source is no longer needed: it was judged before the keeper was made, and the data is there."""
        if not await self.has_begun(request):
            return False
        claim = await self._claim(request, key)
        return claim is not None and _is_bound(claim) and not _is_older(claim, request)

    async def _judge_source(self, request: VolumeRestoreRequest) -> End | Wait | None:
        """Return what stands in the way, None if nothing does."""
        source = request.spec.source_ref
        wanted = (source.api_version, source.kind)
        if wanted == (VOLUME_SNAPSHOT_CONTENT.api_version, VOLUME_SNAPSHOT_CONTENT.kind):
            return await self._judge_snapshot(source.name, source.uid)
        if wanted == (PERSISTENT_VOLUME.api_version, PERSISTENT_VOLUME.kind):
            return await self._judge_volume(source.name, source.uid, _wanted(request))
        message = f"cannot restore from a {source.kind} of {source.api_version}"
        return End(ConditionReason.INVALID_SOURCE, f"{message}: expected a VolumeSnapshotContent or a PersistentVolume")

    async def _judge_snapshot(self, name: str, uid: str | None) -> End | Wait | None:
        content = await self._caches.find(
            VOLUME_SNAPSHOT_CONTENT,
            ObjectKey(None, name),
            uid=uid,
            suits=lambda cached: cached.status is None or cached.status.error is None,
        )
        if content is None:
            return _missing(VOLUME_SNAPSHOT_CONTENT, name, uid)
        status = content.status
        if status is not None and status.error is not None:
            return End(
                ConditionReason.INVALID_SOURCE, f"the VolumeSnapshotContent {name} has failed: {status.error.message}"
            )
        return None if status is not None and status.ready_to_use else Wait()

    async def _judge_volume(self, name: str, uid: str | None, wanted: ObjectKey) -> End | Wait | None:
        volume = await self._caches.find(
            PERSISTENT_VOLUME, ObjectKey(None, name), uid=uid, suits=lambda cached: _phase(cached) != "Bound"
        )
        if volume is None:
            return _missing(PERSISTENT_VOLUME, name, uid)
        phase = _phase(volume)
        if phase == "Bound":
            claimed = volume.spec.claim_ref
            if claimed is not None and (claimed.namespace, claimed.name) == wanted:
                return None  # a provisioner may bind the volume itself to the new claim
            by = f" by {claimed.namespace}/{claimed.name}" if claimed is not None else ""
            return End(ConditionReason.PV_BOUND, f"the PersistentVolume {name} is in use{by}: detach it first")
        return None if phase in {"Available", "Released"} else Wait()

    async def _outcome(self, claim: PersistentVolumeClaim, keeper: ObjectKeeper) -> End | Wait:
        """Translate what the provisioner reports on the claim."""
        meta, status = claim.metadata, claim.status
        if status is not None and status.phase == "Lost":
            return End(ConditionReason.RESTORE_FAILED, f"the PersistentVolumeClaim {meta.key} has lost its volume")
        failed = next((one for one in (status and status.conditions) or () if one.type == PROVISIONING_FAILED), None)
        if failed is not None and failed.status == ConditionStatus.TRUE:
            return End(ConditionReason.RESTORE_FAILED, failed.message or f"the provisioner gave up on {meta.key}")
        if not _is_bound(claim):
            return await self._still_pending(claim)
        if self._policy.restore_ownership is RestoreOwnership.KEEPER:
            await self._give(claim, keeper)
        reference = {
            "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
            "kind": PERSISTENT_VOLUME_CLAIM.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        }
        return End(ConditionReason.COMPLETED, f"the data is in PersistentVolumeClaim {meta.key}", {"pvcRef": reference})

    async def _still_pending(self, claim: PersistentVolumeClaim) -> End | Wait:
        """Ask for what the provisioner reports, but give it a moment first."""
        made = from_timestamp(claim.metadata.creation_timestamp or "")
        age = 0.0 if made is None else (self._clock.wall_ns() - made) / _NS
        wait = self._reports.next_look(age)
        failure = await self._reports.final_failure(claim) if age >= wait else None
        return Wait(wait) if failure is None else End(ConditionReason.RESTORE_FAILED, failure)

    async def _give(self, claim: PersistentVolumeClaim, keeper: ObjectKeeper) -> None:
        meta = claim.metadata
        if any(owner.uid == keeper.metadata.uid for owner in meta.owner_references):
            return
        owners = [*map(msgspec.to_builtins, meta.owner_references), msgspec.to_builtins(owned_by(keeper))]
        changes = {"metadata": {"ownerReferences": owners}}
        await self._store.patch(PERSISTENT_VOLUME_CLAIM, meta.key, changes, uid=meta.uid, version=meta.resource_version)


def _wanted(request: VolumeRestoreRequest) -> ObjectKey:
    """Return the claim that the request asks for."""
    return ObjectKey(request.metadata.namespace, request.spec.pvc_template.metadata.name)


def _is_bound(claim: PersistentVolumeClaim) -> bool:
    return claim.status is not None and claim.status.phase == "Bound"


def _phase(volume: PersistentVolume) -> str | None:
    return volume.status.phase if volume.status is not None else None


def _missing(kind: Kind[Any], name: str, uid: str | None) -> End:
    return End(ConditionReason.NOT_FOUND, f"there is no {kind.kind} {name}" + (f" with uid {uid}" if uid else ""))


def _is_older(claim: PersistentVolumeClaim, request: VolumeRestoreRequest) -> bool:
    """Whether a claim cannot be the answer to this request. Doubt is no reason to refuse it."""
    made = from_timestamp(claim.metadata.creation_timestamp or "")
    asked = from_timestamp(request.metadata.creation_timestamp or "")
    return made is not None and asked is not None and made < asked
