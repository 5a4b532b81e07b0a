"""Where the journal of workspaces is, and what can stop them: beside their rows on a server, or in the state folder.

On a server all machines write one journal, count one budget and see one freeze, and a transition and its row are one
transaction. In a file they are in ``objects.db`` of the state folder, with those of all other domains. A freeze of
*all* is therefore written to both, the folder first: what can be stopped is stopped, also while the server is away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from lapse.app.domains import ACTOR
from lapse.app.process import deletion_budgets
from lapse.core.errors import LapseError
from lapse.workspaces.model import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.db.postgres.pool import Postgres
    from lapse.engine.journal.port import Entry, Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.budget import Ledger
    from lapse.engine.safety.clock_guard import ClockGuard, GuardedGate
    from lapse.engine.safety.freeze import Freeze, GateState, GateStore
    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore


GATE_LOOP: Final = "workspace-brakes"
"""The loop that looks at what is frozen on the server."""


def is_on_server(settings: Settings) -> bool:
    """Whether journal and gate of workspaces are with their rows, and not in the state folder."""
    return not settings.workspaces_url.startswith("file:")


@dataclass(frozen=True)
class ServerRecord:
    """Journal and freezes on the server of the workspaces."""

    journal: Journal
    freezes: GateStore

    @classmethod
    def of(cls, store: WorkspaceStore, settings: Settings) -> ServerRecord | None:
        """Return those of an open store; None where the state folder has them."""
        return cls.on(store, settings) if is_on_server(settings) else None

    @classmethod
    def on(cls, store: WorkspaceStore, settings: Settings) -> ServerRecord:
        """Return those of an open store on a server."""
        from lapse.engine.journal.postgres import PostgresJournal
        from lapse.engine.safety.postgres import PostgresGateStore

        journal = PostgresJournal(cast("Postgres", store.database))
        budgets = deletion_budgets(settings)
        return cls(journal, PostgresGateStore(journal, budgets=budgets, domains=[DOMAIN], actors=[ACTOR]))

    def gate(self, settings: Settings, *, guard: ClockGuard, metrics: Metrics) -> GuardedGate:
        """Return the gate of a process that lets workspaces lapse."""
        from lapse.engine.safety.clock_guard import GuardedGate
        from lapse.engine.safety.gate import SafetyGate

        budgets, clock = deletion_budgets(settings), guard.clock
        gate = SafetyGate(self.freezes, budgets=budgets, domains=[DOMAIN], clock=clock, metrics=metrics, actor=ACTOR)
        return GuardedGate(gate, guard)


class ServerLeftOutError(LapseError):
    """This was done in the state folder, but not for workspaces, because their server failed: {problem}"""  # noqa: D400 - a sentence of its own


class BothFreezes:
    """A `GateStore` for a person's freeze of everything: what is in the folder and what is on the server."""

    keeps_spending = False

    def __init__(self, folder: GateStore, server: Callable[[], Awaitable[GateStore]]) -> None:
        """Open the server when the folder is done."""
        self._folder, self._server = folder, server

    async def load(self, now: int) -> GateState:
        """See `GateStore`; what was spent is the folder's."""
        here = await self._folder.load(now)
        there = await (await self._server()).load(now)
        return replace(here, frozen={**there.frozen, **here.frozen})

    async def spend(self, state: GateState, spent: Ledger) -> GateState:
        """See `GateStore`: nobody spends here."""
        return replace(state, spent=spent)

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        await self._folder.freeze(name, freeze, row)
        try:
            await (await self._server()).freeze(name, freeze, row)
        except LapseError as error:
            raise ServerLeftOutError(problem=str(error)) from error

    async def resume(self, name: str, row: Entry) -> list[str]:
        """See `GateStore`."""
        here = await self._folder.resume(name, row)
        try:
            there = await (await self._server()).resume(name, row)
        except LapseError as error:
            raise ServerLeftOutError(problem=str(error)) from error
        return sorted({*here, *there})


if TYPE_CHECKING:
    _conforms: type[GateStore] = BothFreezes
