"""The runtime port with its errors, and the health monitor that writes what a runtime sees.

Guarantees, of every runtime.

- Every action can be repeated: what is done already stays as it is. So an operation that was interrupted anywhere, even
  by the end of the process, is simply begun again.
- No action loses data. The volume of a workspace goes only after its archive was written and verified, or because the
  workspace is deleted; a volume or an archive that has its name is whole.
- A program runs at most once.
- What cannot be told is unknown, never gone.

Not guaranteed: that what was seen is still so a moment later. Errors are `RuntimeFailureError`; its ``reason`` is for
the workspace's row. An action that is cancelled leaves nothing half done behind.

The health monitor is the only writer of the observed status, errors of operations aside; it decides nothing and repairs
nothing. Guarantees: what a look that failed did not see is left as it was, because unknown is not gone. Looks and their
writes follow each other, so an older one never overwrites a newer one. What has not changed is written once a minute,
as a sign of life, and not more often. Not guaranteed: that a row shows what is true at this moment; it is at most one
interval behind.

Messages of errors name workspaces, ports and rules, never a command. A program's last output may be among them: it is
for the owner, who sees it nowhere else.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from lapse.core.errors import LapseError
from lapse.workspaces.model import Ms, ObservedStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lapse.core.clock import Clock
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore


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


class OtherNodeError(RuntimeFailureError):
    """{folder} has data of workspaces of the node {found!r}, and this is {node!r}. Use another state_dir.

    Workspaces stay with the store and the machine that they were created on: one that database_url names does not know
    those of a file, and the other way round. What is deleted there leaves nothing in the folder.
    """

    reason = FailureReason.RUNTIME_UNAVAILABLE


class RuntimeBusyError(RuntimeFailureError):
    """Another Lapse keeps its workspaces in {folder}. Stop that one, or give this one another folder."""

    reason = FailureReason.RUNTIME_UNAVAILABLE


INTERVAL_SECONDS: Final = 5.0
"""How often to look at everything."""
_AT_LEAST_EVERY_MS: Final = 60_000
_PAGE: Final = 500
_MS: Final = 1_000_000


class HealthMonitor:
    """Looks, when it is told to, at what a runtime has. Belongs to one event loop."""

    def __init__(self, store: WorkspaceStore, runtime: Runtime, *, clock: Clock) -> None:
        """Look at nothing yet."""
        self._store, self._runtime, self._clock = store, runtime, clock
        self._written: dict[WorkspaceId, tuple[ObservedStatus, int]] = {}
        """What was last written about whom, and when."""
        self._knows_all = False
        self._lock = asyncio.Lock()

    async def look(self, only: Collection[WorkspaceId] = ()) -> Mapping[WorkspaceId, ObservedStatus]:
        """Look at everything and write what has changed; with ``only``, write about these, changed or not.

        Return what is known: a workspace that is not in it is unknown. Raises what the runtime or the store
        raises, and then nothing is taken for written.
        """
        async with self._lock:
            await self._learn_all()
            seen = await self._runtime.look()
            named = set(only) or {*self._written, *seen}
            found = {one: seen.get(one, ObservedStatus.PENDING) for one in named}
            known = {one: status for one, status in found.items() if status is not None}
            now = Ms(self._clock.wall_ns() // _MS)
            due = {one: status for one, status in known.items() if only or self._is_due(one, status, now)}
            if due:
                await self._store.observe(due, now=now)
                self._written.update({one: (status, now) for one, status in due.items()})
            return known

    def forget(self, workspace: WorkspaceId) -> None:
        """Look no more for one whose row is gone."""
        self._written.pop(workspace, None)

    def _is_due(self, workspace: WorkspaceId, status: ObservedStatus, now: Ms) -> bool:
        written = self._written.get(workspace)
        return written is None or written[0] is not status or abs(now - written[1]) >= _AT_LEAST_EVERY_MS

    async def _learn_all(self) -> None:
        """Read all rows of this node once: one whose volume went while nobody looked is in no listing."""
        after: str | None = None
        while not self._knows_all:
            page = await self._store.list(limit=_PAGE, after=after)
            for row in page:
                if is_at(row, self._runtime.node):
                    self._written.setdefault(row.id, (row.observed_status, row.observed_at or 0))
            self._knows_all = len(page) < _PAGE
            after = page[-1].name if page else None


def is_at(workspace: Workspace, node: str) -> bool:
    """Whether a workspace is at this node; one without a node is wherever there is only one."""
    return workspace.node_id is None or workspace.node_id == node


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from lapse.workspaces.model import Workspace, WorkspaceId

    Confirm = Callable[[], Awaitable[bool]]
    """Asked once, directly before something that cannot be undone; False: leave it."""


class Progress(NamedTuple):
    """How far an action is."""

    marks: int = 0
    """A number that changes as long as data is moved."""
    note: str | None = None
    """What people should know while they wait."""


class ProgramExit(NamedTuple):
    """How a program ended by itself."""

    status: int | None
    """Its exit code, or minus the number of a signal; None where that is not known."""
    at: Ms
    """When that was seen."""
    seconds: float
    """How long it had run."""
    output: str
    """The last lines that it wrote."""


class Runtime(Protocol):
    """See the module."""

    @property
    def node(self) -> str:
        """The name of the place, as workspaces have it in ``node_id``."""
        ...

    def turn(self, workspace: WorkspaceId) -> AbstractContextManager[bool]:
        """Work on a workspace alone; gives False, at once, while somebody else of this runtime does."""
        ...

    async def look(self) -> Mapping[WorkspaceId, ObservedStatus | None]:
        """Return what is there: STANDBY or RUNNING, None where it cannot be told; who is not named is PENDING.

        Raises when the whole cannot be told.
        """
        ...

    async def provision(self, workspace: Workspace) -> str | None:
        """Give it an empty volume; or what an archive that nobody wrote down holds, whose key is returned."""
        ...

    async def restore(self, workspace: Workspace) -> str:
        """Bring its volume back from its newest archive, whose key is returned."""
        ...

    async def start(self, workspace: Workspace) -> None:
        """Run its command; returns when it listens on its port."""
        ...

    async def stop(self, workspace: Workspace) -> None:
        """End its program and all that it started, gracefully, then firmly."""
        ...

    async def archive(self, workspace: Workspace, *, confirm: Confirm) -> str | None:
        """Put its volume into an archive and remove it; return the key, or None if there was never a volume.

        ``confirm`` is asked when the archive is complete and verified, before the volume goes. If it says no, or if
        the action is cancelled before, the volume stays and the archive is discarded: `ArchiveAbandonedError`. After
        that the removal is carried to its end.
        """
        ...

    def progress(self, workspace: WorkspaceId) -> Progress:
        """Return how far the action on a workspace is."""
        ...

    def exit_of(self, workspace: WorkspaceId) -> ProgramExit | None:
        """Return how its program ended by itself after it had listened; None otherwise, and after `stop` or `start`."""
        ...

    async def tidy(self, workspace: Workspace) -> None:
        """Remove archives that a newer one has replaced."""
        ...

    async def delete(self, workspace: Workspace) -> None:
        """End it and remove all that it has: volume, archives, output."""
        ...


class Turns:
    """Who works on what, in one process. For the event loop only."""

    def __init__(self) -> None:
        self._taken: set[WorkspaceId] = set()

    @contextmanager
    def turn(self, workspace: WorkspaceId) -> Iterator[bool]:
        """See `Runtime`."""
        if workspace in self._taken:
            yield False
            return
        self._taken.add(workspace)
        try:
            yield True
        finally:
            self._taken.discard(workspace)
