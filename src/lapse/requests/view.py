"""What a person wants to know of an object at a glance: is it ready, why, when does it go, who keeps it. Pure.

The same for lists, the HTTP API and the dashboard. When something goes is told as the engine would decide it, but
nothing is decided here: holds on related objects and what is followed are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.decision import Unknown
from lapse.core.duration import short
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.holds import hold_of
from lapse.kube.conditions import ConditionStatus, ready_condition
from lapse.kube.resources import ObjectKey
from lapse.requests.addresses import Located
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, OBJECT_KEEPER, REQUEST_KINDS, KeeperMode
from lapse.requests.api.upstream import (
    ALL_KINDS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.controllers.provisioning import PROVISIONING_FAILED
from lapse.requests.expiry import decide, finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.kube.conditions import Condition
    from lapse.kube.resources import Kind, Object
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.api.upstream import ClaimStatus, SnapshotContentStatus
    from lapse.requests.lifecycle.policy import TTLRule

WITH_KEEPER: Final = "with its keeper"


class ReadyState(NamedTuple):
    """Whether something is ready, and why; ``ready`` is None while nobody can say."""

    ready: bool | None = None
    reason: str = ""
    message: str = ""


class Expiry(NamedTuple):
    """When something goes: at a moment, or as ``instead`` says."""

    at: UnixNs | None = None
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """One object at a glance."""

    place: Located
    uid: str
    state: ReadyState
    expiry: Expiry
    held: bool
    """Whether it is held itself; what it owns or follows is not looked at."""
    created: UnixNs | None
    completed: UnixNs | None
    keeper: Located | None
    """Its controller owner, if that is a keeper."""
    namespace: str | None
    """Its own namespace, or that of the request it was made for; None when that is not known."""

    def expires(self, now: int) -> str:
        """Say for people when it goes."""
        if self.held:
            return "held"
        if self.expiry.at is None:
            return self.expiry.instead
        return f"in {short(self.expiry.at - now)}" if self.expiry.at > now else "now"

    def as_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        return {
            "address": str(self.place.address),
            "kind": self.place.kind.kind,
            "namespace": self.place.key.namespace,
            "name": self.place.key.name,
            "uid": self.uid,
            "ready": self.state.ready,
            "reason": self.state.reason or None,
            "message": self.state.message or None,
            "created": _time(self.created),
            "completed": _time(self.completed),
            "expires_at": _time(self.expiry.at),
            "expires": self.expiry.instead or None,
            "held": self.held,
            "keeper": str(self.keeper.address) if self.keeper else None,
        }


def summarise(kind: Kind[Any], obj: Any, *, now: int, rule: TTLRule) -> Summary:  # noqa: ANN401 - an object of ``kind``
    """Look at one object."""
    meta = obj.metadata
    hold = hold_of(meta.annotations)
    status = getattr(obj, "status", None)
    return Summary(
        place=Located(kind, meta.key),
        uid=meta.uid,
        state=state_of(kind, obj),
        expiry=_expiry(kind, obj, rule),
        held=hold is not None and hold.active(UnixNs(now)),
        created=from_timestamp(meta.creation_timestamp or ""),
        completed=from_timestamp(getattr(status, "completion_timestamp", None) or ""),
        keeper=_keeper(obj),
        namespace=meta.namespace or _requested_from(kind, obj),
    )


def _requested_from(kind: Kind[Any], obj: Any) -> str | None:  # noqa: ANN401 - an object of ``kind``
    """Return the namespace of the request that an object without one was made for."""
    source: str | None
    match kind.kind:
        case OBJECT_KEEPER.kind:
            source = obj.spec.follow_object_ref and obj.spec.follow_object_ref.namespace
        case VOLUME_SNAPSHOT_CONTENT.kind:
            source = obj.spec.volume_snapshot_ref.namespace
        case PERSISTENT_VOLUME.kind:
            source = obj.spec.claim_ref and obj.spec.claim_ref.namespace
        case MANIFEST_CHECKPOINT.kind:
            source = obj.spec.source_namespace
        case _:
            source = None
    return source


def state_of(kind: Kind[Any], obj: Any) -> ReadyState:  # noqa: ANN401 - an object of ``kind``
    """Say whether an object is ready, in the words of whoever reported it."""
    status = getattr(obj, "status", None)
    if status is None:
        return ReadyState()
    if kind in REQUEST_KINDS or kind is MANIFEST_CHECKPOINT:
        return _ready_state(status.conditions)
    if kind is VOLUME_SNAPSHOT_CONTENT:
        return _snapshot_state(status)
    if kind is PERSISTENT_VOLUME_CLAIM:
        return _claim_state(status)
    return ReadyState(None, getattr(status, "phase", None) or "")


def _ready_state(conditions: Sequence[Condition]) -> ReadyState:
    """Say nothing of an outcome that is not final, only of the reason."""
    ready = ready_condition(conditions)
    if ready is None:
        return ReadyState()
    outcome = ready.status == ConditionStatus.TRUE if is_final(conditions) else None
    return ReadyState(outcome, ready.reason, ready.message)


def _snapshot_state(status: SnapshotContentStatus) -> ReadyState:
    if status.error is not None:
        return ReadyState(False, "Failed", status.error.message or "")
    return ReadyState(True, "ReadyToUse") if status.ready_to_use else ReadyState()


def _claim_state(status: ClaimStatus) -> ReadyState:
    failed = next((one for one in status.conditions or () if one.type == PROVISIONING_FAILED), None)
    if failed is not None and failed.status == ConditionStatus.TRUE:
        return ReadyState(False, failed.reason, failed.message)
    return ReadyState(True if status.phase == "Bound" else None, status.phase or "")


def _expiry(kind: Kind[Any], obj: Any, rule: TTLRule) -> Expiry:  # noqa: ANN401 - an object of ``kind``
    if kind in REQUEST_KINDS:
        return _request_expiry(obj, rule)
    if kind is OBJECT_KEEPER:
        return _keeper_expiry(obj)
    return Expiry(instead=WITH_KEEPER if _keeper(obj) is not None else "")


def _request_expiry(request: Any, rule: TTLRule) -> Expiry:  # noqa: ANN401 - a request of any kind
    state = finished(request, rule.ttl(request.metadata.annotations))
    if not state.final:
        return Expiry()
    decision = decide(state, UnixNs(0))
    if decision.deadline is not None:
        return Expiry(decision.deadline)
    verdict = decision.verdict
    return Expiry(instead=f"unknown ({verdict.reason})" if isinstance(verdict, Unknown) else "never")


def _keeper_expiry(keeper: ObjectKeeper) -> Expiry:
    at = from_timestamp((keeper.status.expires_at if keeper.status is not None else None) or "")
    if at is not None:
        return Expiry(at)
    match keeper.spec.mode:
        case KeeperMode.FOLLOW_OBJECT:
            return Expiry(instead=f"with {followed(keeper)}")
        case KeeperMode.FOLLOW_OBJECT_WITH_TTL:
            return Expiry(instead=f"{keeper.spec.ttl} after {followed(keeper)}")
        case _:
            return Expiry()


def followed(keeper: ObjectKeeper) -> str:
    """Name what a keeper follows."""
    ref = keeper.spec.follow_object_ref
    if ref is None:
        return "nothing"
    for kind in ALL_KINDS:
        if (kind.api_version, kind.kind) == (ref.api_version, ref.kind):
            return str(Located(kind, ObjectKey(ref.namespace if kind.namespaced else None, ref.name)))
    return f"{ref.kind} {ref.name}"


def _keeper(obj: Object) -> Located | None:
    owner = obj.metadata.controller
    if owner is None or (owner.api_version, owner.kind) != (OBJECT_KEEPER.api_version, OBJECT_KEEPER.kind):
        return None
    return Located(OBJECT_KEEPER, ObjectKey(None, owner.name))


def _time(moment: UnixNs | None) -> str | None:
    return None if moment is None else to_timestamp(moment)
