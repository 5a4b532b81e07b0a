"""What people ask of a workspace, in their own verbs, on any store.

A verb is carried out as one change of what is wanted; the reconciler does the rest. An error that stands is cleared by
start, stop and archive, because that is how a person says that it may be tried again; only after the change was taken,
so that a refused one leaves it. If the second step fails, the verb can be repeated.

While an operation is under way, all but TTLs is refused (`OperationUnderWayError`): what a person decides on a picture
that is changing is decided on the wrong one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus

if TYPE_CHECKING:
    from lapse.workspaces.model import Ms, Workspace
    from lapse.workspaces.store import WorkspaceStore


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
