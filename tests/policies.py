"""A gate that only looks at policies, and notes that end with the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.engine.safety.blast_radius import PolicyGuard
from lapse.engine.safety.gate import OpenGate

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.freeze import Notes

DOMAINS = ("history", "retention", "requests", "keepers", "schedules", "workspaces", "things")


class MemoryNotes:
    """`Notes` in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def read_note(self, name: str) -> str | None:
        return self.texts.get(name)

    async def write_note(self, name: str, text: str) -> None:
        self.texts[name] = text

    async def list_notes(self, prefix: str) -> dict[str, str]:
        return {name: text for name, text in self.texts.items() if name.startswith(prefix)}


class PolicyGate(OpenGate):
    """Lets everything happen but what the policy guard is against."""

    def __init__(
        self,
        notes: Notes,
        *,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        interval_seconds: float = 3600,
        dry: tuple[str, ...] = (),
    ) -> None:
        self.policies = PolicyGuard(
            lambda _domain: notes,
            journal=journal,
            clock=clock,
            metrics=metrics,
            actor="lapse",
            domains=DOMAINS,
            interval_seconds=interval_seconds,
            dry=dry,
        )

    def pause(self, domain: str) -> float | None:
        return self.policies.pause(domain)
