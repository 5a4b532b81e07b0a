"""Errors of workspaces, grouped by when: before a store is touched, by its state, while a store works.

Messages name workspaces and rules, never a command or an owner's token.
"""

from __future__ import annotations

from lapse.core.errors import LapseError, UsageError

# --- before a store is touched ---------------------------------------------------------------------------------------


class InvalidWorkspaceError(UsageError, ValueError):
    """The {field} of a workspace cannot be {given}; expected {expected}."""


class InvalidPageSizeError(UsageError, ValueError):
    """The limit is {given}; expected a whole number (an int) from 1 to {limit}."""

    code = "InvalidLimitError"


# --- because of the state it is in -----------------------------------------------------------------------------------


class WorkspaceError(LapseError):
    """The workspace {workspace} cannot be changed like this now."""


class UnknownWorkspaceError(WorkspaceError):
    """There is no workspace {workspace}. List those that are there, or create it first."""

    status = 404


class WorkspaceExistsError(WorkspaceError):
    """There is a workspace {workspace} already. Choose another name, or delete that one first."""

    status = 409


class PortInUseError(WorkspaceError):
    """Port {port} is taken: {by}. Choose another port, or free this one first."""

    status = 409


class NotRunningError(WorkspaceError):
    """The workspace {workspace} does not run, or is being stopped: there is nothing to keep from lapsing."""

    status = 409


class LeaseOverError(WorkspaceError):
    """This lease began more than {most} seconds ago, or in the future: it cannot be renewed. Begin another one."""

    status = 409


class OperationUnderWayError(WorkspaceError):
    """The workspace {workspace} is busy: {operation} is under way. Try again when it is done."""

    status = 409


class ChangedMeanwhileError(WorkspaceError):
    """The workspace {workspace} has changed: it is at version {found}, expected {expected}. Read it and decide anew."""

    status = 412


# --- while a store works ---------------------------------------------------------------------------------------------


class WorkspaceStoreError(LapseError):
    """The workspace store failed: {problem}."""

    status = 503


class WorkspaceStoreUnavailableError(WorkspaceStoreError):
    """The workspace store cannot be used now: {problem}. Nothing was changed by this call."""

    code = "StoreUnavailableError"


class StoreMisfitError(WorkspaceStoreError):
    """The workspace store does not fit: {problem}."""


class StoreClosedError(WorkspaceStoreError):
    """This workspace store is closed; open it again."""


class WorkspaceOutcomeUnknownError(WorkspaceStoreError):
    """The workspace store did not say whether the change was made: {problem}. Read before you decide."""

    status = 504
    code = "OutcomeUnknownError"
