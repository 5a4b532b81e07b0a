"""The health monitor: looks at what is there, and writes it down where it is not what was written before.

It is the only writer of the observed status, errors of operations aside. It decides nothing and repairs nothing.

Guarantees: what a look that failed did not see is left as it was, because unknown is not gone. Looks and their writes
follow each other, so an older one never overwrites a newer one. What has not changed is written once a minute, as a
sign of life, and not more often.

Not guaranteed: that a row shows what is true at this moment; it is at most one interval behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lapse.workspaces.model import Ms, ObservedStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lapse.core.clock import Clock
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.runtime.port import Runtime
    from lapse.workspaces.store.port import WorkspaceStore

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

        Return what is known: whoever is not in it is unknown. Raises what the runtime or the store raises, and then
        nothing is taken for written.
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
