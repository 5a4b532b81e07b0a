"""Requests on one machine: the embedded object store, its journal, the controllers and the local executor.

The store is one file, ``objects.db`` in the state folder, shared by all processes of the machine: commands write to it,
and the process that runs the controllers sees it within a tenth of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.engine.journal import SQLiteJournal
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.requests.api.upstream import ALL_KINDS
from lapse.requests.local.executor import LocalExecutor
from lapse.requests.local.places import Places
from lapse.requests.service import Requests

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.coordinator import Service
    from lapse.engine.metrics import Metrics
    from lapse.requests.policy import Policy

FILE_NAME: Final = "objects.db"


def open_store(folder: Path, *, clock: Clock) -> EmbeddedStore:
    """Open or create the object store of a state folder, and the folder, for this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open_embedded(folder / FILE_NAME, kinds=ALL_KINDS, clock=clock)


@dataclass(frozen=True)
class LocalRequests:
    """Everything that `lapse up` runs for requests."""

    store: EmbeddedStore
    journal: SQLiteJournal
    requests: Requests
    executor: LocalExecutor

    @classmethod
    def build(
        cls, store: EmbeddedStore, folder: Path, *, policy: Policy, clock: Clock, metrics: Metrics
    ) -> LocalRequests:
        """Put it together on an open store; archives and volumes go to ``folder``."""
        journal = SQLiteJournal(store.database)
        requests = Requests(store, policy=policy, journal=journal, metrics=metrics, clock=clock)
        places = Places(folder)
        executor = LocalExecutor(store, requests.caches, places=places, clock=clock, metrics=metrics)
        return cls(store, journal, requests, executor)

    @property
    def leader_services(self) -> list[Service]:
        """What runs in the process that leads."""
        return [*self.requests.leader_services, self.executor]
