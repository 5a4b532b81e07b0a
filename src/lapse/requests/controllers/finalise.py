"""Finalisation of a request: its end is written in one way on every path.

First the annotations about the TTL, as far as they are missing; then, in one write, the final Ready condition, the
completion timestamp and whatever else the outcome says. After a crash between the two the next reconcile finds a
request that is not final and goes on. A request that is final already is left as it is: the first end counts.

Both writes name the uid and the version that they were decided on. A lost race is decided again on the new state, a few
times; then the `ConflictError` goes to the caller, who comes back later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.extensions import EXTENDED_UNTIL, extension_of
from lapse.engine.view import Expiry
from lapse.kube.errors import ConflictError, InvalidError, NotFoundError
from lapse.kube.events.event import NO_RECORDER
from lapse.kube.resources import READY, Condition, ready_condition
from lapse.objects.trash.rules import BROUGHT_BACK
from lapse.requests.api.conditions import ConditionReason, is_final
from lapse.requests.api.kinds import EXPIRES_AT, TTL
from lapse.requests.lifecycle.events import outcome
from lapse.requests.lifecycle.policy import TTLMode

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.events.event import Recorder
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.port import ObjectStore
    from lapse.requests.lifecycle.policy import RequestPolicy

_ATTEMPTS: Final = 5
_LONGEST_MESSAGE: Final = 32_768
"""What a condition takes. An executor may say more than that, and must not keep its request from ending by it."""


class RequestStatus(Protocol):
    """What the statuses of all requests have in common."""

    @property
    def completion_timestamp(self) -> str | None:
        """When the request became final."""
        ...

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is known about it."""
        ...


class Request(Protocol):
    """What all requests have in common."""

    @property
    def metadata(self) -> ObjectMeta:
        """See `ObjectMeta`."""
        ...

    @property
    def spec(self) -> object:
        """What is asked for."""
        ...

    @property
    def status(self) -> RequestStatus | None:
        """None until its controller wrote something."""
        ...


R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class End:
    """How a request ends."""

    reason: ConditionReason
    message: str
    status: Json = field(default_factory=dict)
    """What the outcome adds to the status."""

    @property
    def succeeded(self) -> bool:
        """There is one way to succeed."""
        return self.reason is ConditionReason.COMPLETED


def conditions_of(request: Request) -> tuple[Condition, ...]:
    """Return what is known about a request."""
    return request.status.conditions if request.status is not None else ()


def is_over(request: Request) -> bool:
    """Whether nothing is to be done for a request: it is final, or it is one that came back from the trash.

    The latter is a record. Its status is written a moment after the object, and must not be taken for missing.
    """
    return is_final(conditions_of(request)) or BROUGHT_BACK in request.metadata.annotations


class Finaliser:
    """Writes the end of requests."""

    def __init__(
        self, store: ObjectStore, *, policy: RequestPolicy, clock: Clock, recorder: Recorder = NO_RECORDER
    ) -> None:
        """Write to ``store``, with the TTL of ``policy``; ``recorder`` is told of what was written."""
        self._store, self._policy, self._clock, self._recorder = store, policy, clock, recorder

    async def finalise(self, kind: Kind[R], request: R, end: End) -> R | None:
        """Make a request final, unless it is final or gone; return it as it was written."""
        for attempt in range(_ATTEMPTS):
            if is_final(conditions_of(request)):
                return None
            try:
                now = self._clock.wall_ns()
                request = await self.annotate(kind, request, now=now)
                return await self._write(kind, request, end, now)
            except NotFoundError:
                return None
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
                again = await self._again(kind, request)
                if again is None:
                    return None
                request = again
        return None

    async def annotate(self, kind: Kind[R], request: R, *, now: int | None = None) -> R:
        """Write the TTL annotation unless there is one; return the request as it is then. ``now`` completes it.

        Beside it stands when that will be, for people who look; nothing is decided by it. Of a final request it is
        corrected only where somebody may have set another TTL for that one, or has extended it. Annotations that leave
        no room for the two stay as they are: an end must not depend on them.
        """
        meta = request.metadata
        is_told = TTL in meta.annotations and EXTENDED_UNTIL not in meta.annotations
        if now is None and is_told and self._policy.request_ttl_mode is TTLMode.SCANNER:
            return request
        told = self._about_ttl(request, now)
        changes = {name: text for name, text in told.items() if meta.annotations.get(name) != text}
        if not changes:
            return request
        body = {"metadata": {"annotations": changes}}
        try:
            return await self._store.patch(kind, meta.key, body, uid=meta.uid, version=meta.resource_version)
        except InvalidError:
            return request

    def _about_ttl(self, request: Request, now: int | None) -> dict[str, str | None]:
        annotations = request.metadata.annotations
        known = request.status.completion_timestamp if request.status is not None else None
        completed = from_timestamp(known or ("" if now is None else to_timestamp(now)))
        ttl = self._policy.ttl_rule.ttl(annotations)
        lasts = None if ttl is None else ttl.nanoseconds
        over = Expiry(None if completed is None or lasts is None else completed + lasts)
        at = over.extended(extension_of(annotations)).at
        told = None if at is None else to_timestamp(at)
        return {TTL: annotations.get(TTL, self._policy.request_ttl.go()), EXPIRES_AT: told}

    async def declare_invalid_ttl(self, kind: Kind[R], request: R, message: str) -> None:
        """Say on a final request that its TTL annotation cannot be read. Says it once."""
        known = ready_condition(conditions_of(request))
        if known is not None and (known.reason, known.message) == (ConditionReason.INVALID_TTL, message):
            return
        await self._write(kind, request, End(ConditionReason.INVALID_TTL, message), self._clock.wall_ns())

    async def _again(self, kind: Kind[R], request: R) -> R | None:
        try:
            found = await self._store.get(kind, request.metadata.key)
        except NotFoundError:
            return None
        return found if found.metadata.uid == request.metadata.uid else None

    async def _write(self, kind: Kind[R], request: R, end: End, now_ns: int) -> R:
        now = to_timestamp(now_ns)
        completed = request.status.completion_timestamp if request.status is not None else None
        changes: dict[str, Any] = {
            **end.status,
            "conditions": with_ready(
                conditions_of(request),
                ready=end.succeeded,
                reason=end.reason,
                message=end.message,
                now=now,
                generation=request.metadata.generation,
            ),
            "completionTimestamp": completed or now,
            "observedGeneration": request.metadata.generation,
        }
        if getattr(request.status, "progress", None) is not None:
            changes["progress"] = None  # a restore has one, and it is over
        meta = request.metadata
        written = await self._store.patch_status(kind, meta.key, changes, uid=meta.uid, version=meta.resource_version)
        self._recorder.record(outcome(kind, meta, end))
        return written


def with_ready(
    known: tuple[Condition, ...], *, ready: bool, reason: str, message: str, now: str, generation: int
) -> list[Json]:
    """Return all conditions with Ready as it is now; its time moves only when its status does."""
    status = "True" if ready else "False"
    before = ready_condition(known)
    since = before.last_transition_time if before is not None and before.status == status else None
    condition = {
        "type": READY,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "lastTransitionTime": since or now,
        "observedGeneration": generation,
    }
    others = [msgspec.to_builtins(other) for other in known if other.type != READY]
    return [*others, condition]
