"""Activity leases of websockets: begun before the upgrade, renewed all together by one task, ended after the last byte.

Guarantees: no upgrade is accepted without a lease that the activity store has confirmed, and without a write to the
database, begun after that, which says that the workspace is in use. Connections that come at once share such a write
(`CoalescedWrites`): one that is already under way does not count, because a standby that does not know of the new lease
may have overtaken it. So a thousand browsers that come back at once cost two writes per workspace, and none is let in
on a write that may still fail.

A lease that was lost meanwhile, because the store restarted empty or was away for longer than a lease, is begun again;
a failing renewal is tried again at the next round and never ends a connection. While it fails, each round counts as an
access of the workspaces that are held: to a TTL manager that does reach the store this proxy looks dead when a lease is
over, and nobody is idle who is connected.

Not guaranteed: that an ended connection's lease is gone at once. If the store does not answer then, the lease ends by
itself; the idle timer is set when it answers again, at most one lease later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.proxy.ports import ConnectionId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.proxy.ports import ActivityLeases, Waker, WorkspaceId


class CoalescedWrites:
    """Writes of which at most one per workspace is under way, shared by all who asked before it began.

    A write that fails fails for all who wait for it; the next one is tried all the same. A caller that gives up ends
    nothing for the others. Belongs to one event loop.
    """

    def __init__(self, write: Callable[[WorkspaceId], Awaitable[None]]) -> None:
        """Write nothing yet."""
        self._write = write
        self._next: dict[WorkspaceId, asyncio.Future[None]] = {}
        """The write that has not begun, for those who come now."""
        self._tasks: dict[WorkspaceId, asyncio.Task[None]] = {}

    async def write(self, workspace: WorkspaceId) -> None:
        """Wait for a write that begins from now on; raises what it raises."""
        coming = self._next.get(workspace)
        if coming is None:
            loop = asyncio.get_running_loop()
            coming = self._next[workspace] = loop.create_future()
            if workspace not in self._tasks:
                self._tasks[workspace] = loop.create_task(self._keep_writing(workspace), name="proxy-connected")
        await asyncio.shield(coming)

    async def _keep_writing(self, workspace: WorkspaceId) -> None:
        """Write for as long as somebody waits for another one."""
        try:
            while (asked := self._next.pop(workspace, None)) is not None:
                await self._write_for(asked, workspace)
        finally:
            del self._tasks[workspace]
            unwritten = self._next.pop(workspace, None)
            if unwritten is not None:  # the process ends in the middle
                unwritten.cancel()

    async def _write_for(self, asked: asyncio.Future[None], workspace: WorkspaceId) -> None:
        try:
            await self._write(workspace)
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait for it
            asked.set_exception(error)
            asked.exception()  # they may all have gone; then nobody is left to be told
        except BaseException:
            asked.cancel()
            raise
        else:
            asked.set_result(None)


_log = get_logger("lapse.proxy.leases")
_ROUNDS: Final = 3
"""Renewals within one lease, so that one may fail without any harm."""

_CLOSE_SECONDS: Final = 1.0
_AT_ONCE: Final = 100
"""How many lost leases are begun again beside each other: those of one workspace share a write then."""


class Leases:
    """The leases of one proxy. Belongs to one event loop."""

    def __init__(
        self,
        activity: ActivityLeases,
        waker: Waker,
        *,
        lease_seconds: float,
        idle_seconds: float,
        not_renewed: Callable[[WorkspaceId], None] = lambda _: None,
    ) -> None:
        """Hold none yet. ``not_renewed`` is told, each round, who is connected and may not be counted."""
        self._activity, self._not_renewed = activity, not_renewed
        self._connected_writes = CoalescedWrites(waker.connected)
        self._lease_seconds, self._idle_seconds = lease_seconds, idle_seconds
        self._held: dict[ConnectionId, WorkspaceId] = {}
        self._ending: dict[ConnectionId, tuple[WorkspaceId, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def round_seconds(self) -> float:
        """How often to `renew`."""
        return self._lease_seconds / _ROUNDS

    def __len__(self) -> int:
        return len(self._held)

    async def begin(self, workspace: WorkspaceId) -> ConnectionId:
        """Begin a lease, and let the database know. Raises what the stores raise, and leaves none then."""
        connection = ConnectionId(owner_token())
        self._held[connection] = workspace
        try:
            await self._connect(workspace, connection)
        except BaseException:
            self.end(connection)  # whether it had begun is not known
            raise
        return connection

    def end(self, connection: ConnectionId) -> None:
        """End a lease, in the background."""
        workspace = self._held.pop(connection, None)
        if workspace is not None:
            self._ending[connection] = (workspace, _ROUNDS)
            task = asyncio.get_running_loop().create_task(self._disconnect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def renew(self) -> None:
        """Renew all that are held, in one call; begin again those that were lost."""
        for connection in tuple(self._ending):
            await self._disconnect(connection)
        if not self._held:
            return
        try:
            lost = await self._activity.renew(dict(self._held), self._lease_seconds)
        except (LapseError, OSError) as error:
            _log.warning("leases_not_renewed", held=len(self._held), error=type(error).__name__)
            for workspace in {*self._held.values()}:
                self._not_renewed(workspace)
            return
        again = tuple(lost)
        for start in range(0, len(again), _AT_ONCE):
            await asyncio.gather(*map(self._begin_again, again[start : start + _AT_ONCE]))

    async def close(self) -> None:
        """Wait until those that were ended are; what the store does not take now ends by itself."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=min(self.round_seconds, _CLOSE_SECONDS))
        for task in self._tasks:
            task.cancel()

    async def _connect(self, workspace: WorkspaceId, connection: ConnectionId) -> None:
        await self._activity.connect(workspace, connection, lease_seconds=self._lease_seconds)
        await self._connected_writes.write(workspace)

    async def _begin_again(self, connection: ConnectionId) -> None:
        workspace = self._held.get(connection)
        if workspace is None:  # it ended while the renewal was under way
            return
        try:
            await self._connect(workspace, connection)
        except (LapseError, OSError) as error:
            _log.warning("lease_not_begun_again", workspace=workspace, error=type(error).__name__)
            self._not_renewed(workspace)
        if connection not in self._held:  # it ended while it was begun again
            await self._end_now(workspace, connection)

    async def _disconnect(self, connection: ConnectionId) -> None:
        """Try to end a lease; what fails is tried again with the next renewals, until it has ended by itself."""
        found = self._ending.pop(connection, None)
        if found is None:
            return
        workspace, tries = found
        if not await self._end_now(workspace, connection) and tries > 1:
            self._ending[connection] = (workspace, tries - 1)

    async def _end_now(self, workspace: WorkspaceId, connection: ConnectionId) -> bool:
        try:
            await self._activity.disconnect(workspace, connection, idle_seconds=self._idle_seconds)
        except (LapseError, OSError) as error:
            _log.warning("lease_not_ended", workspace=workspace, error=type(error).__name__)
            return False
        return True
