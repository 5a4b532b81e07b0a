"""Whether a workspace may go to standby, or from there to the archive: pure decisions, with reasons.

Something is due only when *everything* speaks for it: the row says that nothing else is going on, the time is over
(more than its TTL ago; at the exact instant it stays), nobody holds it and, for standby, nobody is there for certain. A
signal that is unknown keeps, and so does a row with a time or a TTL that cannot be: one bad row is one verdict, never
an exception that stops the others.

A decision says nothing about the moment after it. Whoever acts compares, in the same step, everything of the row that
was looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.verdict import Due, DueReason, Keep, KeepReason, Reason, Unknown, UnknownReason, Verdict
from lapse.workspaces import activity
from lapse.workspaces.model import LONGEST_TTL_SECONDS, DesiredState, Ms, ObservedStatus, Operation

if TYPE_CHECKING:
    from lapse.workspaces.activity import Signal
    from lapse.workspaces.model import Workspace

STANDBY: Final = "standby"
ARCHIVE: Final = "archive"
"""The two actions."""


class StayReason(Reason):
    """Why a workspace is left as it is, beside `KeepReason`."""

    DELETED = "deleted"
    OTHER_STATUS = "other_status"
    """It is not in the state that this check is about."""
    OPERATION = "operation"
    """The reconciler is at work on it."""
    OTHER_DESIRED = "other_desired"
    """Somebody wants something else already."""
    CONNECTED = "connected"
    IDLE_TIMER = "idle_timer"


def decide_standby(workspace: Workspace, signal: Signal, now: Ms) -> Verdict:
    """Say whether a running workspace may be stopped. ``signal`` was read after the row."""
    by_row = _decide_by_row(workspace, now, action=STANDBY)
    if not isinstance(by_row, Due):
        return by_row
    match signal:
        case activity.Quiet():
            return by_row
        case activity.Connected():
            # When it closes, that is an access; so nothing is due before a whole TTL is over.
            return Keep(StayReason.CONNECTED, _ns(Ms(now + workspace.standby_ttl_seconds * 1000 + 1)))
        case activity.Timer(seconds_left=left):
            return Keep(StayReason.IDLE_TIMER, _ns(Ms(now - int(-left * 1000 // 1))))
        case activity.Unknown(reason=doubt):
            return Unknown(doubt)


def decide_archive(workspace: Workspace, now: Ms) -> Verdict:
    """Say whether a workspace in standby may be archived: by its row alone, whatever is known of connections."""
    return _decide_by_row(workspace, now, action=ARCHIVE)


def due_after(workspace: Workspace) -> Ms | None:
    """Return the instant after which a row's own times make it due; None when there is none to wait for.

    What keeps it beyond that (a connection, a hold) is not looked at: it is the earliest that a look can be worth it.
    """
    action = _ACTION_IN.get(workspace.observed_status)
    anchor_and_ttl = None if action is None else _anchor_and_ttl(workspace, action)
    if anchor_and_ttl is None or isinstance(anchor_and_ttl, Unknown):
        return None
    anchor, ttl_seconds = anchor_and_ttl
    return Ms(anchor + ttl_seconds * 1000)


# --- inside -----------------------------------------------------------------------------------------------------------

_STATES: Final = {
    STANDBY: (ObservedStatus.RUNNING, DesiredState.RUNNING),
    ARCHIVE: (ObservedStatus.STANDBY, DesiredState.STANDBY),
}
_ACTION_IN: Final = {observed: action for action, (observed, _) in _STATES.items()}


def _decide_by_row(workspace: Workspace, now: Ms, *, action: str) -> Verdict:
    stays = _other_business(workspace, action)
    if stays is not None:
        return Keep(stays)
    times = _anchor_and_ttl(workspace, action)
    if isinstance(times, Unknown):
        return times
    anchor, ttl_seconds = times
    over = Ms(anchor + ttl_seconds * 1000)
    if now <= over:
        return Keep(KeepReason.NOT_YET, _ns(Ms(over + 1)))
    if workspace.held(now):
        return Keep(KeepReason.HELD, None if workspace.hold_until is None else _ns(workspace.hold_until))
    return Due(action, DueReason.TTL_EXPIRED, _ns(over))


def _other_business(workspace: Workspace, action: str) -> Reason | None:
    observed, desired = _STATES[action]
    if workspace.deleted_at is not None:
        return StayReason.DELETED
    if workspace.observed_status is not observed:
        return StayReason.OTHER_STATUS
    if workspace.operation is not Operation.NONE:
        return StayReason.OPERATION
    if workspace.desired_state is not desired:
        return StayReason.OTHER_DESIRED
    return None


def _anchor_and_ttl(workspace: Workspace, action: str) -> tuple[Ms, int] | Unknown:
    """Return what the time counts from and how long: both anchors must be there, none of them means 'long ago'."""
    ttl = workspace.standby_ttl_seconds if action == STANDBY else workspace.archive_ttl_seconds
    if not (_is_positive(workspace.last_access_at) and _is_positive(workspace.status_changed_at)):
        return Unknown(UnknownReason.MISSING_ANCHOR)
    if not _is_positive(ttl) or ttl > LONGEST_TTL_SECONDS:
        return Unknown(UnknownReason.INVALID_TTL)
    return Ms(max(workspace.last_access_at, workspace.status_changed_at)), ttl


def _is_positive(number: object) -> bool:
    # A store promises whole numbers; a row that somebody else has written may hold anything, and 0 means 'never set'.
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _ns(moment: Ms) -> UnixNs:
    return UnixNs(moment * 1_000_000)
