"""The next step of a workspace: pure decisions on a row, and the table they are made by.

One step at a time: up from PENDING to STANDBY to RUNNING, or down again, each of them towards what is wanted *now*. A
change of mind during a step is followed after it; but a step that takes a workspace down is abandoned, as long as its
program runs or its volume is there, when somebody wants the workspace again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lapse.workspaces.model import DesiredState, ObservedStatus, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.workspaces.model import OpId, Workspace

TARGETS: Final[Mapping[Operation, ObservedStatus]] = {
    Operation.PROVISIONING: ObservedStatus.STANDBY,
    Operation.RESTORING: ObservedStatus.STANDBY,
    Operation.STARTING: ObservedStatus.RUNNING,
    Operation.STOPPING: ObservedStatus.STANDBY,
    Operation.ARCHIVING: ObservedStatus.PENDING,
    Operation.DELETING: ObservedStatus.PENDING,
}
"""What must be observed for an operation to be complete."""

_QUICK_MS: Final = 300_000
_LONG_MS: Final = 1_800_000
LIMITS_MS: Final[Mapping[Operation, int]] = {
    Operation.PROVISIONING: _LONG_MS,  # it may find an archive to restore
    Operation.RESTORING: _LONG_MS,
    Operation.STARTING: _QUICK_MS,
    Operation.STOPPING: _QUICK_MS,
    Operation.ARCHIVING: _LONG_MS,
    Operation.DELETING: _LONG_MS,
}
"""How long an operation may take in all its tries, in milliseconds of a Lapse that runs.

Of those that move data (`MOVES_DATA`), how long it may take without any progress.
"""
MOVES_DATA: Final = frozenset({operation for operation, limit in LIMITS_MS.items() if limit == _LONG_MS})

STEADY_SECONDS: Final = 600.0
"""A program that ran for as long is not in a crash loop when it ends."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_FROM_STANDBY: Final = {DesiredState.RUNNING: Operation.STARTING, DesiredState.PENDING: Operation.ARCHIVING}


class Lane(StrEnum):
    """Steps that wait for each other, and for nobody in another lane."""

    QUICK = "quick"
    BACK = "back"
    """Data comes back, for somebody who waits for it."""
    AWAY = "away"
    """Data goes, and nobody is in a hurry."""


_LANES: Final = {
    Operation.RESTORING: Lane.BACK,
    Operation.ARCHIVING: Lane.AWAY,
    Operation.DELETING: Lane.AWAY,
}


class RestReason(StrEnum):
    """Why there is nothing to do."""

    AS_WANTED = "as_wanted"
    ERROR = "error"
    """Until a user acts."""
    IN_TRASH = "in_trash"
    """Until its time there is over, or somebody brings it back."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Leave it."""

    reason: RestReason


@dataclass(frozen=True, slots=True)
class Observe:
    """Nobody knows what is true: an error was cleared. Have it observed, then decide."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Claim an operation and carry it out."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class GoOn:
    """Carry on with an operation that was claimed earlier."""

    operation: Operation
    op_id: OpId


Step = Rest | Observe | Begin | GoOn


def lane_of(operation: Operation | None, desired: DesiredState = DesiredState.PENDING) -> Lane:
    """Return where an operation waits for its turn; None is a look. To abandon one is quick, whatever it is."""
    if operation is None or not is_wanted(operation, desired):
        return Lane.QUICK
    return _LANES.get(operation, Lane.QUICK)


def is_wanted(operation: Operation, desired: DesiredState) -> bool:
    """Whether an operation still leads to what is wanted: one that takes a workspace down ends when somebody comes."""
    match operation:
        case Operation.STOPPING:
            return desired is not DesiredState.RUNNING
        case Operation.ARCHIVING:
            return desired is DesiredState.PENDING
        case _:
            return True


def restart_pause_seconds(restarts: int) -> float:
    """Return how long to wait before a program is started again that ended by itself so many times in a row."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(max(0, restarts - 1), 30))


def plan(workspace: Workspace) -> Step:
    """Return what is to be done about a workspace, as its row was read."""
    if workspace.operation is not Operation.NONE and workspace.op_id is not None:
        return GoOn(workspace.operation, workspace.op_id)
    if workspace.deleted_at is not None:
        return Begin(Operation.DELETING) if workspace.trash_until is None else _into_trash(workspace)
    if workspace.error_reason is not None:
        return Rest(RestReason.ERROR)
    return _towards(workspace)


def _into_trash(workspace: Workspace) -> Step:
    """Return the step that makes an archive of one that is in the trash, where it rests until its time is over."""
    match workspace.observed_status:
        case ObservedStatus.RUNNING:
            return Begin(Operation.STOPPING)
        case ObservedStatus.STANDBY:
            return Begin(Operation.ARCHIVING)
        case ObservedStatus.ERROR:
            return Observe()
        case ObservedStatus.PENDING:
            return Rest(RestReason.IN_TRASH)


def _towards(workspace: Workspace) -> Step:
    match workspace.observed_status:
        case ObservedStatus.ERROR:
            return Observe()
        case ObservedStatus.PENDING if workspace.desired_state is not DesiredState.PENDING:
            return Begin(Operation.RESTORING if workspace.archive_key is not None else Operation.PROVISIONING)
        case ObservedStatus.RUNNING if workspace.desired_state is not DesiredState.RUNNING:
            return Begin(Operation.STOPPING)
        case ObservedStatus.STANDBY if workspace.desired_state in _FROM_STANDBY:
            return Begin(_FROM_STANDBY[workspace.desired_state])
        case _:
            return Rest(RestReason.AS_WANTED)
