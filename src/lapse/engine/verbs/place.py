"""A place: where the verbs of people work, and who asks: a running process, a state folder or a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration
from lapse.core.errors import UsageError
from lapse.core.timestamps import to_timestamp
from lapse.engine.executor import Executor
from lapse.engine.plans.approvals import ByPlan
from lapse.engine.registry import DomainVerb, no_such_domain
from lapse.engine.safety.blast_radius import PolicyFacts
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.freeze import ALL, GateState
from lapse.files.ownership import user_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from lapse.core.believed_clock import BelievedClock
    from lapse.engine.domain import ManagedDomain
    from lapse.engine.journal.port import Journal
    from lapse.engine.plans.approvals import Approvals
    from lapse.engine.plans.proposed import ProposedPlans
    from lapse.engine.registry import Registry
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyApprovals
    from lapse.engine.safety.freeze import GateStore
    from lapse.engine.safety.gate import Gate
    from lapse.engine.trash import TrashBin
    from lapse.engine.verbs.contract import LoopView, SignalView

    Opening = Callable[[], Awaitable[ManagedDomain[Any]]]

_ADVICE: Final = (
    "Make a token for another one, with lapse tokens create --name NAME --scope {}, for work with --server on lapse up;"
    " or work on a cluster, where users have names"
)
_NO_BUDGETS: Final = Budgets()
_NOTHING_BY_PLAN: Final = ByPlan(())
_NOTHING_FROZEN: Final = GateState()
_EXTEND_MAX: Final = Duration.parse("30d")
_PLAN_TTL: Final = Duration.parse("24h")


def waits_for_policy(policy: str) -> str:
    """Say what something waits for that is due by a policy which is to end nothing."""
    return f"the end of a dry run: the policy {policy} says dryRun"


def _nobody_knows(_scope: str, _domain: str | None) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Caller:
    """The person or program that asks."""

    name: str
    """Who that is, in the one form that journal, holds, plans and approvals have: ``user NAME``, ``token NAME``, or on
    a cluster the name of the user there."""
    is_person: bool = True
    """Whether the name tells persons apart; False where two persons would look the same."""

    @classmethod
    def user(cls) -> Caller:
        """Return the user of this process; some containers have one without a name, who may be anybody."""
        name = user_name()
        return cls("user without a name", is_person=False) if name is None else cls(f"user {name}")

    @classmethod
    def token(cls, name: str) -> Caller:
        """Return the person who has the tokens of a name."""
        return cls(f"token {name}")

    @property
    def person(self) -> str | None:
        """The name, where it tells persons apart."""
        return self.name if self.is_person else None


class NamelessPersonError(UsageError):
    """{what} takes two persons, and {caller} names none. Expected a token with a name, or a user with a name."""


class NoSecondPersonError(UsageError):
    """{what} takes two persons, and in {place} there is nobody but {person}. {advice}."""


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
    first_pass: UnixNs | None = None
    """Until when a first pass keeps something that is due."""


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
    plans: ProposedPlans | None = None
    """Plans that are kept for others to find; None where there is no place for them."""
    by_plan: ByPlan = _NOTHING_BY_PLAN
    dry: Collection[str] = ()
    """Domains of which nothing is ended: it is only told what would be."""
    policies: PolicyApprovals | None = None
    """What keeps policies from acting: those that wait to be looked at, and first passes."""
    frozen_in: str = ""
    """Where it is written what is frozen, for messages; the place itself unless another one is named."""
    process: Callable[[], ProcessFacts] | None = None
    """What runs; None where only the stores are read."""
    extend_max: Duration = _EXTEND_MAX
    plan_ttl: Duration = _PLAN_TTL
    looks: dict[str, Look] = field(default_factory=dict)
    """The last look of the status at each domain."""
    looking: dict[str, asyncio.Task[Ahead]] = field(default_factory=dict)
    """Looks that are under way."""

    persons: Callable[[str, str | None], AbstractSet[str] | None] = _nobody_knows
    """Returns who may do here what a scope allows, in a domain or in all; None where nobody can tell."""

    def demand_second_person(self, caller: Caller, what: str, *, scope: str, domain: str | None = None) -> None:
        """Refuse what takes two persons where ``caller`` is none, or nobody else could be the second.

        Raises `NamelessPersonError` and `NoSecondPersonError`.
        """
        if not caller.is_person:
            raise NamelessPersonError(what=what, caller=caller.name)
        known = self.persons(scope, domain)
        if known is not None and not known - {caller.name}:
            raise NoSecondPersonError(what=what, place=self.name, person=caller.name, advice=_ADVICE.format(scope))

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

    async def policy_facts(self) -> PolicyFacts:
        """Return what keeps policies from acting; raises what the stores raise."""
        return PolicyFacts() if self.policies is None else await self.policies.facts()

    def is_dry(self, domain: str) -> bool:
        """Whether nothing of a domain is ended, because of a setting or of a clock that nobody can check."""
        return domain in self.dry or bool(self._clock_dry_ns(domain))

    def waits_for(
        self,
        domain: str,
        policy: str,
        anchor_ns: int | None,
        *,
        facts: PolicyFacts,
        state: GateState = _NOTHING_FROZEN,
    ) -> str | None:
        """Say what must happen before something is ended that is due by a policy; None where nothing must.

        ``anchor_ns`` is what its time counts from.
        """
        if domain in self.dry:
            return f"the end of a dry run: dry_run_domains names {domain}"
        if self.by_plan.covers(domain, policy):
            is_kept = self.plans is not None
            made, named = ("lapse plan --propose", "ID") if is_kept else ("lapse plan --out FILE", "FILE")
            return f"an approved plan: {made}, lapse approve {named} by another person, lapse apply {named}"
        if facts.is_waiting(domain, policy):
            return f"the policy {policy}, which is new or changed, to be approved: lapse resume --policy {policy}"
        if state.freeze_of(domain) is not None:
            return f"{domain}, which is frozen: lapse resume {ALL if ALL in state.frozen else domain}"
        return self._waits_for_time(domain, facts.first_pass_ends(domain, policy, anchor_ns))

    def _waits_for_time(self, domain: str, first_pass: UnixNs | None) -> str | None:
        """Say which end of a dry time something waits for; None where there is none."""
        dry_ns = self._clock_dry_ns(domain)
        if dry_ns:
            ends = to_timestamp(self.now + dry_ns)
            return f"the end of a dry run at {ends}: nobody knows for how long the machine was off"
        if first_pass is not None:
            ends = to_timestamp(first_pass)
            return f"the end of the first pass at {ends}: until then only what would end is told; lapse apply ends it"
        return None

    def _clock_dry_ns(self, domain: str) -> int:
        """Return for how long the clock lets nothing of a domain be ended, and what would be is told."""
        return self.clock.dry_ns() if self.registry.get(domain).supports(DomainVerb.FREEZE) else 0

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
