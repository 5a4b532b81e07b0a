"""Views of workspaces, and why each is kept or lapses, on the command line and over HTTP alike. Pure.

`explain` tells the decisions of the TTL manager: the same functions decide here and there, on the same row and the same
signal. Where the signal is not known, the row alone is told of, and that a user may be connected.

What only stores and loops need (operation ids, archive keys) is left out.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Due, KeepReason, UnknownReason
from lapse.core.duration import Duration, short
from lapse.engine.safety.holds import Hold
from lapse.engine.view import FreezeView, Moment, fill, freeze_view, known
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
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus, Operation, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lapse.core.decision import Verdict
    from lapse.engine.safety.freeze import Freeze
    from lapse.engine.view import Columns, DetailRow
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace, WorkspaceId

_MS: Final = 1_000_000
_TIMES: Final = (
    "observed_at",
    "status_changed_at",
    "exited_at",
    "last_access_at",
    "probed_at",
    "hold_until",
    "created_at",
    "deleted_at",
)
_NEXT: Final = {
    (ObservedStatus.RUNNING, DesiredState.RUNNING): STANDBY,
    (ObservedStatus.STANDBY, DesiredState.STANDBY): ARCHIVE,
}
_AT_REST: Final = {
    ObservedStatus.RUNNING: "running",
    ObservedStatus.STANDBY: "in standby",
    ObservedStatus.PENDING: "not started",
    ObservedStatus.ERROR: "error",
}
_UNDER_WAY: Final = {
    Operation.PROVISIONING: "starting",
    Operation.RESTORING: "coming back from the archive",
    Operation.STARTING: "starting",
    Operation.STOPPING: "going to standby",
    Operation.ARCHIVING: "going to the archive",
    Operation.DELETING: "being deleted",
}
_ORDER: Final = [ObservedStatus.PENDING, ObservedStatus.STANDBY, ObservedStatus.RUNNING]
_WORDS: Final[Mapping[str, str]] = {
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
_VALUES: Final = ("command", "operation_note", "error_message", "exit_output", "probe", "probe_error")
_NOT_HERE: Final = "not known here: the process that serves the workspaces counts connections"


class WorkspaceView(Struct, frozen=True):
    """A workspace."""

    address: str
    id: str
    name: str
    owner: str
    command: Annotated[tuple[str, ...] | None, Meta(description="null where the token shows no values")]
    port: int
    next_port: Annotated[
        int | None, Meta(description="Where the program listens from its next start on, if that is another one")
    ]
    node_id: str | None
    desired_state: Annotated[str, Meta(description="PENDING, STANDBY or RUNNING: what is wanted")]
    desired_by: Annotated[str, Meta(description="user, access or ttl")]
    version: Annotated[int, Meta(description="One more after each change of what is wanted")]
    observed_status: Annotated[str, Meta(description="PENDING, STANDBY, RUNNING or ERROR: what is seen")]
    observed_at: Moment | None
    status_changed_at: Moment
    operation: Annotated[str, Meta(description="What is being done; NONE is nothing")]
    operation_started_at: Moment | None
    operation_tries: int
    operation_note: Annotated[str | None, Meta(description="What is to be known while it is under way")]
    archived: bool
    error_reason: str | None
    error_message: Annotated[str | None, Meta(description="null where the token shows no values")]
    restarts: Annotated[int, Meta(description="How often in a row its program ended by itself and was started again")]
    exit_status: Annotated[
        int | None, Meta(description="How it last did: its exit code, or minus the number of a signal")
    ]
    exited_at: Moment | None
    exit_output: Annotated[str | None, Meta(description="The last lines of that program")]
    standby_ttl_seconds: int
    archive_ttl_seconds: int
    last_access_at: Moment
    probe: Annotated[str | None, Meta(description="How its program is asked whether it works")]
    probed_at: Annotated[Moment | None, Meta(description="When it last answered")]
    probe_error: Annotated[str | None, Meta(description="Why it did not answer the last time")]
    next: Annotated[str | None, Meta(description="standby or archive: what it goes to when nobody comes")]
    next_at: Annotated[Moment | None, Meta(description="When, at the earliest")]
    held: bool
    hold_reason: str | None
    hold_until: Moment | None
    created_at: Moment
    deleted_at: Moment | None


class RuleVerdict(Struct, frozen=True):
    """What one rule says."""

    rule: str
    action: str
    wins: bool
    verdict: str
    reason: str
    since: Moment | None
    look_again: Moment | None


class AnchorView(Struct, frozen=True):
    """What its time is counted from."""

    at: Moment
    source: str


class Explanation(Struct, frozen=True):
    """Why a workspace is kept or lapses."""

    address: str
    at: Moment
    verdict: Annotated[str, Meta(description="keep, due or unknown")]
    reason: str
    because: str
    trouble: Annotated[str | None, Meta(description="What is wrong with it")]
    rules: Annotated[list[RuleVerdict], Meta(description="The one that wins first")]
    anchor: AnchorView
    due_at: Moment | None
    activity: Annotated[str, Meta(description="Who is there")]
    probe: Annotated[str | None, Meta(description="How its program is asked whether it works, and what came of it")]
    held: bool
    hold_reason: str | None
    hold_until: Moment | None
    next_check: Moment
    saved_by: list[str]
    frozen: FreezeView | None


def address_of(workspace: Workspace) -> Address:
    """Return its address: ``workspace/NAME``."""
    return Address("workspace", None, workspace.name)


def hold_of(workspace: Workspace) -> Hold | None:
    """Return the hold on it, over or not."""
    if workspace.hold_reason is None:
        return None
    return Hold(workspace.hold_reason, None if workspace.hold_end is None else UnixNs(workspace.hold_end * _MS))


def next_lapse(workspace: Workspace) -> tuple[str, Ms] | None:
    """Return what it goes to next, and the earliest moment for it by its own times; None: nothing, as things are.

    Somebody who is connected, an idle timer or a hold keep it longer.
    """
    step = STANDBY if workspace.awaits_restart else _NEXT.get((workspace.observed_status, workspace.desired_state))
    moment = due_after(workspace)
    if step is None or moment is None or workspace.operation is not Operation.NONE or workspace.deleted_at is not None:
        return None
    return step, moment


def view_of(workspace: Workspace, now: Ms) -> WorkspaceView:
    """Return the view of a workspace."""
    step, moment = next_lapse(workspace) or (None, None)
    return fill(
        WorkspaceView,
        workspace,
        address=str(address_of(workspace)),
        operation_started_at=_moment(workspace.op_started_at),
        operation_tries=workspace.op_tries,
        operation_note=workspace.op_note,
        archived=workspace.archive_key is not None,
        next=step,
        next_at=_moment(moment),
        held=workspace.held(now),
        **{name: _moment(getattr(workspace, name)) for name in _TIMES},
    )


def without_values(view: WorkspaceView) -> WorkspaceView:
    """Return the view without what its owner or its program has written: commands and output can be secrets."""
    return replace(view, **dict.fromkeys(_VALUES))


def _moment(milliseconds: Ms | None) -> Moment | None:
    return None if milliseconds is None else Moment(milliseconds * _MS)


# --- words ------------------------------------------------------------------------------------------------------------


def problem_words(view: WorkspaceView) -> str:
    """Say what is wrong with a workspace, in sentences; empty where nothing is known to be."""
    if view.error_reason is not None:
        said = "" if view.error_message is None else f": {view.error_message.rstrip('.')}"
        return f"It has failed ({view.error_reason}){said}."
    if view.operation_note is not None:
        return view.operation_note
    if not view.restarts:
        return ""
    how = how_it_ended(view.exit_status)
    times = "once" if view.restarts == 1 else f"{view.restarts} times in a row"
    output = (view.exit_output or "").rstrip(".")
    said = f" Its last output: {output}." if output else ""
    return f"The program ended by itself {times}, the last time {how}, and is started again after a pause.{said}"


def short_problem(view: WorkspaceView) -> str:
    """Say in a few words what is wrong with a workspace; empty where nothing is known to be."""
    if view.error_reason is not None:
        return view.error_reason
    if view.operation_note is not None:
        return view.operation_note.partition(". ")[0]
    if not view.restarts:
        return ""
    return f"ended {how_it_ended(view.exit_status)}, restarts: {view.restarts}"


def next_words(view: WorkspaceView, signal: Signal | None, now: int, *, length: Callable[[int], str] = short) -> str:
    """Say what it goes to next, and when; empty for nothing. Without a ``signal`` it is not known who is connected.

    ``length`` prints a number of nanoseconds.
    """
    if view.next is None or view.next_at is None:
        return ""
    step, moment, doubt = view.next, view.next_at, ""
    if view.held:
        return f"{step} (held)"
    if step == STANDBY:
        match signal:
            case activity.Connected():
                return f"{step} when nobody is connected"
            case activity.Timer(seconds_left=left):
                moment = Moment(max(moment, now + int(left * 1000) * _MS))
            case activity.ActivityUnknown():
                doubt = " when it is known that nobody is connected"
            case None:
                doubt = " at the next look, unless a user is connected"
    if moment > now:
        return f"{step} in {length(moment - now)}"
    return f"{step}{doubt or ' at the next look'}"


def hold_words(view: WorkspaceView | Explanation) -> str:
    """Say why it is held, and until when; empty where it is not."""
    return f"{view.hold_reason}{end_of_hold(view.hold_until)}" if view.held else ""


def end_of_hold(until: Moment | None) -> str:
    """Return how to say when a hold ends, to be put behind a word; empty where it has no end."""
    return "" if until is None else f" until {until}"


def probe_words(view: WorkspaceView) -> str:
    """Say how its program is asked whether it works, and what came of it; empty where it is not asked."""
    if view.probe is None:
        return ""
    answered = "" if view.probed_at is None else f", last answered {view.probed_at}"
    if view.probe_error is None:
        return f"{view.probe}{answered}"
    return f"{view.probe} fails: {view.probe_error}{answered}; the workspace does not count as idle"


def in_words(workspace: Workspace) -> str:
    """Return how it is as people say it; what is wanted and not begun yet counts as under way."""
    status, archived = workspace.observed_status, workspace.archive_key is not None
    if status is ObservedStatus.ERROR:
        return _AT_REST[status]
    if workspace.operation is not Operation.NONE:
        return _UNDER_WAY[workspace.operation]
    if workspace.awaits_restart:
        return "starting again"
    wanted = ObservedStatus(workspace.desired_state.value)
    if wanted is status:
        return "archived" if status is ObservedStatus.PENDING and archived else _AT_REST[status]
    if _ORDER.index(wanted) < _ORDER.index(status):
        return _UNDER_WAY[Operation.STOPPING if status is ObservedStatus.RUNNING else Operation.ARCHIVING]
    return _UNDER_WAY[Operation.RESTORING if status is ObservedStatus.PENDING and archived else Operation.STARTING]


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


# --- lists and rows --------------------------------------------------------------------------------------------------


def columns(views: Sequence[WorkspaceView], signals: Mapping[WorkspaceId, Signal]) -> Columns:
    """Return the columns of a list. What is wrong has one only where something is: most of the time nothing is."""
    problem_cell = {"trouble": lambda one, _: short_problem(one)} if any(map(short_problem, views)) else {}
    return {
        "name": "name",
        "owner": "owner",
        "status": "observed_status",
        "wanted": "desired_state",
        "operation": lambda one, _: None if one.operation == Operation.NONE else one.operation,
        **problem_cell,
        "last access": lambda one, now: f"{short(now - one.last_access_at)} ago",
        "next": lambda one, now: next_words(one, signals.get(one.id), now) or None,
    }


def detail_rows(view: WorkspaceView, signal: Signal | None, now: int) -> list[DetailRow]:
    """Return everything about one workspace that a person may ask for."""
    since = "" if view.operation_started_at is None else f" for {short(now - view.operation_started_at)}"
    left = "" if view.exited_at is None else f"{how_it_ended(view.exit_status)}, {short(now - view.exited_at)} ago"
    return known(
        [
            ("address", view.address),
            ("owner", view.owner),
            ("command", shlex.join(view.command or ())),
            ("port", f"{view.port}{'' if view.next_port is None else f', {view.next_port} from its next start on'}"),
            ("node", view.node_id or ""),
            ("status", view.observed_status),
            ("status since", str(view.status_changed_at)),
            ("wanted", f"{view.desired_state} (by {view.desired_by})"),
            ("operation", "" if view.operation == Operation.NONE else f"{view.operation}{since}"),
            ("tries", str(view.operation_tries or "")),
            ("note", view.operation_note or ""),
            ("error", ": ".join(filter(None, (view.error_reason, view.error_message)))),
            ("restarts", str(view.restarts or "")),
            ("last exit", left),
            ("last output", view.exit_output or ""),
            ("archived", "yes" if view.archived else ""),
            ("standby ttl", str(Duration.of_seconds(view.standby_ttl_seconds))),
            ("archive ttl", str(Duration.of_seconds(view.archive_ttl_seconds))),
            ("last access", view.last_access_at.and_age(now)),
            ("probe", probe_words(view)),
            ("activity", activity_words(signal) if view.observed_status == ObservedStatus.RUNNING else ""),
            ("held", hold_words(view)),
            ("next", next_words(view, signal, now)),
            ("created", str(view.created_at)),
            ("version", str(view.version)),
            ("id", view.id),
        ]
    )


# --- why --------------------------------------------------------------------------------------------------------------


def explain(
    workspace: Workspace,
    signal: Signal | None,
    now: Ms,
    *,
    lease_seconds: float = activity.DEFAULT_LEASE_SECONDS,
    frozen: Freeze | None = None,
) -> Explanation:
    """Decide about a workspace by both rules. ``signal`` was read after the row; None where it is not known.

    ``frozen`` is what stops the domain: it changes no decision, and nothing comes of one meanwhile.
    """
    seen = activity.Quiet() if signal is None else signal
    verdicts: dict[str, Verdict] = {
        STANDBY: decide_standby(workspace, seen, now, lease_seconds=lease_seconds).verdict,
        ARCHIVE: decide_archive(workspace, now).verdict,
    }
    wins = action_for(workspace) or STANDBY
    verdict, view = verdicts[wins], view_of(workspace, now)
    order = sorted(verdicts, key=lambda action: action != wins)
    return fill(
        Explanation,
        view,
        at=Moment(now * _MS),
        verdict=_kind(verdict),
        reason=verdict.reason.value,
        because=_because(workspace, verdict, unsure=signal is None and wins == STANDBY),
        trouble=problem_words(view) or None,
        rules=[_rule(workspace, action, verdicts[action], wins=action == wins) for action in order],
        anchor=AnchorView(Moment(anchor(workspace) * _MS), _anchor_source(workspace)),
        due_at=_moment(due_after(workspace)),
        activity=activity_words(signal),
        probe=probe_words(view) or None,
        next_check=Moment(workspace.check_after * _MS),
        saved_by=_savers(view.name, wins, verdict),
        frozen=freeze_view(frozen),
    )


def explanation_rows(told: Explanation) -> list[DetailRow]:
    """Return an explanation for people."""
    won, lost = told.rules
    return known(
        [
            ("address", told.address),
            ("verdict", f"{told.verdict}: {told.because}"),
            ("trouble", told.trouble or ""),
            ("rule", won.rule),
            ("lost", f"{lost.rule}: {_words(lost.reason)}"),
            ("counted from", f"{told.anchor.source}, {told.anchor.at.and_age(told.at)}"),
            ("over", "" if told.due_at is None else _over(told.due_at, told.at)),
            ("activity", told.activity),
            ("probe", told.probe or ""),
            ("held", hold_words(told)),
            ("frozen", "" if told.frozen is None else str(told.frozen)),
            ("next look", f"at the first tick after {told.next_check}"),
            ("saved by", "; ".join(told.saved_by)),
        ]
    )


def _kind(verdict: Verdict) -> str:
    return type(verdict).__name__.lower()


def _because(workspace: Workspace, verdict: Verdict, *, unsure: bool) -> str:
    if workspace.error_reason is not None:
        return "it has failed, and is not changed until a person acts"
    doubt = ", unless a user is connected" if unsure and isinstance(verdict, Due) else ""
    return f"{_words(verdict.reason.value)}{doubt}"


def _rule(workspace: Workspace, action: str, verdict: Verdict, *, wins: bool) -> RuleVerdict:
    ttl = Duration.of_seconds(ttl_seconds(workspace, action))
    return RuleVerdict(
        rule=f"standby after {ttl} idle" if action == STANDBY else f"archive after {ttl} in standby",
        action=action,
        wins=wins,
        verdict=_kind(verdict),
        reason=verdict.reason.value,
        since=Moment(verdict.since) if isinstance(verdict, Due) else None,
        look_again=None if isinstance(verdict, Due) else Moment.of(verdict.next_check),
    )


def _anchor_source(workspace: Workspace) -> str:
    """Say what its time is counted from."""
    if workspace.last_access_at >= in_state_since(workspace):
        return "the last access"
    return f"when it became {'RUNNING' if action_for(workspace) == STANDBY else workspace.observed_status.value}"


def _savers(name: str, action: str, verdict: Verdict) -> list[str]:
    """Say what would keep it from lapsing; nothing where nothing lapses."""
    waits = verdict.reason in {KeepReason.NOT_YET, StayReason.CONNECTED, StayReason.IDLE_TIMER}
    if not waits and not isinstance(verdict, Due):
        return []
    longer = f"lapse workspaces ttl {name} --{action} DURATION"
    return ["opening it", f"lapse workspaces start {name}", f"lapse hold workspace/{name} --reason TEXT", longer]


def _words(reason: str) -> str:
    return _WORDS.get(reason, reason)


def _over(over: Moment, now: int) -> str:
    distance = short(abs(over - now))
    return f"{over} ({f'in {distance}' if over > now else f'{distance} ago'})"
