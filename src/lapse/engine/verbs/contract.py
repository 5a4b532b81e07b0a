"""The verbs of people: what each is asked with and what it answers, the same in a process, over HTTP and on a cluster.

`Verbs` is the contract. `lapse.engine.service.LocalService` carries it out where the stores are, `lapse.client` asks a
running Lapse for it. Everything that is asked is checked before anything is touched; a verb that makes no sense for a
domain is an `UnsupportedVerbError` that says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol

from msgspec import Meta, Struct

from lapse.engine.explanation import HoldFacts
from lapse.engine.plans.plan import Plan, PlanItem
from lapse.engine.safety.blast_radius import WaitingPolicy
from lapse.engine.trash import TrashEntry
from lapse.engine.view import FreezeView, Moment, ViewPage

if TYPE_CHECKING:
    from lapse.engine.explanation import Explanation
    from lapse.engine.journal.view import JournalRowView

SEARCH_LENGTH: Final = 200
"""How many characters a text may have that is searched for in addresses."""


class VerbRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a verb is asked with: a field that is misspelt is an error, not left out."""


class PlanRequest(VerbRequest, frozen=True, kw_only=True, rename={"domains": "domain"}):
    """What will lapse."""

    within: Annotated[str, Meta(description="How far to look, as a duration")] = "24h"
    domains: Annotated[list[str], Meta(description="Only of these; empty: of all")] = []
    policy: Annotated[str | None, Meta(description="Only what this policy would end, by its name or hash")] = None


class ForecastRequest(VerbRequest, frozen=True, kw_only=True, rename={"domains": "domain"}):
    """How much lapses when, and what comes next."""

    within: Annotated[str, Meta(description="How far to look, as a duration")] = "24h"
    domains: Annotated[list[str], Meta(description="Only of these; empty: of all")] = []
    steps: Annotated[int, Meta(ge=1, le=366, description="Parts of the window that are counted apart")] = 48
    limit: Annotated[int, Meta(ge=0, le=1000, description="How many of the nearest things to tell")] = 50
    after: Annotated[str | None, Meta(description="The next of the page before")] = None


class BudgetRate(Struct, frozen=True):
    """What a deletion budget allows: at most so many in so long."""

    limit: int
    seconds: float


class DomainForecast(Struct, frozen=True, kw_only=True):
    """How many things of one domain lapse when."""

    name: str
    overdue: Annotated[int, Meta(description="Of what is not held, how much is over now")]
    held: Annotated[int, Meta(description="How much is over by the end of the window, or now, and held")]
    counts: Annotated[
        list[int],
        Meta(description="In each step, of what is neither held nor overdue; empty where nobody can tell"),
    ]
    budget: Annotated[BudgetRate | None, Meta(description="Of the domain; null: no limit of its own")]
    problem: Annotated[str | None, Meta(description="Why nothing is told of it, or only a part")] = None


class Forecast(Struct, frozen=True, kw_only=True):
    """How much lapses when, by domain, and the nearest things.

    A step begins with the instant in which the one before ends; what is over at that instant is in the later one.
    """

    now: Moment
    until: Moment
    step_seconds: float
    domains: list[DomainForecast]
    budget: Annotated[BudgetRate | None, Meta(description="Of everything together; null: no limit")]
    items: Annotated[
        list[PlanItem], Meta(description="Nearest first, held ones among them; things whose names are secrets are not")
    ]
    next: str | None
    problems: Annotated[dict[str, str], Meta(description="What could not be read, and why")]


class ApplyRequest(VerbRequest, frozen=True, kw_only=True):
    """Carry out a plan, and nothing else."""

    plan: Plan
    only: Annotated[list[str] | None, Meta(description="Of its items only these addresses; null: all")] = None


class AppliedItem(Struct, frozen=True, kw_only=True):
    """What came of one item of a plan."""

    address: str
    domain: str
    outcome: Annotated[
        str,
        Meta(description="ended, gone, drifted, not_due, held, refused, waits_for_approval, would_end or failed"),
    ]
    because: str | None = None
    due_at: Moment | None = None


class AppliedPlan(Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    plan: str
    items: list[AppliedItem]
    ended: int
    left: Annotated[int, Meta(description="Items that are not ended; gone ones are not among them")]


class ApproveRequest(VerbRequest, frozen=True, kw_only=True):
    """Allow a plan to be carried out."""

    plan: Plan


class Approval(Struct, frozen=True, kw_only=True):
    """That a plan may be carried out, and who said so."""

    plan: str
    digest: str
    by: str
    at: Moment
    expires_at: Moment


class ProposeRequest(VerbRequest, frozen=True, kw_only=True):
    """Keep a plan for others to find."""

    plan: Plan


class PlansRequest(VerbRequest, frozen=True, kw_only=True):
    """Plans that are kept."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str | None, Meta(description="The next of the page before")] = None


class ProposedRequest(VerbRequest, frozen=True, kw_only=True):
    """A plan that is kept."""

    id: str


class ProposedPlan(Struct, frozen=True, kw_only=True):
    """A plan that is kept for others to find, approve and carry out, without what is in it."""

    id: str
    author: str
    created_at: Moment
    expires_at: Annotated[Moment, Meta(description="Until when it is kept")]
    until: Annotated[Moment, Meta(description="What is over by then is in it")]
    domains: list[str]
    items: int
    due: Annotated[int, Meta(description="How many were due when it was made")]
    approved_by: str | None
    approved_at: Moment | None
    applied_by: Annotated[str | None, Meta(description="Who carried it out last; null where nobody has")]
    applied_at: Moment | None
    ended: Annotated[int | None, Meta(description="How many were ended, each time together")]
    left: Annotated[int | None, Meta(description="How many were not ended, the last time")]


OnlyThis = Annotated[
    str | None,
    Meta(description="Only the one with this uid, as why shows it; null: whichever has the address now"),
]
"""Of what is to be changed: an address may be another thing's by now."""


class WhyRequest(VerbRequest, frozen=True, kw_only=True):
    """Why a thing is kept or lapses."""

    address: str
    at: Annotated[str | None, Meta(description="The time to answer for: a duration from now, or a time")] = None
    uid: Annotated[
        str | None, Meta(description="Of several of one address the one with this uid, there or gone; null: the latest")
    ] = None


class HoldRequest(VerbRequest, frozen=True, kw_only=True):
    """Keep a thing from lapsing."""

    address: str
    reason: Annotated[str, Meta(description="For others to read")]
    until: Annotated[str, Meta(description="A duration from now, or a time; never has no end")] = "never"
    legal: Annotated[bool, Meta(description="Released only by another person; it has no end")] = False
    replace: Annotated[bool, Meta(description="Whether it may take the place of a stronger one")] = False
    uid: OnlyThis = None


class ReleaseRequest(VerbRequest, frozen=True, kw_only=True):
    """End a hold."""

    address: str
    legal: Annotated[bool, Meta(description="Whether a legal hold is meant")] = False
    uid: OnlyThis = None
    hash: Annotated[
        str | None, Meta(description="Only the hold with this hash, as why shows it; null: whichever is there now")
    ] = None


class SteeredView(Struct, frozen=True, kw_only=True):
    """A thing, after a person has held, released, extended, deleted or brought it back."""

    address: str
    domain: str
    uid: str
    hold: HoldFacts | None = None
    deadline: Moment | None = None
    extended_until: Moment | None = None
    changed: Annotated[bool, Meta(description="Whether it was any different before")] = True
    says: Annotated[str | None, Meta(description="What else is to be known")] = None


class ExtendRequest(VerbRequest, frozen=True, kw_only=True):
    """Give a thing more time."""

    address: str
    time: Annotated[str, Meta(description="A duration that is added to its deadline, or the new deadline as a time")]
    uid: OnlyThis = None


class DeleteRequest(VerbRequest, frozen=True, kw_only=True):
    """End a thing now, because a person says so."""

    address: str
    uid: OnlyThis = None


class FreezeRequest(VerbRequest, frozen=True, kw_only=True):
    """Let Lapse end nothing of a domain by itself until it is resumed."""

    domain: Annotated[str, Meta(description="A domain, or all")]
    reason: str = ""


class ResumeRequest(VerbRequest, frozen=True, kw_only=True):
    """Let a domain go on, or a policy that waits."""

    domain: Annotated[str | None, Meta(description="A domain, or all")] = None
    policy: Annotated[str | None, Meta(description="The name of a policy that waits to be looked at")] = None
    hash: Annotated[
        str | None, Meta(description="Only the policy with this hash, as status shows it; null: as it waits now")
    ] = None


class FrozenView(Struct, frozen=True, kw_only=True):
    """Whether a domain stands still."""

    domain: str
    frozen: FreezeView | None
    resumed: list[str] = []
    place: str = ""


class JournalRequest(VerbRequest, frozen=True, kw_only=True):
    """Rows of the journal: newest first, or those after a place in the order of their writing."""

    since: Annotated[str | None, Meta(description="A duration back from now, or a time")] = None
    until: Annotated[str | None, Meta(description="A duration back from now, or a time")] = None
    domain: str | None = None
    address: str | None = None
    search: Annotated[
        str | None,
        Meta(
            description="A part of the address, not a pattern; case counts",
            examples=["/shop/"],
            extra_json_schema={"minLength": 1, "maxLength": SEARCH_LENGTH},
        ),
    ] = None
    actor: str | None = None
    outcome: str | None = None
    policy: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: Annotated[str | None, Meta(description="The next of the page before")] = None
    after: Annotated[str | None, Meta(description="Rows written after this place, in order; end: from now on")] = None


class LoopView(Struct, frozen=True, kw_only=True):
    """What a loop has done so far."""

    name: str
    domain: Annotated[str | None, Meta(description="Whose work it is; null for a loop of the engine itself")]
    interval_seconds: float
    ticks: int
    errors: int
    last_run_at: Moment | None
    last_success_at: Moment | None
    next_run_at: Moment | None
    lag_seconds: Annotated[
        float | None,
        Meta(description="How long ago its next run was due, also while it takes; null where none is to come"),
    ] = None
    last_error: str | None


class BudgetView(Struct, frozen=True, kw_only=True):
    """The deletion budget that ends first: of a domain, or of everything together."""

    limit: Annotated[str, Meta(description="As it is set, such as 10000/1h; off where neither is")]
    left: Annotated[int | None, Meta(description="How much may still be ended in this window; null: no limit")]


class DomainStatus(Struct, frozen=True, kw_only=True):
    """One domain, as it stands."""

    name: str
    frozen: FreezeView | None
    budget: BudgetView | None
    next_lapse: Annotated[Moment | None, Meta(description="When something is next due, if that is known")] = None
    next_address: str | None = None
    due: Annotated[int | None, Meta(description="How much is over now, held or not; null where nobody counts")] = None
    held: Annotated[int | None, Meta(description="How much of what is over is held")] = None
    act: Annotated[
        str,
        Meta(
            description="auto; plan where ending needs an approved plan; dry for a dry run; first_pass where something"
            " is due that is older than its policy, and is only told of until the first pass of that is over. frozen"
            " and problem win"
        ),
    ] = "auto"
    first_pass_until: Annotated[
        Moment | None, Meta(description="When that first pass is over; null where none keeps what is due")
    ] = None
    problem: Annotated[
        str | None, Meta(description="Why it cannot be read, so that nothing of it is ended; or which policies wait")
    ] = None


class SignalView(Struct, frozen=True):
    """A source of signals that decisions depend on."""

    source: str
    up: bool


class AppReport(Struct, frozen=True):
    """Stored records of one application, expired ones that are not swept yet included."""

    app: int
    records: int


class KeysReport(Struct, frozen=True):
    """The keys store."""

    backend: str
    apps: int | None = None
    records: int | None = None
    largest: list[AppReport] = []
    problem: Annotated[str | None, Meta(description="Why the records could not be counted")] = None


class StatusView(Struct, frozen=True, kw_only=True):
    """What runs, what stands still, and what lapses next."""

    version: str
    place: str
    now: Moment
    running: Annotated[bool | None, Meta(description="Whether a running Lapse answers; null: its stores were read")]
    leader: Annotated[bool | None, Meta(description="Whether it leads; null where nothing runs")]
    started_at: Moment | None
    loops: list[LoopView]
    domains: list[DomainStatus]
    signals: list[SignalView]
    waiting: list[WaitingPolicy]
    problems: dict[str, str]
    frozen: Annotated[FreezeView | None, Meta(description="What stops everything; null: domains have their own")] = None
    keys: Annotated[
        KeysReport | None, Meta(description="What a running Lapse has stored; null: its stores were read")
    ] = None


class TrashRequest(VerbRequest, frozen=True, kw_only=True):
    """What lapsed and can be brought back."""

    domain: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class UndoRequest(VerbRequest, frozen=True, kw_only=True):
    """Bring back what lapsed: one thing, or everything that a plan ended."""

    address: str | None = None
    plan: Annotated[str | None, Meta(description="The id of a plan")] = None
    uid: Annotated[
        str | None, Meta(description="Of several of one address the one with this uid; null: the latest")
    ] = None


class EmptyTrashRequest(VerbRequest, frozen=True, kw_only=True):
    """Remove what lapsed for good, before its time in the trash is over."""

    address: Annotated[str | None, Meta(description="Only this one; null: everything")] = None
    uid: Annotated[
        str | None, Meta(description="Of several of one address the one with this uid; null: all of them")
    ] = None
    domain: Annotated[str | None, Meta(description="Only of this domain")] = None


class EmptiedTrash(Struct, frozen=True, kw_only=True):
    """What was removed for good, and what was not, with the reasons."""

    items: list[TrashEntry]
    problems: dict[str, str]


class UndoneView(Struct, frozen=True, kw_only=True):
    """What was brought back, and what could not be."""

    items: list[SteeredView]
    problems: dict[str, str]


class Verbs(Protocol):
    """What people can do, whatever the domain; see the module."""

    async def plan(self, asked: PlanRequest) -> Plan:
        """Return what will lapse. Reads, and changes nothing."""
        ...

    async def forecast(self, asked: ForecastRequest) -> Forecast:
        """Return how much lapses when, by domain, and what comes next. Reads, and changes nothing."""
        ...

    async def apply(self, asked: ApplyRequest) -> AppliedPlan:
        """End what is in a plan, due now, and still as it was planned."""
        ...

    async def approve(self, asked: ApproveRequest) -> Approval:
        """Allow a plan to be carried out, as another person than its author."""
        ...

    async def propose(self, asked: ProposeRequest) -> ProposedPlan:
        """Keep a plan until it expires, for others to find, as its author; one that is kept already stays."""
        ...

    async def plans(self, asked: PlansRequest) -> ViewPage[ProposedPlan]:
        """List the plans that are kept, newest first."""
        ...

    async def proposed(self, asked: ProposedRequest) -> Plan:
        """Return a plan that is kept, as it was made; raises `NotProposedError` where there is none."""
        ...

    async def why(self, asked: WhyRequest) -> Explanation:
        """Explain a thing, also one that is gone, as far as the journal tells."""
        ...

    async def hold(self, asked: HoldRequest) -> SteeredView:
        """Keep a thing from lapsing."""
        ...

    async def release(self, asked: ReleaseRequest) -> SteeredView:
        """End a hold."""
        ...

    async def extend(self, asked: ExtendRequest) -> SteeredView:
        """Give a thing a later deadline."""
        ...

    async def delete(self, asked: DeleteRequest) -> SteeredView:
        """End a thing now; refused while it is held."""
        ...

    async def undo(self, asked: UndoRequest) -> UndoneView:
        """Bring back what lapsed."""
        ...

    async def trash(self, asked: TrashRequest) -> ViewPage[TrashEntry]:
        """List what can be brought back."""
        ...

    async def empty_trash(self, asked: EmptyTrashRequest) -> EmptiedTrash:
        """Remove it for good; raises `NotInTrashError` where one is named that is not there."""
        ...

    async def freeze(self, asked: FreezeRequest) -> FrozenView:
        """Let Lapse end nothing of a domain by itself until it is resumed."""
        ...

    async def resume(self, asked: ResumeRequest) -> FrozenView:
        """Let it go on."""
        ...

    async def journal(self, asked: JournalRequest) -> ViewPage[JournalRowView]:
        """Return what happened."""
        ...

    async def status(self) -> StatusView:
        """Return what runs, what stands still and what lapses next."""
        ...
