"""Where the commands for workspaces work: the workspace store, open for one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from lapse.cli.flags import Flags
from lapse.core.address import AddressError
from lapse.core.clock import Clock, SystemClock
from lapse.domains import REGISTRY
from lapse.workspaces.model import Ms
from lapse.workspaces.opening import open_workspaces

if TYPE_CHECKING:
    from lapse.engine.journal.port import Journal
    from lapse.settings import Settings
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

T = TypeVar("T")
_MS: Final = 1_000_000


@dataclass(frozen=True)
class WorkspaceDesk:
    """The store, open for one command."""

    store: WorkspaceStore
    settings: Settings
    clock: Clock

    @property
    def now(self) -> Ms:
        """The time."""
        return Ms(self.clock.wall_ns() // _MS)


@asynccontextmanager
async def journal_of(desk: WorkspaceDesk) -> AsyncIterator[Journal]:
    """Open the journal of workspaces, which is with their rows on a server, else in the state folder."""
    from lapse.app.state_folder import open_store
    from lapse.app.workspace_record import ServerRecord
    from lapse.engine.journal.port import SQLiteJournal

    record = ServerRecord.of(desk.store, desk.settings)
    if record is not None:
        yield record.journal
        return
    state = open_store(desk.settings.state_dir, clock=desk.clock)
    try:
        yield SQLiteJournal(state.database)
    finally:
        await state.close()


async def signals_of(desk: WorkspaceDesk, workspaces: Sequence[Workspace]) -> Mapping[WorkspaceId, Signal]:
    """Return who is connected to which workspace; nothing where that is known to lapse up alone."""
    from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnavailableError, ActivityUnknown
    from lapse.workspaces.opening import open_activity

    settings, ids = desk.settings, [one.id for one in workspaces]
    if not settings.activity_url or not ids:
        return {}
    store = open_activity(settings.activity_url, clock=desk.clock, lease_seconds=settings.proxy_lease.seconds)
    try:
        return await store.read(ids)
    except ActivityUnavailableError:
        return dict.fromkeys(ids, ActivityUnknown(ActivityDoubt.UNREACHABLE))
    finally:
        await store.close()


def at_store(flags: Flags, work: Callable[[WorkspaceDesk], Awaitable[T]]) -> T:
    """Do some work on the store, and close it."""
    settings = flags.load().settings

    async def run() -> T:
        store = await open_workspaces(settings.workspaces_url)
        try:
            return await work(WorkspaceDesk(store, settings, SystemClock()))
        finally:
            await store.close()

    return asyncio.run(run())


def change(
    flags: Flags, name: str, how: Callable[[WorkspaceDesk, Workspace], Awaitable[Workspace]]
) -> tuple[Workspace, Ms]:
    """Change the workspace of a name or address, and return it with the time."""

    async def work(desk: WorkspaceDesk) -> tuple[Workspace, Ms]:
        return await how(desk, await desk.store.by_name(name_of(name))), desk.now

    return at_store(flags, work)


def name_of(text: str) -> str:
    """Return the name that an argument means."""
    if "/" not in text:
        return text
    address = REGISTRY.parse(text)
    if address.kind != "workspace":
        raise AddressError(text=text, problem="it does not name a workspace, as workspace/NAME does")
    return address.name
