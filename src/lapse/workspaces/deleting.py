"""A person deletes a workspace, with its data: not while it is held, only as it was looked at, and with rows that tell.

Nothing is deleted for a TTL, so this is the only way to it. The intent is in the journal before the name is given free,
because journal and workspaces may be in two databases: a crash in between leaves an intent without an outcome, and no
deletion that nobody wrote down. What follows (ending the program, removing volume and archive) is the reconciler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.engine.holds import HeldError
from lapse.engine.journal import Outcome, by_person
from lapse.workspaces.errors import WorkspaceError
from lapse.workspaces.model import DOMAIN, Ms
from lapse.workspaces.summary import address_of

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal import Entry, Journal
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store import WorkspaceStore

_MS: Final = 1_000_000
_log = get_logger("lapse.workspaces.deleting")


async def delete_by_person(
    store: WorkspaceStore, journal: Journal, workspace: Workspace, *, actor: str, clock: Clock
) -> Workspace:
    """Delete what was looked at.

    Raises `HeldError`, what the store raises, and what the journal raises before anything is done.
    """
    time_ns = clock.wall_ns()
    now = Ms(time_ns // _MS)
    if workspace.held(now):
        raise HeldError(address=address_of(workspace), reason=f" ({workspace.hold_reason})")
    row = by_person(
        time_ns=time_ns,
        domain=DOMAIN,
        address=str(address_of(workspace)),
        uid=workspace.id,
        version=str(workspace.version),
        actor=actor,
        outcome=Outcome.INTENT,
    )
    intent = replace(row, attempt=owner_token())
    await journal.append(intent)
    try:
        # By version: one that was held, or opened, meanwhile is not the one that was meant.
        deleted = await store.mark_deleted(workspace.id, version=workspace.version, now=now)
    except WorkspaceError:
        await _tell(journal, replace(intent, outcome=Outcome.CHANGED))
        raise
    await _tell(journal, replace(intent, outcome=Outcome.ENDED))
    return deleted


async def _tell(journal: Journal, outcome: Entry) -> None:
    try:
        await journal.append(outcome)
    except Exception as error:  # noqa: BLE001 - what was done is done: the intent stays unfinished, which is true
        _log.error("not_journalled", domain=DOMAIN, outcome=outcome.outcome, error=type(error).__name__)
