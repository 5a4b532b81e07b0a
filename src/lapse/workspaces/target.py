"""Targets of workspaces: the changes by which one lapses, or is deleted by a person.

`WorkspaceTarget` changes the desired state of up to a thousand rows in one statement, or takes them out of the trash
for good, and `DeletionTarget` marks one row as deleted. Both compare everything that was decided on in the statement
that writes, so they change exactly what was decided about, or leave it. Where the journal lives in the same database,
the rows of a lapse are written in the same transaction. What follows (ending the program, packing or removing the data
and the archive) is the reconciler's.

Nothing is deleted for a TTL but what lies in the trash: `delete_by_person` is the only way to it, and not while the
workspace is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lapse.core.duration import NEVER
from lapse.engine import executor
from lapse.engine.domain import Result, deletion_by_person
from lapse.engine.journal.port import Outcome
from lapse.engine.trash import UNDO_UNTIL
from lapse.workspaces.activity.port import BATCH
from lapse.workspaces.errors import (
    StoreClosedError,
    UnknownWorkspaceError,
    WorkspaceError,
    WorkspaceOutcomeUnknownError,
)
from lapse.workspaces.expiry import ARCHIVE, REMOVE, STANDBY
from lapse.workspaces.model import DOMAIN, Ms
from lapse.workspaces.view import address_of, hold_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import Clock, UnixNs
    from lapse.core.duration import Duration
    from lapse.engine.domain import Action, Also
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.holds import Hold, HoldDoubt
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore


async def delete_by_person(
    store: WorkspaceStore,
    journal: Journal,
    workspace: Workspace,
    *,
    actor: str,
    clock: Clock,
    trash_ttl: Duration = NEVER,
    metrics: Metrics | None = None,
) -> Workspace:
    """Delete what was looked at; raises `HeldError`, and what the store raises. It can come back for ``trash_ttl``."""
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
    target = DeletionTarget(store, clock=clock, trash_ttl=trash_ttl)
    await executor.delete_by_person(target, journal, action, clock=clock, metrics=metrics)
    return await store.get(workspace.id)


OWNER: Final = "owner"
"""The detail of a row that names whose workspace it is about."""
_ENDED: Final = Result(Outcome.ENDED)
_CHANGED: Final = Result(Outcome.CHANGED)
_MS: Final = 1_000_000


class WorkspaceTarget:
    """A `lapse.engine.domain.Target` over one store. Handles are `Workspace` rows as they were decided on."""

    def __init__(self, store: WorkspaceStore, *, clock: Clock, batch: int = BATCH) -> None:
        """Change up to ``batch`` rows at once."""
        self._store, self._clock = store, clock
        self.batch = batch

    @property
    def database(self) -> object | None:
        """See `Target`."""
        return self._store.database

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """Return none: a hold stands in the row itself, whose version the change compares."""
        return [None] * len(actions)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `Target`. All actions of one call are of the same sort."""
        now = Ms(self._clock.wall_ns() // _MS)
        change = {STANDBY: self._store.to_standby, ARCHIVE: self._store.to_pending, REMOVE: self._store.to_removal}[
            actions[0].action
        ]
        rows: list[Workspace] = [one.handle for one in actions]
        changed = await change([row.candidate for row in rows], now=now, also=also)
        return [_ENDED if row.id in changed else _CHANGED for row in rows]

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `Target`."""
        if isinstance(error, WorkspaceOutcomeUnknownError | StoreClosedError):
            return True
        try:
            await self._store.check()
        except Exception:  # noqa: BLE001 - the first error is the one that is told
            return True
        return False


class DeletionTarget:
    """The target of people's own deletions: a name is given free, and the reconciler removes the rest.

    One that changed since it was looked at, by a hold or a visit, is not the one that was meant, and stays.
    """

    batch: Final = 1
    database: Final = None
    """None: the intent is written before, so that no deletion is without a row, whatever database the journal is in."""

    def __init__(self, store: WorkspaceStore, *, clock: Clock, trash_ttl: Duration = NEVER) -> None:
        """Delete in ``store``; for ``trash_ttl`` it lies in the trash, unless that is never."""
        self._store, self._clock, self._lasts_ns = store, clock, trash_ttl.nanoseconds

    async def into_trash(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Action]:
        """See `lapse.engine.trash.TrashingTarget`: the row says that it is in the trash, and is written by the act.

        The journal remembers whose it was: that person may ask about it when it is gone.
        """
        until = {} if self._lasts_ns is None else {UNDO_UNTIL: now + self._lasts_ns}
        return [replace(one, details={**(one.details or {}), OWNER: one.handle.owner, **until}) for one in actions]

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `WorkspaceTarget`."""
        return [None] * len(actions)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `lapse.engine.domain.Target`."""
        return [await self._delete(one.handle) for one in actions]

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `lapse.engine.domain.Target`."""
        return True

    async def _delete(self, row: Workspace) -> Result:
        now = self._clock.wall_ns()
        until = None if self._lasts_ns is None else Ms((now + self._lasts_ns) // _MS)
        try:
            await self._store.mark_deleted(row.id, trash_until=until, version=row.version, now=Ms(now // _MS))
        except UnknownWorkspaceError as error:
            return Result(Outcome.GONE, error)
        except WorkspaceError as error:
            return Result(Outcome.CHANGED, error)
        return _ENDED
