"""The registry of the cases of the workspace-store contract, with the world they are given and a few helpers.

A case is a plain coroutine function that takes a `World` and asserts; `case` puts it into the registry. Its world is
empty and its own. It states what holds on every store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lapse.workspaces.model import (
    DesiredBy,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceId,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from lapse.workspaces.store.port import WorkspaceStore

T = TypeVar("T")

NOW: Final = Ms(1_700_000_000_000)
"""When everything in a case begins."""
NOBODY: Final = WorkspaceId("00000000-0000-4000-8000-000000000000")
STANDBY_TTL_MS: Final = 300_000
ARCHIVE_TTL_MS: Final = 86_400_000


class World(Protocol):
    """A store to try, and what a case may ask of its surroundings."""

    @property
    def store(self) -> WorkspaceStore:
        """What is tried."""
        ...

    @property
    def rounds(self) -> int:
        """How often a race is run."""
        ...

    async def another(self) -> WorkspaceStore:
        """Open the same database once more, as another process would."""
        ...

    async def restart(self) -> WorkspaceStore:
        """Close everything and open the database again."""
        ...

    def beside(self, text: str, *, fails: bool = False) -> Any:  # noqa: ANN401 - an `Also`
        """Make an `Also` that writes ``text`` and the places it is told, and then perhaps fails."""
        ...

    async def written_beside(self) -> list[str]:
        """Return what was written there, in any order."""
        ...


Case = Callable[[World], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}
"""Every case by its name."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    assert function.__name__ not in REGISTRY, f"two cases are called {function.__name__}"
    REGISTRY[function.__name__] = function
    return function


def later(milliseconds: int, since: int = NOW) -> Ms:
    """A time after the beginning."""
    return Ms(since + milliseconds)


def new(name: str = "notes", **changes: Any) -> NewWorkspace:  # noqa: ANN401
    """Describe a new workspace."""
    asked: dict[str, Any] = {"name": name, "owner": "ada", "command": ("serve", "--all", "мир 'x'"), "port": 8080}
    return NewWorkspace(**{**asked, **changes})


async def make(world: World, name: str = "notes", **changes: Any) -> Workspace:  # noqa: ANN401
    """Create a workspace."""
    return await world.store.create(new(name, **changes), now=NOW)


async def running(world: World, name: str = "notes", **changes: Any) -> Workspace:  # noqa: ANN401
    """Create a workspace that should run, and does."""
    made = await make(world, name, **changes)
    await world.store.observe({made.id: ObservedStatus.RUNNING}, now=NOW)
    return await world.store.get(made.id)


async def standing_by(world: World, name: str = "notes", **changes: Any) -> Workspace:  # noqa: ANN401
    """Create a workspace that should be in standby, and is."""
    made = await make(world, name, desired_state=DesiredState.STANDBY, **changes)
    await world.store.observe({made.id: ObservedStatus.STANDBY}, now=NOW)
    return await world.store.get(made.id)


async def busy(world: World, operation: Operation = Operation.STOPPING, op_id: str = "op-1") -> Workspace:
    """Create a running workspace with an operation under way."""
    made = await running(world)
    assert await world.store.claim(made.id, operation, OpId(op_id), now=later(5))
    return await world.store.get(made.id)


async def user_wants(store: WorkspaceStore, workspace: WorkspaceId, state: DesiredState, **how: Any) -> Workspace:  # noqa: ANN401
    """A person changes their mind."""
    return await store.set_desired(workspace, state, DesiredBy.USER, now=NOW, **how)


@contextlib.contextmanager
def refused(*errors: type[Exception]) -> Iterator[None]:
    """Demand that the block raises one of these."""
    try:
        yield
    except errors:
        return
    raise AssertionError(f"expected {' or '.join(error.__name__ for error in errors)}, and nothing was raised")


async def all_refused(error: type[Exception], *attempts: Awaitable[Any]) -> None:
    """Demand that each raises this, one after the other."""
    outcomes = [(await asyncio.gather(attempt, return_exceptions=True))[0] for attempt in attempts]
    assert [type(outcome) for outcome in outcomes] == [error] * len(attempts)


async def unchanged(world: World, before: Workspace) -> None:
    """Demand that a workspace is exactly as it was."""
    assert await world.store.get(before.id) == before


async def together(*attempts: Awaitable[Any]) -> list[Any]:
    """Run attempts at the same time; an error is an outcome."""
    return list(await asyncio.gather(*attempts, return_exceptions=True))


async def settled(*attempts: Awaitable[T]) -> list[T]:
    """Run attempts at the same time; none may fail."""
    return list(await asyncio.gather(*attempts))
