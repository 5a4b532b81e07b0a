"""The proxy's waker on a workspace store.

`StoreWaker.wake` writes only where something else than RUNNING is wanted: a waiting page asks again every other second,
and every write would make the reconciler plan anew. `StoreWaker.connected` always writes; who calls it relies on that.

A visit is an act: `StoreWaker.revive` clears an error and starts, where the data is in place. Not in the first
`SETTLED_SECONDS` of an error: a page that waits for a start, and asks again by itself, would repeat the start for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.proxy.directory import condition_of
from lapse.proxy.ports import Condition, GoingDownError
from lapse.workspaces.model import DesiredBy, DesiredState, Ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.workspaces.model import WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

SETTLED_SECONDS: Final = 10
_SEEN_SECONDS: Final = 180
"""What was seen longer ago is not believed: a host that runs writes what it sees each minute."""
_MS: Final = 1_000_000


class StoreWaker:
    """A `lapse.proxy.ports.Waker`."""

    def __init__(
        self,
        store: WorkspaceStore,
        *,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        access: Callable[[WorkspaceId, Ms], None] = lambda _workspace, _moment: None,
    ) -> None:
        """Touch nothing yet. ``changed`` is called after something else was wanted than before.

        ``access`` notes that somebody is there: also while the workspace does not come up.
        """
        self._store, self._clock, self._changed, self._access = store, clock, changed, access

    async def wake(self, workspace: WorkspaceId) -> None:
        """See `Waker`."""
        self._access(workspace, self._now())
        if (await self._store.get(workspace)).desired_state is not DesiredState.RUNNING:
            await self._store.set_desired(workspace, DesiredState.RUNNING, DesiredBy.ACCESS, now=self._now())
            self._changed()

    async def revive(self, workspace: WorkspaceId) -> bool:
        """See `Waker`."""
        now = self._now()
        before, seen = Ms(now - SETTLED_SECONDS * 1000), Ms(now - _SEEN_SECONDS * 1000)
        revived = await self._store.revive(workspace, before=before, seen=seen, now=now)
        if revived is not None:
            self._changed()
        return revived is not None

    async def connected(self, workspace: WorkspaceId) -> None:
        """See `Waker`."""
        if condition_of(await self._store.connected(workspace, now=self._now())) is not Condition.READY:
            self._changed()
            raise GoingDownError

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)
