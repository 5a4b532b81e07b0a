"""The reasons of conditions: how a request, a checkpoint or a keeper says what became of it.

All reasons are named here, never as literal text elsewhere. `is_final` is the only place that says what is final: an
object with a final condition is never changed again by its controller, and its TTL may run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lapse.kube.resources import ConditionStatus, ready_condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.kube.resources import Condition


class ConditionReason(StrEnum):
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


class ScheduleReason(StrEnum):
    """Why a schedule is Ready, or is not. None of these is final: people edit schedules."""

    SCHEDULED = "Scheduled"
    """Runs are made as they fall due."""
    SUSPENDED = "Suspended"
    """None are made, because somebody said so; Ready all the same."""
    INVALID_SCHEDULE = "InvalidSchedule"
    NOT_ALLOWED = "NotAllowed"
    """The operator makes no such requests."""
    RUN_NOT_MADE = "RunNotMade"
    """The run that is due could not be made; it is tried again until the next one is due."""
    RUN_FAILED = "RunFailed"
    """The last run was made, and its request has failed."""


NOT_FINAL: Final = frozenset(
    {ConditionReason.PENDING, ConditionReason.RUNNING, ConditionReason.PROCESSING, ConditionReason.TARGETS_PENDING}
)
"""Reasons of work that goes on. We never write them; other writers of these APIs do."""


def is_final(conditions: Iterable[Condition] | None) -> bool:
    """Whether the outcome is known: Ready is True, or False with a reason other than work that goes on."""
    ready = ready_condition(conditions)
    if ready is None:
        return False
    if ready.status == ConditionStatus.TRUE:
        return True
    return ready.status == ConditionStatus.FALSE and ready.reason not in NOT_FINAL
