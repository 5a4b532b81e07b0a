"""The object store of a state folder, and its brakes.

The store is one file, ``objects.db``, shared by all processes of the machine and by all domains: commands write to it,
and the process that runs the controllers sees it within a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.cli.domains import ACTOR, FOLDER_DOMAINS, KINDS
from lapse.engine.brakes import Brakes
from lapse.engine.budget import Budgets
from lapse.engine.journal import SQLiteJournal
from lapse.engine.sqlite_brakes import TRUST_SECONDS, SQLiteBrakes
from lapse.objects.embedded import open_embedded

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.metrics import Metrics
    from lapse.objects.embedded import EmbeddedStore

FILE_NAME: Final = "objects.db"
_NO_BUDGETS: Final = Budgets()


def open_store(folder: Path, *, clock: Clock) -> EmbeddedStore:
    """Open or create the object store of a state folder, and the folder, for this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open_embedded(folder / FILE_NAME, kinds=KINDS, clock=clock)


def open_brakes(store: EmbeddedStore, *, budgets: Budgets = _NO_BUDGETS, actors: Iterable[str] = ()) -> SQLiteBrakes:
    """Return where it is written what is frozen in that store; acts of ``actors`` count beside our own."""
    return SQLiteBrakes(SQLiteJournal(store.database), budgets=budgets, domains=FOLDER_DOMAINS, actors=(ACTOR, *actors))


def brakes_of(
    store: EmbeddedStore,
    *,
    budgets: Budgets,
    clock: Clock,
    metrics: Metrics,
    domains: Iterable[str] = FOLDER_DOMAINS,
) -> Brakes:
    """Return the brakes of a process that ends things of ``domains``, as far as that store has the word."""
    return Brakes(
        open_brakes(store, budgets=budgets),
        budgets=budgets,
        domains=domains,
        clock=clock,
        metrics=metrics,
        actor=ACTOR,
        trust_seconds=TRUST_SECONDS,
    )
