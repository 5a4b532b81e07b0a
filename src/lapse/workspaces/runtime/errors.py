"""Errors of runtimes. Each has a reason, which is kept in the row of the workspace.

Messages name workspaces, ports and rules, never a command. A program's last output may be among them: it is for the
owner, who sees it nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from lapse.core.errors import LapseError


class FailureReason(StrEnum):
    """Why an operation failed."""

    COMMAND_NOT_FOUND = "command_not_found"
    COMMAND_EXITED = "command_exited"
    PORT_TAKEN = "port_taken"
    VOLUME_MISSING = "volume_missing"
    STOP_FAILED = "stop_failed"
    ARCHIVE_FAILED = "archive_failed"
    ARCHIVE_MISSING = "archive_missing"
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    NOT_AS_EXPECTED = "not_as_expected"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    INTERNAL = "internal"


OF_THE_PROGRAM: Final = frozenset(
    {FailureReason.COMMAND_NOT_FOUND, FailureReason.COMMAND_EXITED, FailureReason.PORT_TAKEN}
)
"""What is wrong with a person's own command: told to its owner, and not an error of Lapse."""


class RuntimeFailureError(LapseError):
    """The runtime could not do what was asked."""

    reason: ClassVar[FailureReason] = FailureReason.INTERNAL


class CommandNotFoundError(RuntimeFailureError):
    """The program of the workspace {workspace} cannot be run: {problem}. Check the first word of its command."""

    reason = FailureReason.COMMAND_NOT_FOUND


class CommandExitedError(RuntimeFailureError):
    """The command of the workspace {workspace} ended {how} before it listened on port {port}. {output}."""

    reason = FailureReason.COMMAND_EXITED


class ProgramEndedError(RuntimeFailureError):
    """The command of the workspace {workspace} ended {how} directly after it had listened. {output}."""

    reason = FailureReason.COMMAND_EXITED


class PortTakenError(RuntimeFailureError):
    """The workspace {workspace} cannot have port {port}: {problem}. Stop what uses it, or set another port."""

    reason = FailureReason.PORT_TAKEN


class VolumeMissingError(RuntimeFailureError):
    """The directory of the workspace {workspace} is not there."""

    reason = FailureReason.VOLUME_MISSING


class StopFailedError(RuntimeFailureError):
    """Processes of the workspace {workspace} are still there after they were killed: {pids}."""

    reason = FailureReason.STOP_FAILED


class ArchiveFailedError(RuntimeFailureError):
    """The data of the workspace {workspace} stays where it is: {problem}."""

    reason = FailureReason.ARCHIVE_FAILED


class ArchiveAbandonedError(RuntimeFailureError):
    """The archiving of the workspace {workspace} was abandoned: it is wanted again. Its data is in place."""

    reason = FailureReason.INTERRUPTED


class ArchiveMissingError(RuntimeFailureError):
    """The archive {archive} of the workspace {workspace} is not there. Put it back, or delete the workspace."""

    reason = FailureReason.ARCHIVE_MISSING


class RuntimeUnavailableError(RuntimeFailureError):
    """The state of the workspace cannot be read: {problem}."""

    reason = FailureReason.RUNTIME_UNAVAILABLE


class RuntimeBusyError(RuntimeFailureError):
    """Another Lapse keeps its workspaces in {folder}. Stop that one, or give this one another folder."""

    reason = FailureReason.RUNTIME_UNAVAILABLE
