"""A person's deletion of a workspace, with its data: not while it is held, and only as it was looked at.

Nothing is deleted for a TTL, so this is the only way to it. What follows (ending the program, removing volume and
archive) is the reconciler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.engine import executor
from lapse.engine.domain import deletion_by_person
from lapse.workspaces.model import DOMAIN
from lapse.workspaces.target import DeletionTarget
from lapse.workspaces.view import address_of, hold_of

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore


async def delete_by_person(
    store: WorkspaceStore, journal: Journal, workspace: Workspace, *, actor: str, clock: Clock
) -> Workspace:
    """Delete what was looked at; raises `HeldError`, and what the store raises."""
    action = deletion_by_person(
        domain=DOMAIN,
        address=address_of(workspace),
        uid=workspace.id,
        version=str(workspace.version),
        handle=workspace,
        hold=hold_of(workspace),
        actor=actor,
        now=clock.wall_ns(),
    )
    await executor.delete_by_person(DeletionTarget(store, clock=clock), journal, action, clock=clock)
    return await store.get(workspace.id)
