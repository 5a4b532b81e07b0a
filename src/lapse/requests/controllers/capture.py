"""Volume capture, mode Snapshot: from a claim to a VolumeSnapshotContent, made directly and owned by the keeper.

The controller describes what should be; the CSI snapshotter does it and reports on the content object, and that report
becomes the outcome of the request. A VolumeSnapshot is never made. The content is made once: its reference is recorded
in the request, and if it is gone later, that is the outcome. The other mode, Detach, is in
`lapse.requests.controllers.detach`.

`SnapshotNudge` makes a snapshotter look again that has missed a deletion. The stock external-snapshotter can miss that
a VolumeSnapshotContent is deleted while its snapshot is being made: both then stay until its next resync, a quarter of
an hour later, or until anything about the content changes but its status and finalizers. So a content of a keeper's
that is still there some seconds after its deletion gets an annotation; a snapshotter that is busy or away gets another
one later, after twice as long each time. Nothing else is touched: the finalizer is the snapshotter's, and only it knows
when the physical snapshot is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.controller.controller import ReconcileResult, require
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import snapshot_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    OBJECT_KEEPER,
    SNAPSHOT_CLASS,
    SNAPSHOT_NUDGE,
    SOURCE_ACCESS_MODES,
    SOURCE_CLASS,
    SOURCE_SIZE,
    SOURCE_VOLUME_MODE,
    VOLUME_CAPTURE_REQUEST,
    CaptureMode,
    VolumeCaptureRequest,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.controllers.base import PLAIN, RequestController, Wait, is_ready
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import UID_BARRIER_SECONDS, ensure_keeper, is_kept_by, keeper_key, owned_by
from lapse.requests.lifecycle.events import EventReason, made

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import CaptureSchedule, ObjectKeeper, ObjectRef
    from lapse.requests.api.upstream import (
        PersistentVolume,
        PersistentVolumeClaim,
        StorageClass,
        VolumeSnapshotClass,
        VolumeSnapshotContent,
    )
    from lapse.requests.controllers.base import Conventions
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.detach import Detach
    from lapse.requests.schedules.runs import Runs

_NS: Final = 1_000_000_000
_PATIENCE_NS: Final = 5 * _NS
"""A deletion that was noticed takes a tenth of a second, or what the driver needs."""
_LONGEST_NS: Final = 900 * _NS
"""The snapshotter's own resync."""
_log = get_logger("lapse.requests.controllers.capture")


def next_note(deleted: UnixNs, noted: UnixNs | None) -> UnixNs:
    """Say when a content that was deleted, and last noted, is due for a note."""
    since = deleted if noted is None else max(deleted, noted)
    return UnixNs(since + min(_LONGEST_NS, max(_PATIENCE_NS, since - deleted)))


class SnapshotNudge:
    """Reconciles VolumeSnapshotContents that are being deleted; costs no call of the store for any other."""

    def __init__(self, *, store: ObjectStore, caches: Caches, clock: Clock) -> None:
        """Take what is needed, all of it."""
        require(self, store=store, caches=caches, clock=clock)
        self._store, self._caches, self._clock = store, caches, clock

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Note on one content that it is deleted, if it has been so for too long."""
        content = self._caches.of(VOLUME_SNAPSHOT_CONTENT).get(key)
        deleted = from_timestamp(content.metadata.deletion_timestamp or "") if content is not None else None
        if content is None or deleted is None or not _is_ours(content.metadata):
            return ReconcileResult()
        meta, now = content.metadata, UnixNs(self._clock.wall_ns())
        due = next_note(UnixNs(deleted), from_timestamp(meta.annotations.get(SNAPSHOT_NUDGE, "")))
        if now < due:
            return ReconcileResult(requeue_after=(due - now) / _NS)
        changes = {"metadata": {"annotations": {SNAPSHOT_NUDGE: to_timestamp(now)}}}
        try:
            await self._store.patch(VOLUME_SNAPSHOT_CONTENT, key, changes, uid=meta.uid)
        except NotFoundError:
            return ReconcileResult()
        _log.info("snapshot_nudged", content=key.name)
        return ReconcileResult(requeue_after=_PATIENCE_NS / _NS)


def _is_ours(meta: ObjectMeta) -> bool:
    """Whether a keeper owns it, also as a second owner that is left: that of a restore."""
    ours = (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind)
    return any((owner.api_version, owner.kind) == ours for owner in meta.owner_references)


class VolumeCapture(RequestController[VolumeCaptureRequest]):
    """Reconciles VolumeCaptureRequests."""

    kind: ClassVar[Kind[Any]] = VOLUME_CAPTURE_REQUEST

    def __init__(
        self,
        *,
        detach: Detach,
        runs: Runs,
        conventions: Conventions = PLAIN,
        **dependencies: Any,  # noqa: ANN401 - those of the base class
    ) -> None:
        """Take what the base takes, who does the other mode, knows runs, and what the snapshotter wants to see."""
        super().__init__(**dependencies)
        require(self, detach=detach, runs=runs, conventions=conventions)
        self._detach, self._runs, self._conventions = detach, runs, conventions

    async def advance(self, request: VolumeCaptureRequest) -> End | Wait:
        """See `RequestController`."""
        target = request.spec.target
        if (target.api_version, target.kind) != (PERSISTENT_VOLUME_CLAIM.api_version, PERSISTENT_VOLUME_CLAIM.kind):
            message = f"cannot capture a {target.kind} of {target.api_version}: expected a PersistentVolumeClaim of v1"
            return End(ConditionReason.UNSUPPORTED_TARGET_KIND, message)
        recorded = request.status.artifact_ref if request.status is not None else None
        schedule = None
        if recorded is None:
            schedule = await self._runs.schedule_of(self.kind, request)
        if schedule is None and await self._caches.find(OBJECT_KEEPER, keeper_key(self.kind, request)) is None:
            # As long as there is no keeper, which only we make: what a status says, others may have written.
            self._policy.demand_artifact_ttl(request.spec.artifact_ttl)
        if request.spec.mode == CaptureMode.DETACH:
            return await self._detach.advance(self, request)
        if request.spec.mode != CaptureMode.SNAPSHOT:
            return End(ConditionReason.INVALID_MODE, f"unknown mode {request.spec.mode}: expected Snapshot or Detach")
        if recorded is None:
            return await self._begin(request, schedule)
        return await self._recorded_outcome(request, recorded)

    async def has_begun(self, request: VolumeCaptureRequest) -> bool:
        """See `RequestController`."""
        return request.status is not None and request.status.artifact_ref is not None

    async def _recorded_outcome(self, request: VolumeCaptureRequest, recorded: ObjectRef) -> End | Wait:
        """Translate what the snapshotter reports, if the recorded content is the one that this request made."""
        name = snapshot_name(request.metadata.uid, request.spec.target.uid or "")
        if (recorded.kind, recorded.name) != (VOLUME_SNAPSHOT_CONTENT.kind, name):
            return _not_made_here(recorded)
        content = await self._caches.find(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name), uid=recorded.uid or None)
        if content is None:
            return End(ConditionReason.NOT_FOUND, f"the VolumeSnapshotContent {name} is gone; it is not made again")
        keeper = await self._caches.find(OBJECT_KEEPER, keeper_key(self.kind, request))
        return _outcome(content) if is_kept_by(keeper, content.metadata) else _not_made_here(recorded)

    async def bound_volume(
        self, request: VolumeCaptureRequest, *, suits: Callable[[PersistentVolume], bool]
    ) -> tuple[PersistentVolumeClaim, PersistentVolume] | End | Wait:
        """Return the target and its volume, once they are bound to each other.

        What ``suits`` says no to is read past the cache, and returned all the same: the caller says what is wrong.
        """
        target = request.spec.target
        claim_key = ObjectKey(request.metadata.namespace, target.name)
        claim = await self._caches.find(PERSISTENT_VOLUME_CLAIM, claim_key, uid=target.uid, suits=_is_not_lost)
        if claim is None:
            message = f"there is no PersistentVolumeClaim {claim_key} with uid {target.uid}"
            return End(ConditionReason.NOT_FOUND, message)
        phase = claim.status.phase if claim.status is not None else None
        if phase == "Lost":
            return End(ConditionReason.INVALID_SOURCE, f"the PersistentVolumeClaim {claim_key} has lost its volume")
        if phase != "Bound" or not claim.spec.volume_name:
            return Wait()
        uid = claim.metadata.uid
        volume = await self._caches.find(
            PERSISTENT_VOLUME,
            ObjectKey(None, claim.spec.volume_name),
            suits=lambda cached: not _claimed_by_another(cached, uid) and suits(cached),
        )
        if volume is None:
            return End(ConditionReason.NOT_FOUND, f"there is no PersistentVolume {claim.spec.volume_name}")
        if _claimed_by_another(volume, uid):
            message = f"the PersistentVolume {volume.metadata.name} belongs to another claim"
            return End(ConditionReason.INCOMPATIBLE, message)
        return claim, volume

    async def _begin(self, request: VolumeCaptureRequest, schedule: CaptureSchedule | None) -> End | Wait:
        bound = await self.bound_volume(request, suits=_is_csi)
        if isinstance(bound, End | Wait):
            return bound
        claim, volume = bound
        snapshot_class = await self._snapshot_class(claim, volume)
        if isinstance(snapshot_class, End):
            return snapshot_class
        keeper = await ensure_keeper(
            self._store, self.kind, request, policy=self._policy, recorder=self._recorder, schedule=schedule
        )
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        content = await self._content(request, bound, snapshot_class, keeper)
        if isinstance(content, End):
            return content
        reference = {
            "apiVersion": VOLUME_SNAPSHOT_CONTENT.api_version,
            "kind": VOLUME_SNAPSHOT_CONTENT.kind,
            "name": content.metadata.name,
            "uid": content.metadata.uid,
        }
        await self.record(request, artifactRef=reference)
        return Wait()

    async def _snapshot_class(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume
    ) -> VolumeSnapshotClass | End:
        """Follow claim, StorageClass, annotation and VolumeSnapshotClass: configuration, so it is read directly."""
        if volume.spec.csi is None or not _is_csi(volume):
            return End(ConditionReason.INCOMPATIBLE, f"the PersistentVolume {volume.metadata.name} is not a CSI volume")
        name = claim.spec.storage_class_name or volume.spec.storage_class_name
        if not name:
            message = (
                f"the PersistentVolumeClaim {claim.metadata.key} names no StorageClass, so there is no snapshot class"
            )
            return End(ConditionReason.INCOMPATIBLE, message)
        storage: StorageClass
        try:
            storage = await self._direct.get(STORAGE_CLASS, ObjectKey(None, name))
            chosen = storage.metadata.annotations.get(SNAPSHOT_CLASS)
            if not chosen:
                message = f"the StorageClass {name} has no annotation {SNAPSHOT_CLASS}: expected a class name"
                return End(ConditionReason.INCOMPATIBLE, message)
            found = await self._direct.get(VOLUME_SNAPSHOT_CLASS, ObjectKey(None, chosen))
        except NotFoundError as error:
            return End(ConditionReason.NOT_FOUND, str(error))
        if found.driver != volume.spec.csi.driver:
            message = (
                f"the VolumeSnapshotClass {chosen} is for {found.driver}, the volume is of {volume.spec.csi.driver}"
            )
            return End(ConditionReason.INCOMPATIBLE, message)
        return found

    async def _content(
        self,
        request: VolumeCaptureRequest,
        bound: tuple[PersistentVolumeClaim, PersistentVolume],
        snapshot_class: VolumeSnapshotClass,
        keeper: ObjectKeeper,
    ) -> VolumeSnapshotContent | End:
        """Make the content object, or find the one that an earlier, interrupted reconcile made."""
        claim, volume = bound
        name = snapshot_name(request.metadata.uid, request.spec.target.uid or "")
        spec = _content_spec(name, request, volume, snapshot_class)
        metadata: Json = {"name": name, "ownerReferences": [msgspec.to_builtins(owned_by(keeper))]}
        metadata["annotations"] = {**_notes(claim, volume), **self._conventions.annotations}
        if self._conventions.finalizers:
            metadata["finalizers"] = list(self._conventions.finalizers)
        wanted = {"metadata": metadata, "spec": spec}
        try:
            created = await self._store.create(VOLUME_SNAPSHOT_CONTENT, wanted)
        except AlreadyExistsError:
            found = await self._store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name))
        else:
            report = made(self.kind, request.metadata, EventReason.SNAPSHOT_CREATED, name, waits_for="the snapshotter")
            self._recorder.record(report)
            return created
        if not is_kept_by(keeper, found.metadata):
            message = f"the VolumeSnapshotContent {name} is there already, and not owned by the keeper of this request"
            return End(ConditionReason.INTERNAL_ERROR, message)
        return found


def _claimed_by_another(volume: PersistentVolume, claim_uid: str) -> bool:
    """Whether a volume belongs to another claim; one that does not say by which uid it is claimed does not."""
    claimed = volume.spec.claim_ref
    return claimed is not None and claimed.uid not in {None, claim_uid}


def _is_csi(volume: PersistentVolume) -> bool:
    return volume.spec.csi is not None and bool(volume.spec.csi.volume_handle)


def _is_not_lost(claim: PersistentVolumeClaim) -> bool:
    return claim.status is None or claim.status.phase != "Lost"


def _notes(claim: PersistentVolumeClaim, volume: PersistentVolume) -> dict[str, str]:
    """Return what a restore will want to know, when the claim and the volume are long gone."""
    size = (volume.spec.capacity or {}).get("storage")
    told = {
        SOURCE_CLASS: claim.spec.storage_class_name or volume.spec.storage_class_name,
        SOURCE_SIZE: None if size is None else str(size),
        SOURCE_ACCESS_MODES: ",".join(claim.spec.access_modes or volume.spec.access_modes or ()),
        SOURCE_VOLUME_MODE: volume.spec.volume_mode,
    }
    return {name: text for name, text in told.items() if text}


def _content_spec(
    name: str, request: VolumeCaptureRequest, volume: PersistentVolume, snapshot_class: VolumeSnapshotClass
) -> Json:
    csi = volume.spec.csi
    spec: Json = {
        "driver": snapshot_class.driver,
        "deletionPolicy": snapshot_class.deletion_policy or "Delete",
        "volumeSnapshotClassName": snapshot_class.metadata.name,
        "source": {"volumeHandle": csi.volume_handle if csi is not None else None},
        # The stock snapshotter wants to know for whom it works, although no VolumeSnapshot of that name ever exists.
        "volumeSnapshotRef": {
            "apiVersion": VOLUME_SNAPSHOT_CONTENT.api_version,
            "kind": "VolumeSnapshot",
            "name": name,
            "namespace": request.metadata.namespace,
            "uid": request.metadata.uid,
        },
    }
    if volume.spec.volume_mode:
        spec["sourceVolumeMode"] = volume.spec.volume_mode
    return spec


def _not_made_here(recorded: ObjectRef) -> End:
    message = f"status.artifactRef names the {recorded.kind} {recorded.name}, which was not made for this request"
    return End(ConditionReason.INCOMPATIBLE, message)


def _outcome(content: VolumeSnapshotContent) -> End | Wait:
    """Translate what the snapshotter reports."""
    name, status = content.metadata.name, content.status
    if status is not None and status.error is not None:
        return End(
            ConditionReason.FAILED, status.error.message or "the snapshotter reported an error without a message"
        )
    if is_ready(content):
        return End(ConditionReason.COMPLETED, f"the snapshot is in VolumeSnapshotContent {name}")
    return Wait()
