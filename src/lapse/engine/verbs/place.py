"""A place: where the verbs of people work, and who asks: a running process, a state folder or a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration
from lapse.engine.executor import Executor
from lapse.engine.plans.approvals import ByPlan
from lapse.engine.registry import no_such_domain
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.freeze import ALL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lapse.core.believed_clock import BelievedClock
    from lapse.engine.domain import ManagedDomain
    from lapse.engine.journal.port import Journal
    from lapse.engine.plans.approvals import Approvals
    from lapse.engine.registry import Registry
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyApprovals
    from lapse.engine.safety.freeze import GateStore
    from lapse.engine.safety.gate import Gate
    from lapse.engine.trash import TrashBin
    from lapse.engine.verbs.contract import LoopView, SignalView

    Opening = Callable[[], Awaitable[ManagedDomain[Any]]]

_NO_BUDGETS: Final = Budgets()
_NOTHING_BY_PLAN: Final = ByPlan(())
_EXTEND_MAX: Final = Duration.parse("30d")
_PLAN_TTL: Final = Duration.parse("24h")


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or program that asks."""

    name: str
    """As the journal names it."""
    person: str | None = None
    """What tells persons apart; None where two persons would look the same."""

    @property
    def identity(self) -> str:
        """The person, as far as one is known."""
        return self.person or self.name


class ProcessFacts(NamedTuple):
    """What a running process tells of itself."""

    is_leader: bool
    started: UnixNs
    loops: Sequence[LoopView]
    signals: Sequence[SignalView]


class Ahead(NamedTuple):
    """What lapses next in a domain, and how much is over; None where nobody can tell."""

    first: UnixNs | None
    address: str | None
    due: int | None
    held: int | None


class Look(NamedTuple):
    """A look at what is ahead in a domain, and when that was."""

    at: UnixNs
    found: Ahead


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the verbs work: the stores of a running process, of a state folder or of a cluster."""

    name: str
    """For messages."""
    id: str
    """Of its record: a plan is about one place."""
    clock: BelievedClock
    registry: Registry
    domains: Mapping[str, ManagedDomain[Any]]
    """By the names of their registrations; what is left out is not served there."""
    opened: Mapping[str, Opening] = field(default_factory=dict)
    """Domains that are opened when something of them is asked for first, and closed by who made the place."""
    journal: Journal
    gate: Gate
    freezes: GateStore
    metrics: Metrics
    is_cluster: bool = False
    version: str = ""
    """Of Lapse."""
    secret: bytes | None = None
    """Signs plans; None where there is no place for a secret."""
    budgets: Budgets = _NO_BUDGETS
    open_trash: Callable[[], Awaitable[TrashBin]] | None = None
    """Opens what lapsed and can be brought back, when it is asked for; None where nothing is kept."""
    approvals: Approvals | None = None
    """Which plans are approved; None where there is no place to keep that."""
    by_plan: ByPlan = _NOTHING_BY_PLAN
    policies: PolicyApprovals | None = None
    """Policies that wait to be looked at."""
    frozen_in: str = ""
    """Where it is written what is frozen, for messages; the place itself unless another one is named."""
    process: Callable[[], ProcessFacts] | None = None
    """What runs; None where only the stores are read."""
    extend_max: Duration = _EXTEND_MAX
    plan_ttl: Duration = _PLAN_TTL
    looks: dict[str, Look] = field(default_factory=dict)
    """The last look of the status at each domain."""

    @property
    def names(self) -> list[str]:
        """The domains that are served here."""
        return [*self.domains, *self.opened]

    async def domain(self, name: str) -> ManagedDomain[Any]:
        """Return a domain; raises `NoSuchDomainError`, and what opening it raises."""
        found = self.domains.get(name)
        if found is not None:
            return found
        if name not in self.opened:
            raise no_such_domain(name, self.names)
        return await self.opened[name]()

    @property
    def freezable(self) -> tuple[str, ...]:
        """What can be frozen here, `ALL` included."""
        return (*self.registry.freezable(cluster=self.is_cluster), ALL)

    @property
    def now(self) -> UnixNs:
        """The time, as it is believed here."""
        return UnixNs(self.clock.wall_ns())

    def executor(self, domain: ManagedDomain[Any], caller: Caller) -> Executor:
        """Return what ends things of a domain on behalf of ``caller``, with everything that stops it."""
        return Executor(
            domain.target,
            self.journal,
            clock=self.clock,
            metrics=self.metrics,
            actor=caller.name,
            gate=self.gate,
        )
