"""Views of workspaces, and why each is kept or lapses, on the command line and over HTTP alike. Pure.

Where it is not known who is connected, the row alone is told of, and that a user may be.

What only stores and loops need (operation ids, archive keys) is left out.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import UNREADABLE_EXTENSION, KeepReason, UnknownReason
from lapse.core.duration import Duration, short
from lapse.engine.safety.holds import Hold
from lapse.engine.view import Moment, fill, known
from lapse.workspaces.activity import port as activity
from lapse.workspaces.expiry import (
    ARCHIVE,
    STANDBY,
    LapseReason,
    StayReason,
    action_for,
    due_after,
    in_state_since,
)
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus, Operation, how_it_ended, is_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lapse.core.decision import Verdict
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
    "trash_until",
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
_NOT_HERE: Final = "not known here: lapse why tells, asked of the process that serves the workspaces (--server)"
_WORDS: Final[Mapping[str, str]] = {
    LapseReason.STANDBY_TTL_EXPIRED: "nobody was connected for longer than its standby TTL",
    LapseReason.ARCHIVE_TTL_EXPIRED: "it was in standby for longer than its archive TTL",
    LapseReason.TRASH_TTL_EXPIRED: "it was in the trash for longer than trash_ttl",
    StayReason.DELETED: "it is deleted",
    StayReason.OTHER_STATUS: "this rule does not apply to its state",
    StayReason.OPERATION: "an operation is under way",
    StayReason.OTHER_DESIRED: "another state is wanted already",
    StayReason.CONNECTED: "a user is connected",
    StayReason.IDLE_TIMER: "a user was connected a short while ago",
    KeepReason.NOT_YET: "its time is not over",
    KeepReason.HELD: "it is held",
    KeepReason.EXTENDED: "a person has extended it",
    UnknownReason.UNREADABLE_SIGNAL: "what stands for the end of its extension is no time",
    UnknownReason.MISSING_ANCHOR: "the time to count from is missing",
    UnknownReason.INVALID_TTL: "its TTL is not valid",
    activity.ActivityDoubt.EPOCH_ABSENT: "the activity store has lost its data, or is new",
    activity.ActivityDoubt.EPOCH_YOUNG: "the activity store has not run for long enough to be trusted",
    activity.ActivityDoubt.UNREADABLE: "its entries in the activity store cannot be read",
    activity.ActivityDoubt.UNREACHABLE: "the activity store does not answer",
    activity.ActivityDoubt.ELSEWHERE: _NOT_HERE,
    activity.ActivityDoubt.PROBE_FAILED: "its program does not answer its probe, so the program may be at work",
    activity.ActivityDoubt.PROBE_UNANSWERED: "its program has not answered its probe lately and may be at work",
}
_VALUES: Final = ("command", "operation_note", "error_message", "exit_output", "probe", "probe_error")


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
    archived: Annotated[bool, Meta(description="Whether its data is in the archive, and not in place")]
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
    trash_until: Annotated[Moment | None, Meta(description="Until when one that was deleted can be brought back")]

    @property
    def etag(self) -> str:
        """Its version as HTTP has it, for If-Match."""
        return etag_of(self)


class WorkspaceDetails(WorkspaceView, frozen=True):
    """A workspace, and where it is opened."""

    url: Annotated[str | None, Meta(description="Where it is opened; null where a command does not know the port")]


class BusyLeaseView(Struct, frozen=True):
    """A lease that keeps a workspace from lapsing."""

    lease: str
    lease_seconds: Annotated[float, Meta(description="How long it counts from now on unless it is renewed")]
    most_seconds: Annotated[float, Meta(description="How long it can be renewed, from its begin on")]


class Opened(Struct, frozen=True):
    """An address that opens a workspace, once."""

    url: str
    expires_at: Moment


def etag_of(seen: Workspace | WorkspaceView) -> str:
    """Return its version as HTTP has it. With the id: one made anew under the same name starts at the same version."""
    return f'"{seen.id}-{seen.version}"'


def address_of(workspace: Workspace) -> Address:
    """Return its address: ``workspace/NAME``."""
    return Address("workspace", None, workspace.name)


def hold_of(workspace: Workspace) -> Hold | None:
    """Return the hold on it, over or not."""
    if workspace.hold_reason is None:
        return None
    until = None if workspace.hold_end is None else UnixNs(workspace.hold_end * _MS)
    return Hold(workspace.hold_reason, until, workspace.hold_by or "", workspace.hold_is_legal)


def extension_of(workspace: Workspace) -> UnixNs | None:
    """Return until when a person has given it time; doubt keeps: what stands there and is no time is unreadable."""
    until = workspace.extended_until
    if until is None:
        return None
    return UnixNs(until * _MS) if is_set(until) else UNREADABLE_EXTENSION


def next_lapse(workspace: Workspace) -> tuple[str, Ms] | None:
    """Return what it goes to next, and the earliest moment for it by its own times; None: nothing, as things are.

    Somebody who is connected, an idle timer or a hold keep it longer.
    """
    step = STANDBY if workspace.awaits_restart else _NEXT.get((workspace.observed_status, workspace.desired_state))
    moment = _due_after(workspace)
    if step is None or moment is None or workspace.operation is not Operation.NONE or workspace.deleted_at is not None:
        return None
    return step, moment


def _due_after(workspace: Workspace) -> Ms | None:
    """Return the instant after which a row's own times and its extension make it due."""
    moment, until = due_after(workspace), workspace.extended_until
    return moment if moment is None or until is None or not is_set(until) else max(moment, until)


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
        archived=_is_archived(workspace),
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


def hold_words(view: WorkspaceView) -> str:
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
    status, archived = workspace.observed_status, _is_archived(workspace)
    if status is ObservedStatus.ERROR:
        return _AT_REST[status]
    if workspace.operation is not Operation.NONE:
        return _UNDER_WAY[workspace.operation]
    if workspace.awaits_restart:
        return "starting again"
    wanted = ObservedStatus(workspace.desired_state.value)
    if wanted is status:
        return "archived" if archived else _AT_REST[status]
    if _ORDER.index(wanted) < _ORDER.index(status):
        return _UNDER_WAY[Operation.STOPPING if status is ObservedStatus.RUNNING else Operation.ARCHIVING]
    return _UNDER_WAY[Operation.RESTORING if archived else Operation.STARTING]


def _is_archived(workspace: Workspace) -> bool:
    """Whether the data is in the archive: an archive stays where it is when the data was put in place again."""
    is_in_place = workspace.observed_status in {ObservedStatus.STANDBY, ObservedStatus.RUNNING}
    return workspace.archive_key is not None and not is_in_place


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
        case activity.ActivityUnknown(reason=activity.ActivityDoubt.ELSEWHERE):
            return _NOT_HERE
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


def detail_rows(view: WorkspaceDetails, signal: Signal | None, now: int) -> list[DetailRow]:
    """Return everything about one workspace that a person may ask for."""
    since = "" if view.operation_started_at is None else f" for {short(now - view.operation_started_at)}"
    left = "" if view.exited_at is None else f"{how_it_ended(view.exit_status)}, {short(now - view.exited_at)} ago"
    return known(
        [
            ("address", view.address),
            ("url", view.url or ""),
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


def reason_words(workspace: Workspace, verdict: Verdict) -> str:
    """Say why a workspace is kept or lapses."""
    if workspace.error_reason is not None:
        return "it has failed, and is not changed until a person acts"
    return _WORDS.get(verdict.reason.value, verdict.reason.value)


def anchor_source(workspace: Workspace) -> str:
    """Say what its time is counted from."""
    if workspace.last_access_at >= in_state_since(workspace):
        return "the last access"
    return f"when it became {'RUNNING' if action_for(workspace) == STANDBY else workspace.observed_status.value}"
