"""Workspace directory and waker of the proxy, on a workspace store.

`StoreDirectory` says what a workspace can do with a request now. What was found ready is remembered for
`REMEMBERED_SECONDS`, so that a page with a hundred pictures is one look; everything else is looked up anew, because
somebody waits for it to change. So a request may still go to a workspace that was stopped a moment ago, and is told
that it does not answer. Nobody gets in by it: names are remembered together with their owners, and a name changes its
owner only through a deletion.

`StoreWaker.wake` writes only where something else than RUNNING is wanted: a waiting page asks again every other second,
and every write would make the reconciler plan anew. `StoreWaker.connected` always writes; its callers rely on that.
`StoreWaker.revive` clears an error and starts, where the data is in place, because a person who opens a workspace wants
it. Not in the first `SETTLED_SECONDS` of an error: a page that waits for a start, and asks again by itself, would
repeat the start for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lapse.proxy.ports import Destination, GoingDownError, WorkspaceReadiness
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.model import DesiredBy, DesiredState, Ms, ObservedStatus, Operation
from lapse.workspaces.view import problem_words, view_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock
    from lapse.proxy.ports import UpstreamAddress
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

    Locate = Callable[[Workspace], UpstreamAddress | None]
    """Where a running workspace listens, as its runtime says; None: nowhere that this proxy can reach."""

REMEMBERED_SECONDS: Final = 0.5
SETTLED_SECONDS: Final = 10
_SEEN_SECONDS: Final = 180
"""What was seen longer ago is not believed: a host that runs writes what it sees each minute."""
_REMEMBERED: Final = 4096
_MS: Final = 1_000_000
_NS: Final = 1_000_000_000


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
        if condition_of(await self._store.connected(workspace, now=self._now())) is not WorkspaceReadiness.READY:
            self._changed()
            raise GoingDownError

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)


class NameLookup(Protocol):
    """The part of a workspace store that the directory uses."""

    async def by_name(self, name: str) -> Workspace:
        """Return the one of this name that is not deleted; raises `UnknownWorkspaceError`."""
        ...


def condition_of(workspace: Workspace) -> WorkspaceReadiness:
    """Say what a workspace can do with a request.

    One that runs but is about to be stopped counts as asleep: passing a request on would not keep it, waking does. So
    does one that is only just being started: its process is there before it listens.
    """
    if workspace.error_reason is not None:  # an ERROR without one is cleared, and about to be looked at
        return WorkspaceReadiness.FAILED
    runs = workspace.observed_status is ObservedStatus.RUNNING and workspace.operation is Operation.NONE
    return (
        WorkspaceReadiness.READY
        if runs and workspace.desired_state is DesiredState.RUNNING
        else WorkspaceReadiness.ASLEEP
    )


class StoreDirectory:
    """A `lapse.proxy.ports.Directory`. Belongs to one event loop."""

    def __init__(self, store: NameLookup, locate: Locate, *, clock: Clock) -> None:
        """Remember nothing yet."""
        self._store, self._locate, self._clock = store, locate, clock
        self._ready: dict[str, tuple[int, Destination]] = {}
        """With the time until which it is believed."""

    async def find(self, name: str) -> Destination | None:
        """See `Directory`."""
        known = self._ready.get(name)
        if known is not None and self._clock.monotonic_ns() < known[0]:
            return known[1]
        self._ready.pop(name, None)
        asked_ns = self._clock.monotonic_ns()
        try:
            found = self._destination(await self._store.by_name(name))
        except UnknownWorkspaceError:
            return None
        if found.condition is WorkspaceReadiness.READY:
            self._remember(name, found, round(asked_ns + REMEMBERED_SECONDS * _NS))
        return found

    def forget(self) -> None:
        """Look at everything anew: something was changed by this process itself, and whoever did expects to see it."""
        self._ready.clear()

    def _destination(self, workspace: Workspace) -> Destination:
        condition = condition_of(workspace)
        address = self._locate(workspace) if condition is WorkspaceReadiness.READY else None
        now = Ms(self._clock.wall_ns() // _MS)
        told = "" if condition is WorkspaceReadiness.READY else problem_words(view_of(workspace, now))
        return Destination(workspace.id, workspace.owner, condition, address, told)

    def _remember(self, name: str, found: Destination, until_ns: int) -> None:
        if len(self._ready) >= _REMEMBERED:
            self._ready.clear()  # a moment's memory: cheaper to lose than to keep in order
        self._ready[name] = (until_ns, found)
