"""Busy leases: work that keeps a workspace from lapsing although nobody is connected.

A lease is a connection that no proxy holds: it counts until it is not renewed any more, and ends for good after
``most_seconds``. Its id tells when it began, so nothing has to be stored about it. Whoever may begin one may begin
another: the limit is against what is forgotten, not against what is meant.

It never wakes a workspace: one that is stopped, or is to be stopped, is refused, so that a person who stops it wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.core.identity import owner_token
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.errors import InvalidWorkspaceError, LeaseOverError, NotRunningError
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore

DEFAULT_MOST_SECONDS: Final = 24 * 3600.0
_LEASE: Final = re.compile(r"busy-(?P<begun>[0-9]{1,15})-[A-Za-z0-9_-]{1,64}")
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class BusyLeases:
    """Begins, renews and ends leases."""

    store: WorkspaceStore
    activity: Activity
    clock: Clock
    most_seconds: float = DEFAULT_MOST_SECONDS

    async def keep(self, workspace: Workspace, lease: str | None) -> str:
        """Begin a lease, or renew one; return its id. Raises `NotRunningError`, `LeaseOverError`, and as stores do.

        When it returns, no decision that was made before can stop the workspace, and none is made while it counts.
        """
        name = f"busy-{self._now()}-{owner_token()}" if lease is None else lease
        self._check(name)
        _demand_running(workspace)
        connection, seconds = ConnectionId(name), self.activity.lease_seconds
        lost = {connection} if lease is None else await self.activity.renew({connection: workspace.id}, seconds)
        if lost:
            await self.activity.connect(workspace.id, connection, lease_seconds=seconds)
            await self.store.flush_access({workspace.id: self._now()})
            _demand_running(await self.store.get(workspace.id))  # a decision that came first has won
        return name

    async def end(self, workspace: Workspace, lease: str) -> None:
        """End a lease, if it counts still; the time of the workspace counts from now."""
        self._check(lease, over=True)
        await self.store.flush_access({workspace.id: self._now()})
        await self.activity.disconnect(workspace.id, ConnectionId(lease), idle_seconds=0)

    def _check(self, lease: str, *, over: bool = False) -> None:
        found = _LEASE.fullmatch(lease)
        if found is None:
            raise InvalidWorkspaceError(field="lease", given=repr(lease), expected="one that an earlier answer named")
        age = self._now() - int(found["begun"])
        if not over and not 0 <= age < self.most_seconds * 1000:
            raise LeaseOverError(most=f"{self.most_seconds:g}")

    def _now(self) -> Ms:
        return Ms(self.clock.wall_ns() // _MS)


def _demand_running(workspace: Workspace) -> None:
    running = workspace.observed_status is ObservedStatus.RUNNING and workspace.desired_state is DesiredState.RUNNING
    if not running or workspace.deleted_at is not None:
        raise NotRunningError(workspace=workspace.name)
