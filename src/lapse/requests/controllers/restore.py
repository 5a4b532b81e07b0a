"""Volume restore: wait for the claim that an executor makes from a source, and say what became of it.

The controller makes a keeper and nothing else; the claim is made by the executor, which watches these requests: the
bridge (`lapse.requests.bridge`), a foreign provisioner, or the local executor. What the bridge cannot say by its
objects it leaves in `RestoreNotes`. A restored claim is the user's: it is given to the keeper only where the policy
says so.

A claim counts only if it says that it is this restore (`lapse.requests.controllers.claims`). It is recorded when it is
first seen; one that is gone later is not made again. A claim whose class waits for the first pod that uses it is as
much as a restore can have before there is such a pod, so that is its end, and the message says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from lapse.kube.controller.controller import require
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason, is_final
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST, VolumeRestoreRequest
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from lapse.requests.controllers.base import RequestController, Wait
from lapse.requests.controllers.claims import failure_of, is_bound, is_lost, is_restore_of, wanted_claim
from lapse.requests.controllers.finalise import End, conditions_of
from lapse.requests.controllers.ownership import (
    UID_BARRIER_SECONDS,
    ensure_keeper,
    keeper_key,
    known_keeper,
    owned_by,
)
from lapse.requests.controllers.provisioning import NO_REPORTS
from lapse.requests.controllers.sources import Sources
from lapse.requests.lifecycle.policy import RestoreExecutor, RestoreOwnership

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.api.upstream import PersistentVolumeClaim
    from lapse.requests.controllers.provisioning import ClaimReports

_NS: Final = 1_000_000_000
CLAIM_PENDING: Final = "the claim is made and waits for its volume"


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """What an executor says about one restore beside its objects."""

    progress: str | None = None
    """What it waits for."""
    failure: End | None = None
    """Why it has given up."""
    binds_late: bool | None = None
    """Whether the class of the claim waits for a pod, if that is known."""


@dataclass(slots=True)
class _Looks:
    """What is known of a claim that is waited for."""

    binds_late: bool | None
    """Whether its class waits for a pod; None when that was not asked yet."""
    since: int
    """The monotonic time at which it was first seen."""
    at: float = 0.0
    """How long after that its reports were last read, in seconds."""


class RestoreNotes:
    """Notes of the executor for the controller, in one process, by the uid of the request.

    Not stored: after a restart the executor tries again, and comes to the same end or to a better one.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._notes: dict[str, RestoreNote] = {}

    def of(self, uid: str) -> RestoreNote:
        """Return what is known about a restore."""
        return self._notes.get(uid, RestoreNote())

    def write(self, uid: str, note: RestoreNote) -> bool:
        """Take a note; return whether it says anything new."""
        is_new = self.of(uid) != note
        self._notes[uid] = note
        return is_new

    def forget(self, uid: str) -> None:
        """Drop what is known about a restore that is over."""
        self._notes.pop(uid, None)


class VolumeRestore(RequestController[VolumeRestoreRequest]):
    """Reconciles VolumeRestoreRequests."""

    kind: ClassVar[Kind[Any]] = VOLUME_RESTORE_REQUEST
    decides_on_cache: ClassVar[bool] = True  # all that it makes is the keeper, once, by its name

    def __init__(
        self,
        *,
        executor: RestoreExecutor,
        notes: RestoreNotes,
        reports: ClaimReports = NO_REPORTS,
        **dependencies: Any,  # noqa: ANN401 - those of the base class
    ) -> None:
        """Take what the base takes, who makes the claims, and who knows what a provisioner says beside its objects."""
        super().__init__(**dependencies)
        require(self, executor=executor, notes=notes, reports=reports)
        self._executor, self._notes, self._reports = executor, notes, reports
        self._sources = Sources(self._caches, executor=executor)
        self._looks: dict[str, _Looks] = {}
        """By the uid of the request, while it is not final."""
        self._caches.of(VOLUME_RESTORE_REQUEST).subscribe(self._changed)

    def _changed(self, old: VolumeRestoreRequest | None, new: VolumeRestoreRequest | None) -> None:
        if old is not None and (new is None or is_final(conditions_of(new))):
            self._looks.pop(old.metadata.uid, None)

    async def advance(self, request: VolumeRestoreRequest) -> End | Wait:
        """See `RequestController`."""
        if self._executor is RestoreExecutor.OFF:
            message = "restores are switched off here (restore_executor=off); ask whoever runs the operator"
            return End(ConditionReason.FAILED, message)
        claim = await self._claim(request)
        if not await self._has_arrived(request, claim):
            source = await self._sources.judge(request)
            if isinstance(source, End | Wait):
                return source
        if claim is not None and not self._answers(claim, request):
            key = claim.metadata.key
            message = f"there is a PersistentVolumeClaim {key} that was not made for this request: name another one"
            return End(ConditionReason.INCOMPATIBLE, message)
        keeper = await self._keeper(request)
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        if claim is not None:
            return await self._outcome(request, claim, keeper)
        return self._without_claim(request)

    async def _keeper(self, request: VolumeRestoreRequest) -> ObjectKeeper | None:
        """Return the keeper; the cache may say that it is there and as it should be."""
        known = known_keeper(self._caches, self.kind, request, policy=self._policy)
        if known is not None:
            return known
        is_new = self._caches.of(OBJECT_KEEPER).get(keeper_key(self.kind, request)) is None
        return await ensure_keeper(
            self._store, self.kind, request, policy=self._policy, recorder=self._recorder, is_new=is_new
        )

    async def has_begun(self, request: VolumeRestoreRequest) -> bool:
        """See `RequestController`."""
        return await self._caches.find(OBJECT_KEEPER, keeper_key(self.kind, request)) is not None

    # --- the claim --------------------------------------------------------------------------------------------------

    def _answers(self, claim: PersistentVolumeClaim, request: VolumeRestoreRequest) -> bool:
        return is_restore_of(claim, request, self._executor) and _recorded(request) in {None, claim.metadata.uid}

    async def _claim(self, request: VolumeRestoreRequest) -> PersistentVolumeClaim | None:
        """Return the claim of that name. The cache may say that all is well, or that there is nothing yet."""
        cached = self._caches.of(PERSISTENT_VOLUME_CLAIM).get(wanted_claim(request))
        if cached is None and _recorded(request) is None and self._executor is not RestoreExecutor.EXTERNAL:
            return None
        if cached is not None and self._answers(cached, request) and not (is_lost(cached) or failure_of(cached)):
            return cached
        return await self._caches.read(PERSISTENT_VOLUME_CLAIM, wanted_claim(request))

    async def _has_arrived(self, request: VolumeRestoreRequest, claim: PersistentVolumeClaim | None) -> bool:
        """Whether the source is no longer needed: it was judged before the claim was made."""
        if claim is None or not self._answers(claim, request):
            return False
        if self._executor is RestoreExecutor.EXTERNAL:
            return is_bound(claim) and await self.has_begun(request)
        return True

    def _without_claim(self, request: VolumeRestoreRequest) -> End | Wait:
        if _recorded(request) is not None:
            key = wanted_claim(request)
            message = f"the PersistentVolumeClaim {key} was deleted before its data had arrived; it is not made again"
            return End(ConditionReason.NOT_FOUND, message)
        if self._executor is not RestoreExecutor.BRIDGE:
            return Wait()
        note = self._notes.of(request.metadata.uid)
        if note.failure is not None:
            return note.failure
        # Of a claim that was made the cache will tell in a moment, and then it is written down with its uid.
        is_told = note.progress not in {None, CLAIM_PENDING}
        return Wait(status={"progress": note.progress} if is_told else {})

    # --- what became of it ------------------------------------------------------------------------------------------

    async def _outcome(
        self, request: VolumeRestoreRequest, claim: PersistentVolumeClaim, keeper: ObjectKeeper
    ) -> End | Wait:
        """Translate what the provisioner reports on the claim."""
        key = claim.metadata.key
        if is_lost(claim):
            return End(ConditionReason.RESTORE_FAILED, f"the PersistentVolumeClaim {key} has lost its volume")
        if failure := failure_of(claim):
            return End(ConditionReason.RESTORE_FAILED, failure)
        if is_bound(claim):
            return await self._completed(claim, keeper, f"the data is in PersistentVolumeClaim {key}")
        uid, now = request.metadata.uid, self._clock.monotonic_ns()
        looks = self._looks.setdefault(uid, _Looks(self._notes.of(uid).binds_late, now))
        if await self._waits_for_pod(claim, looks):
            name = claim.spec.storage_class_name
            waits = f"its class {name} waits for the first pod that uses it, and then the data arrives"
            message = f"the PersistentVolumeClaim {key} is made; {waits}"
            return await self._completed(claim, keeper, message)
        return await self._still_pending(claim, looks)

    async def _completed(self, claim: PersistentVolumeClaim, keeper: ObjectKeeper, message: str) -> End:
        if self._policy.restore_ownership is RestoreOwnership.KEEPER:
            await self._give(claim, keeper)
        return End(ConditionReason.COMPLETED, message, {"pvcRef": _reference(claim)})

    async def _waits_for_pod(self, claim: PersistentVolumeClaim, looks: _Looks) -> bool:
        """Whether the class of a claim makes no volume before a pod needs it. Read once: a class does not change."""
        name = claim.spec.storage_class_name
        if self._executor is RestoreExecutor.LOCAL or not name or claim.spec.volume_name:
            return False
        if looks.binds_late is None:
            try:
                found = await self._direct.get(STORAGE_CLASS, ObjectKey(None, name))
            except NotFoundError:
                return False  # the provisioner says so, too, and better
            looks.binds_late = found.binds_late
        return looks.binds_late

    async def _still_pending(self, claim: PersistentVolumeClaim, looks: _Looks) -> End | Wait:
        """Ask for what the provisioner reports, but give it a moment first."""
        # Not the time of day, which may be set meanwhile.
        age = (self._clock.monotonic_ns() - looks.since) / _NS
        if age >= looks.at + self._reports.next_look(looks.at):
            looks.at = age
            failure = await self._reports.final_failure(claim)
            if failure is not None:
                # The provisioner goes on for ever, and the claim is the user's: only they can end that.
                left = f"the claim {claim.metadata.key} is left: delete it, and ask again"
                return End(ConditionReason.RESTORE_FAILED, f"{failure.rstrip('.')}; {left}")
        wait = max(1.0, looks.at + self._reports.next_look(looks.at) - age)
        if self._executor is RestoreExecutor.EXTERNAL:
            return Wait(wait)
        return Wait(wait, status={"progress": CLAIM_PENDING, "pvcRef": _reference(claim)})

    async def _give(self, claim: PersistentVolumeClaim, keeper: ObjectKeeper) -> None:
        meta = claim.metadata
        if any(owner.uid == keeper.metadata.uid for owner in meta.owner_references):
            return
        owners = [*map(msgspec.to_builtins, meta.owner_references), msgspec.to_builtins(owned_by(keeper))]
        changes = {"metadata": {"ownerReferences": owners}}
        await self._store.patch(PERSISTENT_VOLUME_CLAIM, meta.key, changes, uid=meta.uid, version=meta.resource_version)


def _recorded(request: VolumeRestoreRequest) -> str | None:
    """Return the uid of the claim that an earlier look has seen."""
    ref = request.status.pvc_ref if request.status is not None else None
    return ref.uid if ref is not None else None


def _reference(claim: PersistentVolumeClaim) -> Json:
    meta = claim.metadata
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "name": meta.name,
        "uid": meta.uid,
        "namespace": meta.namespace,
    }
