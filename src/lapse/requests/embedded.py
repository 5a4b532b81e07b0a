"""Requests on one machine: the embedded object store, its journal, the controllers and the local executor.

The store is one file, ``objects.db`` in the state folder, shared by all processes of the machine: commands write to it,
and the process that runs the controllers sees it within a tenth of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.engine.brakes import BrakeLoop, Brakes
from lapse.engine.budget import Budgets
from lapse.engine.journal import SQLiteJournal
from lapse.engine.sqlite_brakes import TRUST_SECONDS, SQLiteBrakes
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.requests.api.upstream import ALL_KINDS
from lapse.requests.local.executor import LocalExecutor
from lapse.requests.local.places import Places
from lapse.requests.service import ACTOR, DOMAINS, Requests
from lapse.requests.ttl import DOMAIN

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.coordinator import Loop, Service
    from lapse.engine.metrics import Metrics
    from lapse.requests.policy import Policy

FILE_NAME: Final = "objects.db"
_NO_BUDGETS: Final = Budgets()


def open_store(folder: Path, *, clock: Clock) -> EmbeddedStore:
    """Open or create the object store of a state folder, and the folder, for this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open_embedded(folder / FILE_NAME, kinds=ALL_KINDS, clock=clock)


def open_brakes(store: EmbeddedStore, *, budgets: Budgets = _NO_BUDGETS) -> SQLiteBrakes:
    """Return what is frozen in that store."""
    return SQLiteBrakes(SQLiteJournal(store.database), budgets=budgets, domains=DOMAINS, actor=ACTOR)


@dataclass(frozen=True)
class LocalRequests:
    """Everything that `lapse up` runs for requests."""

    store: EmbeddedStore
    journal: SQLiteJournal
    requests: Requests
    executor: LocalExecutor
    brakes: Brakes

    @classmethod
    def build(
        cls,
        store: EmbeddedStore,
        folder: Path,
        *,
        policy: Policy,
        clock: Clock,
        metrics: Metrics,
        budgets: Budgets = _NO_BUDGETS,
    ) -> LocalRequests:
        """Put it together on an open store; archives and volumes go to ``folder``."""
        journal = SQLiteJournal(store.database)
        brakes = Brakes(
            open_brakes(store, budgets=budgets),
            budgets=budgets,
            domains=DOMAINS,
            clock=clock,
            metrics=metrics,
            actor=ACTOR,
            trust_seconds=TRUST_SECONDS,
        )
        requests = Requests(store, policy=policy, journal=journal, metrics=metrics, clock=clock, brake=brakes)
        places = Places(folder)
        executor = LocalExecutor(store, requests.caches, places=places, clock=clock, metrics=metrics)
        return cls(store, journal, requests, executor, brakes)

    @property
    def loops(self) -> list[Loop]:
        """What runs again and again."""
        return [*self.requests.loops, BrakeLoop(self.brakes, domain=DOMAIN)]

    @property
    def leader_services(self) -> list[Service]:
        """What runs in the process that leads."""
        return [*self.requests.leader_services, self.executor]
