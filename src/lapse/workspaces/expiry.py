"""Decisions about idle workspaces: to standby, and from there to the archive. Pure, with reasons.

The standby TTL counts from the last person: the later of the last access and the moment it became RUNNING. A restart
after its program ended by itself is no new RUNNING, and one that waits for such a restart goes to standby like one that
runs.

Something is due only when *everything* speaks for it: the row says that nothing else is going on, the time is over
(more than its TTL ago; at the exact instant it stays), nobody holds it and, for standby, nobody is there for certain. A
signal that is unknown keeps, and so does a row with a time or a TTL that cannot be: one bad row is one verdict, never
an exception that stops the others.

A decision carries what was counted from, and the deadline by the row's own times; while somebody is there, or was just
now, the deadline is when its time would be over if they left now, or when their idle timer ends. It says nothing about
the moment after it: the change compares, in the same step, everything of the row that was looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, Keep, KeepReason, Reason, Unknown, UnknownReason
from lapse.workspaces.activity import port as activity
from lapse.workspaces.model import (
    LONGEST_TTL_SECONDS,
    DesiredState,
    Ms,
    ObservedStatus,
    Operation,
    is_set,
)

if TYPE_CHECKING:
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace

STANDBY: Final = "standby"
ARCHIVE: Final = "archive"
REMOVE: Final = "remove"
"""The actions: to standby, to the archive, and out of the trash for good."""
PROBE_FRESH_MS: Final = 60_000
"""How long a program that has answered its probe is believed."""


class LapseReason(Reason):
    """Why a workspace is due; the values are metric labels."""

    STANDBY_TTL_EXPIRED = "standby_ttl_expired"
    ARCHIVE_TTL_EXPIRED = "archive_ttl_expired"
    TRASH_TTL_EXPIRED = "trash_ttl_expired"


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


def decide_standby(
    workspace: Workspace, signal: Signal, now: Ms, *, lease_seconds: float = activity.DEFAULT_LEASE_SECONDS
) -> Decision:
    """Say whether a running workspace may be stopped. ``signal`` was read after the row.

    ``lease_seconds`` is `Activity.lease_seconds`: how long a connection may count that is not there any more.
    """
    by_row = standby_by_row(workspace, now)
    due = by_row.verdict
    if not isinstance(due, Due):
        return by_row
    verdict: Keep | Unknown
    deadline = by_row.deadline
    match signal:
        case activity.Quiet():
            doubt = _doubt_of_probe(workspace, Ms(due.since // 1_000_000), now)
            if doubt is None:
                return by_row
            verdict = Unknown(doubt)
        case activity.Connected():
            verdict = Keep(StayReason.CONNECTED, _ns(_look_after_a_connection(workspace, now, lease_seconds)))
            deadline = _ns(Ms(now + workspace.standby_ttl_seconds * 1000))
        case activity.Timer(seconds_left=left):
            deadline = _ns(Ms(now - int(-left * 1000 // 1)))
            verdict = Keep(StayReason.IDLE_TIMER, deadline)
        case activity.ActivityUnknown(reason=doubt):
            verdict = Unknown(doubt)
    return Decision(verdict, by_row.anchor, deadline)


def standby_by_row(workspace: Workspace, now: Ms) -> Decision:
    """Say the same by the row's own times alone: whether it is worth asking who is there, and the program itself."""
    return _decide_by_row(workspace, now, action=STANDBY)


def decide_archive(workspace: Workspace, now: Ms) -> Decision:
    """Say whether a workspace in standby may be archived: by its row alone, whatever is known of connections."""
    return _decide_by_row(workspace, now, action=ARCHIVE)


def decide_removal(workspace: Workspace, now: Ms) -> Decision:
    """Say whether one leaves the trash for good: when its time there is over, and nobody holds it."""
    until, since = workspace.trash_until, workspace.deleted_at
    if until is None or since is None:
        return Decision(Keep(StayReason.OTHER_STATUS))
    if not (is_set(until) and is_set(since)):
        return Decision(Unknown(UnknownReason.MISSING_ANCHOR))
    verdict: Keep | Due
    if workspace.operation is not Operation.NONE:
        verdict = Keep(StayReason.OPERATION)
    elif now <= until:
        verdict = Keep(KeepReason.NOT_YET, _ns(Ms(until + 1)))
    elif workspace.held(now):
        verdict = Keep(KeepReason.HELD, None if workspace.hold_end is None else _ns(workspace.hold_end))
    else:
        verdict = Due(REMOVE, LapseReason.TRASH_TTL_EXPIRED, _ns(until))
    return Decision(verdict, _ns(since), _ns(until))


def due_after(workspace: Workspace) -> Ms | None:
    """Return the instant after which a row's own times make it due; None when there is none to wait for.

    What keeps it beyond that (a connection, a hold) is not looked at: it is the earliest that a look can be worth it.
    """
    action = action_for(workspace)
    anchor_and_ttl = None if action is None else _anchor_and_ttl(workspace, action)
    if anchor_and_ttl is None or isinstance(anchor_and_ttl, Unknown):
        return None
    since, seconds = anchor_and_ttl
    return Ms(since + seconds * 1000)


def ttl_seconds(workspace: Workspace, action: str) -> int:
    """Return the TTL that an action waits for."""
    return workspace.standby_ttl_seconds if action == STANDBY else workspace.archive_ttl_seconds


def action_for(workspace: Workspace) -> str | None:
    """Return the action whose rule is about a workspace as it is."""
    return STANDBY if workspace.awaits_restart else _ACTION_IN.get(workspace.observed_status)


def anchor(workspace: Workspace) -> Ms:
    """Return what the time of a workspace counts from: the last access, or when it came to its state, if later."""
    return Ms(max(workspace.last_access_at, in_state_since(workspace)))


def in_state_since(workspace: Workspace) -> Ms:
    """Return when a workspace came to its state; restarts after its program ended by itself are left out."""
    if action_for(workspace) == STANDBY and workspace.running_since:
        return workspace.running_since
    return workspace.status_changed_at


# --- inside -----------------------------------------------------------------------------------------------------------

_STATES: Final = {
    STANDBY: (ObservedStatus.RUNNING, DesiredState.RUNNING),
    ARCHIVE: (ObservedStatus.STANDBY, DesiredState.STANDBY),
}
_ACTION_IN: Final = {observed: action for action, (observed, _) in _STATES.items()}
_REASONS: Final = {STANDBY: LapseReason.STANDBY_TTL_EXPIRED, ARCHIVE: LapseReason.ARCHIVE_TTL_EXPIRED}


def _doubt_of_probe(workspace: Workspace, over: Ms, now: Ms) -> activity.ActivityDoubt | None:
    """Say why a program that is to be asked is not known to be idle; activity itself stands in the access time.

    An answer counts that came after its time was over: one before says nothing about what it has done since.
    """
    if workspace.probe is None:
        return None
    if workspace.probe_error is not None:
        return activity.ActivityDoubt.PROBE_FAILED
    answered = workspace.probed_at
    fresh = answered is not None and answered >= over and abs(now - answered) <= PROBE_FRESH_MS
    return None if fresh else activity.ActivityDoubt.PROBE_UNANSWERED


def _look_after_a_connection(workspace: Workspace, now: Ms, lease_seconds: float) -> Ms:
    """Return when to look again at one that would be due but for a connection.

    Closing it is an access, so then nothing is due before a whole TTL is over. But its proxy may have crashed, up to a
    lease ago, without a word; then the time runs since that moment.
    """
    return Ms(now + max(0, workspace.standby_ttl_seconds * 1000 - int(lease_seconds * 1000)) + 1)


def _decide_by_row(workspace: Workspace, now: Ms, *, action: str) -> Decision:
    stays = _other_business(workspace, action)
    if stays is not None:
        return Decision(Keep(stays))
    times = _anchor_and_ttl(workspace, action)
    if isinstance(times, Unknown):
        return Decision(times)
    since, seconds = times
    over = Ms(since + seconds * 1000)
    verdict: Keep | Due
    if now <= over:
        verdict = Keep(KeepReason.NOT_YET, _ns(Ms(over + 1)))
    elif workspace.held(now):
        # Without a next check the engine puts it off for a while only: a plan, which reads the same index, finds it.
        verdict = Keep(KeepReason.HELD)
    else:
        verdict = Due(action, _REASONS[action], _ns(over))
    return Decision(verdict, _ns(since), _ns(over))


def _other_business(workspace: Workspace, action: str) -> Reason | None:
    observed, desired = _STATES[action]
    if workspace.deleted_at is not None:
        return StayReason.DELETED
    if workspace.observed_status is not observed and not (action == STANDBY and workspace.awaits_restart):
        return StayReason.OTHER_STATUS
    if workspace.operation is not Operation.NONE:
        return StayReason.OPERATION
    if workspace.desired_state is not desired:
        return StayReason.OTHER_DESIRED
    return None


def _anchor_and_ttl(workspace: Workspace, action: str) -> tuple[Ms, int] | Unknown:
    """Return what the time counts from and how long: all anchors must be times, and none of them means 'long ago'."""
    ttl = ttl_seconds(workspace, action)
    if not (is_set(workspace.last_access_at) and is_set(workspace.status_changed_at)):
        return Unknown(UnknownReason.MISSING_ANCHOR)
    if workspace.running_since != 0 and not is_set(workspace.running_since):
        return Unknown(UnknownReason.MISSING_ANCHOR)
    if type(ttl) is not int or not 0 < ttl <= LONGEST_TTL_SECONDS:
        return Unknown(UnknownReason.INVALID_TTL)
    return anchor(workspace), ttl


def _ns(moment: Ms) -> UnixNs:
    return UnixNs(moment * 1_000_000)
