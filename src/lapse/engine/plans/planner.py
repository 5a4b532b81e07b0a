"""The planner: makes plans and forecasts of what will lapse, and carries plans out.

A plan is made from what domains expect until a moment, each candidate decided at that moment. Carrying it out reads
each item fresh, compares its fingerprint, reads again what an act does not compare, decides at the present moment, and
hands what is due to the executor. Only items of the plan are touched, and of them only what is as it was planned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Keep, Unknown
from lapse.core.duration import Duration
from lapse.core.errors import LapseError, UsageError
from lapse.engine.domain import CountedDomain, StoredPolicies, action_of, decided
from lapse.engine.explanation import HoldFacts, words
from lapse.engine.journal.port import Outcome
from lapse.engine.plans.forecast import ForecastPlace, Foreseen, Nearest, StepCounts, Window
from lapse.engine.plans.plan import (
    FORM,
    Plan,
    PlanCount,
    PlanExpiredError,
    PlanItem,
    PlanOfTheFutureError,
    PlanStep,
    demand_genuine,
    differences,
    fingerprint,
    sealed,
)
from lapse.engine.registry import DomainVerb, no_such_domain
from lapse.engine.safety.blast_radius import PolicyFacts
from lapse.engine.safety.freeze import GateState
from lapse.engine.safety.holds import HoldDoubt
from lapse.engine.verbs.contract import (
    AppliedItem,
    AppliedPlan,
    ApplyRequest,
    BudgetRate,
    DomainForecast,
    Forecast,
    ForecastRequest,
    PlanRequest,
)
from lapse.engine.verbs.place import Ahead, Look, waits_for_policy
from lapse.engine.view import Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.engine.domain import Action, Candidate, ManagedDomain, Result
    from lapse.engine.safety.budget import Budget
    from lapse.engine.safety.holds import Hold
    from lapse.engine.verbs.place import Caller, Place

_PAGE: Final = 128
_AHEAD_NS: Final = 7 * 86_400 * 1_000_000_000
_MOST_AHEAD: Final = 1_000
_LOOK_NS: Final = 60 * 1_000_000_000
"""How long the status tells what a look at everything has found."""
_CLOCK_SLACK_NS: Final = 300 * 1_000_000_000
"""How far clocks of two machines may differ without a plan of the one being of the future for the other."""
_LOOK_PATIENCE_SECONDS: Final = 0.3
_NOT_KNOWN_YET: Final = Ahead(None, None, None, None)
_SECOND: Final = 1_000_000_000
_NOTHING_AHEAD: Final = (UnixNs(2**63 - 1), "")
_OVER: Final = frozenset({Outcome.ENDED.value, Outcome.GONE.value})
DRIFTED: Final = "drifted"
NOT_DUE: Final = "not_due"
WAITS: Final = "waits_for_approval"


class OtherPlaceError(UsageError):
    """The plan {plan} is about another place than {ours}. Name the place where it was made."""


class NoSuchPolicyError(UsageError):
    """There is no policy {given!r}. Known: {known}."""


class NotInPlanError(UsageError):
    """{address} is not in the plan {plan}, so nothing was done. Expected addresses of items of the plan."""


class NotCountedError(UsageError):
    """Nobody can tell here how many {domain} lapse: their store counts them not, and their names are secrets."""


class EndlessPlanError(UsageError):
    """A plan cannot reach for ever. Expected a duration such as 24h or 7d."""


class PlanOfThePastError(UsageError):
    """A plan cannot reach into the past, as {given} would. Expected a duration such as 0s, 24h or 7d."""


class Planner:
    """See the module."""

    def __init__(self, place: Place, caller: Caller) -> None:
        """Plan what is at ``place``, on behalf of ``caller``."""
        self._place, self._caller = place, caller

    # --- making a plan ------------------------------------------------------------------------------------------------

    async def plan(self, asked: PlanRequest) -> Plan:
        """See `Verbs`. A domain that cannot be read is named, and does not keep the others out."""
        place, now = self._place, self._place.now
        until = whole_second(now + _length(asked.within))
        names = self._domains(asked.domains)
        items: list[PlanItem] = []
        counts: list[PlanCount] = []
        problems: dict[str, str] = {}
        for name in names:
            try:
                domain = await place.domain(name)
                items += await self._expected(domain, now, until)
                if isinstance(domain, CountedDomain) and asked.policy is None:  # what is counted has no policy
                    counts += await _counted(domain, until, is_asked=name in asked.domains)
            except NotCountedError:
                raise
            except LapseError as error:
                problems[name] = str(error)
        items = await self._with_waits(items, problems)
        if asked.policy is not None:
            items = [one for one in items if one.is_by(asked.policy)]
            if not items and not problems:  # otherwise it may be one of what could not be read
                await self._demand_policy(asked.policy, names)
        plan = Plan(
            form=FORM,
            id="",
            place=place.id,
            author=self._caller.name,
            created_at=Moment(now),
            expires_at=Moment(now + (place.plan_ttl.nanoseconds or 0)),
            until=Moment(until),
            domains=names,
            items=sorted(items, key=lambda one: (one.due_at, one.address)),
            counts=counts,
            problems=problems,
        )
        return sealed(plan, place.secret)

    async def _with_waits(self, items: Sequence[PlanItem], problems: dict[str, str]) -> list[PlanItem]:
        """Say of what is due what it waits for; where that cannot be read, that is a problem."""
        place, ready = self._place, [one for one in items if one.due and one.hold is None]
        facts, state = PolicyFacts(), GateState()
        try:
            facts = await place.policy_facts() if ready else facts
        except LapseError as error:
            problems["policies"] = str(error)
        try:
            state = await place.freezes.load(place.now) if ready else state
        except LapseError as error:
            problems["freezes"] = str(error)
        found = {
            one.uid: one.waits_for or place.waits_for(one.domain, one.policy_name, one.anchor, facts=facts, state=state)
            for one in ready
        }
        return [replace(one, waits_for=found.get(one.uid)) for one in items]

    async def _demand_policy(self, policy: str, domains: Sequence[str]) -> None:
        """Raise `NoSuchPolicyError` unless one of the domains has the policy."""
        known: list[str] = []
        for name in domains:
            domain = await self._place.domain(name)
            found = domain.policies()
            if isinstance(domain, StoredPolicies):
                known += [f"{name}/{one}" for one in await domain.policy_names()]
            else:
                known += [f"{name}/{one}" for one in ((name,) if found is None else found)]
            if policy in (found or {}).values():
                return
        if policy not in known and policy not in {one.partition("/")[2] for one in known}:
            raise NoSuchPolicyError(given=policy, known=", ".join(known) or "none")

    def _domains(self, asked: Sequence[str]) -> list[str]:
        for name in asked:
            if name not in self._place.names:
                raise no_such_domain(name, self._place.names)
        return [name for name in self._place.names if not asked or name in asked]

    async def _expected(self, domain: ManagedDomain[Any], now: UnixNs, until: UnixNs) -> list[PlanItem]:
        found: list[PlanItem] = []
        pages = domain.upcoming(until, size=_PAGE)
        try:
            async for page in pages:
                items = await self._items(domain, page, now=now, until=until)
                found += await self._looked_again(domain, page, items, now=now, until=until)
        finally:
            await pages.aclose()
        return found

    async def _items(
        self, domain: ManagedDomain[Any], page: Sequence[Candidate[Any]], *, now: UnixNs, until: UnixNs
    ) -> list[PlanItem]:
        """Return the items of those candidates that are due by ``until``."""
        return [await _item(domain, one, now=now, until=until) for one in await _lapsing(domain, page, now, until)]

    async def _looked_again(
        self,
        domain: ManagedDomain[Any],
        page: Sequence[Candidate[Any]],
        items: Sequence[PlanItem],
        *,
        now: UnixNs,
        until: UnixNs,
    ) -> list[PlanItem]:
        """Read fresh what the act on what is due now does not compare, as a sweep would, and say what came of it."""
        seen = {one.uid: one for one in page}
        due = [seen[one.uid] for one in items if one.due]
        fresh = await domain.refresh(due) if due else ()
        again = {old.uid: new for old, new in zip(due, fresh, strict=True)}
        found = [_as_seen_now(domain, one, again[one.uid], now=now) if one.uid in again else one for one in items]
        return [one for one in found if one is not None and (one.due or one.doubt or one.due_at < until)]

    # --- the forecast -------------------------------------------------------------------------------------------------

    async def forecast(self, asked: ForecastRequest) -> Forecast:
        """See `Verbs`. A domain that cannot be read is named, and does not keep the others out.

        What is counted is decided as it was last seen; only the things that are told are read fresh, as for a plan.
        """
        place, now = self._place, self._place.now
        window = Window(now, whole_second(now + _length(asked.within)), asked.steps)
        nearest = Nearest(asked.limit, None if asked.after is None else ForecastPlace.parse(asked.after))
        problems: dict[str, str] = {}
        domains: list[DomainForecast] = []
        for name in self._domains(asked.domains):
            try:
                domains.append(await self._counts(name, window, nearest))
            except LapseError as error:
                problems[name] = str(error)
                domains.append(self._unknown(name, str(error)))
        first, behind = nearest.page()
        items = await self._told(first, window, problems)
        return Forecast(
            now=Moment(now),
            until=Moment(window.until),
            step_seconds=window.step_seconds,
            domains=[replace(one, problem=one.problem or problems.get(one.name)) for one in domains],
            budget=_rate(place.budgets.total),
            items=sorted(items, key=lambda one: (one.due_at, one.address)),
            next=None if behind is None else str(behind),
            problems=problems,
        )

    async def _counts(self, name: str, window: Window, nearest: Nearest) -> DomainForecast:
        """Count a domain, and add what of it is nearest; nothing of one that cannot be read to its end."""
        domain = await self._place.domain(name)
        if isinstance(domain, CountedDomain):
            told = await domain.counts_between(window.edges(), window.until)
            known = self._unknown(name, None if told is not None else str(NotCountedError(domain=name)))
            return replace(known, counts=told or [])
        counts, own = StepCounts(window), nearest.beside()
        pages = domain.upcoming(window.until, size=_PAGE)
        try:
            async for page in pages:
                for one in await _lapsing(domain, page, window.now, window.until):
                    counts.add(one)
                    own.add(name, one)
                await self._place.clock.sleep(0)  # pages of an embedded store wait for nothing: others have their turn
        finally:
            await pages.aclose()
        nearest.merge(own)
        return replace(self._unknown(name, None), overdue=counts.overdue, held=counts.held, counts=counts.counts)

    def _unknown(self, name: str, problem: str | None) -> DomainForecast:
        has_budget = self._place.registry.get(name).supports(DomainVerb.FREEZE)
        budget = _rate(self._place.budgets.of(name)) if has_budget else None
        return DomainForecast(name=name, overdue=0, held=0, counts=[], budget=budget, problem=problem)

    async def _told(
        self, first: Sequence[tuple[ForecastPlace, Foreseen]], window: Window, problems: dict[str, str]
    ) -> list[PlanItem]:
        """Return what is told of the nearest things."""
        now, until = window.now, window.until
        items: list[PlanItem] = []
        for name in dict.fromkeys(place.domain for place, _ in first):
            found = [one for place, one in first if place.domain == name]
            try:
                domain = await self._place.domain(name)
                told = [await _item(domain, one, now=now, until=until) for one in found]
                page = [one.candidate for one in found]
                items += await self._looked_again(domain, page, told, now=now, until=until)
            except LapseError as error:
                problems[name] = str(error)
        return await self._with_waits(items, problems)

    async def refresh_forecast(self, shown: Forecast) -> Forecast:
        """Return a forecast with its things as they are now; those that do not lapse in its window are left out.

        What was counted stays, and so does the choice of the nearest things. Those of a domain that cannot be read stay
        as they were: the next forecast says why.
        """
        items: list[PlanItem] = []
        for name in dict.fromkeys(one.domain for one in shown.items):
            known = [one for one in shown.items if one.domain == name]
            try:
                items += await self._found_again(name, known, UnixNs(shown.until))
            except LapseError:
                items += known
        problems = dict(shown.problems)
        items = await self._with_waits(items, problems)
        return replace(shown, items=sorted(items, key=lambda one: (one.due_at, one.address)), problems=problems)

    async def _found_again(self, name: str, known: Sequence[PlanItem], until: UnixNs) -> list[PlanItem]:
        domain, now = await self._place.domain(name), self._place.now
        found = await domain.find_all([self._place.registry.parse(one.address) for one in known])
        page = [one for item, one in zip(known, found, strict=True) if one is not None and one.uid == item.uid]
        items = await self._items(domain, page, now=now, until=until)
        return await self._looked_again(domain, page, items, now=now, until=until)

    # --- the status ---------------------------------------------------------------------------------------------------

    async def ahead(self, name: str) -> Ahead:
        """Return what lapses next in a domain, and how much is over.

        Where there is no index by deadline that costs a look at everything, so what was found is told for a while. A
        running process waits for such a look only a moment: then what was found before is told, or that nobody knows
        yet, and the look goes on.
        """
        place, domain, now = self._place, await self._place.domain(name), self._place.now
        known = place.looks.get(name)
        if known is not None and not domain.is_indexed and known.at <= now < known.at + _LOOK_NS:
            return known.found
        if domain.is_indexed or place.process is None:
            return await self._look(domain, name, now)
        looking = place.looking.get(name) or self._begin_look(domain, name, now)
        done, _ = await asyncio.wait({looking}, timeout=_LOOK_PATIENCE_SECONDS)
        if done:
            return await looking
        return _NOT_KNOWN_YET if known is None else known.found

    def _begin_look(self, domain: ManagedDomain[Any], name: str, now: UnixNs) -> asyncio.Task[Ahead]:
        looking = self._place.looking
        task = looking[name] = asyncio.create_task(self._look(domain, name, now), name=f"lapse-look-{name}")

        def end(done: asyncio.Task[Ahead]) -> None:
            del looking[name]
            if not done.cancelled():
                done.exception()  # who asks next looks again, and is told

        task.add_done_callback(end)
        return task

    async def _look(self, domain: ManagedDomain[Any], name: str, now: UnixNs) -> Ahead:
        found = await self._look_ahead(domain, now)
        self._place.looks[name] = Look(now, found)
        return found

    async def _look_ahead(self, domain: ManagedDomain[Any], now: UnixNs) -> Ahead:
        if isinstance(domain, CountedDomain):
            told = [one.first for one in await _counted(domain, UnixNs(now + _AHEAD_NS)) if one.first is not None]
            return Ahead(UnixNs(min(told)) if told else None, None, None, None)
        facts: PolicyFacts | None = None
        nearest, due, held, seen, first_passes = _NOTHING_AHEAD, 0, 0, 0, set[UnixNs]()
        pages = domain.upcoming(UnixNs(now + _AHEAD_NS), size=_PAGE)
        try:
            async for page in pages:
                over, ahead = _sorted_out(domain, page, now, before=nearest[0])
                holds = await holds_of(domain, [*over, *(action for _, action in ahead)], now)
                due, held = due + len(over), held + sum(one is not None for one in holds[: len(over)])
                if over and facts is None:
                    facts = await self._known_facts()
                first_passes |= {ends for one in over if facts and (ends := _first_pass_ends(facts, one)) is not None}
                free = [one for one, hold in zip(ahead, holds[len(over) :], strict=True) if hold is None]
                nearest = min([nearest, *((deadline, str(action.address)) for deadline, action in free)])
                seen += len(page)
                if domain.is_indexed and seen >= _MOST_AHEAD:
                    break
        finally:
            await pages.aclose()
        first, address = (None, None) if nearest is _NOTHING_AHEAD else nearest
        return Ahead(first, address, due, held, max(first_passes, default=None))

    async def _known_facts(self) -> PolicyFacts:
        """Return what keeps policies from acting; nothing where they cannot be read, as the status tells."""
        try:
            return await self._place.policy_facts()
        except LapseError:
            return PolicyFacts()

    # --- carrying it out ----------------------------------------------------------------------------------------------

    async def apply(self, asked: ApplyRequest) -> AppliedPlan:
        """See `Verbs`."""
        plan = asked.plan
        self.demand_usable(plan)
        wanted = None if asked.only is None else {str(self._place.registry.parse(one)) for one in asked.only}
        strange = (wanted or set()) - {one.address for one in plan.items}
        if strange:
            raise NotInPlanError(address=min(strange), plan=plan.id)
        items = [one for one in plan.items if wanted is None or one.address in wanted]
        done: list[AppliedItem] = []
        for name in dict.fromkeys(one.domain for one in items):
            of_domain = [one for one in items if one.domain == name]
            for start in range(0, len(of_domain), _PAGE):
                done += await self._apply_page(plan, name, of_domain[start : start + _PAGE])
        ended = sum(one.outcome == Outcome.ENDED for one in done)
        return AppliedPlan(plan=plan.id, items=done, ended=ended, left=sum(one.outcome not in _OVER for one in done))

    def demand_usable(self, plan: Plan) -> None:
        """Raise a `UsageError` unless the plan is of this place, as it was made, not expired, and of things to end."""
        place = self._place
        if plan.place != place.id:
            raise OtherPlaceError(plan=plan.id, ours=place.name)
        demand_genuine(plan, place.secret)
        if plan.created_at > place.now + _CLOCK_SLACK_NS:
            raise PlanOfTheFutureError(plan=plan.id, created=plan.created_at)
        if place.now > plan.expires_at:
            raise PlanExpiredError(plan=plan.id, expires=plan.expires_at)
        place.registry.demand_applicable(plan.domains)

    async def _apply_page(self, plan: Plan, name: str, items: Sequence[PlanItem]) -> list[AppliedItem]:
        try:
            domain = await self._place.domain(name)
        except LapseError as error:
            return [_applied(one, Outcome.FAILED, str(error)) for one in items]
        found = await self._looked_at(domain, plan, items)
        actions = [one for one in found if not isinstance(one, AppliedItem)]
        await domain.look_at_policies(self._place.gate.policies)
        results = iter(await self._place.executor(domain, self._caller).execute(actions) if actions else ())
        return [
            one if isinstance(one, AppliedItem) else _came_of(item, next(results))
            for item, one in zip(items, found, strict=True)
        ]

    async def _looked_at(
        self, domain: ManagedDomain[Any], plan: Plan, items: Sequence[PlanItem]
    ) -> list[Action | AppliedItem]:
        """Return for each item the act on it, or what is told of it instead."""
        try:
            found = await domain.find_all([self._place.registry.parse(one.address) for one in items])
        except LapseError as error:
            return [_applied(one, Outcome.FAILED, str(error)) for one in items]
        pairs = zip(items, found, strict=True)
        return [await self._compared(domain, plan, item, candidate) for item, candidate in pairs]

    async def _compared(
        self, domain: ManagedDomain[Any], plan: Plan, item: PlanItem, candidate: Candidate[Any] | None
    ) -> Action | AppliedItem:
        """Compare one with what was planned; one that fails does not stop the others."""
        if candidate is None:
            return _applied(item, Outcome.GONE)
        try:
            drift = await self._drift(domain, plan, item, candidate)
            return drift or await self._act_on(domain, plan, item, candidate)
        except LapseError as error:
            return _applied(item, Outcome.FAILED, str(error))

    async def _drift(
        self, domain: ManagedDomain[Any], plan: Plan, item: PlanItem, candidate: Candidate[Any]
    ) -> AppliedItem | None:
        """Say how a thing is another one than it was planned; None when it is the same."""
        if candidate.uid != item.uid:
            return _applied(item, DRIFTED, "another thing has its name by now")
        now = await self._items(domain, [candidate], now=self._place.now, until=UnixNs(plan.until))
        if not now:
            return _applied(item, DRIFTED, "it does not lapse within the time of the plan any more")
        if now[0].fingerprint == item.fingerprint:
            return None
        if now[0].hold is not None and item.hold is None:
            return _applied(item, Outcome.HELD, now[0].hold.reason)
        return _applied(item, DRIFTED, f"changed since the plan was made: {', '.join(differences(item, now[0]))}")

    async def _act_on(
        self, domain: ManagedDomain[Any], plan: Plan, item: PlanItem, candidate: Candidate[Any]
    ) -> Action | AppliedItem:
        (fresh,) = await domain.refresh([candidate])
        if fresh is None:
            return _applied(item, Outcome.GONE)
        decision = decided(domain, fresh, self._place.now)
        if not isinstance(decision.verdict, Due):
            return _applied(item, NOT_DUE, words(decision.verdict.reason.value))
        if self._place.by_plan.covers(domain.name, domain.policy_name(fresh)) and not await self._is_approved(plan):
            return _applied(item, WAITS, "it is ended by approved plans only; another person must run lapse approve")
        action = action_of(domain, fresh, decision)
        return replace(action, actor=self._caller.name, details={**(action.details or {}), "plan": plan.id})

    async def _is_approved(self, plan: Plan) -> bool:
        """Whether another person than the one who carries it out, or made it, has approved this very plan."""
        approvals = self._place.approvals
        approval = None if approvals is None else await approvals.find(plan)
        if approval is None or self._place.now > approval.expires_at:
            return False
        # Without a signature nobody knows whether the author is the one that the plan names.
        others = {plan.author} if self._place.secret is not None else {plan.author, self._caller.name}
        return approval.by not in others


async def holds_of(domain: ManagedDomain[Any], actions: Sequence[Action], now: UnixNs) -> list[HoldFacts | None]:
    """Return what holds each thing, wherever it stands; what cannot be read counts, because it keeps."""
    if not actions:
        return []
    found = await domain.target.holds_over(actions, now)
    own = [one.hold if one.hold is not None and one.hold.active(now) else None for one in actions]
    return [hold_facts(mine or other) for mine, other in zip(own, found, strict=True)]


def hold_facts(found: Hold | HoldDoubt | None) -> HoldFacts | None:
    """Return what is told of a hold, None for none."""
    if found is None:
        return None
    if isinstance(found, HoldDoubt):
        return HoldFacts(f"it is not known whether it is held: {found.problem}", None)
    return HoldFacts(found.reason, Moment.of(found.until), found.is_legal, found.by or None, found.hash)


def whole_second(moment: int) -> UnixNs:
    """Return a moment as documents tell it: the next whole second."""
    return UnixNs(-(-moment // _SECOND) * _SECOND)


def _as_seen_now(
    domain: ManagedDomain[Any], item: PlanItem, fresh: Candidate[Any] | None, *, now: UnixNs
) -> PlanItem | None:
    """Return an item that is due as it is after a fresh look; None for one that is gone, or stays for now."""
    if fresh is None:
        return None
    decision = decided(domain, fresh, now)
    match decision.verdict:
        case Due():
            return item
        case Unknown():
            return replace(item, due=False, doubt=domain.explain(fresh, decision, now).because)
        case Keep(next_check=look):
            if look is None:
                return None
            deadline = decision.deadline
            due_at = look if deadline is None or deadline <= now else deadline
            return replace(item, due=False, due_at=Moment(due_at), deadline=Moment.of(deadline))


def _sorted_out(
    domain: ManagedDomain[Any], page: Sequence[Candidate[Any]], now: UnixNs, *, before: UnixNs
) -> tuple[list[Action], list[tuple[UnixNs, Action]]]:
    """Return the acts on what of a page is due, and on what will be by a deadline ``before`` a moment."""
    over: list[Action] = []
    ahead: list[tuple[UnixNs, Action]] = []
    for one in page:
        decision = decided(domain, one, now)
        deadline = decision.deadline
        if isinstance(decision.verdict, Due):
            over.append(action_of(domain, one, decision))
        elif isinstance(decision.verdict, Keep) and deadline is not None and now <= deadline < before:
            then = decided(domain, one, UnixNs(deadline + _SECOND))
            if isinstance(then.verdict, Due):
                ahead.append((deadline, action_of(domain, one, then)))
    return over, ahead


def _first_pass_ends(facts: PolicyFacts, action: Action) -> UnixNs | None:
    """Return until when a first pass keeps what is due; None where none does."""
    return facts.first_pass_ends(action.domain, action.policy_name, action.anchor_ns)


async def _counted(domain: CountedDomain, until: UnixNs, *, is_asked: bool = False) -> list[PlanCount]:
    """Return what a domain tells of its things; nothing where it cannot, unless just that ``is_asked``."""
    found = await domain.counts(until)
    if found is None and is_asked:
        raise NotCountedError(domain=domain.name)
    return found or []


async def _lapsing(
    domain: ManagedDomain[Any], page: Sequence[Candidate[Any]], now: UnixNs, until: UnixNs
) -> list[Foreseen]:
    """Return those candidates that are due by ``until``, each with what holds it."""
    due = [found for one in page if (found := _foreseen(domain, one, now=now, until=until)) is not None]
    holds = await holds_of(domain, [action_of(domain, one.candidate, one.decision) for one in due], now)
    return [one if hold is None else one._replace(hold=hold) for one, hold in zip(due, holds, strict=True)]


def _foreseen(domain: ManagedDomain[Any], candidate: Candidate[Any], *, now: UnixNs, until: UnixNs) -> Foreseen | None:
    """Return what is decided about it now, where it is due by any rule, and otherwise what is decided by ``until``.

    None where it is not due by then.
    """
    decision = decided(domain, candidate, now)
    is_due = isinstance(decision.verdict, Due)
    decision = decision if is_due else decided(domain, candidate, until)
    verdict = decision.verdict
    if not isinstance(verdict, Due):
        return None
    due_at = UnixNs(verdict.since if decision.deadline is None else decision.deadline)
    return Foreseen(candidate, decision, is_due, due_at)


async def _item(domain: ManagedDomain[Any], one: Foreseen, *, now: UnixNs, until: UnixNs) -> PlanItem:
    candidate, decision, due_at, hold = one.candidate, one.decision, one.due_at, one.hold
    verdict, policy = decision.verdict, domain.policy(candidate)
    assert isinstance(verdict, Due)  # noqa: S101 - nothing else is foreseen
    along = sorted(await domain.takes_along(candidate))
    later = [step for step in await domain.leads_to(candidate, max(due_at, now)) if step.at <= until]
    return PlanItem(
        domain=domain.name,
        address=str(candidate.address),
        uid=candidate.uid,
        action=verdict.action,
        due=one.due,
        due_at=Moment(due_at),
        reason=verdict.reason.value,
        anchor=Moment.of(decision.anchor),
        deadline=Moment.of(decision.deadline),
        policy=policy,
        policy_name=domain.policy_name(candidate),
        hold=hold,
        waits_for=waits_for_policy(domain.policy_name(candidate)) if candidate.dry_run and one.due else None,
        takes_along=along,
        then=[PlanStep(step.address, step.action, Moment(step.at)) for step in later],
        not_undoable=domain.explain(candidate, decision, now).not_undoable,
        fingerprint=fingerprint(candidate, decision, policy=policy, hold=hold, takes_along=along),
    )


def _rate(budget: Budget) -> BudgetRate | None:
    return None if budget.most is None else BudgetRate(budget.most, budget.window_ns / _SECOND)


def _length(within: str) -> int:
    found = Duration.parse(within).nanoseconds
    if found is None:
        raise EndlessPlanError
    if found < 0:
        raise PlanOfThePastError(given=within)
    return found


def _applied(item: PlanItem, outcome: str, because: str | None = None) -> AppliedItem:
    return AppliedItem(
        address=item.address, domain=item.domain, outcome=str(outcome), because=because, due_at=item.due_at
    )


def _came_of(item: PlanItem, result: Result) -> AppliedItem:
    outcome = DRIFTED if result.outcome is Outcome.CHANGED else result.outcome.value
    dry = "a dry run: its policy, or dry_run_domains, says so" if result.outcome is Outcome.WOULD_END else None
    return _applied(item, outcome, dry if result.problem is None else str(result.problem))
