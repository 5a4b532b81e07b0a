"""The workspace of ``lapse up --example``: something to open for whoever starts Lapse for the first time.

It is created once for a state folder: a file there remembers that, so that one that was deleted does not come back.
Two processes that start at once make one, because names are unique in a store. Not guaranteed: that it stays deleted in
a store that several state folders share; each of them may make it once.

Its TTLs are the defaults of the settings, not shorter ones of its own: they would show little, as the idle timer, which
is the same for all workspaces, holds it longer; and what is seen here should be what the settings say.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Final

from lapse.app.workspaces import node_of, user_name
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceExistsError
from lapse.workspaces.model import Ms, NewWorkspace

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore

NAME: Final = "example"
MARK: Final = "example-was-made"
_LOOPBACK: Final = "127.0.0.1"
_MS: Final = 1_000_000


async def ensure_example(store: WorkspaceStore, settings: Settings, clock: Clock) -> bool:
    """Create it unless that was done before; return whether there is a workspace of its name."""
    mark = settings.state_dir / MARK
    if not mark.exists():
        await _create(store, settings, Ms(clock.wall_ns() // _MS))
        mark.touch()
    try:
        await store.by_name(NAME)
    except UnknownWorkspaceError:
        return False
    return True


async def _create(store: WorkspaceStore, settings: Settings, now: Ms) -> None:
    new = NewWorkspace(
        name=NAME,
        owner=user_name(),
        command=(sys.executable, "-m", "lapse.workspaces.example"),
        # Beside the proxy's, where it stays from start to start; any, where the proxy takes any, too.
        port=free_port(settings.proxy_port and settings.proxy_port + 1),
        node_id=node_of(settings),
        standby_ttl_seconds=int(settings.default_standby_ttl.seconds),
        archive_ttl_seconds=int(settings.default_archive_ttl.seconds),
    )
    try:
        await store.create(new, now=now)
    except WorkspaceExistsError:
        return


def free_port(wanted: int) -> int:
    """Return the port that is wanted, or, where that is taken or there is none such, one that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
        try:
            probe.bind((_LOOPBACK, wanted))
        except (OSError, OverflowError):
            probe.bind((_LOOPBACK, 0))
        found: int = probe.getsockname()[1]
        return found
