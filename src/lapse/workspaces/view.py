"""A workspace as people and programs see it, on the command line and over HTTP alike. Pure.

What only stores and loops need (operation ids, archive keys, the next look) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.timestamps import to_timestamp
from lapse.engine.safety.holds import Hold
from lapse.workspaces.activity import port as activity
from lapse.workspaces.expiry import ARCHIVE, STANDBY, due_after
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus, Operation, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace

_MS: Final = 1_000_000
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


def address_of(workspace: Workspace) -> Address:
    """Return its address: ``workspace/NAME``."""
    return Address("workspace", None, workspace.name)


def hold_of(workspace: Workspace) -> Hold | None:
    """Return the hold on it, over or not."""
    if workspace.hold_reason is None:
        return None
    return Hold(workspace.hold_reason, None if workspace.hold_until is None else UnixNs(workspace.hold_until * _MS))


def next_lapse(workspace: Workspace) -> tuple[str, Ms] | None:
    """Return what it goes to next, and the earliest moment for it by its own times; None: nothing, as things are.

    Somebody who is connected, an idle timer or a hold keep it longer.
    """
    step = STANDBY if workspace.awaits_restart else _NEXT.get((workspace.observed_status, workspace.desired_state))
    moment = due_after(workspace)
    if step is None or moment is None or workspace.operation is not Operation.NONE or workspace.deleted_at is not None:
        return None
    return step, moment


def trouble(workspace: Workspace) -> str:
    """Say what is wrong with a workspace, in sentences; empty where nothing is known to be."""
    if workspace.error_reason is not None:
        return f"It has failed ({workspace.error_reason}): {(workspace.error_message or '').rstrip('.')}."
    if workspace.op_note is not None:
        return workspace.op_note
    if not workspace.restarts:
        return ""
    how = how_it_ended(workspace.exit_status)
    times = "once" if workspace.restarts == 1 else f"{workspace.restarts} times in a row"
    output = (workspace.exit_output or "").rstrip(".")
    said = f" Its last output: {output}." if output else ""
    return f"The program ended by itself {times}, the last time {how}, and is started again after a pause.{said}"


def short_trouble(workspace: Workspace) -> str:
    """Say in a few words what is wrong with a workspace; empty where nothing is known to be."""
    if workspace.error_reason is not None:
        return workspace.error_reason
    if workspace.op_note is not None:
        return workspace.op_note.partition(". ")[0]
    if not workspace.restarts:
        return ""
    return f"ended {how_it_ended(workspace.exit_status)}, restarts: {workspace.restarts}"


def next_words(workspace: Workspace, signal: Signal | None, now: Ms, *, length: Callable[[int], str]) -> str:
    """Say what it goes to next, and when; empty for nothing. Without a ``signal`` it is not known who is connected.

    ``length`` says a number of milliseconds.
    """
    lapses = next_lapse(workspace)
    if lapses is None:
        return ""
    step, moment = lapses
    if workspace.held(now):
        return f"{step} (held)"
    doubt = ""
    if step == STANDBY:
        match signal:
            case activity.Connected():
                return f"{step} when nobody is connected"
            case activity.Timer(seconds_left=left):
                moment = Ms(max(moment, now + int(left * 1000)))
            case activity.ActivityUnknown():
                doubt = " when it is known that nobody is connected"
            case None:
                doubt = " at the next look, unless a user is connected"
    if moment > now:
        return f"{step} in {length(moment - now)}"
    return f"{step}{doubt or ' at the next look'}"


def end_of_hold(workspace: Workspace) -> str:
    """Return how to say when its hold ends, to be put behind a word; empty where it has no end."""
    return "" if workspace.hold_until is None else f" until {_time(workspace.hold_until)}"


def probe_words(workspace: Workspace) -> str:
    """Say how its program is asked whether it works, and what came of it; empty where it is not asked."""
    if workspace.probe is None:
        return ""
    answered = "" if workspace.probed_at is None else f", last answered {_time(workspace.probed_at)}"
    if workspace.probe_error is None:
        return f"{workspace.probe}{answered}"
    return f"{workspace.probe} fails: {workspace.probe_error}{answered}; the workspace does not count as idle"


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


def as_json(workspace: Workspace, *, now: Ms) -> dict[str, Any]:
    """Return the JSON form. Times are RFC 3339, in whole seconds."""
    lapses = next_lapse(workspace)
    return {
        "address": str(address_of(workspace)),
        "id": workspace.id,
        "name": workspace.name,
        "owner": workspace.owner,
        "command": list(workspace.command),
        "port": workspace.port,
        "next_port": workspace.next_port,
        "node_id": workspace.node_id,
        "desired_state": workspace.desired_state.value,
        "desired_by": workspace.desired_by.value,
        "version": workspace.version,
        "observed_status": workspace.observed_status.value,
        "observed_at": _time(workspace.observed_at),
        "status_changed_at": _time(workspace.status_changed_at),
        "operation": workspace.operation.value,
        "operation_started_at": _time(workspace.op_started_at),
        "operation_tries": workspace.op_tries,
        "operation_note": workspace.op_note,
        "archived": workspace.archive_key is not None,
        "error_reason": workspace.error_reason,
        "error_message": workspace.error_message,
        "restarts": workspace.restarts,
        "exit_status": workspace.exit_status,
        "exited_at": _time(workspace.exited_at),
        "exit_output": workspace.exit_output,
        "standby_ttl_seconds": workspace.standby_ttl_seconds,
        "archive_ttl_seconds": workspace.archive_ttl_seconds,
        "last_access_at": _time(workspace.last_access_at),
        "probe": workspace.probe,
        "probed_at": _time(workspace.probed_at),
        "probe_error": workspace.probe_error,
        "next": None if lapses is None else lapses[0],
        "next_at": None if lapses is None else _time(lapses[1]),
        "held": workspace.held(now),
        "hold_reason": workspace.hold_reason,
        "hold_until": _time(workspace.hold_until),
        "created_at": _time(workspace.created_at),
        "deleted_at": _time(workspace.deleted_at),
    }


def _time(moment: Ms | None) -> str | None:
    return None if moment is None else to_timestamp(moment * _MS)
