"""Why a workspace is kept or lapses: the decisions of the TTL manager, told. Pure.

The same functions decide here and there, on the same row and the same signal; nothing is judged twice by two rules.
Where the signal is not known to whoever asks, the row alone is told of, and it is said that somebody may be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.core.decision import Due, Keep, KeepReason, Unknown, UnknownReason, Verdict
from lapse.core.duration import Duration, short
from lapse.core.timestamps import to_timestamp
from lapse.workspaces.activity import port as activity
from lapse.workspaces.expiry import (
    ARCHIVE,
    STANDBY,
    LapseReason,
    StayReason,
    action_for,
    anchor,
    decide_archive,
    decide_standby,
    due_after,
    in_state_since,
    ttl_seconds,
)
from lapse.workspaces.model import Ms, Workspace
from lapse.workspaces.view import address_of, end_of_hold, probe_words, trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.decision import Reason
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Ms, Workspace

_MS: Final = 1_000_000
_VERDICTS: Final[Mapping[type[Verdict], str]] = {Due: "due", Keep: "keep", Unknown: "unknown"}
_WORDS: Final[Mapping[Reason, str]] = {
    LapseReason.STANDBY_TTL_EXPIRED: "nobody was connected for longer than its standby TTL",
    LapseReason.ARCHIVE_TTL_EXPIRED: "it was in standby for longer than its archive TTL",
    StayReason.DELETED: "it is deleted",
    StayReason.OTHER_STATUS: "this rule does not apply to its state",
    StayReason.OPERATION: "an operation is under way",
    StayReason.OTHER_DESIRED: "another state is wanted already",
    StayReason.CONNECTED: "a user is connected",
    StayReason.IDLE_TIMER: "a user was connected a short while ago",
    KeepReason.NOT_YET: "its time is not over",
    KeepReason.HELD: "it is held",
    UnknownReason.MISSING_ANCHOR: "the time to count from is missing",
    UnknownReason.INVALID_TTL: "its TTL is not valid",
    activity.ActivityDoubt.EPOCH_ABSENT: "the activity store has lost its data, or is new",
    activity.ActivityDoubt.EPOCH_YOUNG: "the activity store has not run for long enough to be trusted",
    activity.ActivityDoubt.UNREADABLE: "its entries in the activity store cannot be read",
    activity.ActivityDoubt.UNREACHABLE: "the activity store does not answer",
    activity.ActivityDoubt.PROBE_FAILED: "its program does not answer its probe, so the program may be at work",
    activity.ActivityDoubt.PROBE_UNANSWERED: "its program has not answered its probe lately and may be at work",
}
_NOT_HERE: Final = "not known here: the process that serves the workspaces counts connections"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was decided about a workspace at a moment, and on what grounds."""

    workspace: Workspace
    signal: Signal | None
    """Who is there; None where that is not known to whoever asks."""
    now: Ms
    wins: str
    """The action whose rule is about it as it is."""
    verdicts: Mapping[str, Verdict]
    """By action."""

    @property
    def verdict(self) -> Verdict:
        """What counts."""
        return self.verdicts[self.wins]


def explain(
    workspace: Workspace,
    signal: Signal | None,
    now: Ms,
    *,
    lease_seconds: float = activity.DEFAULT_LEASE_SECONDS,
) -> Explanation:
    """Decide about a workspace by both rules. ``signal`` was read after the row."""
    known = activity.Quiet() if signal is None else signal
    standby = decide_standby(workspace, known, now, lease_seconds=lease_seconds)
    wins = action_for(workspace) or STANDBY
    return Explanation(workspace, signal, now, wins, {STANDBY: standby, ARCHIVE: decide_archive(workspace, now)})


def as_json(told: Explanation) -> dict[str, Any]:
    """Return the JSON form. Times are RFC 3339, in whole seconds."""
    workspace, over = told.workspace, due_after(told.workspace)
    return {
        "address": str(address_of(workspace)),
        "at": _time(told.now),
        "verdict": _VERDICTS[type(told.verdict)],
        "reason": told.verdict.reason.value,
        "because": because(told),
        "trouble": trouble(workspace) or None,
        "rules": [_rule(told, action) for action in (told.wins, *(set(told.verdicts) - {told.wins}))],
        "anchor": {"at": _time(anchor(workspace)), "source": anchor_source(workspace)},
        "due_at": None if over is None else _time(over),
        "activity": activity_words(told.signal),
        "probe": probe_words(workspace) or None,
        "held": workspace.held(told.now),
        "hold_reason": workspace.hold_reason,
        "hold_until": None if workspace.hold_until is None else _time(workspace.hold_until),
        "next_check": _time(workspace.check_after),
        "saved_by": savers(told),
    }


def facts(told: Explanation) -> list[tuple[str, str]]:
    """Return the same for people: what, and what about it; empty where there is nothing to say."""
    workspace, over = told.workspace, due_after(told.workspace)
    lost = next(action for action in told.verdicts if action != told.wins)
    ago = short((told.now - anchor(workspace)) * _MS)
    return [
        ("address", str(address_of(workspace))),
        ("verdict", f"{_VERDICTS[type(told.verdict)]}: {because(told)}"),
        ("trouble", trouble(workspace)),
        ("rule", rule_words(workspace, told.wins)),
        ("lost", f"{rule_words(workspace, lost)}: {_words(told.verdicts[lost])}"),
        ("counted from", f"{anchor_source(workspace)}, {_time(anchor(workspace))} ({ago} ago)"),
        ("over", "" if over is None else _over(over, told.now)),
        ("activity", activity_words(told.signal)),
        ("probe", probe_words(workspace)),
        ("held", f"{workspace.hold_reason}{end_of_hold(workspace)}" if workspace.held(told.now) else ""),
        ("next look", f"at the first tick after {_time(workspace.check_after)}"),
        ("saved by", "; ".join(savers(told))),
    ]


def because(told: Explanation) -> str:
    """Say why, for people."""
    if told.workspace.error_reason is not None:
        return "it has failed, and is not changed until a person acts"
    doubt = told.signal is None and told.wins == STANDBY and isinstance(told.verdict, Due)
    return _words(told.verdict) + (", unless a user is connected" if doubt else "")


def rule_words(workspace: Workspace, action: str) -> str:
    """Say what a rule is, as it is for this workspace."""
    ttl = Duration.of_seconds(ttl_seconds(workspace, action))
    return f"standby after {ttl} idle" if action == STANDBY else f"archive after {ttl} in standby"


def anchor_source(workspace: Workspace) -> str:
    """Say what its time is counted from."""
    if workspace.last_access_at >= in_state_since(workspace):
        return "the last access"
    return f"when it became {'RUNNING' if action_for(workspace) == STANDBY else workspace.observed_status.value}"


def activity_words(signal: Signal | None) -> str:
    """Say who is there."""
    match signal:
        case None:
            return _NOT_HERE
        case activity.Connected(count=count):
            return f"{count} connected"
        case activity.Timer(seconds_left=left):
            return f"nobody connected, for less than the idle timer, which ends in {short(round(left * 1e9))}"
        case activity.Quiet():
            return "nobody"
        case activity.ActivityUnknown(reason=doubt):
            return f"unknown: {_WORDS[doubt]}"


def savers(told: Explanation) -> list[str]:
    """Say what would keep it from lapsing; nothing where nothing lapses."""
    name, about = told.workspace.name, told.verdict
    lapses = isinstance(about, Due) or about.reason in {KeepReason.NOT_YET, StayReason.CONNECTED, StayReason.IDLE_TIMER}
    if not lapses:
        return []
    longer = f"lapse workspaces ttl {name} --{told.wins} DURATION"
    return ["opening it", f"lapse workspaces start {name}", f"lapse hold workspace/{name} --reason TEXT", longer]


def _rule(told: Explanation, action: str) -> dict[str, Any]:
    verdict = told.verdicts[action]
    look = None if isinstance(verdict, Due) else verdict.next_check
    return {
        "rule": rule_words(told.workspace, action),
        "action": action,
        "wins": action == told.wins,
        "verdict": _VERDICTS[type(verdict)],
        "reason": verdict.reason.value,
        "since": to_timestamp(verdict.since) if isinstance(verdict, Due) else None,
        "look_again": None if look is None else to_timestamp(look),
    }


def _words(verdict: Verdict) -> str:
    return _WORDS.get(verdict.reason, verdict.reason.value)


def _over(over: Ms, now: Ms) -> str:
    distance = short(abs(over - now) * _MS)
    return f"{_time(over)} ({f'in {distance}' if over > now else f'{distance} ago'})"


def _time(moment: Ms) -> str:
    return to_timestamp(moment * _MS)
