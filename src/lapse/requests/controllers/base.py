"""The base of all request controllers: one attempt per reconcile, and a final request is never changed.

A reconcile reads the request, returns at once if it is final, and otherwise asks `advance` of its subclass for the next
step: either `End`, which is written by the one finalise function, or `Wait`. It never sleeps and never loops.

Outcomes are NotFound (confirmed by a direct read), Forbidden (by a store that is ready), invalid configuration and an
error that an executor reports. A failure of our own calls (`StoreUnavailableError`, `ConflictError`) is none: it goes
to the caller, who comes back with a growing delay. A request that never ends by itself ends at its deadline; one whose
deadline is over when it is first looked at ends there, and nothing is made for it.

`Conventions` are the marks that a snapshotter wants on a VolumeSnapshotContent that was not asked for by a
VolumeSnapshot. The stock external-snapshotter works on contents that are made directly, under conditions that were
found by watching it (see the README of the test servers): without its own marks a deleted content is kept for ever, or
its physical snapshot is left behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.timestamps import from_timestamp
from lapse.kube.controller.controller import ReconcileResult, require
from lapse.kube.errors import ConflictError, ForbiddenError, InvalidError, StoreUnavailableError, UnknownKindError
from lapse.kube.events.event import NO_RECORDER
from lapse.requests.api.conditions import ConditionReason, is_final
from lapse.requests.controllers.finalise import End, Finaliser, R, conditions_of, is_over
from lapse.requests.controllers.ownership import KeeperRefusedError
from lapse.requests.lifecycle.policy import ArtifactTTLError
from lapse.requests.schedules.runs import NotARunError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import Json, Kind, ObjectKey
    from lapse.objects.port import ObjectStore, Reader
    from lapse.requests.api.upstream import VolumeSnapshotContent
    from lapse.requests.controllers.caches import Caches
    from lapse.requests.controllers.finalise import Request
    from lapse.requests.expiry import AnnotationTTL
    from lapse.requests.lifecycle.policy import RequestPolicy

_PREFIX: Final = "snapshot.storage.kubernetes.io/"
_BEING_CREATED: Final = f"{_PREFIX}volumesnapshot-being-created"


@dataclass(frozen=True, slots=True)
class Conventions:
    """Marks that a content is made with."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()


PLAIN: Final = Conventions()
"""For the local executor, which needs no marks."""
STOCK: Final = Conventions(
    # Says that no VolumeSnapshot stands in the way of a deletion. Has no effect before there is one.
    annotations={f"{_PREFIX}volumesnapshot-being-deleted": "yes"},
    # The snapshotter's own, which it adds by itself and takes away when the physical snapshot is gone. Made with it, a
    # content that is deleted at once leaks nothing; without it, half of them did.
    finalizers=(f"{_PREFIX}volumesnapshotcontent-bound-protection",),
)
"""For the external-snapshotter of Kubernetes, version 8."""


def is_ready(content: VolumeSnapshotContent) -> bool:
    """Whether the snapshotter has finished: the snapshot is usable and it has no more to write about it.

    A content that is deleted while the snapshotter still has something to write may hang.
    """
    status = content.status
    return bool(status is not None and status.ready_to_use) and _BEING_CREATED not in content.metadata.annotations


_BACKSTOP_SECONDS: Final = 60.0
"""A request that waits is looked at again after this time even if no event comes."""
_BEHIND_SECONDS: Final = 5.0
_ATTEMPTS: Final = 5
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done now; an event, or the time, brings the request back."""

    seconds: float = _BACKSTOP_SECONDS
    status: Json = field(default_factory=dict)
    """What the status should say meanwhile."""


class RequestController(ABC, Generic[R]):
    """Base of the three request controllers."""

    kind: ClassVar[Kind[Any]]
    decides_on_cache: ClassVar[bool] = False
    """Whether a request may be judged as the cache has it. Every write names the version that it was decided on, so a
    cache that is behind costs a lost race; where artifacts are made it could cost a second one."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        direct: Reader,
        caches: Caches,
        policy: RequestPolicy,
        clock: Clock,
        recorder: Recorder = NO_RECORDER,
        ttl: AnnotationTTL | None = None,
    ) -> None:
        """Take what is needed; ``ttl`` is given where annotations decide when finished requests go."""
        require(self, store=store, direct=direct, caches=caches, policy=policy, clock=clock)
        self._store, self._direct, self._caches = store, direct, caches
        self._policy, self._clock, self._ttl, self._recorder = policy, clock, ttl, recorder
        self._finaliser = Finaliser(store, policy=policy, clock=clock, recorder=recorder)
        self._written: dict[ObjectKey, tuple[str, int]] = {}
        """The version that our last write left behind, and when: a cache that has not seen it yet is not asked."""
        self._problems: dict[ObjectKey, str] = {}
        """Why the last attempt at a request that is not final failed, for people who wait for it."""

    @abstractmethod
    async def advance(self, request: R) -> End | Wait:
        """Take the next step of a request that is not final."""

    @abstractmethod
    async def has_begun(self, request: R) -> bool:
        """Whether an earlier reconcile has made something for this request, which may be done by now."""

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        """Bring one request a step further; returns quickly."""
        if self.decides_on_cache and self._is_behind(key):
            return ReconcileResult(requeue_after=_BEHIND_SECONDS)  # what was written comes back as a change
        request = await self._caches.find(self.kind, key)
        if request is not None and not is_final(conditions_of(request)) and not self.decides_on_cache:
            request = await self._caches.read(self.kind, key)
        if request is None or request.metadata.deletion_timestamp:
            self._problems.pop(key, None)
            return ReconcileResult()
        if is_final(conditions_of(request)):
            return await self._rest(request)
        if is_over(request):
            return ReconcileResult()
        step = await self._step(request)
        self._problems.pop(key, None)
        if isinstance(step, Wait):
            if not _says(request, step.status):
                await self.record(request, **step.status)
            return self._look_again(request, step)
        written = await self._finaliser.finalise(self.kind, request, step)
        if written is not None:
            self._note_written(written)
        return ReconcileResult() if self._ttl is None else ReconcileResult(requeue_after=0.0)

    def _is_behind(self, key: ObjectKey) -> bool:
        """Whether the cache has still to see our own last write; doubted no longer than a moment."""
        if key not in self._written:
            return False
        version, since = self._written[key]
        cached = self._caches.of(self.kind).get(key)
        is_behind = cached is not None and cached.metadata.resource_version != version
        if is_behind and self._clock.monotonic_ns() - since < _BEHIND_SECONDS * _NS:
            return True
        del self._written[key]
        return False

    def _note_written(self, written: R) -> None:
        if self.decides_on_cache:
            self._written[written.metadata.key] = (written.metadata.resource_version, self._clock.monotonic_ns())

    async def _rest(self, request: R) -> ReconcileResult:
        if self._ttl is not None:
            return await self._ttl.look(self.kind, request)
        await self._finaliser.annotate(self.kind, request)
        return ReconcileResult()

    async def _step(self, request: R) -> End | Wait:
        if self.is_late(request) and not await self.has_begun(request):
            return self._too_late(request)
        try:
            step = await self._advance(request)
        except ArtifactTTLError as error:
            return End(ConditionReason.INVALID_TTL, str(error))
        except NotARunError as error:
            return End(ConditionReason.INCOMPATIBLE, str(error))
        except (InvalidError, UnknownKindError, KeeperRefusedError) as error:
            return End(ConditionReason.INTERNAL_ERROR, str(error))
        except StoreUnavailableError as error:
            self._problems[request.metadata.key] = str(error)
            if not self.is_late(request):
                raise
            return self._too_late(request)
        return self._too_late(request) if isinstance(step, Wait) and self.is_late(request) else step

    async def _advance(self, request: R) -> End | Wait:
        """Take the next step. A denial is believed only of a store that is ready.

        An API server that has just started does not know anybody's rights yet, and denies what it grants a moment
        later; so does one that says so of its readiness.
        """
        step = await self._attempt(request)
        if not isinstance(step, End) or step.reason is not ConditionReason.RBAC_DENIED:
            return step
        try:
            await self._store.check()
        except ForbiddenError as error:
            raise StoreUnavailableError(problem=f"it does not let us ask whether it is ready: {error}") from None
        return await self._attempt(request)

    async def _attempt(self, request: R) -> End | Wait:
        try:
            return await self.advance(request)
        except ForbiddenError as error:
            return End(ConditionReason.RBAC_DENIED, str(error))

    def _too_late(self, request: R) -> End:
        problem = self._problems.get(request.metadata.key)
        progress = getattr(request.status, "progress", None)
        last = f"; it was {progress}" if progress else ""
        why = last if problem is None else f"; the last attempt failed: {problem}"
        limit = self._policy.request_deadline
        return End(ConditionReason.DEADLINE_EXCEEDED, f"the request was not finished within {limit}{why}")

    def is_late(self, request: R) -> bool:
        """Whether the deadline of a request is over; none is, while it is not known what time it is."""
        deadline = self._deadline(request)
        return deadline is not None and self._clock.wall_ns() > deadline and not self._clock.in_doubt()

    def _deadline(self, request: R) -> UnixNs | None:
        created = from_timestamp(request.metadata.creation_timestamp or "")
        limit = self._policy.request_deadline.nanoseconds
        return None if created is None or limit is None else UnixNs(created + limit)

    def _look_again(self, request: R, step: Wait) -> ReconcileResult:
        deadline = self._deadline(request)
        if deadline is None or self._clock.in_doubt():
            return ReconcileResult(requeue_after=step.seconds)
        # A nanosecond more: at the deadline itself it is not over yet.
        left = (deadline - self._clock.wall_ns() + 1) / _NS
        return ReconcileResult(requeue_after=min(step.seconds, max(0.0, left)))

    async def record(self, request: R, **status: object) -> None:
        """Write what a later reconcile must know into the status of a request that is not final.

        A step takes several calls, and somebody who writes to the request all the time would always come in between. So
        a lost race is tried again, a few times, as long as the status is the one that the step was decided on; then the
        `ConflictError` is raised.
        """
        for attempt in range(_ATTEMPTS):
            meta = request.metadata
            try:
                written = await self._store.patch_status(
                    self.kind, meta.key, status, uid=meta.uid, version=meta.resource_version
                )
            except ConflictError:
                again = await self._caches.read(self.kind, meta.key)
                if attempt == _ATTEMPTS - 1 or again is None or not _is_as_decided_on(again, request):
                    raise
                request = again
            else:
                self._note_written(written)
                return


def _says(request: Request, status: Json) -> bool:
    known = msgspec.to_builtins(request.status) if request.status is not None else {}
    return all(known.get(name) == value for name, value in status.items())


def _is_as_decided_on(now: Request, then: Request) -> bool:
    return now.metadata.uid == then.metadata.uid and now.status == then.status and not now.metadata.deletion_timestamp
