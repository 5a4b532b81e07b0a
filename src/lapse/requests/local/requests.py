"""Requests on one machine: the controllers on an embedded object store, and the local executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lapse.requests.local.executor import LocalExecutor
from lapse.requests.local.places import Places
from lapse.requests.service import Requests

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import SQLiteJournal
    from lapse.engine.running.coordinator import Service
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.gate import Brake
    from lapse.objects.embedded import EmbeddedStore
    from lapse.requests.lifecycle.policy import Policy


@dataclass(frozen=True)
class LocalRequests:
    """Everything that `lapse up` runs for requests."""

    store: EmbeddedStore
    journal: SQLiteJournal
    requests: Requests
    executor: LocalExecutor

    @classmethod
    def build(
        cls,
        store: EmbeddedStore,
        folder: Path,
        *,
        policy: Policy,
        journal: SQLiteJournal,
        brake: Brake,
        clock: Clock,
        metrics: Metrics,
    ) -> LocalRequests:
        """Put it together on an open store; archives and volumes go to ``folder``."""
        requests = Requests(store, policy=policy, journal=journal, metrics=metrics, clock=clock, brake=brake)
        places = Places(folder)
        executor = LocalExecutor(store, requests.caches, places=places, clock=clock, metrics=metrics)
        return cls(store, journal, requests, executor)

    @property
    def leader_services(self) -> list[Service]:
        """What runs in the process that leads."""
        return [*self.requests.leader_services, self.executor]
