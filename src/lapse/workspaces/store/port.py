"""The workspace store port.

Guarantees, of every store.

- A call that changes something is one transaction: all of it or nothing, durable when it returns. It compares and
  writes in one step, so of two callers at the same moment one is first, and the other sees what that one did.
- Times are given, never read from a clock. ``last_access_at`` never moves back, for any writer.
- ``version`` is one more after each change of what people want: desired state, command, port, owner, probe, TTLs,
  holds, extensions, deletion, and a first connection. Nothing else changes it.
- ``port`` is where the program that runs was told to listen. Another port that people set while one runs, or while
  that is not known (ERROR), waits in ``next_port`` until the workspace is observed without a program.
- A deleted workspace is unknown to all calls of people and of the proxy. `get`, `pending_work` and the calls of the
  reconciler still know it, until `forget`. So does the trash, from which it comes back with all that it had.
- ``check_after`` is set anew where the time may have become shorter: when the observed status changes (one TTL from
  then), when TTLs change and when a hold is made or released (at once). Later than that only by `advance_checks`.

Not guaranteed: that two reads show the same moment; that a page is what it was when rows change between two pages;
which of several reasons a refusal names.

Errors. `UnknownWorkspaceError`, `ChangedMeanwhileError`, `OperationUnderWayError` and `WorkspaceExistsError` mean that
nothing was done. So does `WorkspaceStoreUnavailableError`. `WorkspaceOutcomeUnknownError` means that it was done or
not: everything here can be repeated safely or compared first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from msgspec import UnsetType

    from lapse.workspaces.model import (
        Changes,
        CheckPlace,
        DesiredBy,
        DesiredState,
        Ms,
        NewWorkspace,
        ObservedStatus,
        Operation,
        OpId,
        ProbeAnswer,
        Workspace,
        WorkspaceCandidate,
        WorkspaceId,
    )

    Also = Callable[[Any, Sequence[int]], Awaitable[None] | None]
    """Writes beside a change, on the cursor of its transaction; it is told the places of those that were changed, and
    not called when there are none. A journal's writer is one. What it returns is awaited, where the cursor asks for
    that. An error of it undoes the change. It may be called again, when the transaction has to be repeated; only what
    the last call wrote counts."""


class StoreReader(Protocol):
    """Looks, on the newest commit."""

    async def get(self, workspace: WorkspaceId) -> Workspace:
        """Return one, deleted or not; raises `UnknownWorkspaceError`."""
        ...

    async def by_name(self, name: str) -> Workspace:
        """Return the one of this name that is not deleted; raises `UnknownWorkspaceError`."""
        ...

    async def list(
        self, *, owner: str | None = None, limit: int = 100, after: str | None = None
    ) -> Sequence[Workspace]:
        """Return those that are not deleted in the order of their names (by code point); ``after`` is the last name."""
        ...

    async def standby_candidates(
        self, now: Ms, *, limit: int = 1000, after: CheckPlace | None = None
    ) -> Sequence[Workspace]:
        """Return those that run, should run, are idle of operations, and whose ``check_after`` has come.

        In the order of `Workspace.check_place`. That they are due is not said: only that it is time to look. The cost
        grows with their number, not with that of all workspaces.
        """
        ...

    async def archive_candidates(
        self, now: Ms, *, limit: int = 1000, after: CheckPlace | None = None
    ) -> Sequence[Workspace]:
        """Return the same of those that are, and should be, in standby."""
        ...

    async def pending_work(self, *, limit: int = 1000, after: WorkspaceId | None = None) -> Sequence[Workspace]:
        """Return those that the reconciler has to look at, in the order of their ids; ``after`` is the last id.

        They are deleted, or have an operation, or are observed in another state than the desired one. Those with an
        error are left out until it is cleared, unless they are deleted, and those that rest in the trash.
        """
        ...

    async def trashed(
        self, *, before: Ms | None = None, limit: int = 1000, after: WorkspaceId | None = None
    ) -> Sequence[Workspace]:
        """Return what is in the trash, or those of it whose time ends before a moment; in the order of their ids."""
        ...

    async def at_port(self, port: int, *, node: str | None) -> Sequence[Workspace]:
        """Return those of a node (None: of all) that are not deleted and have this port, now or from the next start."""
        ...

    async def count_by_status(self) -> Mapping[ObservedStatus, int]:
        """Return how many are not deleted, by their observed status; every status is there.

        The cost grows with the number of all workspaces; nobody else waits for it.
        """
        ...

    async def fingerprint(self) -> Hashable:
        """Return a value that differs from the one before after every change that a person can see.

        Accesses count by the minute, and observations that find nothing new do not count. The cost grows with the
        number of all workspaces; nobody else waits for it.
        """
        ...

    async def check(self) -> None:
        """Raise unless the store answers."""
        ...


class Wanting(Protocol):
    """What people and the proxy do. Where ``version`` is given, it must still be that one: `ChangedMeanwhileError`."""

    async def create(self, new: NewWorkspace, *, now: Ms, uid: WorkspaceId | None = None) -> Workspace:
        """Keep a new one, observed PENDING, at version 1; raises `InvalidWorkspaceError`, `WorkspaceExistsError`.

        A fresh ``uid`` becomes its id: it is given by a caller who has to note that before the workspace is there.
        """
        ...

    async def set_desired(
        self, workspace: WorkspaceId, state: DesiredState, by: DesiredBy, *, version: int | None = None, now: Ms
    ) -> Workspace:
        """Want another state. While an operation is under way: `OperationUnderWayError`, unless it is by access.

        Access is never refused: who comes while it is being stopped must find it started again. Nor is RUNNING
        during ARCHIVING, which is abandoned then. To want RUNNING counts as an access, for any caller. It ends a row
        of restarts.
        """
        ...

    async def configure(
        self, workspace: WorkspaceId, changes: Changes, *, version: int | None = None, now: Ms
    ) -> Workspace:
        """Change command, port, owner, TTLs or probe. Command and port not while an operation is under way.

        A program that runs goes on as it is; command and port count from its next start. Not compared: whether
        another workspace has the port.
        """
        ...

    async def hold(
        self,
        workspace: WorkspaceId,
        reason: str,
        *,
        until: Ms | None = None,
        by: str | None = None,
        is_legal: bool = False,
        version: int | None = None,
        now: Ms,
    ) -> Workspace:
        """Keep it from lapsing, until then or until it is released; a later hold replaces an earlier one.

        That it is no weaker one is looked at by `lapse.workspaces.verbs.hold`.
        """
        ...

    async def release(self, workspace: WorkspaceId, *, version: int | None = None, now: Ms) -> Workspace:
        """End a hold, if there is one."""
        ...

    async def extend(self, workspace: WorkspaceId, until: Ms, *, version: int | None = None, now: Ms) -> Workspace:
        """Give it time until then, never until an earlier moment than before."""
        ...

    async def mark_deleted(
        self, workspace: WorkspaceId, *, trash_until: Ms | None = None, version: int | None = None, now: Ms
    ) -> Workspace:
        """Give the name free and leave the rest to the reconciler; `OperationUnderWayError` as above.

        With ``trash_until`` it goes to the trash: it is wanted as an archive, an error of it is forgotten, and it is
        removed only after `to_removal`.
        """
        ...

    async def bring_back(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """Take one out of the trash, and want its data in place; also while it is being archived.

        Raises `UnknownWorkspaceError` for one that is not in the trash (any more), and `WorkspaceExistsError` when
        another one has its name.
        """
        ...

    async def clear_error(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """Forget the error, if there is one. The status is ERROR until somebody observes what is true."""
        ...

    async def revive(self, workspace: WorkspaceId, *, before: Ms, seen: Ms, now: Ms) -> Workspace | None:
        """Clear the error and want RUNNING, by access; None if there is no such error, and then nothing was changed.

        Only an error that came at ``before`` or earlier, and only if its data was seen in place at ``seen`` or later.
        """
        ...

    async def connected(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """Note the first connection: an access, and RUNNING is wanted by access. One statement; never 'busy'.

        When it returns, no decision that was made before can stop the workspace any more.
        """
        ...

    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        """Write access times, where they are later than what is known; unknown ids do nothing.

        No index is touched, and versions stay.
        """
        ...


class Lapsing(Protocol):
    """What the TTL manager does. Both transitions change exactly those that are still as they were when decided."""

    async def advance_checks(self, checks: Mapping[WorkspaceCandidate, Ms]) -> None:
        """Look again then, not earlier; never moves a check back.

        Only where version and status are still those of the candidate: a time that was computed from an older TTL or
        for another status may be too late by a day.
        """
        ...

    async def to_standby(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """Want STANDBY for those that run; return which were changed.

        Compared: version, access, time of the status; desired and observed RUNNING, no operation, not deleted. So a
        user, a connection or a flushed access that came first wins.
        """
        ...

    async def to_pending(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """Want PENDING for those in standby; the same otherwise."""
        ...

    async def to_removal(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """Take those out of the trash for good that are there and have no operation; the reconciler removes them."""
        ...


class Working(Protocol):
    """What the reconciler and the health monitor do. Who is no longer in charge (another ``op_id``) does nothing."""

    async def claim(
        self, workspace: WorkspaceId, operation: Operation, op_id: OpId, *, version: int | None = None, now: Ms
    ) -> bool:
        """Begin an operation if there is none; return whether it is ours.

        ``version`` is that of the plan: without it, one who comes between plan and claim would be stopped. DELETING
        is for those that are deleted, STOPPING and ARCHIVING also for those in the trash, everything else for those
        that are neither deleted nor in error.
        """
        ...

    async def tried(self, workspace: WorkspaceId, op_id: OpId) -> int | None:
        """Count a try; return how many there were, or None if it is not ours."""
        ...

    async def complete(
        self, workspace: WorkspaceId, op_id: OpId, *, now: Ms, archive_key: str | UnsetType | None = UNSET
    ) -> bool:
        """End an operation that succeeded; the end of STOPPING counts as an access. Return whether it was ours."""
        ...

    async def fail(self, workspace: WorkspaceId, op_id: OpId, *, reason: str, message: str, now: Ms) -> bool:
        """End an operation that failed: status ERROR, which stays until `clear_error`. Return whether it was ours."""
        ...

    async def note_exit(
        self, workspace: WorkspaceId, *, status: int | None, output: str, at: Ms, steady: bool
    ) -> int | None:
        """Note that its program ended by itself, and count the restart that follows; return how many in a row.

        ``steady``: it had run for long, so this is the first of a row. None if nothing was noted: an operation is
        under way, or this exit was noted before.
        """
        ...

    async def note_operation(self, workspace: WorkspaceId, op_id: OpId, note: str | None) -> bool:
        """Note what is to be known while an operation is under way. Return whether it was ours."""
        ...

    async def forget(self, workspace: WorkspaceId, op_id: OpId) -> bool:
        """Remove the row at the end of DELETING. Return whether it was ours."""
        ...

    async def probed(self, answers: Mapping[WorkspaceId, ProbeAnswer]) -> None:
        """Note what programs said to their probes, where a workspace still has the probe that was asked."""
        ...

    async def observe(self, statuses: Mapping[WorkspaceId, ObservedStatus], *, now: Ms) -> AbstractSet[WorkspaceId]:
        """Note what is seen; return whose status changed. ``status_changed_at`` moves only then.

        Where an error stands, the status stays ERROR whatever is seen, which is noted as ``error_status``.
        ``running_since`` moves when it becomes RUNNING, unless that is a restart after its program ended by itself.
        """
        ...


class WorkspaceStore(StoreReader, Wanting, Lapsing, Working, Protocol):
    """See the module."""

    @property
    def database(self) -> object | None:
        """The database the rows live in: a journal in the same one can be written in the same transaction."""
        ...

    async def close(self) -> None:
        """Release everything. Idempotent."""
        ...
