"""The trash of workspaces: deleted ones, as archives, until their time is over.

A workspace that a person deletes is stopped and archived, and its name is free. It stays like that for the time that
its row says, and then the engine's sweep lets it go (`TrashRule`): the reconciler removes archive and row. Until then
it comes back as it was, with its data in place again.

Guarantees: bringing back and removing compare the row in the statement that writes, so one of the two wins. Not
guaranteed: that its name or its port are still free; a name that is taken is an error, a port is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lapse.engine.domain import Candidate, SimpleDomain, deletion_by_person
from lapse.engine.executor import Executor
from lapse.engine.running.metrics import Metrics
from lapse.engine.trash import BroughtBack, NotInTrashError, PlaceTakenError, TrashEntry
from lapse.engine.view import Moment
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceExistsError
from lapse.workspaces.expiry import REMOVE, LapseReason, decide_removal
from lapse.workspaces.model import DOMAIN, Ms, Workspace, WorkspaceId
from lapse.workspaces.target import WorkspaceTarget
from lapse.workspaces.view import address_of, hold_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from lapse.core.clock import Clock, UnixNs
    from lapse.core.decision import Decision
    from lapse.engine.domain import Result
    from lapse.engine.journal.port import Journal
    from lapse.engine.trash import Trash
    from lapse.workspaces.store.port import WorkspaceStore

NAME: Final = "workspaces"
_MS: Final = 1_000_000
_PAGE: Final = 100


class TrashRule(SimpleDomain[Workspace]):
    """A domain of the engine, under the name of workspaces: what leaves the trash for good."""

    name: Final = DOMAIN
    reasons: Final = (LapseReason.TRASH_TTL_EXPIRED,)

    def __init__(self, store: WorkspaceStore) -> None:
        """Look at the trash of ``store``."""
        self._store = store

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Workspace]], None]:
        """See `lapse.engine.domain.Domain`."""
        after: WorkspaceId | None = None
        while page := await self._store.trashed(before=Ms(now // _MS), limit=size, after=after):
            after = page[-1].id
            yield [candidate(one) for one in page]

    def decide(self, candidate: Candidate[Workspace], now: UnixNs) -> Decision:
        """See `Domain`."""
        return decide_removal(candidate.state, Ms(now // _MS))

    def policy(self, candidate: Candidate[Workspace]) -> str:
        """See `Domain`."""
        row = candidate.state
        return f"{REMOVE} after {((row.trash_until or 0) - (row.deleted_at or 0)) // 1000}s"

    def policy_name(self, candidate: Candidate[Workspace]) -> str:
        """See `Domain`: none, as each row says itself how long it stays."""
        return ""

    def policies(self) -> Mapping[str, str]:
        """See `Domain`: none."""
        return {}


def candidate(row: Workspace) -> Candidate[Workspace]:
    """Return a workspace in the trash as the sweep sees it."""
    return Candidate(
        address=address_of(row), uid=row.id, version=str(row.version), state=row, handle=row, hold=hold_of(row)
    )


def _unknown_size(_workspace: Workspace) -> int | None:
    return None


class TrashedWorkspaces:
    """A `lapse.engine.trash.Trash` over one store of workspaces."""

    name: Final = NAME

    def __init__(
        self,
        store: WorkspaceStore,
        *,
        journal: Journal,
        clock: Clock,
        metrics: Metrics | None = None,
        size_of: Callable[[Workspace], int | None] = _unknown_size,
    ) -> None:
        """List nothing yet; ``size_of`` tells the bytes of an archive, on the machine that has it."""
        self._store, self._journal, self._clock = store, journal, clock
        self._metrics, self._size_of = metrics, size_of

    async def entries(self, *, after: str | None = None) -> AsyncGenerator[Sequence[TrashEntry], None]:
        """See `Trash`."""
        last = None if after is None else WorkspaceId(after.partition("/")[2])
        while page := await self._store.trashed(limit=_PAGE, after=last):
            last = page[-1].id
            yield [self._entry(one) for one in page]

    def _entry(self, row: Workspace) -> TrashEntry:
        return TrashEntry(
            id=f"{NAME}/{row.id}",
            address=str(address_of(row)),
            uid=row.id,
            domain=DOMAIN,
            ended_at=_moment(row.deleted_at),
            expires_at=_moment(row.trash_until),
            bytes=self._size_of(row),
            comes_back="as it was, with its data, stopped",
            held=row.held(self._now()),
        )

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        """See `Trash`. Who did it is for the caller to write down."""
        try:
            row = await self._store.bring_back(WorkspaceId(entry.uid), now=self._now())
        except UnknownWorkspaceError:
            raise NotInTrashError(address=entry.address) from None
        except WorkspaceExistsError:
            raise PlaceTakenError(address=entry.address) from None
        others = [one for one in await self._store.at_port(row.port, node=row.node_id) if one.id != row.id]
        taken = f"; its port {row.port} is also that of {address_of(others[0])}" if others else ""
        return BroughtBack(
            address=str(address_of(row)),
            uid=row.id,
            says=f"its data is put in place; it starts when it is opened{taken}",
        )

    async def empty(self, entries: Sequence[TrashEntry], *, by: str) -> Sequence[Result]:
        """See `Trash`: the reconciler of its machine removes each a moment later."""
        executor = Executor(
            WorkspaceTarget(self._store, clock=self._clock),
            self._journal,
            clock=self._clock,
            metrics=self._metrics or Metrics(""),
            actor=by,
        )
        results = []
        for entry in entries:
            row = await self._store.get(WorkspaceId(entry.uid))
            action = deletion_by_person(
                domain=DOMAIN,
                address=address_of(row),
                uid=row.id,
                version=str(row.version),
                handle=row,
                hold=hold_of(row),
                actor=by,
                now=self._clock.wall_ns(),
            )
            results += await executor.execute([replace(action, action=REMOVE)])
        return results

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)


def _moment(moment: Ms | None) -> Moment | None:
    return Moment.of(None if moment is None else moment * _MS)


if TYPE_CHECKING:
    _conforms: type[Trash] = TrashedWorkspaces
