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
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from lapse.workspaces.model import ObservedStatus, Workspace, WorkspaceId


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

    async def archive(self, workspace: Workspace) -> str | None:
        """Put its volume into an archive and remove it; return the key, or None if there was never a volume."""
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
