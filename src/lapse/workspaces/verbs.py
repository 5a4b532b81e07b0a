"""People's verbs on workspaces: create, configure, start, stop, archive, hold, release and extend, on any store.

A verb is carried out as one change of what is wanted; the reconciler does the rest. An error that stands is cleared by
start, stop and archive, because that is how a person says that it may be tried again; only after the change was taken,
so that a refused one leaves it. If the second step fails, the verb can be repeated.

A hold, its end and an extension compare the version that they were decided on, so that of two people at the same moment
the second sees what the first has done. While an operation is under way, all but these and TTLs is refused
(`OperationUnderWayError`): what a person decides on a picture
that is changing is decided on the wrong one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.engine.journal.port import AuditReason, audit_row
from lapse.engine.safety.holds import demand_placeable, demand_releasable
from lapse.workspaces.errors import ChangedMeanwhileError, PortInUseError
from lapse.workspaces.model import DOMAIN, DesiredBy, DesiredState, Ms, ObservedStatus
from lapse.workspaces.runtime.program import HOST, port_problem
from lapse.workspaces.view import address_of, hold_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from lapse.engine.journal.port import Entry
    from lapse.engine.safety.holds import Hold
    from lapse.workspaces.model import Changes, NewWorkspace, Workspace
    from lapse.workspaces.store.port import WorkspaceStore

_MS: Final = 1_000_000
_ATTEMPTS: Final = 5


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


def told(reason: AuditReason, workspace: Workspace, *, actor: str, now: Ms) -> Entry:
    """Return the row of the audit about what a person did with a workspace."""
    return audit_row(
        reason,
        address=str(address_of(workspace)),
        uid=workspace.id,
        actor=actor,
        time_ns=now * _MS,
        domain=DOMAIN,
        details={"owner": workspace.owner},  # and not the command, which may hold secrets
    )


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


async def hold(
    store: WorkspaceStore,
    workspace: Workspace,
    hold: Hold,
    *,
    replace: bool = False,
    version: int | None = None,
    now: Ms,
) -> Workspace:
    """Keep a workspace from lapsing; raises as `demand_placeable`, and what the store raises."""
    until = None if hold.until is None else Ms(hold.until // _MS)

    async def place(seen: Workspace) -> Workspace:
        demand_placeable(address_of(seen), hold, hold_of(seen), UnixNs(now * _MS), replace=replace)
        by, is_legal = hold.by or None, hold.is_legal
        return await store.hold(
            seen.id, hold.reason, until=until, by=by, is_legal=is_legal, version=seen.version, now=now
        )

    return await _as_seen(store, workspace, place, version=version)


async def release(
    store: WorkspaceStore,
    workspace: Workspace,
    *,
    by: str,
    legal: bool = True,
    only: str | None = None,
    version: int | None = None,
    now: Ms,
) -> Hold | None:
    """End the hold on a workspace, and return it; nothing changes where nobody holds it.

    Raises as `demand_releasable`, which is asked of the version that the change compares with.
    """
    ended: Hold | None = None

    async def end(seen: Workspace) -> Workspace:
        nonlocal ended
        ended = hold_of(seen)
        demand_releasable(address_of(seen), ended, by=by, legal=legal, only=only)
        return seen if ended is None else await store.release(seen.id, version=seen.version, now=now)

    fresh = await store.get(workspace.id)  # that there is nothing to release must be so now
    await _as_seen(store, fresh, end, version=version)
    return ended


async def _as_seen(
    store: WorkspaceStore,
    workspace: Workspace,
    change: Callable[[Workspace], Awaitable[Workspace]],
    *,
    version: int | None,
) -> Workspace:
    """Change a workspace at the version that was seen; unless a version was asked for, look again while it changes."""
    if version is not None and version != workspace.version:
        raise ChangedMeanwhileError(workspace=workspace.name, found=workspace.version, expected=version)
    for _ in range(_ATTEMPTS):
        try:
            return await change(workspace)
        except ChangedMeanwhileError:
            if version is not None:
                raise
            workspace = await store.get(workspace.id)
    return await change(workspace)


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
