"""Waiting until a workspace is as it is wanted, or gone; or until it is known that it will not be.

The row is looked at a few times a second: both stores answer that from memory, and neither can tell of changes across
machines. Nothing is decided here; what is waited for was asked for before.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from lapse.cli.output import stderr
from lapse.cli.watching import StillWaitingError, timeout_seconds
from lapse.core.errors import LapseError
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.model import Operation
from lapse.workspaces.view import address_of, trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.cli.workspace_desk import WorkspaceDesk
    from lapse.workspaces.model import Workspace

_LOOK_SECONDS: Final = 0.2


class WantedOtherwiseError(LapseError):
    """{address} will not be {waited}: meanwhile {by} set the wanted state to {wanted}. Nothing was done about it."""


class DeletedMeanwhileError(LapseError):
    """{address} was deleted before it was {waited}."""


async def until_as_wanted(desk: WorkspaceDesk, asked: Workspace, limit: str) -> Workspace:
    """Return the workspace when it is in the state that was asked for, or has an error, which is for the caller."""

    def settled(found: Workspace | None) -> bool:
        if found is None or found.deleted_at is not None:
            raise DeletedMeanwhileError(address=address_of(asked), waited=asked.desired_state.value)
        if found.desired_state is not asked.desired_state:
            wanted, by = found.desired_state.value, found.desired_by.value
            waited = asked.desired_state.value
            raise WantedOtherwiseError(address=address_of(asked), waited=waited, wanted=wanted, by=by)
        arrived = found.observed_status.value == asked.desired_state.value
        return found.error_reason is not None or (arrived and found.operation is Operation.NONE)

    found = await _until(desk, asked, settled, limit=limit, goal=asked.desired_state.value)
    return found or asked


async def until_gone(desk: WorkspaceDesk, deleted: Workspace, limit: str) -> None:
    """Return when nothing is left of a workspace that was deleted; an error is tried again, so it is waited out."""
    await _until(desk, deleted, lambda found: found is None, limit=limit, goal="gone")


async def _until(
    desk: WorkspaceDesk, asked: Workspace, settled: Callable[[Workspace | None], bool], *, limit: str, goal: str
) -> Workspace | None:
    seconds, console, found = timeout_seconds(limit), stderr(), await _look(desk, asked)
    told = f"Waiting for {address_of(asked)} to be {goal}"
    with console.status(told) if console.is_terminal else nullcontext() as shown:
        try:
            async with asyncio.timeout(seconds):
                while not settled(found):
                    if shown is not None and found is not None:
                        shown.update(f"{told}: {_state(found)}")
                    await desk.clock.sleep(_LOOK_SECONDS)
                    found = await _look(desk, asked)
                return found
        except TimeoutError:
            pass
    state = "gone" if found is None else _state(found)
    raise StillWaitingError(
        address=address_of(asked), state=f"{state} and not {goal}", timeout=limit, hint=_hint(desk, asked, found)
    )


async def _look(desk: WorkspaceDesk, asked: Workspace) -> Workspace | None:
    try:
        return await desk.store.get(asked.id)
    except UnknownWorkspaceError:
        return None


def _state(found: Workspace) -> str:
    """Say what is seen, and what is being done about it."""
    busy = "" if found.operation is Operation.NONE else f" ({found.operation.value})"
    return f"{found.observed_status.value}{busy}"


def _hint(desk: WorkspaceDesk, asked: Workspace, found: Workspace | None) -> str:
    """Say what may be the matter: a workspace that nobody has touched is one that nobody looks at."""
    from lapse.app.workspaces import FOLDER, node_of
    from lapse.workspaces.runtime.process import is_hosted

    if found is not None and found.error_reason is not None:
        return f"The last try failed ({found.error_reason}): {found.error_message}. It is tried again."
    here = asked.node_id is None or asked.node_id == node_of(desk.settings)
    if here and not is_hosted(desk.settings.state_dir / FOLDER):
        return f"No lapse up runs here with the state folder {desk.settings.state_dir}: start it, and it goes on."
    where = "" if here else f" on {asked.node_id}"
    untouched = found is not None and found.operation is Operation.NONE and found.observed_at == asked.observed_at
    if untouched:
        return f"Is lapse up running{where}, with the same workspaces_url?"
    told = trouble(found) if found is not None else ""
    return told or f"It goes on by itself, as long as lapse up runs{where}."
