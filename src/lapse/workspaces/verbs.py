"""People's verbs on workspaces: create, configure, start, stop and archive, on any store.

A verb is carried out as one change of what is wanted; the reconciler does the rest. An error that stands is cleared by
start, stop and archive, because that is how a person says that it may be tried again; only after the change was taken,
so that a refused one leaves it. If the second step fails, the verb can be repeated.

While an operation is under way, all but TTLs is refused (`OperationUnderWayError`): what a person decides on a picture
that is changing is decided on the wrong one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lapse.workspaces.errors import PortInUseError
from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus
from lapse.workspaces.runtime.program import HOST, port_problem
from lapse.workspaces.view import address_of

if TYPE_CHECKING:
    from collections.abc import Container

    from lapse.workspaces.model import Changes, Ms, NewWorkspace, Workspace
    from lapse.workspaces.store.port import WorkspaceStore


class Verb(StrEnum):
    """What changes the state that is wanted."""

    START = "start"
    STOP = "stop"
    ARCHIVE = "archive"


def wanted_by(verb: Verb, workspace: Workspace) -> DesiredState:
    """Return the state that a verb means for a workspace as it is.

    Stopping what is in the archive, or was never started, leaves it there: STANDBY would bring it up halfway.
    """
    if verb is Verb.START:
        return DesiredState.RUNNING
    if verb is Verb.STOP and workspace.observed_status is not ObservedStatus.PENDING:
        return DesiredState.STANDBY
    return DesiredState.PENDING


async def ask(
    store: WorkspaceStore, verb: Verb, workspace: Workspace, *, version: int | None = None, now: Ms
) -> Workspace:
    """Want what a verb means; with ``version`` only if it is still that one. Raises what the store raises.

    It is written also where the same was wanted before: a decision to lapse that was made meanwhile must lose.
    """
    state = wanted_by(verb, workspace)
    changed = await store.set_desired(workspace.id, state, DesiredBy.USER, version=version, now=now)
    return changed if changed.error_reason is None else await store.clear_error(workspace.id, now=now)


async def create(
    store: WorkspaceStore, new: NewWorkspace, *, visible: Container[str] | None = None, now: Ms
) -> Workspace:
    """Create a workspace of this machine, if its port is free.

    Raises `PortInUseError`, which names another workspace only if its owner is ``visible`` (None: everybody is), and
    what the store raises. Not guaranteed: that of two that ask for one port at the same moment one is refused; the
    second one to start fails then.
    """
    new.check()
    await _demand_free(store, new.port, node=new.node_id, but=new.name, visible=visible)
    return await store.create(new, now=now)


async def configure(
    store: WorkspaceStore,
    workspace: Workspace,
    changes: Changes,
    *,
    node: str | None,
    version: int | None,
    visible: Container[str] | None = None,
    now: Ms,
) -> Workspace:
    """Change what is set about a workspace, if a port that it is to have is free; ``node`` is this machine.

    Raises as `create`. Whether something listens on the port of a workspace of another machine is not known here.
    """
    changes.check()
    if changes.port not in {None, workspace.port, workspace.next_port}:
        here = workspace.node_id in {None, node}
        where = workspace.node_id
        await _demand_free(store, changes.port, node=where, visible=visible, but=workspace.name, listeners=here)
    return await store.configure(workspace.id, changes, version=version, now=now)


async def _demand_free(
    store: WorkspaceStore,
    port: int,
    *,
    node: str | None,
    but: str,
    visible: Container[str] | None,
    listeners: bool = True,
) -> None:
    others = await store.at_port(port, node=node)
    if any(one.name == but for one in others):
        return  # the store says that the name is taken
    for one in others:
        named = visible is None or one.owner in visible
        raise PortInUseError(port=port, by=f"{address_of(one)} has it" if named else "another workspace has it")
    problem = port_problem(port) if listeners else None
    if problem is not None:
        raise PortInUseError(port=port, by=f"no program can listen on {HOST}:{port} of this machine now ({problem})")
