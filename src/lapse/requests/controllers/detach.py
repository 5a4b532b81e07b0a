"""Volume capture, mode Detach: the claim goes, the volume stays and becomes the artifact.

The order is what makes it safe. The keeper is made and the volume is recorded in the request *before* the claim is
deleted, so that after a crash the next reconcile knows what it was about; the volume is given to the keeper only
*after* the claim is gone, so that a request that fails half-way leaves the volume as it was.

A claim is deleted by the engine's one helper, with the uid and the version that were read, not while it is held, and
not while a pod uses it; then the request waits, until its deadline, after which no claim is deleted any more. A volume
whose reclaim policy is not Retain is refused, because it would be deleted with its claim. That, the keeper, and whether
the recorded volume is the claim's own are looked at twice, the second time straight from the store and right before the
deletion: a status and a keeper can be written by others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Reason as EngineReason
from lapse.engine.domain import DELETE, Action
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.holds import hold_of
from lapse.kube.controller.controller import require
from lapse.kube.events.event import NO_RECORDER
from lapse.kube.resources import ObjectKey
from lapse.objects.target import ObjectHandle
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from lapse.requests.controllers.base import Wait
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import UID_BARRIER_SECONDS, ensure_keeper, owned_by
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.executor import Executor
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import OwnerReference
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.kinds import ObjectKeeper, ObjectRef, VolumeCaptureRequest
    from lapse.requests.api.upstream import PersistentVolume, PersistentVolumeClaim
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.capture import VolumeCapture
    from lapse.requests.lifecycle.policy import RequestPolicy

_SOON_SECONDS: Final = 1.0
"""A claim whose deletion was accepted, or that changed under our hands, is looked at again so soon."""


class DetachReason(EngineReason):
    """Why a claim is ended."""

    DETACHED = "detached"


class Detach:
    """The steps of one mode; `VolumeCapture` drives it."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        direct: Reader,
        caches: Caches,
        policy: RequestPolicy,
        executor: Executor,
        clock: Clock,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        """Take what is needed, all of it."""
        require(self, store=store, direct=direct, caches=caches, policy=policy, executor=executor, clock=clock)
        self._recorder = recorder
        self._store, self._direct, self._caches = store, direct, caches
        self._policy, self._executor, self._clock = policy, executor, clock

    async def advance(self, capture: VolumeCapture, request: VolumeCaptureRequest) -> End | Wait:
        """Take the next step."""
        recorded = request.status.artifact_ref if request.status is not None else None
        if recorded is None:
            return await self._begin(capture, request)
        claim = await self._claim(request)
        if claim is not None:
            if capture.is_late(request):
                return Wait()  # which is then the end, and with its claim in place
            ready = await self._judge(capture, request, recorded)
            if ready is not None:
                return ready
            wait = await self._end_claim(request, claim)
            if await self._claim(request) is not None:
                return wait
        return await self._take_over(capture, request, recorded)

    async def _judge(
        self, capture: VolumeCapture, request: VolumeCaptureRequest, recorded: ObjectRef
    ) -> End | Wait | None:
        """Return what stands against the deletion of the claim: volume and keeper are looked at before, and afresh."""
        volume = await self._volume(recorded)
        if volume is None:
            return _gone(recorded)
        refusal = _refusal(volume) or _unrelated(volume, request)
        if refusal is not None:
            return refusal
        keeper = await self._keeper(capture, request)
        return Wait(UID_BARRIER_SECONDS) if keeper is None else None

    async def _keeper(self, capture: VolumeCapture, request: VolumeCaptureRequest) -> ObjectKeeper | None:
        return await ensure_keeper(self._store, capture.kind, request, policy=self._policy, recorder=self._recorder)

    async def _claim(self, request: VolumeCaptureRequest) -> PersistentVolumeClaim | None:
        target = request.spec.target
        claim = await self._caches.read(PERSISTENT_VOLUME_CLAIM, ObjectKey(request.metadata.namespace, target.name))
        return claim if claim is not None and claim.metadata.uid == target.uid else None

    async def _volume(self, recorded: ObjectRef) -> PersistentVolume | None:
        volume = await self._caches.read(PERSISTENT_VOLUME, ObjectKey(None, recorded.name))
        return volume if volume is not None and volume.metadata.uid == recorded.uid else None

    async def _begin(self, capture: VolumeCapture, request: VolumeCaptureRequest) -> End | Wait:
        bound = await capture.bound_volume(request, suits=lambda cached: _refusal(cached) is None)
        if isinstance(bound, End | Wait):
            return bound
        _, volume = bound
        refusal = _refusal(volume) or _unrelated(volume, request)
        if refusal is not None:
            return refusal
        keeper = await self._keeper(capture, request)
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        await capture.record(request, artifactRef=_reference(volume))
        return Wait(0.0)

    async def _end_claim(self, request: VolumeCaptureRequest, claim: PersistentVolumeClaim) -> Wait:
        meta = claim.metadata
        pods = await self._direct.list(POD, namespace=meta.namespace)
        users = [pod for pod in pods.items if meta.name in pod.claims and not _is_over(pod.status)]
        if users or meta.deletion_timestamp:
            return Wait()
        now = UnixNs(self._clock.wall_ns())
        action = Action(
            domain=DOMAIN,
            address=Address(PERSISTENT_VOLUME_CLAIM.kind, meta.namespace, meta.name),
            uid=meta.uid,
            version=meta.resource_version,
            handle=ObjectHandle.of(PERSISTENT_VOLUME_CLAIM, claim),
            action=DELETE,
            reason=DetachReason.DETACHED,
            since=now,
            anchor_ns=now,
            policy=self._policy.digest,
            hold=hold_of(meta.annotations),
            details={"request": str(request.metadata.key), "volume": claim.spec.volume_name},
        )
        (result,) = await self._executor.execute([action])
        # What is held or fails is tried again at leisure: each attempt may leave a row in the journal.
        return Wait() if result.outcome in {Outcome.HELD, Outcome.REFUSED, Outcome.FAILED} else Wait(_SOON_SECONDS)

    async def _take_over(
        self, capture: VolumeCapture, request: VolumeCaptureRequest, recorded: ObjectRef
    ) -> End | Wait:
        """Give the volume to the keeper, now that nobody claims it."""
        volume = await self._volume(recorded)
        if volume is None:
            return _gone(recorded)
        unrelated = _unrelated(volume, request)
        if unrelated is not None:
            return unrelated
        keeper = await self._keeper(capture, request)
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        owner, meta = volume.metadata.controller, volume.metadata
        if owner is not None and owner.uid != keeper.metadata.uid:
            return _managed(meta.name, owner)
        if owner is None:
            owners = [*map(msgspec.to_builtins, meta.owner_references), msgspec.to_builtins(owned_by(keeper))]
            changes = {"metadata": {"ownerReferences": owners}}
            await self._store.patch(PERSISTENT_VOLUME, meta.key, changes, uid=meta.uid, version=meta.resource_version)
        return End(ConditionReason.COMPLETED, f"the PersistentVolume {recorded.name} is detached")


def _gone(recorded: ObjectRef) -> End:
    return End(ConditionReason.NOT_FOUND, f"the PersistentVolume {recorded.name} is gone; nothing can be detached")


def _refusal(volume: PersistentVolume) -> End | None:
    """Return why a volume cannot be detached from the claim that it still has; None when it can."""
    policy, meta = volume.spec.persistent_volume_reclaim_policy, volume.metadata
    if policy != "Retain":
        message = f"the PersistentVolume {meta.name} would go with its claim: its reclaim policy is {policy}"
        return End(ConditionReason.INCOMPATIBLE, f"{message}, expected Retain")
    return None if meta.controller is None else _managed(meta.name, meta.controller)


def _unrelated(volume: PersistentVolume, request: VolumeCaptureRequest) -> End | None:
    """Return the end of a request whose status names a volume of another claim, or of none; None when all is well.

    A volume remembers its claim by uid, also after that is gone; a status can be written by others.
    """
    claimed, target = volume.spec.claim_ref, request.spec.target
    wanted = (request.metadata.namespace, target.name, target.uid)
    if claimed is not None and (claimed.namespace, claimed.name, claimed.uid) == wanted:
        return None
    message = f"the PersistentVolume {volume.metadata.name} does not belong to the claim {target.name} of this request"
    return End(ConditionReason.INCOMPATIBLE, message)


def _managed(name: str, owner: OwnerReference) -> End:
    message = f"the PersistentVolume {name} is managed by the {owner.kind} {owner.name} already"
    return End(ConditionReason.INCOMPATIBLE, message)


def _is_over(status: object) -> bool:
    return getattr(status, "phase", None) in {"Succeeded", "Failed"}


def _reference(volume: PersistentVolume) -> dict[str, str]:
    return {
        "apiVersion": PERSISTENT_VOLUME.api_version,
        "kind": PERSISTENT_VOLUME.kind,
        "name": volume.metadata.name,
        "uid": volume.metadata.uid,
    }
