"""The executor of restores on a cluster: a second reconciler, beside that of the requests.

It stands where the founding document has a patched provisioner, and writes VolumeSnapshots, VolumeSnapshotContents,
PersistentVolumes and claims, never a request. It works on the uid of a request, because what was made must be cleared
away when the request is long gone. What it makes has names that follow from that uid, so every step can be repeated,
and is owned by the keeper of the request, so nothing is left behind.

While a request is open, the next step is taken. Once it is final or gone, everything but the claim is cleared away; not
while the claim still waits for its volume, which may be long after the request has ended: a class can wait for the
first pod. The claim is the user's from the beginning, and never deleted here. It is made once: before that the request
is read from the store, and must be open and without a claim.

A failure is noted for the controller, which ends the request by it (`RestoreNotes`). A denial that is not one of rights
(a quota, a limit, a policy of the cluster) is told in the words of whoever denied.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lapse.kube.controller.controller import ReconcileResult, require
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, InvalidError
from lapse.kube.events.event import NO_RECORDER
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import keeper_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, PersistentVolume
from lapse.requests.bridge.adoption import ADOPTED, Adoption
from lapse.requests.bridge.removal import Removal
from lapse.requests.bridge.snapshots import Snapshots
from lapse.requests.bridge.template import StorageClasses, from_snapshot, from_volume
from lapse.requests.controllers.base import Wait
from lapse.requests.controllers.claims import RESTORED, is_awaited, is_bound, is_restore_of, wanted_claim
from lapse.requests.controllers.finalise import End, is_over
from lapse.requests.controllers.ownership import known_keeper
from lapse.requests.controllers.restore import CLAIM_PENDING, RestoreNote
from lapse.requests.controllers.sources import Sources
from lapse.requests.lifecycle.events import EventReason, made
from lapse.requests.lifecycle.policy import RestoreExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.engine.executor import Executor
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import Json
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.kinds import ObjectKeeper, VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolumeClaim, StorageClass, VolumeSnapshotContent
    from lapse.requests.controllers.base import Conventions
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.restore import RestoreNotes
    from lapse.requests.lifecycle.policy import RequestPolicy

BY_UID: Final = "uid"
"""The index of the cache of restore requests that finds one by its uid."""
_BACKSTOP_SECONDS: Final = 60.0
_LOOK_AGAIN: Final = ReconcileResult(requeue_after=_BACKSTOP_SECONDS)
_LOOK_SOON: Final = ReconcileResult(requeue_after=10.0)
"""While something is waited for that may have gone wrong: people who look want to know why."""
_NO_RIGHT: Final = re.compile(r" cannot [a-z]+ resource ")
"""How an API server says that a right is missing; every other denial is somebody's rule, such as a quota."""


class Bridge:
    """See the module."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        *,
        store: ObjectStore,
        direct: Reader,
        caches: Caches,
        policy: RequestPolicy,
        executor: Executor,
        clock: Clock,
        conventions: Conventions,
        notes: RestoreNotes,
        tell: Callable[[ObjectKey], None],
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        """Take what is needed, all of it; ``tell`` is called with a request about which there is something to read."""
        require(self, store=store, direct=direct, caches=caches, policy=policy, executor=executor, clock=clock)
        self._store, self._direct, self._caches, self._policy = store, direct, caches, policy
        self._notes, self._tell, self._recorder = notes, tell, recorder
        self._sources = Sources(caches, executor=RestoreExecutor.BRIDGE)
        removal = Removal(executor, clock=clock, policy=policy.digest)
        self._snapshots = Snapshots(store, caches, removal=removal, conventions=conventions, clock=clock)
        self._adoption = Adoption(store, caches)
        self._classes = StorageClasses(direct, clock=clock)
        self._planned: dict[str, tuple[Json, StorageClass]] = {}
        """By the uid of an open request: the claim that it will get, and its class."""

    async def reconcile(self, uid: str) -> ReconcileResult:
        """Bring the restore of one request a step further, or a step back."""
        request = next(iter(self._caches.of(VOLUME_RESTORE_REQUEST).indexed(BY_UID, uid)), None)
        if request is not None and _is_open(request):
            return await self._carry_out(request)
        self._notes.forget(uid)
        self._planned.pop(uid, None)
        keeper = self._caches.of(OBJECT_KEEPER).get(ObjectKey(None, keeper_name(VOLUME_RESTORE_REQUEST.short, uid)))
        if keeper is None or await self._is_awaited(uid, keeper):
            return ReconcileResult()  # a change of the claim comes by itself
        await self._adoption.clear(uid, keeper)
        return ReconcileResult() if await self._snapshots.clear(uid, keeper) else _LOOK_AGAIN

    async def _is_awaited(self, uid: str, keeper: ObjectKeeper) -> bool:
        """Whether a claim of the restore is still to get its volume; one of another namespace is a forgery.

        That there is no claim at all may only mean that the cache is behind, so then the store is asked, as long as
        there is anything to take away.
        """
        ref = keeper.spec.follow_object_ref
        namespace = None if ref is None else ref.namespace
        known = self._caches.of(PERSISTENT_VOLUME_CLAIM).indexed(RESTORED, uid)
        claims = [one for one in known if one.metadata.namespace == namespace]
        if not claims and self._is_anything_left(uid, keeper):
            claims = list((await self._direct.list(PERSISTENT_VOLUME_CLAIM, namespace=namespace)).items)
        return any(is_awaited(one, uid) for one in claims)

    def _is_anything_left(self, uid: str, keeper: ObjectKeeper) -> bool:
        volumes = self._caches.of(PERSISTENT_VOLUME).indexed(ADOPTED, uid)
        return bool(volumes or self._caches.owned_by(keeper.metadata.uid))

    # --- forth ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, request: VolumeRestoreRequest) -> ReconcileResult:
        keeper = known_keeper(self._caches, VOLUME_RESTORE_REQUEST, request, policy=self._policy)
        if keeper is None:
            return ReconcileResult()  # the controller makes it, or refuses the one that is there
        try:
            note = await self._attempt(request, keeper)
        except ForbiddenError as error:
            note = _refused(error) or await self._attempt_again(request, keeper)
        if self._notes.write(request.metadata.uid, note):
            self._tell(request.metadata.key)
        return _LOOK_SOON if note.progress not in {None, CLAIM_PENDING} else _LOOK_AGAIN

    async def _attempt_again(self, request: VolumeRestoreRequest, keeper: ObjectKeeper) -> RestoreNote:
        """Believe that a right is missing only of a server that is ready: one that has just started knows of none."""
        await self._store.check()
        try:
            return await self._attempt(request, keeper)
        except ForbiddenError as error:
            return _refused(error) or RestoreNote(failure=End(ConditionReason.RBAC_DENIED, str(error)))

    async def _attempt(self, request: VolumeRestoreRequest, keeper: ObjectKeeper) -> RestoreNote:
        """Take the next step; return what it waits for, or why there is none."""
        claim = self._caches.of(PERSISTENT_VOLUME_CLAIM).get(wanted_claim(request))
        if claim is not None and not is_restore_of(claim, request, RestoreExecutor.BRIDGE):
            return RestoreNote()  # the controller sees it, too, and says so
        source = await self._sources.judge(request)
        if isinstance(source, End | Wait):
            return RestoreNote()  # likewise
        try:
            if isinstance(source, PersistentVolume):
                return await self._adopt(request, keeper, source, claim)
            return await self._fill(request, keeper, source, claim)
        except InvalidError as error:
            return RestoreNote(failure=End(ConditionReason.RESTORE_FAILED, str(error)))

    async def _fill(
        self,
        request: VolumeRestoreRequest,
        keeper: ObjectKeeper,
        source: VolumeSnapshotContent,
        claim: PersistentVolumeClaim | None,
    ) -> RestoreNote:
        planned = self._planned.get(request.metadata.uid) or await from_snapshot(request, source, self._classes)
        if isinstance(planned, End):
            return RestoreNote(failure=planned)  # before anything is made
        body, storage = self._planned[request.metadata.uid] = planned
        waits = await self._snapshots.offer(request, keeper, source)
        if isinstance(waits, End):
            return RestoreNote(failure=waits)
        if waits is not None:
            return RestoreNote(waits)
        if claim is None:
            await self._make_claim(request, body)
        return RestoreNote(CLAIM_PENDING, binds_late=storage.binds_late)

    async def _adopt(
        self,
        request: VolumeRestoreRequest,
        keeper: ObjectKeeper,
        source: PersistentVolume,
        claim: PersistentVolumeClaim | None,
    ) -> RestoreNote:
        if claim is not None:
            if is_bound(claim):
                await self._adoption.clear(request.metadata.uid, keeper)
            return RestoreNote(CLAIM_PENDING)
        body = from_volume(request, source)
        if isinstance(body, End):
            return RestoreNote(failure=body)
        reserved = await self._adoption.reserve(request, keeper, source)
        if isinstance(reserved, End):
            return RestoreNote(failure=reserved)
        if not reserved:
            return RestoreNote()  # its keeper is going, or it has just been bound: a change brings us back
        await self._make_claim(request, body)
        return RestoreNote(CLAIM_PENDING)

    async def _make_claim(self, request: VolumeRestoreRequest, body: Json) -> None:
        """Make the claim, once: it is the one thing that is not cleared away."""
        now = await self._caches.read(VOLUME_RESTORE_REQUEST, request.metadata.key)
        if now is None or now.metadata.uid != request.metadata.uid or not _is_open(now) or _has_claim(now):
            return
        try:
            await self._store.create(PERSISTENT_VOLUME_CLAIM, body)
        except AlreadyExistsError:
            return  # an earlier step of ours, or somebody else's, and then the controller says so
        kind, reason, name = VOLUME_RESTORE_REQUEST, EventReason.CLAIM_CREATED, wanted_claim(request).name
        self._recorder.record(made(kind, request.metadata, reason, name, waits_for="the provisioner"))


def _refused(error: ForbiddenError) -> RestoreNote | None:
    """Return the end of a restore that a rule of the cluster refuses; None when a right is missing."""
    problem = str(error.details.get("problem", error))
    return None if _NO_RIGHT.search(problem) else RestoreNote(failure=End(ConditionReason.RESTORE_FAILED, problem))


def _is_open(request: VolumeRestoreRequest) -> bool:
    return not is_over(request) and not request.metadata.deletion_timestamp


def _has_claim(request: VolumeRestoreRequest) -> bool:
    return request.status is not None and request.status.pvc_ref is not None
