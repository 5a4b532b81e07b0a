"""What a process gives its domains, with a clock that can be set, a journal that can fail, and any budget.

Everything is real but the time and the loops: the stores of a state folder, the gate, the guard of the clock, the
metrics. A `World` is one domain in it, with things of its own; it says what is left of them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from lapse.app.domains import ACTOR
from lapse.app.record import ProcessRecord, open_store
from lapse.core.address import Address
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.errors import LapseError
from lapse.domains import REGISTRY
from lapse.engine.domain import Result, deletion_by_person
from lapse.engine.executor import delete_by_person
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.blast_radius import PolicyApprovals, PolicyGuard
from lapse.engine.safety.budget import Budget, Budgets
from lapse.engine.safety.clock_guard import GuardedGate
from lapse.engine.safety.freeze import Freeze, FreezeReason, freeze_row, resume_row
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.sqlite import TRUST_SECONDS, SQLiteGateStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lapse.core.decision import Reason
    from lapse.engine.domain import Action, Also, ManagedDomain
    from lapse.engine.journal.port import Entry
    from lapse.engine.registry import Registration
    from lapse.engine.safety.blast_radius import WaitingPolicy
    from lapse.engine.safety.freeze import Notes
    from lapse.objects.embedded import EmbeddedStore

HOUR = 3_600
FIRST_PASS = 2 * HOUR
LIFETIME = HOUR
"""How long everything lives, in every world."""


class BadItemError(Exception):
    """Ending this one fails; nothing of the batch was done."""


class JournalFullError(LapseError):
    """The journal cannot be written."""


class SwitchedJournal(SQLiteJournal):
    """A journal that fails when it is told to, beside the acts and in their transaction."""

    fails = False

    async def append(self, *entries: Entry) -> None:
        self._check()
        await super().append(*entries)

    def writer(self, *entries: Entry) -> Any:  # noqa: ANN401 - what the real one returns
        write = super().writer(*entries)

        def checked(*arguments: Any) -> Any:  # noqa: ANN401 - as above
            self._check()
            return write(*arguments)

        return checked

    def _check(self) -> None:
        if self.fails:
            raise JournalFullError


class Kit:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        machine: VirtualClock,
        *,
        store: EmbeddedStore,
        clock: BelievedClock,
        metrics: Metrics,
        gate: GuardedGate,
        notes: Notes,
    ) -> None:
        self.notes = notes
        self.folder, self.machine, self.store, self.clock = folder, machine, store, clock
        self.metrics, self.gate, self.journal = metrics, gate, SwitchedJournal(store.database)

    @property
    def shared(self) -> dict[str, Any]:
        return {"journal": self.journal, "metrics": self.metrics, "clock": self.clock, "gate": self.gate}

    @property
    def now(self) -> UnixNs:
        return UnixNs(self.clock.wall_ns())


class World(Protocol):
    """One domain, and things of it that all live for `LIFETIME` from when they are added."""

    reasons: Iterable[Reason]
    shares_journal: bool
    """Whether an act and its row are one transaction."""
    can_doubt: bool
    """Whether a look for holds can fail: not where a hold stands in the thing itself, which is read with it."""
    has_first_pass: bool
    """Whether a thing can be older than the policy that decides about it."""
    doubtful: bool
    """Set by a case: looks for holds fail from now on."""
    bad: set[str]
    """Set by a case: things whose end fails."""
    before_act: Callable[[], Awaitable[None]] | None
    """Set by a case: what happens after the decision, and before the act."""

    registration: Registration

    def managed(self) -> ManagedDomain[Any]:
        """Return the domain as people see and steer it."""

    def named(self, name: str) -> str:
        """Return what a case calls the thing that an address names so."""

    async def add(self, name: str) -> None: ...
    async def left(self) -> set[str]: ...
    async def hold(self, name: str) -> None: ...
    async def hold_late(self, name: str) -> None:
        """Let a thing be held after the decision, and as late as can be seen before the act."""

    async def extend(self, name: str, until: UnixNs) -> None: ...
    async def spoil_extension(self, name: str) -> None:
        """Let what stands for the end of an extension be no time."""

    async def change(self, name: str) -> None:
        """Make another version of a thing, which is as due as before."""

    async def forget_time(self, name: str) -> None:
        """Let the time that its life is counted from be one that means 'not set'."""

    async def remove(self, name: str) -> None:
        """Do what a person does who removes it."""

    async def sweep(self) -> None:
        """Look once at everything."""


class Opener(Protocol):
    """Opens the world of one domain."""

    domain: str

    def __call__(self, kit: Kit) -> AbstractAsyncContextManager[Any]: ...


class DomainFixture:
    """A world in its kit, and what can be seen from outside."""

    def __init__(self, kit: Kit, world: World, name: str) -> None:
        self.kit, self.world, self.name = kit, world, name

    async def fill(self, *names: str) -> None:
        for name in names:
            await self.world.add(name)

    async def sweep_when_due(self) -> set[str]:
        """Let the lifetime pass, look once, and return what is left."""
        self.kit.machine.advance(LIFETIME + 60)
        await self.world.sweep()
        return await self.world.left()

    async def rows(self) -> list[tuple[str, str, str]]:
        """Return what the journal says of the domain, oldest first: name of the thing, outcome, reason."""
        found = await self.kit.journal.entries(limit=10_000)
        told = [row for row in reversed(found) if row.domain == self.name]
        return [(self.world.named(row.address.rpartition("/")[2]), row.outcome.value, row.reason) for row in told]

    async def outcomes(self, name: str) -> list[str]:
        return [outcome for about, outcome, _ in await self.rows() if about == name]

    def metric(self, metric: str, **labels: str) -> float | None:
        """Return the value of a series of the domain; None when there is none."""
        given = ",".join(f'{key}="{value}"' for key, value in {"domain": self.name, **labels}.items())
        lines = self.kit.metrics.exposition().decode().splitlines()
        found = [line for line in lines if line.startswith(f"{metric}{{{given}}} ")]
        return float(found[0].rpartition(" ")[2]) if found else None

    def ended(self) -> float:
        reasons = [self.metric("lapse_deletions_total", reason=reason) for reason in self.world.reasons]
        return sum(found or 0 for found in reasons)

    async def delete_by_person(self, name: str) -> None:
        """Do what a person does who deletes it by a command or over HTTP."""
        action = deletion_by_person(
            domain=self.name,
            address=Address(self.name, None, name),
            uid=f"uid-of-{name}",
            version="1",
            handle=name,
            hold=None,
            actor="cli (ann)",
            now=self.kit.now,
        )
        await delete_by_person(_Removal(self.world), self.kit.journal, action, clock=self.kit.clock)

    async def waiting(self) -> list[WaitingPolicy]:
        return await self.approvals.waiting()

    async def approve(self, name: str) -> None:
        await self.approvals.approve(name, by="ann")

    @property
    def approvals(self) -> PolicyApprovals:
        kit = self.kit
        return PolicyApprovals([kit.notes], journal=kit.journal, clock=kit.clock, interval_seconds=FIRST_PASS)

    async def freeze(self) -> None:
        wanted = Freeze(self.kit.now, "look", "ann")
        row = freeze_row(self.name, wanted, reason=FreezeReason.BY_PERSON, now=self.kit.now)
        await ProcessRecord.in_folder(self.kit.store).safety.freeze(self.name, wanted, row)

    async def resume(self) -> None:
        row = resume_row(self.name, by="ann", now=self.kit.now)
        assert await ProcessRecord.in_folder(self.kit.store).safety.resume(self.name, row)


class _Removal:
    """The target of what people delete themselves."""

    batch, database = 1, None

    def __init__(self, world: World) -> None:
        self._world = world

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[None]:
        return [None] * len(actions)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        for one in actions:
            await self._world.remove(one.handle)
        return [Result(Outcome.ENDED)] * len(actions)

    async def is_in_doubt(self, error: Exception) -> bool:
        return True


@asynccontextmanager
async def open_fixture(
    folder: Path, opened: Opener, *, budget: str = "off", dry_run: bool = False, is_new: bool = True
) -> AsyncIterator[DomainFixture]:
    """Open a world of the folder; ``opened`` makes it in a kit. Its policies are as old as its things, if it is new."""
    machine = VirtualClock(boot_id="one")
    machine.advance(86_400)
    clock, metrics = BelievedClock(machine), Metrics("test")
    store = open_store(folder, clock=clock)
    guard = await ProcessRecord.in_folder(store).guard(clock)
    budgets = Budgets(domains={opened.domain: Budget.parse(budget)})
    names = list(dict.fromkeys([*REGISTRY.freezable(), opened.domain]))
    kept = SQLiteGateStore(SQLiteJournal(store.database), budgets=budgets, domains=names)
    gate = GuardedGate(
        SafetyGate(
            kept,
            budgets=budgets,
            domains=names,
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            trust_seconds=TRUST_SECONDS,
        ),
        guard,
        PolicyGuard(
            lambda _domain: kept,
            journal=SQLiteJournal(store.database),
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            domains=names,
            interval_seconds=FIRST_PASS,
            dry=[opened.domain] if dry_run else [],
        ),
    )
    try:
        kit = Kit(folder, machine, store=store, clock=clock, metrics=metrics, gate=gate, notes=kept)
        async with opened(kit) as world:
            if is_new:
                await world.sweep()
            yield DomainFixture(kit, world, opened.domain)
    finally:
        await store.close()
