"""The registry of the cases of the activity contract, with the world they are given and a few helpers.

A case is a coroutine function that takes a `World` and asserts; `case` puts it into the registry. Time is the world's:
it passes only by `World.elapse`, on servers as well, except for the moments that a case takes; so no case asserts that
less than `SLACK` is left of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.model import WorkspaceId

if TYPE_CHECKING:
    from lapse.workspaces.activity.port import Activity, Signal

LEASE: Final = 600.0
"""The longest lease of every world: so long that no machine is so busy that one ends by itself."""
IDLE: Final = 300.0
SLACK: Final = 60.0
"""Real seconds that a case may take."""

W: Final = WorkspaceId("0b51ad5c-9f8e-4f5e-8b1e-0d3c6a3f7a11")
V: Final = WorkspaceId("5a0b7c3e-2c44-4f0e-9a3f-77d9f1f0c222")
A, B, C = ConnectionId("a"), ConnectionId("b"), ConnectionId("c")


class World(Protocol):
    """A store to try, empty and just begun, and what a case may do to its surroundings."""

    @property
    def one(self) -> Activity:
        """The view of one proxy."""
        ...

    @property
    def other(self) -> Activity:
        """The view of another on the same store; in one process, the same."""
        ...

    async def elapse(self, seconds: float) -> None:
        """Let time pass for everything that the store holds."""
        ...

    async def lose_everything(self) -> None:
        """Start the store again, empty."""
        ...

    async def put(self, key: str, *, text: str | None = None, items: list[str] | None = None) -> None:
        """Write past the port, as others do who use the server: a string, or a list. Servers only."""
        ...


Case = Callable[[World], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}
"""Cases that hold everywhere."""
SERVER_REGISTRY: Final[dict[str, Case]] = {}
"""Cases about what others may write to a server."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    return _put(REGISTRY, function)


def server_case(function: Case) -> Case:
    """Put a case into the registry of servers."""
    return _put(SERVER_REGISTRY, function)


def _put(registry: dict[str, Case], function: Case) -> Case:
    assert function.__name__ not in registry, f"two cases are called {function.__name__}"
    registry[function.__name__] = function
    return function


async def settled(world: World) -> None:
    """Let the store become old enough to be believed."""
    await world.one.read([W])
    await world.elapse(2 * LEASE + SLACK)


async def signal(world: World, workspace: WorkspaceId = W) -> Signal:
    """What both proxies see."""
    seen = (await world.one.read([workspace]))[workspace]
    again = (await world.other.read([workspace]))[workspace]
    assert type(seen) is type(again), "two proxies see the same store"
    return seen


async def connect(world: World, connection: ConnectionId, workspace: WorkspaceId = W, *, lease: float = LEASE) -> bool:
    return await world.one.connect(workspace, connection, lease_seconds=lease)


async def disconnect(world: World, connection: ConnectionId, workspace: WorkspaceId = W, *, idle: float = IDLE) -> bool:
    return await world.one.disconnect(workspace, connection, idle_seconds=idle)
