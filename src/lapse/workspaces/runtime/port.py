"""The port to where workspaces run.

Guarantees, of every runtime.

- Every action can be repeated: what is done already stays as it is. So an operation that was interrupted anywhere, even
  by the end of the process, is simply begun again.
- No action loses data. The volume of a workspace goes only after its archive was written and verified, or because the
  workspace is deleted; a volume or an archive that has its name is whole.
- A program runs at most once.
- What cannot be told is unknown, never gone.

Not guaranteed: that what was seen is still so a moment later.

Errors are `RuntimeFailureError`; its ``reason`` is for the workspace's row. An action that is cancelled leaves nothing
half done behind.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from lapse.workspaces.model import Ms, ObservedStatus, Workspace, WorkspaceId

    Confirm = Callable[[], Awaitable[bool]]
    """Asked once, directly before something that cannot be undone; False: leave it."""


class Progress(NamedTuple):
    """How far an action is."""

    marks: int = 0
    """A number that changes as long as data is moved."""
    note: str | None = None
    """What people should know while they wait."""


class Exit(NamedTuple):
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

    def exit_of(self, workspace: WorkspaceId) -> Exit | None:
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
