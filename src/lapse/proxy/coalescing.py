"""One write for many: the database is told that somebody is there, and everybody who came before it began shares it.

Guarantees: when `Announcements.tell` returns, a write for that workspace is done that began after it was called. So a
caller that has its lease by then can rely on it, whoever else was there before: a write that is already under way may
have been overtaken by a standby that does not know of the new lease. At most one write per workspace is under way, so
a thousand browsers that come back at once cost two.

A write that fails fails for all who wait for it; the next one is tried all the same. A caller that gives up ends
nothing for the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.proxy.ports import WorkspaceId


class Announcements:
    """The writes of one proxy. Belongs to one event loop."""

    def __init__(self, write: Callable[[WorkspaceId], Awaitable[None]]) -> None:
        """Write nothing yet."""
        self._write = write
        self._next: dict[WorkspaceId, asyncio.Future[None]] = {}
        """The write that has not begun, for those who come now."""
        self._tasks: dict[WorkspaceId, asyncio.Task[None]] = {}

    async def tell(self, workspace: WorkspaceId) -> None:
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
