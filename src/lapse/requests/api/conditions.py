"""Conditions and their reasons: how a request, a checkpoint or a keeper says what became of it.

All reasons are named here, never as literal text elsewhere. `is_final` is the only place that says what is final: an
object with a final condition is never changed again by its controller, and its TTL may run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from lapse.kube.fields import Time
from lapse.kube.resources import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

READY: Final = "Ready"
"""The only type of condition that a request has."""


class Reason(StrEnum):
    """Why a condition is what it is."""

    COMPLETED = "Completed"
    FAILED = "Failed"
    NOT_FOUND = "NotFound"
    RBAC_DENIED = "RBACDenied"
    INVALID_MODE = "InvalidMode"
    INVALID_SOURCE = "InvalidSource"
    INCOMPATIBLE = "Incompatible"
    UNSUPPORTED_TARGET_KIND = "UnsupportedTargetKind"
    PV_BOUND = "PVBound"
    RESTORE_FAILED = "RestoreFailed"
    INTERNAL_ERROR = "InternalError"
    INVALID_TTL = "InvalidTTL"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PENDING = "Pending"
    RUNNING = "Running"
    PROCESSING = "Processing"
    TARGETS_PENDING = "TargetsPending"


NOT_FINAL: Final = frozenset({Reason.PENDING, Reason.RUNNING, Reason.PROCESSING, Reason.TARGETS_PENDING})
"""Reasons of work that goes on. We never write them; other writers of these APIs do."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Struct, frozen=True):
    """One statement about an object."""

    # Status and reason are text: a reader must survive values that it does not know.
    type: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 316})]
    status: Annotated[str, Meta(extra_json_schema={"enum": [*ConditionStatus]})]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": 1024})] = ""
    message: Annotated[str, Meta(extra_json_schema={"maxLength": 32768})] = ""
    last_transition_time: Time | None = None
    """When ``status`` last became what it is; a change of reason or message alone does not move it."""
    observed_generation: int | None = None


def ready_condition(conditions: Iterable[Condition] | None) -> Condition | None:
    """Return the Ready condition, if there is one."""
    return next((one for one in conditions or () if one.type == READY), None)


def is_final(conditions: Iterable[Condition] | None) -> bool:
    """Whether the outcome is known: Ready is True, or False with a reason other than work that goes on."""
    ready = ready_condition(conditions)
    if ready is None:
        return False
    if ready.status == ConditionStatus.TRUE:
        return True
    return ready.status == ConditionStatus.FALSE and ready.reason not in NOT_FINAL
