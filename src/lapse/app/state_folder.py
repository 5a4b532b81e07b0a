"""The object store of a state folder, its clock, and its gate, which is guarded against a clock that jumps.

The store is one file, ``objects.db``, shared by all processes of the machine and by all domains: commands write to it,
and the process that runs the controllers sees it within a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.app.domains import ACTOR
from lapse.core.believed_clock import BelievedClock, synchronised_ns
from lapse.core.clock import SystemClock
from lapse.domains import REGISTRY, object_kinds
from lapse.engine.journal.port import SQLiteJournal
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.clock_guard import REFRESH_SECONDS, ClockGuard, GuardedGate, read_mark
from lapse.engine.safety.freeze import CLOCK
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.sqlite import TRUST_SECONDS, SQLiteGateStore, note_in
from lapse.objects.embedded import open_embedded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import Source
    from lapse.objects.embedded import EmbeddedStore

FILE_NAME: Final = "objects.db"
_NO_BUDGETS: Final = Budgets()


def open_store(folder: Path, *, clock: Clock) -> EmbeddedStore:
    """Open or create the object store of a state folder, and the folder, for this user only.

    A `BelievedClock` goes on from what was last believed in this folder; its times are those of what is created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = open_embedded(folder / FILE_NAME, kinds=object_kinds(), clock=clock)
    if isinstance(clock, BelievedClock):
        clock.recall(read_mark(note_in(store.database, CLOCK)), is_fresh_within=REFRESH_SECONDS)
    return store


def open_gate_store(
    store: EmbeddedStore, *, budgets: Budgets = _NO_BUDGETS, actors: Iterable[str] = ()
) -> SQLiteGateStore:
    """Return where it is written what is frozen in that store; acts of ``actors`` count beside our own."""
    journal, domains = SQLiteJournal(store.database), REGISTRY.freezable()
    return SQLiteGateStore(journal, budgets=budgets, domains=domains, actors=(ACTOR, *actors))


def guard_of(store: EmbeddedStore, *, clock: BelievedClock, sources: Sequence[Source] = ()) -> ClockGuard:
    """Return the clock guard of a process on that folder; ``sources`` know the time beside the machine itself."""
    return ClockGuard(clock, notes=open_gate_store(store), sources=[*sources, *kernel_of(clock)])


def kernel_of(clock: BelievedClock) -> list[Source]:
    """Return the kernel as a source of time, unless the clock is not the machine's own."""
    return [synchronised_ns] if isinstance(clock.machine, SystemClock) else []


def gate_of(
    store: EmbeddedStore,
    *,
    budgets: Budgets,
    guard: ClockGuard,
    metrics: Metrics,
    domains: Iterable[str] | None = None,
) -> GuardedGate:
    """Return the gate of a process that ends things of ``domains``, as far as that store has the word; None: all."""
    gate = SafetyGate(
        open_gate_store(store, budgets=budgets),
        budgets=budgets,
        domains=REGISTRY.freezable() if domains is None else domains,
        clock=guard.clock,
        metrics=metrics,
        actor=ACTOR,
        trust_seconds=TRUST_SECONDS,
    )
    return GuardedGate(gate, guard)
