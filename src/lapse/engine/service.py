"""The engine's service: every verb of people, once, for all domains.

`LocalService` carries out `Verbs` (`lapse.engine.verbs.contract`) where the stores are: in a running process, in a
state folder, or on a cluster. Which of these it is, a `Place` says; who asks, a `Caller`. Command line, HTTP API and
dashboard are thin over it, and decide nothing.

Guarantees. Whatever ends something here goes through the one executor. Holds, freezes, budgets and the clock stop what
a plan would end; a person's own deletion of one thing is stopped by holds alone, and counts for the budgets. What
people change is journalled with their name, and without that of the thing where it is a secret.

Not guaranteed: that what is explained is still so a moment later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.core.errors import LapseError, UsageError
from lapse.core.timestamps import from_timestamp, read_end, read_moment, to_timestamp
from lapse.engine.domain import CountedDomain, action_of, decided, deletion_by_person
from lapse.engine.executor import delete_by_person
from lapse.engine.explanation import AnchorView, Explanation, TrashFacts, explanation_of, words
from lapse.engine.journal.audit import tell
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome, audit_row
from lapse.engine.journal.view import read_page, row_view
from lapse.engine.plans.approvals import OwnPlanError
from lapse.engine.plans.planner import WAITS, Planner, hold_facts, holds_of, whole_second
from lapse.engine.registry import DomainVerb, UnsupportedVerbError, no_such_domain
from lapse.engine.safety.blast_radius import PolicyFacts
from lapse.engine.safety.clock_guard import freeze_of, machine_mark
from lapse.engine.safety.freeze import ALL, Freeze, FreezeReason, GateState, GateUnreadableError, freeze_row, resume_row
from lapse.engine.safety.holds import LEGAL, Hold, LegalReleaseError, demand_reason
from lapse.engine.trash import NOT_UNDOABLE, UNDO_UNTIL, NotInTrashError
from lapse.engine.verbs.contract import (
    SEARCH_LENGTH,
    Approval,
    BudgetView,
    DomainStatus,
    EmptiedTrash,
    FrozenView,
    StatusView,
    SteeredView,
    UndoneView,
)
from lapse.engine.verbs.place import waits_for_policy
from lapse.engine.view import Moment, freeze_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.address import Address
    from lapse.core.decision import Decision
    from lapse.engine.domain import Action, Candidate, ManagedDomain
    from lapse.engine.explanation import HoldFacts
    from lapse.engine.journal.port import Row
    from lapse.engine.journal.view import JournalRowView
    from lapse.engine.plans.plan import Plan
    from lapse.engine.plans.proposed import ProposedPlans
    from lapse.engine.registry import Registration
    from lapse.engine.safety.blast_radius import WaitingPolicy
    from lapse.engine.trash import TrashBin, TrashEntry
    from lapse.engine.verbs.contract import (
        AppliedPlan,
        ApplyRequest,
        ApproveRequest,
        DeleteRequest,
        EmptyTrashRequest,
        ExtendRequest,
        Forecast,
        ForecastRequest,
        FreezeRequest,
        HoldRequest,
        JournalRequest,
        PlanRequest,
        PlansRequest,
        ProposedPlan,
        ProposedRequest,
        ProposeRequest,
        ReleaseRequest,
        ResumeRequest,
        TrashRequest,
        UndoRequest,
        WhyRequest,
    )
    from lapse.engine.verbs.place import Caller, Place
    from lapse.engine.view import FreezeView, ViewPage

APPROVE: Final = "approve"
"""The scope of who approves plans; `LEGAL` is that of legal holds."""
_MOST_UNDONE: Final = 10_000
_LOOKED_AT: Final = 1_000
"""Of what a plan ended and came back, how much is looked at together."""
_ROWS: Final = 5


class NothingThereError(LapseError):
    """There is no {address}{gone}."""

    status = 404

    @classmethod
    def of(cls, told: Explanation) -> Self:
        """Return what tells of a thing that is gone since when, and how it comes back, as far as that is known."""
        is_ended = told.trash is not None or any(row.outcome == Outcome.ENDED for row in told.journal)
        gone = f" any more: {told.because}" if is_ended and told.because else ""
        undo = (told.undo or "").partition(",")[0] if told.trash is not None else ""
        return cls(address=told.address, gone=f"{gone}. To bring it back: {undo}" if undo else gone)


class AnotherThingError(LapseError):
    """{address} is another one now, made or written anew since: its uid is {found}, and expected was {uid}.

    Nothing was changed. Look at it again with lapse why {address}; if this one is meant, name its uid.
    """

    status = 412


class NothingToExtendError(UsageError):
    """{address} has no deadline that could be moved: {because}."""


class ExtensionError(UsageError):
    """{address} cannot be extended to {asked}: {problem}."""


class NeverError(UsageError):
    """{what} cannot be never. Expected a time, such as 2h or 2030-01-31T12:00:00Z."""


class NothingNamedError(UsageError):
    """Nothing is named that could be resumed. Expected a domain, all, or --policy NAME."""


class HashWithoutPolicyError(UsageError):
    """A hash says which policy was looked at, and none is named. Expected --policy NAME."""


class NoWaitingPoliciesError(UsageError):
    """No policy waits in {place}."""


class OneToUndoError(UsageError):
    """Expected one thing to bring back: an address, or the id of a plan."""


class NoSuchPlanError(LapseError):
    """The journal knows nothing that the plan {plan} has ended."""

    status = 404


class NotUndoableError(NotInTrashError):
    """{address} is not in the trash: {because}."""


class NoTrashError(UsageError):
    """{place} keeps nothing of what lapses: trash_ttl is never."""


class NoSuchOutcomeError(UsageError):
    """{given!r} is not an outcome. Expected {known}."""


class SearchTextError(UsageError):
    """{given!r:.60} cannot be searched for. Expected a part of an address: 1 to {most} printable characters."""


class EndOfLegalHoldError(UsageError):
    """A legal hold has no end. Leave --until out, or --legal."""


class NoApprovalsError(UsageError):
    """{place} has no place for approvals, so no plan is approved there."""


class NoPlansError(UsageError):
    """{place} keeps no plans. Write them to files with lapse plan --out FILE, and pass these on."""


class NotAuthorError(UsageError):
    """The plan {plan} was made by {author}: nobody else proposes it. Make one of your own with lapse plan --propose."""

    status = 403


class NotProposedError(LapseError):
    """{place} keeps no plan {plan}: none was proposed there, or it has expired. See lapse plans list."""

    status = 404


@dataclass(frozen=True, slots=True)
class _Thing:
    """A thing as it was found, and its domain."""

    address: Address
    domain: ManagedDomain[Any]
    candidate: Candidate[Any]

    def view(self, **told: Any) -> SteeredView:  # noqa: ANN401 - fields of the view
        return SteeredView(address=str(self.address), domain=self.domain.name, uid=self.candidate.uid, **told)


class LocalService:
    """See the module."""

    def __init__(self, place: Place, caller: Caller) -> None:
        """Work at ``place`` on behalf of ``caller``."""
        self._place, self._caller = place, caller
        self._planner = Planner(place, caller)

    # --- plan and apply -----------------------------------------------------------------------------------------------

    async def plan(self, asked: PlanRequest) -> Plan:
        """See `Verbs`."""
        return await self._planner.plan(asked)

    async def forecast(self, asked: ForecastRequest) -> Forecast:
        """See `Verbs`."""
        return await self._planner.forecast(asked)

    async def refresh_forecast(self, shown: Forecast) -> Forecast:
        """Return a forecast that is shown with its things as they are now; what was counted stays. For pages."""
        return await self._planner.refresh_forecast(shown)

    async def apply(self, asked: ApplyRequest) -> AppliedPlan:
        """See `Verbs`."""
        done, place = await self._planner.apply(asked), self._place
        is_tried = not done.items or any(one.outcome != WAITS for one in done.items)
        if place.plans is not None and is_tried:
            is_whole = asked.only is None
            await place.plans.note_applied(asked.plan, done, by=self._caller.name, at=place.now, is_whole=is_whole)
        return done

    async def approve(self, asked: ApproveRequest) -> Approval:
        """See `Verbs`."""
        plan, place, person = asked.plan, self._place, self._caller.name
        self._planner.demand_usable(plan)
        if place.approvals is None:
            raise NoApprovalsError(place=place.name)
        if plan.author == person or not self._caller.is_person:
            place.demand_second_person(self._caller, "The approval of a plan", scope=APPROVE)
            raise OwnPlanError(plan=plan.id, author=plan.author)
        approval = Approval(
            plan=plan.id, digest=plan.digest, by=person, at=Moment(place.now), expires_at=plan.expires_at
        )
        await place.approvals.record(approval)
        await self._tell_of_plan(AuditReason.PLAN_APPROVED, plan)
        return approval

    async def _tell_of_plan(self, reason: AuditReason, plan: Plan) -> None:
        place, details = self._place, {"plan": plan.id, "author": plan.author, "items": len(plan.items)}
        row = audit_row(reason, address="", actor=self._caller.name, time_ns=place.now, details=details)
        await tell(place.journal, row, domain=AUDIT, metrics=place.metrics)

    # --- proposed plans -----------------------------------------------------------------------------------------------

    async def propose(self, asked: ProposeRequest) -> ProposedPlan:
        """See `Verbs`."""
        plan, plans = asked.plan, self._plans()
        self._planner.demand_usable(plan)
        if plan.author != self._caller.name:
            raise NotAuthorError(plan=plan.id, author=plan.author)
        kept, is_new = await plans.keep(plan, self._place.now)
        if is_new:
            await self._tell_of_plan(AuditReason.PLAN_PROPOSED, plan)
        return kept

    async def plans(self, asked: PlansRequest) -> ViewPage[ProposedPlan]:
        """See `Verbs`."""
        return await self._plans().page(limit=asked.limit, after=asked.after, now=self._place.now)

    async def proposed(self, asked: ProposedRequest) -> Plan:
        """See `Verbs`."""
        found = await self._plans().find(asked.id, self._place.now)
        if found is None:
            raise NotProposedError(plan=asked.id, place=self._place.name)
        return found

    def _plans(self) -> ProposedPlans:
        if self._place.plans is None:
            raise NoPlansError(place=self._place.name)
        return self._place.plans

    # --- why ----------------------------------------------------------------------------------------------------------

    async def why(self, asked: WhyRequest) -> Explanation:
        """See `Verbs`."""
        place = self._place
        address = place.registry.parse(asked.address)
        owner = place.registry.demand(DomainVerb.WHY, address)
        domain = await place.domain(owner.name)
        now = place.now if asked.at is None else _moment(asked.at, place.now)
        candidate = await domain.find(address)
        if candidate is None or asked.uid not in {None, candidate.uid}:
            return await self._gone(address, domain, now, uid=asked.uid)
        if asked.at is None:  # of another time nobody knows what will be read then
            (fresh,) = await domain.refresh([candidate])
            candidate = fresh or candidate
        decision = decided(domain, candidate, now)
        (hold,) = await holds_of(domain, [_any_action(domain, candidate, decision, now)], now)
        told = explanation_of(domain, candidate, decision, hold=hold, now=now)
        if domain.explain(candidate, decision, now).is_in_trash:
            told = await self._told_of_trash(told, now)
        is_saved = hold is not None or told.trash is not None  # of what has ended nothing is left to save
        return replace(
            told,
            saved_by=[] if is_saved else [*told.saved_by, *_savers(owner, address, decision)],
            frozen=await self._frozen(owner.name) if owner.supports(DomainVerb.FREEZE) else None,
            waits_for=None if is_saved else await self._waits_for(domain, candidate, decision, now),
            journal=told.journal or await self._facts(address, candidate.uid),
        )

    async def _gone(self, address: Address, domain: ManagedDomain[Any], now: UnixNs, *, uid: str | None) -> Explanation:
        """Explain what is not there, from the journal and the trash; raises what the journal raises without either."""
        entry, problem = await self._in_trash(address, now, uid=uid)
        try:
            rows = await self._place.journal.entries(address=str(address), uid=uid, limit=_ROWS)
        except LapseError:
            if entry is None:
                raise
            rows = []
        if not rows and entry is None:
            raise NothingThereError(address=address, gone="")
        ended, told = _end_of(rows), _epitaph(address, domain.name, rows, now)
        if entry is None:
            undo = _no_way_back(ended, now, domain.not_undoable, problem)
            return replace(told, undo=undo)
        return _trashed(told, entry, ended, is_another=ended is not None and ended.uid != entry.uid)

    async def _told_of_trash(self, told: Explanation, now: UnixNs) -> Explanation:
        """Add to what is told of a thing that lies in the trash who ended it, and how it comes back."""
        entry, _ = await self._in_trash(told.address, now)
        if entry is None:  # it leaves the trash at this moment
            return told
        try:
            rows = await self._place.journal.entries(address=entry.address, uid=entry.uid, limit=_ROWS)
        except LapseError:
            rows = []
        known = replace(told, verdict="gone", next_check=None, journal=[row_view(row) for row in rows])
        return _trashed(known, entry, _end_of(rows), is_another=False)

    async def _in_trash(
        self, address: Address | str, now: UnixNs, *, uid: str | None = None
    ) -> tuple[TrashEntry | None, str | None]:
        """Return what can be brought back of an address; otherwise, where that cannot be told, why."""
        try:
            found = None if self._place.open_trash is None else await (await self._trash()).find(str(address), uid=uid)
        except NotInTrashError:
            return None, None
        except LapseError as error:
            return None, str(error)
        return (None if found is None or found.is_over(now) else found), None

    async def _waits_for(
        self, domain: ManagedDomain[Any], candidate: Candidate[Any], decision: Decision, at: UnixNs
    ) -> str | None:
        """Say what must happen before something is ended that is due at a time; None where nothing must."""
        if not isinstance(decision.verdict, Due):
            return None
        policy = domain.policy_name(candidate)
        if candidate.dry_run:
            return waits_for_policy(policy)
        try:
            facts = await self._place.policy_facts()
        except LapseError:
            facts = PolicyFacts()
        facts = facts._replace(first_passes=[one for one in facts.first_passes if one.ends > at])
        return self._place.waits_for(domain.name, policy, decision.anchor, facts=facts)

    async def _facts(self, address: Address, uid: str) -> list[JournalRowView]:
        """Return the last rows about this very thing: another one of its name may be somebody else's."""
        try:
            rows = await self._place.journal.entries(address=str(address), uid=uid, limit=_ROWS)
        except LapseError:  # a journal that cannot be read back: what is there is explained all the same
            return []
        return [row_view(row) for row in rows]

    async def _frozen(self, domain: str) -> FreezeView | None:
        return freeze_view(await freeze_of(self._place.freezes, domain, self._place.clock))

    # --- hold, release, extend, delete --------------------------------------------------------------------------------

    async def hold(self, asked: HoldRequest) -> SteeredView:
        """See `Verbs`."""
        end = read_end(asked.until, self._place.now)
        until = None if end is None else whole_second(end)  # as every store can write it, so that it is one hold
        demand_reason(asked.reason, "a hold")
        if asked.legal and until is not None:
            raise EndOfLegalHoldError
        thing = await self._find(asked.address, DomainVerb.HOLD, uid=asked.uid)
        if asked.legal:
            self._place.demand_second_person(self._caller, "A legal hold", scope=LEGAL, domain=thing.domain.name)
        hold = Hold(asked.reason, until, by=self._caller.person or "", is_legal=asked.legal)
        await thing.domain.hold(thing.candidate, hold, replace=asked.replace)
        told = {"reason": asked.reason, "until_ns": until, "legal": asked.legal or None}
        await self._audit(AuditReason.HOLD_PLACED, thing, told)
        return replace(await self._with_end(thing.view()), hold=hold_facts(hold))

    async def release(self, asked: ReleaseRequest) -> SteeredView:
        """See `Verbs`."""
        thing = await self._find(asked.address, DomainVerb.HOLD, uid=asked.uid)
        held = await self._held(thing)
        if held is not None and held.legal and not asked.legal:  # who may release holds may not release these
            raise LegalReleaseError(address=thing.address)
        by = self._caller.person or ""
        was = await thing.domain.release(thing.candidate, by=by, legal=asked.legal, only=asked.hash)
        is_changed = was is not None and was.active(self._place.now)
        if was is not None:
            await self._audit(AuditReason.HOLD_RELEASED, thing, {"reason": was.reason, "legal": was.is_legal or None})
        return replace(await self._with_end(thing.view()), changed=is_changed)

    async def extend(self, asked: ExtendRequest) -> SteeredView:
        """See `Verbs`."""
        thing = await self._find(asked.address, DomainVerb.EXTEND, uid=asked.uid)
        until, held = self._new_deadline(thing, asked.time), await self._held(thing)
        await thing.domain.extend(thing.candidate, until, by=self._caller.name)
        await self._audit(AuditReason.DEADLINE_EXTENDED, thing, {"until_ns": until})
        end = (await self._with_end(thing.view())).deadline or until  # a key ends within a second after what was asked
        return thing.view(hold=held, deadline=Moment(max(until, end)), extended_until=Moment(max(until, end)))

    def _new_deadline(self, thing: _Thing, asked: str) -> UnixNs:
        """Return the deadline that is meant; raises `ExtensionError` for one that is earlier, or too far away."""
        now, longest = self._place.now, self._place.extend_max
        decision = decided(thing.domain, replace(thing.candidate, extended=None), now)
        # What is due by its number has no deadline: its time was over when there were too many.
        original = decision.deadline
        if original is None and isinstance(decision.verdict, Due):
            original = decision.verdict.since
        if original is None:
            raise NothingToExtendError(address=thing.address, because=words(decision.verdict.reason.value))
        current = decided(thing.domain, thing.candidate, now).deadline
        before = max(now, current or now)
        meant = read_moment(asked, before)
        if meant is None:
            raise NeverError(what="An extension")
        until = whole_second(meant)
        if until <= before:
            problem = f"its deadline is {to_timestamp(before)}, and an extension is never an earlier one"
            raise ExtensionError(address=thing.address, asked=to_timestamp(until), problem=problem)
        latest = original + (longest.nanoseconds or 0)
        if longest.nanoseconds is not None and until > whole_second(latest):
            problem = f"extend_max is {longest}, so the latest is {to_timestamp(latest)}"
            raise ExtensionError(address=thing.address, asked=to_timestamp(until), problem=problem)
        return until

    async def delete(self, asked: DeleteRequest) -> SteeredView:
        """See `Verbs`."""
        thing, place = await self._find(asked.address, DomainVerb.DELETE, uid=asked.uid), self._place
        target = await thing.domain.deletion_target(thing.candidate)
        action = _deletion(thing.domain, thing.candidate, actor=self._caller.name, now=place.now)
        await delete_by_person(target, place.journal, action, clock=place.clock, metrics=place.metrics)
        until = await self._undoable_until(thing)
        back = f"To bring it back: lapse undo {thing.address}"
        return thing.view(says=None if until is None else f"It is in the trash until {to_timestamp(until)}. {back}")

    async def _undoable_until(self, thing: _Thing) -> int | None:
        """Return until when something that was deleted just now comes back; None where it does not, or nobody knows."""
        if thing.domain.not_undoable is not None:
            return None
        address, uid = str(thing.address), thing.candidate.uid
        try:
            rows = await self._place.journal.entries(address=address, uid=uid, outcome=Outcome.ENDED, limit=1)
        except LapseError:  # a journal that cannot be read back
            entry, _ = await self._in_trash(address, self._place.now, uid=uid)
            return None if entry is None else entry.expires_at
        until = ((rows[0].details if rows else None) or {}).get(UNDO_UNTIL)
        return until if isinstance(until, int) else None

    async def _held(self, thing: _Thing) -> HoldFacts | None:
        """Return what holds a thing, wherever it stands."""
        now = self._place.now
        about = _deletion(thing.domain, thing.candidate, actor=self._caller.name, now=now)
        (held,) = await holds_of(thing.domain, [about], now)
        return held

    async def _find(self, text: str, verb: DomainVerb, *, uid: str | None = None) -> _Thing:
        """Return what has an address; raises `AnotherThingError` where that has not the uid that is meant.

        What is found here is what is changed: domains compare the uid of their candidate when they write. Only keys do
        not, which are touched by their names: of a key the uid is the end of its TTL, compared here.
        """
        address = self._place.registry.parse(text)
        domain = await self._place.domain(self._place.registry.demand(verb, address).name)
        candidate = await domain.find(address)
        if candidate is None:
            raise await self._nothing_there(address, domain, uid=uid)
        if uid not in {None, candidate.uid}:
            raise AnotherThingError(address=address, found=candidate.uid, uid=uid)
        return _Thing(address, domain, candidate)

    async def _nothing_there(
        self, address: Address, domain: ManagedDomain[Any], *, uid: str | None = None
    ) -> LapseError:
        """Return what tells that something is not there, and of what is gone what the journal and the trash know."""
        try:
            return NothingThereError.of(await self._gone(address, domain, self._place.now, uid=uid))
        except NothingThereError as error:
            return error
        except LapseError:  # a journal that cannot be read back
            return NothingThereError(address=address, gone="")

    # --- freeze and resume --------------------------------------------------------------------------------------------

    async def freeze(self, asked: FreezeRequest) -> FrozenView:
        """See `Verbs`. A second freeze takes the place of the first, and keeps its reason where none is given."""
        place, now = self._place, self._place.now
        place.registry.demand_freezable(asked.domain, place.freezable)
        if asked.reason:
            demand_reason(asked.reason, "a freeze")
        wanted = Freeze(now, asked.reason or await self._reason_before(asked.domain), self._caller.name)
        row = freeze_row(asked.domain, wanted, reason=FreezeReason.BY_PERSON, now=now)
        await place.freezes.freeze(asked.domain, wanted, row)
        place.gate.forget()
        return FrozenView(domain=asked.domain, frozen=freeze_view(wanted), place=place.frozen_in or place.name)

    async def resume(self, asked: ResumeRequest) -> FrozenView:
        """See `Verbs`."""
        if asked.policy is not None:
            return await self._let_policy_act(asked.policy, only=asked.hash)
        if asked.hash is not None:
            raise HashWithoutPolicyError
        if asked.domain is None:
            raise NothingNamedError
        place, now, domain = self._place, self._place.now, asked.domain
        place.registry.demand_freezable(domain, place.freezable)
        row, mark = resume_row(domain, by=self._caller.name, now=now), machine_mark(place.clock)
        resumed = await place.freezes.resume(domain, row, mark=mark)
        place.gate.forget()
        still = (await place.freezes.load(now)).frozen.get(ALL)
        where = place.frozen_in or place.name
        return FrozenView(domain=domain, frozen=freeze_view(still), resumed=resumed, place=where)

    async def _let_policy_act(self, name: str, *, only: str | None) -> FrozenView:
        policies = self._place.policies
        if policies is None:
            raise NoWaitingPoliciesError(place=self._place.name)
        approved = await policies.approve(name, by=self._caller.name, only=only)
        return FrozenView(domain=approved.domain, frozen=None, resumed=[approved.name], place=self._place.name)

    async def _reason_before(self, domain: str) -> str:
        try:
            before = (await self._place.freezes.load(self._place.now)).frozen.get(domain)
        except GateUnreadableError:
            return ""
        return "" if before is None else before.reason

    # --- undo and the trash -------------------------------------------------------------------------------------------

    async def trash(self, asked: TrashRequest) -> ViewPage[TrashEntry]:
        """See `Verbs`."""
        self._demand_domain(asked.domain)
        trash = await self._trash()
        return await trash.page(domain=asked.domain, limit=asked.limit, after=asked.after, now=self._place.now)

    async def empty_trash(self, asked: EmptyTrashRequest) -> EmptiedTrash:
        """See `Verbs`. What is held stays."""
        self._demand_domain(asked.domain)
        address = None if asked.address is None else self._demand_undoable(asked.address)
        trash = await self._trash()
        done = await trash.empty(by=self._caller.name, address=address, uid=asked.uid, domain=asked.domain)
        named = address or asked.uid
        if named is not None and not done:
            raise NotInTrashError(address=named) if address is None else await self._not_in_trash(address)
        removed = [entry for entry, result in done if result.problem is None]
        problems: dict[str, str] = {}
        for entry, result in done:
            if result.problem is not None:
                name = f"{entry.address} ({entry.uid})" if entry.address in problems else entry.address
                problems[name] = str(result.problem)
        return EmptiedTrash(items=removed, problems=problems)

    async def undo(self, asked: UndoRequest) -> UndoneView:
        """See `Verbs`. Of a plan, what cannot be brought back is named, and what is back already is left out."""
        wanted = await self._undoable(asked)
        trash = await self._trash()
        found = await trash.find_all(wanted)
        if asked.plan is not None and len(found) < len(wanted):
            known = await self._back_since(asked.plan)
            wanted = [one for one in wanted if one in found or one[1] not in known]
        back: list[SteeredView] = []
        problems: dict[str, str] = {}
        for address, uid in wanted:
            try:
                if (address, uid) not in found:
                    raise await self._not_in_trash(address)
                back.append(await self._bring_back(trash, found[address, uid]))
            except LapseError as error:
                if asked.plan is None:
                    raise
                problems[address] = str(error)
        return UndoneView(items=await self._with_ends(back), problems=problems)

    def _demand_undoable(self, text: str) -> str:
        """Return an address as it is written; raises `UnsupportedVerbError` where nothing of its domain comes back."""
        address = self._place.registry.parse(text)
        self._place.registry.demand(DomainVerb.UNDO, address)
        return str(address)

    async def _not_in_trash(self, address: str) -> LapseError:
        """Return what tells that something does not come back, and why not where its domain knows."""
        parsed = self._place.registry.parse(address)
        owner = self._place.registry.owner_of(parsed.kind)
        domain = None if owner is None else await self._place.domain(owner.name)
        if domain is not None and domain.not_undoable is not None:
            return UnsupportedVerbError(problem=f"{address} does not come back: {domain.not_undoable}")
        there = None if domain is None else await domain.find(parsed)
        if domain is not None and there is not None:  # what was done to it may be less than an end
            now = self._place.now
            because = domain.explain(there, decided(domain, there, now), now).not_undoable
            if because is not None:
                return NotUndoableError(address=address, because=because)
        return NotInTrashError(address=address)

    async def _undoable(self, asked: UndoRequest) -> list[tuple[str, str | None]]:
        """Return what is to come back: the latest of one address, or everything that a plan has ended, by its uid."""
        if (asked.address is None) == (asked.plan is None):
            raise OneToUndoError
        if asked.address is not None:
            return [(self._demand_undoable(asked.address), asked.uid)]
        rows = await self._place.journal.entries(outcome=Outcome.ENDED, plan=asked.plan, limit=_MOST_UNDONE)
        if not rows:
            raise NoSuchPlanError(plan=asked.plan)
        return list(dict.fromkeys((row.address, row.uid) for row in reversed(rows)))

    async def _back_since(self, plan: str) -> set[str]:
        """Return the uids that things had which came back since a plan was carried out."""
        ended = await self._place.journal.entries(outcome=Outcome.ENDED, plan=plan, limit=_MOST_UNDONE)
        since = min(row.time_ns for row in ended)
        rows = await self._place.journal.entries(outcome=Outcome.DONE, since_ns=since, limit=_MOST_UNDONE)
        return {str((row.details or {}).get("was")) for row in rows if row.reason == AuditReason.BROUGHT_BACK}

    async def _bring_back(self, trash: TrashBin, entry: TrashEntry) -> SteeredView:
        place = self._place
        back = await trash.bring_back(entry, by=self._caller.name)
        is_same = back.address == entry.address  # an artifact was never away, and what came is its new keeper
        row = audit_row(
            AuditReason.BROUGHT_BACK,
            address=entry.address,
            uid=back.uid if is_same else entry.uid,
            actor=self._caller.name,
            time_ns=place.now,
            domain=entry.domain,
            details={"was": entry.uid} if is_same else {"was": entry.uid, "keeper": back.address},
        )
        await tell(place.journal, row, domain=entry.domain, metrics=place.metrics)
        return SteeredView(address=back.address, domain=entry.domain, uid=back.uid, says=back.says or None)

    async def _with_end(self, told: SteeredView) -> SteeredView:
        """Add when a thing that was changed lapses, and what holds it; it is done, whether or not that can be told."""
        (found,) = await self._with_ends([told])
        return found

    async def _with_ends(self, told: Sequence[SteeredView]) -> list[SteeredView]:
        """Add the same to many things, in pages: where a limit by number decides, a look at one reads its group."""
        registry, done = self._place.registry, list(told)
        places: dict[str, list[int]] = {}
        for place, one in enumerate(told):
            owner = registry.owner_of(registry.parse(one.address).kind)
            places.setdefault("" if owner is None else owner.name, []).append(place)
        for name, of_domain in places.items():
            for start in range(0, len(of_domain), _LOOKED_AT):
                page = of_domain[start : start + _LOOKED_AT]
                with suppress(LapseError):
                    domain = await self._place.domain(name)
                    for place, one in zip(page, await self._ends(domain, [told[one] for one in page]), strict=True):
                        done[place] = one
                await self._place.clock.sleep(0)  # an embedded store waits for nothing: others have their turn
        return done

    async def _ends(self, domain: ManagedDomain[Any], told: Sequence[SteeredView]) -> list[SteeredView]:
        candidates = await domain.find_all([self._place.registry.parse(one.address) for one in told])
        now = self._place.now
        seen = {one.uid: (one, decided(domain, one, now)) for one in candidates if one is not None}
        actions = [_any_action(domain, one, decision, now) for one, decision in seen.values()]
        holds = dict(zip(seen, await holds_of(domain, actions, now), strict=True))
        return [
            replace(
                one,
                hold=holds[candidate.uid],
                deadline=Moment.of(seen[candidate.uid][1].deadline),
                extended_until=Moment.of(candidate.extended),
            )
            if candidate is not None
            else one
            for one, candidate in zip(told, candidates, strict=True)
        ]

    def _demand_domain(self, name: str | None, *also: str) -> None:
        known = [*self._place.names, *also]
        if name is not None and name not in known:
            raise no_such_domain(name, known)

    async def _trash(self) -> TrashBin:
        if self._place.open_trash is None:
            raise NoTrashError(place=self._place.name)
        return await self._place.open_trash()

    # --- journal and status -------------------------------------------------------------------------------------------

    async def journal(self, asked: JournalRequest) -> ViewPage[JournalRowView]:
        """See `Verbs`."""
        now = self._place.now
        self._demand_domain(asked.domain, AUDIT, ALL)
        address = None if asked.address is None else str(self._place.registry.parse(asked.address))
        return await read_page(
            self._place.journal,
            limit=asked.limit,
            before=asked.before,
            after=asked.after,
            since_ns=_back(asked.since, now, what="--since"),
            until_ns=_back(asked.until, now, what="--until"),
            domain=asked.domain,
            address=address,
            search=_search(asked.search),
            actor=asked.actor,
            outcome=_outcome(asked.outcome),
            policy=asked.policy,
        )

    async def status(self) -> StatusView:
        """See `Verbs`. A part that cannot be read is told, and does not keep the others from being told."""
        place = self._place
        problems: dict[str, str] = {}
        state = GateState()
        try:
            state = await place.freezes.load(place.now)
        except LapseError as error:
            problems["freezes"] = str(error)
        waiting: Sequence[WaitingPolicy] = ()
        try:
            waiting = (await place.policy_facts()).waiting
        except LapseError as error:
            problems["policies"] = str(error)
        facts = None if place.process is None else place.process()
        return StatusView(
            version=place.version,
            place=place.name,
            now=Moment(place.now),
            running=None if facts is None else True,  # a Lapse may run that was not asked
            leader=None if facts is None else facts.is_leader,
            started_at=None if facts is None else Moment(facts.started),
            loops=[] if facts is None else list(facts.loops),
            domains=[await self._domain_status(name, state, waiting) for name in place.names],
            signals=[] if facts is None else list(facts.signals),
            waiting=list(waiting),
            problems=problems,
            frozen=freeze_view(state.frozen.get(ALL)),
        )

    async def _domain_status(self, name: str, state: GateState, waiting: Sequence[WaitingPolicy]) -> DomainStatus:
        place, now = self._place, self._place.now
        room = place.budgets.room(state.spent, name, now)
        has_budget = place.registry.get(name).supports(DomainVerb.FREEZE)
        limit = str(place.budgets.of(room.account or name))
        budget = BudgetView(limit=limit, left=room.most) if has_budget else None
        frozen = freeze_view(state.freeze_of(name)) if has_budget else None
        act = "dry" if place.is_dry(name) else "plan" if name in place.by_plan.domains else "auto"
        try:
            ahead = await self._planner.ahead(name)
        except LapseError as error:
            return DomainStatus(name=name, frozen=frozen, budget=budget, act=act, problem=str(error))
        first_pass = ahead.first_pass if act == "auto" and ahead.first_pass and ahead.first_pass > now else None
        return DomainStatus(
            name=name,
            frozen=frozen,
            budget=budget,
            act=act if first_pass is None else "first_pass",
            first_pass_until=Moment.of(first_pass),
            next_lapse=Moment.of(ahead.first),
            next_address=ahead.address,
            due=ahead.due,
            held=ahead.held,
            problem=_waits([one.name for one in waiting if one.domain == name]),
        )

    async def _audit(self, reason: AuditReason, thing: _Thing, details: dict[str, Any]) -> None:
        """Write down what a person did; it is done, so a journal that is away does not undo it.

        A thing whose name is a secret is not named, only its scope: a row is kept for a year, and many may read it.
        """
        place, address, uid = self._place, str(thing.address), thing.candidate.uid
        if isinstance(thing.domain, CountedDomain):
            address, uid, details = "", "", {"scope": thing.address.scope, **details}
        row = audit_row(
            reason,
            address=address,
            uid=uid,
            actor=self._caller.name,
            time_ns=place.now,
            domain=thing.domain.name,
            details={name: value for name, value in details.items() if value is not None},
        )
        await tell(place.journal, row, domain=thing.domain.name, metrics=place.metrics)


def _waits(policies: Sequence[str]) -> str | None:
    """Say which policies of a domain wait; None where none does."""
    return "; ".join(f"the policy {one} waits: lapse resume --policy {one}" for one in policies) or None


# --- explanations -----------------------------------------------------------------------------------------------------


def _end_of(rows: Sequence[Row]) -> Row | None:
    """Return the row that tells how a thing ended, or the last one about it; None where there is none."""
    return next((row for row in rows if row.outcome is Outcome.ENDED), rows[0] if rows else None)


def _epitaph(address: Address, domain: str, rows: Sequence[Row], now: UnixNs) -> Explanation:
    """Return what the journal tells of a thing that is gone."""
    ended = _end_of(rows)
    anchor = None if ended is None else ended.anchor_ns
    return Explanation(
        address=str(address),
        domain=domain,
        uid=None if ended is None else ended.uid or None,
        at=Moment(now),
        verdict="gone",
        reason="" if ended is None else ended.reason,
        because="" if ended is None else _ended(ended),
        rules=[],
        anchor=None if anchor is None else AnchorView(Moment(anchor), ""),
        deadline=None,
        extended_until=None,
        activity=None,
        trouble=None,
        facts={},
        hold=None,
        next_check=None,
        saved_by=[],
        trash=None,
        undo=None,
        waits_for=None,
        frozen=None,
        journal=[row_view(row) for row in rows],
    )


def _ended(row: Row) -> str:
    return f"{row.outcome.value} at {to_timestamp(row.time_ns)} by {row.actor}, {words(row.reason)}"


def _trashed(told: Explanation, entry: TrashEntry, ended: Row | None, *, is_another: bool) -> Explanation:
    """Return what is told of a thing with its place in the trash and the way back; ``ended`` is the row of its end.

    ``is_another``: what lies there is an earlier one of its address, and not the one that the row is about.
    """
    by = None if ended is None or is_another else ended.actor
    facts = TrashFacts(entry.ended_at, entry.expires_at, by, entry.address, entry.uid)
    which = f" --uid {entry.uid}, an earlier one of this address" if is_another else ""
    until = "" if entry.expires_at is None else f", until {entry.expires_at}"
    there = f"it is in the trash{', held there' if entry.held else until}"
    return replace(
        told,
        reason=told.reason if ended is None else ended.reason,
        because=told.because if is_another else f"{'' if ended is None else f'{_ended(ended)}; '}{there}",
        trash=facts,
        undo=f"lapse undo {told.address}{which}{until}",
    )


def _no_way_back(ended: Row | None, now: UnixNs, not_undoable: str | None, problem: str | None) -> str | None:
    """Say why something that was ended does not come back; None where nobody knows."""
    details = (None if ended is None else ended.details) or {}
    until = details.get(UNDO_UNTIL)
    if NOT_UNDOABLE in details or not_undoable is not None:
        return f"no: {details.get(NOT_UNDOABLE, not_undoable)}"
    if not isinstance(until, int):
        return None
    if until <= now:
        return f"no: it has left the trash at {to_timestamp(until)}"
    if problem is not None:
        return f"it is not known whether it is in the trash: {problem}"
    return "no: it is not in the trash any more, because it was brought back, or the trash was emptied"


def _savers(owner: Registration, address: Address, decision: Decision) -> list[str]:
    """Return the verbs of its domain that would keep it, where it lapses at all."""
    if decision.deadline is None and not isinstance(decision.verdict, Due):
        return []
    told = {
        DomainVerb.HOLD: f"lapse hold {address} --reason TEXT",
        DomainVerb.EXTEND: f"lapse extend {address} 2h",
    }
    return [line for verb, line in told.items() if owner.supports(verb)]


# --- actions ----------------------------------------------------------------------------------------------------------


def _any_action(domain: ManagedDomain[Any], candidate: Candidate[Any], decision: Decision, now: UnixNs) -> Action:
    """Return an action that stands for the thing, due or not, to ask what holds it."""
    if isinstance(decision.verdict, Due):
        return action_of(domain, candidate, decision)
    return _deletion(domain, candidate, actor="", now=now)


def _deletion(domain: ManagedDomain[Any], candidate: Candidate[Any], *, actor: str, now: UnixNs) -> Action:
    return deletion_by_person(
        domain=domain.name,
        address=candidate.address,
        uid=candidate.uid,
        version=candidate.version,
        handle=candidate.handle,
        hold=candidate.hold,
        actor=actor,
        now=now,
    )


def _back(text: str | None, now: UnixNs, *, what: str) -> UnixNs | None:
    """Return a moment in the past: a duration back from now, or a time."""
    if text is None:
        return None
    moment = read_moment(text, now)
    if moment is None:
        raise NeverError(what=what)
    is_duration = from_timestamp(text) is None
    return UnixNs(2 * now - moment) if is_duration else moment


def _search(text: str | None) -> str | None:
    """Return what is looked for in addresses, which have no character that cannot be printed."""
    if text is not None and not (1 <= len(text) <= SEARCH_LENGTH and text.isprintable()):
        raise SearchTextError(given=text, most=SEARCH_LENGTH)
    return text


def _outcome(text: str | None) -> Outcome | None:
    if text is None:
        return None
    try:
        return Outcome(text)
    except ValueError:
        raise NoSuchOutcomeError(given=text, known=", ".join(Outcome)) from None


def _moment(text: str, now: UnixNs) -> UnixNs:
    moment = read_moment(text, now)
    if moment is None:
        raise NeverError(what="--at")
    return moment
