"""Access times and busy leases: what counts as use of a workspace besides open connections.

Access times are noted in memory by the hot path and written in batches. `AccessTimes.note` costs a look into a
dictionary. `AccessTimes.flush` writes what is newest for each workspace, at most once per workspace in
``throttle_seconds``. What comes within that time is late, not lost: throwing it away would let a workspace be stopped
that much before its TTL.

A busy lease is a connection that no proxy holds: it keeps a workspace from lapsing until it is not renewed any more,
and ends for good after ``most_seconds``. Its id tells when it began, so nothing has to be stored about it. Somebody who
may begin one may begin another: the limit is against what is forgotten, not against what is meant. It never wakes a
workspace: one that is stopped, or is to be stopped, is refused, so that a person who stops it wins.

Guarantees: no access time leaves memory before the store has taken it; so a flush that fails, in whole or in part, or
is cancelled, loses nothing, and what is noted meanwhile stays for the next one. A time never replaces a later one, here
or (by `flush_access` of the store, which takes the greatest) there. Not guaranteed: that anything survives a crash;
until a flush the store is behind, by the throttle and the interval of flushes, and both should be short beside the
TTLs.

Not for threads: all calls belong to one event loop.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.identity import owner_token
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.errors import InvalidWorkspaceError, LeaseOverError, NotRunningError
from lapse.workspaces.model import DesiredState, Ms, ObservedStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lapse.core.clock import Clock
    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.model import Workspace, WorkspaceId
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


DEFAULT_THROTTLE_SECONDS: Final = 5.0
DEFAULT_BATCH: Final = 1000
_SECOND: Final = 1_000_000_000
_GIVE_UP_AFTER: Final = 2
"""Failures in a row. One may be about a batch; two are about the store, and each of them may have waited for it."""


class AccessStore(Protocol):
    """What is used of a store."""

    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        """Move the access times of workspaces forward, never back; one that is not there is no error."""
        ...


class AccessTimes:
    """See the module."""

    def __init__(
        self,
        store: AccessStore,
        clock: Clock,
        *,
        throttle_seconds: float = DEFAULT_THROTTLE_SECONDS,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        """Hold nothing yet."""
        self._store, self._clock = store, clock
        self._throttle_ns, self._batch = round(throttle_seconds * _SECOND), batch
        self._waiting: dict[WorkspaceId, Ms] = {}
        self._written: dict[WorkspaceId, int] = {}
        """When, in monotonic time and in this order; only as long as the throttle needs it."""
        self._flushing = asyncio.Lock()

    def __len__(self) -> int:
        """Return how many workspaces wait to be written."""
        return len(self._waiting)

    def note(self, workspace: WorkspaceId, moment: Ms) -> None:
        """Remember an access."""
        if moment > self._waiting.get(workspace, -1):
            self._waiting[workspace] = moment

    async def flush(self, *, everything: bool = False) -> int:
        """Write what waits, and return for how many workspaces; ``everything``, as before an end, ignores the throttle.

        A batch that fails waits on, behind the others, which are tried all the same; then the first error is raised.
        Another flush under way is waited for.
        """
        async with self._flushing:
            self._forget_old_writes()
            due = [workspace for workspace in self._waiting if everything or workspace not in self._written]
            return await self._write(due)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _write(self, due: list[WorkspaceId]) -> int:
        written, failures, first_error = 0, 0, None
        for names in _batches(due, self._batch):
            times = {workspace: self._waiting[workspace] for workspace in names}
            try:
                await self._store.flush_access(times)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised below, and nothing is forgotten
                first_error = first_error or error
                self._put_last(names)
                failures += 1
                if failures == _GIVE_UP_AFTER:
                    break
            else:
                failures = 0
                written += len(times)
                self._settle(times)
        if first_error is not None:
            raise first_error
        return written

    def _settle(self, times: Mapping[WorkspaceId, Ms]) -> None:
        now = self._clock.monotonic_ns()
        for workspace, moment in times.items():
            if self._waiting[workspace] == moment:  # else there was an access meanwhile
                del self._waiting[workspace]
            self._written.pop(workspace, None)
            self._written[workspace] = now

    def _put_last(self, names: tuple[WorkspaceId, ...]) -> None:
        """Let the others go first next time: a batch that always fails must not keep them waiting for ever."""
        for workspace in names:
            self._waiting[workspace] = self._waiting.pop(workspace)

    def _forget_old_writes(self) -> None:
        over = self._clock.monotonic_ns() - self._throttle_ns
        while self._written:
            first = next(iter(self._written))
            if self._written[first] > over:
                return
            del self._written[first]


def _batches(names: list[WorkspaceId], size: int) -> Iterator[tuple[WorkspaceId, ...]]:
    rest = iter(names)
    while batch := tuple(islice(rest, size)):
        yield batch
