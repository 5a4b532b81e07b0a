"""Frozen domains: what a person, or a budget that is spent, has stopped until a person lets it go on.

`GateStore` is where that is written, so that it outlives the process: a table beside the journal, or a ConfigMap.
Whoever cannot read it ends nothing: see `lapse.engine.safety.gate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.decision import Reason
from lapse.core.errors import LapseError
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.safety.budget import TOTAL, Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.engine.safety.budget import Reservation

ALL: Final = TOTAL
"""Freezes every domain."""
CLOCK: Final = "clock"
"""The note that holds what was believed of the clock."""
ABOUT_CLOCK: Final = "the clock is "
"""Begins the reason of a freeze by the clock guard: who ends such a one has looked at the clock, and nobody else."""


class GateUnreadableError(LapseError):
    """The freezes in {place} cannot be read: {problem}. Nothing is ended until they can; try {run} all."""


class GateConflictError(LapseError):
    """The freezes in {place} are not as they were read: {problem}. Read them again and decide again."""


class FreezeReason(Reason):
    """Why a domain stands still, and why it goes on."""

    FROZEN = "frozen"
    BUDGET_SPENT = "budget_spent"
    BUDGET_RESERVED = "budget_reserved"
    """Another process has taken what is left of the budget, and may yet give it back: nothing is frozen for that."""
    CLOCK_JUMPED = "clock_jumped"
    CLOCK_CONFIRMED = "clock_confirmed"
    """A second source agrees with the clock."""
    BY_PERSON = "by_person"
    POLICY_WAITS = "policy_waits"
    """Of one policy: it is new or changed, and would end much at once."""
    POLICY_APPROVED = "policy_approved"
    """A person has let it act."""
    POLICY_RESTORED = "policy_restored"
    """The policy that was in force before is back."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Since when a domain is frozen, why and by whom; what is not known is None or empty."""

    since: UnixNs | None
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class GateState:
    """What was read at one moment."""

    frozen: Mapping[str, Freeze] = field(default_factory=dict)
    """By domain, or `ALL`."""
    spent: Ledger = field(default_factory=dict)
    reserved: Ledger = field(default_factory=dict)
    """What other processes have taken and not done yet, as far as that is not in ``spent``."""
    epoch: str = ""
    """Another one when somebody has resumed, so that everything is counted anew."""
    version: str = ""
    """What a write is compared with."""

    def freeze_of(self, domain: str) -> Freeze | None:
        """Return what stops ``domain``, if anything does."""
        return self.frozen.get(ALL) or self.frozen.get(domain)


class GateStore(Protocol):
    """Keeps what is frozen and, perhaps, what was spent."""

    @property
    def keeps_spending(self) -> bool:
        """Whether `spend` writes it. Otherwise it is counted from the journal, whose rows come after the acts."""
        ...

    async def load(self, now: int, *, holder: str = "") -> GateState:
        """Read everything, as ``holder`` sees it; raises a `LapseError` when any of it is in doubt."""
        ...

    async def spend(
        self, state: GateState, spent: Ledger, *, holder: str, mine: Sequence[Reservation], now: int
    ) -> GateState:
        """Replace what was spent, if nobody has taken anything since ``state``; raises `GateConflictError` otherwise.

        Where it is counted from the journal, what ``holder`` has taken and not done is written instead (``mine``).
        """
        ...

    async def release(self, holder: str, mine: Sequence[Reservation], *, now: int) -> None:
        """Let others know that ``holder`` has no more than that left of what it has taken."""
        ...

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """Freeze a domain or `ALL`; ``row`` goes to the journal, if there is one. Overwrites an earlier freeze."""
        ...

    async def resume(self, name: str, row: Entry, *, mark: str | None = None) -> list[str]:
        """Let a domain go on, or all of them; return what was frozen. Counting begins anew.

        Where the clock guard had frozen one of them, ``mark`` is believed of the clock from now on, because who resumes
        that has looked; None: nothing is, until a process looks again.
        """
        ...


class Notes(Protocol):
    """Keeps short texts beside what is frozen: what was believed of the clock, and when policies were first seen."""

    async def read_note(self, name: str) -> str | None:
        """Return a text; None when there is none. Raises a `LapseError` when it cannot be read."""
        ...

    async def write_note(self, name: str, text: str) -> None:
        """Replace a text; raises a `LapseError` when it may not have been written."""
        ...

    async def list_notes(self, prefix: str) -> Mapping[str, str]:
        """Return all texts whose names begin so, by name. Raises a `LapseError` when they cannot be read."""
        ...


def freeze_row(name: str, freeze: Freeze, *, reason: FreezeReason, now: int) -> Entry:
    """Return the journal row of a freeze."""
    about = {"reason": freeze.reason}
    return _row(name, Outcome.FROZEN, reason=reason, actor=freeze.by, now=now, details=about)


def resume_row(name: str, *, by: str, now: int, reason: FreezeReason = FreezeReason.BY_PERSON) -> Entry:
    """Return the journal row of a domain that goes on."""
    return _row(name, Outcome.RESUMED, reason=reason, actor=by, now=now, details=None)


def _row(
    name: str, outcome: Outcome, *, reason: FreezeReason, actor: str, now: int, details: dict[str, str] | None
) -> Entry:
    return Entry(
        time_ns=now,
        domain=name,
        address="",
        uid="",
        version="",
        verdict="unknown" if outcome is Outcome.FROZEN else "keep",
        reason=reason,
        anchor_ns=None,
        policy="",
        actor=actor,
        outcome=outcome,
        details=details,
    )
