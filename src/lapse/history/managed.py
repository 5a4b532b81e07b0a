"""Records, and what retention policies select, as people see and steer them: `lapse.engine.domain.ManagedDomain`.

What is upcoming is what a pass at that moment would find due; a pass is a listing, so the cost grows with what the
policies are about. A single object is read as it is and, where its number counts, ranked among all objects of its kind:
several that are asked for together cost one listing.

Kubernetes itself ends some objects, as Jobs with ``ttlSecondsAfterFinished``. That is told, and never acted on here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason
from lapse.core.duration import Duration, short
from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.domain import Candidate
from lapse.engine.explanation import Grounds, RuleVerdict, verdict_word, words
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import hold_of
from lapse.engine.view import Moment
from lapse.history.api.kinds import domain_of
from lapse.history.retention.passes import PassDomain
from lapse.history.retention.policy_set import PolicySet
from lapse.history.retention.rules import DoubtReason, LimitReason, RetainReason, decide
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Document, Kind, ObjectKey
from lapse.objects.holds.cluster import Dependants, goes_with
from lapse.objects.managed import ManagedObjects
from lapse.objects.target import ObjectHandle
from lapse.objects.trash.rules import why_not_undoable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.history.retention.policy_set import DueObject
    from lapse.history.retention.rules import Judgement, Standing
    from lapse.history.service import PoliciesOfKind, Retention
    from lapse.kube.resources import Json, OwnerReference
    from lapse.objects.holds.steering import Steering
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.moves import ObjectTrash

_WORDS: Final = {
    LimitReason.RETENTION_LIMIT.value: "there are more newer ones than its policy allows",
    RetainReason.KEEP_LAST.value: "it is one of the last ones that its policy keeps",
    DoubtReason.UNKNOWN_GROUP.value: "a field that its group is made of is missing",
}
_NOBODY: Final = "no policy of Lapse is about it"


class JudgedObject(NamedTuple):
    """An object as every policy that is about it judges it."""

    standings: tuple[Standing, ...]
    digests: Mapping[str, str]
    """The hash of each policy, by its name."""
    age_from: Mapping[str, str]
    """The field that each policy counts from, by its name."""
    document: Json | None = None
    """The object itself, where it was read whole."""

    def judged(self, now: UnixNs) -> tuple[Standing, Judgement] | None:
        """Return what wins, and whose rule that is; None where no policy is about it."""
        if not self.standings:
            return None
        won = decide(self.standings, now)
        every = [(one, one.judge(now)) for one in self.standings]
        return next((pair for pair in every if pair[1] == won), (self.standings[0], won))

    def is_due(self, now: UnixNs) -> bool:
        """Whether it goes."""
        return bool(self.standings) and isinstance(decide(self.standings, now).verdict, Due)


class ManagedRecords(ManagedObjects[JudgedObject]):
    """One of the two domains: records, or whatever else policies select."""

    is_indexed = False

    def __init__(
        self,
        retention: Retention,
        name: str,
        *,
        store: ObjectStore,
        holds: HoldLookup,
        steering: Steering,
        trash: ObjectTrash | None,
        clock: Clock,
    ) -> None:
        """Steer what the policies of ``retention`` are about, in the domain ``name``."""
        super().__init__(store, holds, steering, trash=trash, clock=clock)
        self.name, self._retention, self._trash = name, retention, trash

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, address: Address) -> Candidate[JudgedObject] | None:
        """See `ManagedDomain`."""
        (found,) = await self.find_all([address])
        return found

    async def find_all(self, addresses: Sequence[Address]) -> list[Candidate[JudgedObject] | None]:
        """See `ManagedDomain`: one listing for all objects of a kind, where their number counts."""
        groups = await self._retention.in_force()
        found: dict[Address, Candidate[JudgedObject] | None] = {}
        for word in dict.fromkeys(one.kind for one in addresses):
            kind = await self.store.resolve_word(word)
            keys = [one for one in addresses if one.kind == word]
            of_kind = next((one for one in groups if _is_about(one, kind)), None)
            found |= await self._read(kind, keys, of_kind)
        return [found[one] for one in addresses]

    async def _read(
        self, kind: Kind[Any], addresses: Sequence[Address], group: PoliciesOfKind | None
    ) -> dict[Address, Candidate[JudgedObject] | None]:
        ranked = PolicySet(group.policies if group else (), self.now, acting=group.acting if group else None)
        listing = self._retention.listing(ranked_policies(ranked), kind)
        if ranked.needs_ranks:
            async for page in listing.pages(lambda: True):
                for views in page:
                    ranked.rank_all(views)
        reading = listing.reading() if ranked.members else None
        found: dict[Address, Candidate[JudgedObject] | None] = {}
        for one in addresses:
            document = await self._document(kind, one)
            views = () if document is None or reading is None else reading.views(document)
            state = _judged(ranked, ranked.standings(views) if views else (), document)
            found[one] = None if document is None else _candidate(kind, document, state, ranked.now)
        return found

    async def _document(self, kind: Kind[Any], address: Address) -> Document | None:
        whole = Kind(kind.api_version, kind.kind, kind.plural, Document, namespaced=kind.namespaced)
        try:
            return await self.store.get(whole, ObjectKey(address.scope, address.name))
        except NotFoundError:
            return None

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[JudgedObject]], None]:
        """See `ManagedDomain`: what is too many now, and what is too old by then.

        What will be too many by then, because a hold on a newer one ends before, is not foreseen.
        """
        for group in await self._retention.in_force():
            if domain_of(group.policies[0]) != self.name or not group.acting:
                continue
            seen: set[str] = set()
            if any(one.limits.max_count is not None for one in group.policies):
                async for page in self._due(group, self.now, size=size):
                    seen |= {one.uid for one in page}
                    yield page
            if any(one.limits.max_age is not None for one in group.policies):
                async for page in self._due(group, until, size=size):
                    later = [_by_age(one) for one in page if one.uid not in seen]
                    yield [one for one in later if one.state.is_due(until)]

    async def _due(
        self, group: PoliciesOfKind, moment: UnixNs, *, size: int
    ) -> AsyncGenerator[Sequence[Candidate[JudgedObject]], None]:
        """Yield what a pass at a moment would find."""
        kind = await self._retention.reader.resolve(group.policies[0].api_version, group.policies[0].kind)
        policies = PolicySet(group.policies, moment, acting=group.acting, with_held=True)
        listing = self._retention.listing(group.policies, kind)
        found = PassDomain(listing, policies, proceed=lambda: True, on_item=lambda _item: None)
        async for page in found.due(moment, size=size):
            yield [_as_judged(one, policies) for one in page]

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, candidate: Candidate[JudgedObject], now: UnixNs) -> Decision:
        """See `ManagedDomain`: what the policies say together; a limit by number has no deadline."""
        found = candidate.state.judged(now)
        if found is None:
            return Decision(Keep(KeepReason.NO_LIMIT))
        standing, said = found
        verdict = said.verdict
        if isinstance(verdict, Due):
            deadline = verdict.since if verdict.reason is DueReason.TTL_EXPIRED else None
        else:
            deadline = _expiry(standing)
        return Decision(verdict, standing.entry.anchor, deadline)

    def policy(self, candidate: Candidate[JudgedObject]) -> str:
        """See `ManagedDomain`."""
        found = candidate.state.judged(self.now)
        return "" if found is None else candidate.state.digests.get(found[0].policy, "")

    def policy_name(self, candidate: Candidate[JudgedObject]) -> str:
        """See `ManagedDomain`."""
        found = candidate.state.judged(self.now)
        return "" if found is None else found[0].policy

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`: they are objects, which `look_at_policies` reads."""
        return {}

    async def policy_names(self) -> list[str]:
        """See `lapse.engine.domain.StoredPolicies`."""
        groups = [one for one in await self._retention.in_force() if domain_of(one.policies[0]) == self.name]
        return [policy.name for group in groups for policy in group.policies]

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[JudgedObject]], None]:
        """See `ManagedDomain`: a pass counts them, because groups must be ranked for it."""
        raise NotImplementedError

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """See `ManagedDomain`: by a pass that ends nothing."""
        await self._retention.look_at_policies(self.name)

    def details(self, candidate: Candidate[JudgedObject]) -> dict[str, Any] | None:
        """See `ManagedDomain`: name the policy."""
        found = candidate.state.judged(self.now)
        return None if found is None else {"policy": found[0].policy}

    def explain(self, candidate: Candidate[JudgedObject], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        state, reason = candidate.state, decision.verdict.reason.value
        won = state.judged(now)
        rules = [_rule(one, now, wins=won is not None and one is won[0]) for one in state.standings]
        foreign = _ended_by_kubernetes(state.document)
        facts = None if foreign is None else {"ended by others": foreign}
        return Grounds(
            rules=tuple(sorted(rules, key=lambda one: not one.wins)),
            because=_NOBODY if won is None else _WORDS.get(reason) or words(reason),
            anchor_source="" if won is None else state.age_from.get(won[0].policy, ""),
            facts=facts,
            not_undoable=self._why_not_undoable(candidate.handle),
        )

    def _why_not_undoable(self, handle: ObjectHandle) -> str | None:
        """Say why an object would not come back, as far as its kind and its policies tell."""
        if self._trash is None:
            return "trash_ttl is never"
        return handle.no_trash or why_not_undoable(self._trash.kinds, handle.kind, handle.owners)

    async def takes_along(self, candidate: Candidate[JudgedObject]) -> Sequence[str]:
        """See `ManagedDomain`: what it owns, of the kinds that are looked at; nothing where these cannot be read.

        Then it is not known either whether any of that is held, and it stays.
        """
        dependants = self.store if isinstance(self.store, Dependants) else self._steering.dependants
        try:
            owned = await goes_with(dependants, candidate.handle.kind, candidate.uid)
        except LapseError:
            return ()
        return [str(kind.address(one.metadata.key)) for kind, one in owned]


def ranked_policies(ranked: PolicySet) -> list[Any]:
    """Return the policies of a set, in its order."""
    return [member.policy for member in ranked.members]


def _is_about(group: PoliciesOfKind, kind: Kind[Any]) -> bool:
    first = group.policies[0]
    return (first.api_version, first.kind) == (kind.api_version, kind.kind)


def _judged(policies: PolicySet, standings: tuple[Standing, ...], document: Document | None) -> JudgedObject:
    digests = {one.policy.name: one.digest for one in policies.members}
    fields = {one.policy.name: str(one.policy.age_from) for one in policies.members}
    # The engine adds holds and extensions to what a domain decides, and asks what it would be without them.
    bare = tuple([replace(one, entry=replace(one.entry, extended=None, hold=None)) for one in standings])
    return JudgedObject(bare, digests, fields, None if document is None else document.body)


def _as_judged(found: Candidate[DueObject], policies: PolicySet) -> Candidate[JudgedObject]:
    return Candidate(
        address=found.address,
        uid=found.uid,
        version=found.version,
        state=_judged(policies, found.state.standings, None),
        handle=found.handle,
        hold=found.hold,
        extended=found.extended,
        dry_run=found.dry_run,
    )


def _by_age(found: Candidate[JudgedObject]) -> Candidate[JudgedObject]:
    """Return something as it stands without the others of its groups: which are newer at another time is not so now."""
    standings = tuple([replace(one, over_since=None) for one in found.state.standings])
    return replace(found, state=found.state._replace(standings=standings))


def _candidate(kind: Kind[Any], document: Document, state: JudgedObject, now: UnixNs) -> Candidate[JudgedObject]:
    """Return an object that was asked for; it is only told of where all policies that want its end are dry runs."""
    meta = document.metadata
    owners: tuple[OwnerReference, ...] = meta.owner_references
    wanting = [one for one in state.standings if isinstance(one.judge(now).verdict, Due)] or state.standings
    return Candidate(
        address=kind.address(meta.key),
        uid=meta.uid,
        version=meta.resource_version,
        state=state,
        handle=ObjectHandle(kind, meta.key, owners),
        hold=hold_of(meta.annotations),
        extended=extension_of(meta.annotations),
        dry_run=bool(wanting) and all(one.dry_run for one in wanting),
    )


# --- words ------------------------------------------------------------------------------------------------------------


def _rule(standing: Standing, now: UnixNs, *, wins: bool) -> RuleVerdict:
    verdict = standing.judge(now).verdict
    is_due = isinstance(verdict, Due)
    return RuleVerdict(
        rule=_limits(standing),
        action="delete",
        wins=wins,
        verdict=verdict_word(verdict),
        reason=verdict.reason.value,
        since=Moment(verdict.since) if isinstance(verdict, Due) else None,
        look_again=None if is_due else Moment.of(getattr(verdict, "next_check", None)),
        policy=standing.policy,
    )


def _limits(standing: Standing) -> str:
    limits = standing.limits
    told = []
    if limits.max_age is not None:
        told.append(f"older than {Duration(limits.max_age)}")
    if limits.max_count is not None:
        told.append(f"not among the newest {limits.max_count}")
    if not told:
        return "deletes nothing"
    last = f", but the last {limits.keep_last} stay" if limits.keep_last else ""
    return f"{'would delete' if standing.dry_run else 'delete'} what is {' or '.join(told)}{last}"


def _expiry(standing: Standing) -> UnixNs | None:
    anchor, most = standing.entry.anchor, standing.limits.max_age
    return None if anchor is None or most is None else UnixNs(anchor + most)


def _ended_by_kubernetes(document: Json | None) -> str | None:
    """Say when Kubernetes itself ends an object; None where it does not."""
    body = document or {}
    ttl = (body.get("spec") or {}).get("ttlSecondsAfterFinished")
    if body.get("kind") != "Job" or type(ttl) is not int:
        return None
    conditions = (body.get("status") or {}).get("conditions") or ()
    over = [one for one in conditions if one.get("type") in {"Complete", "Failed"} and one.get("status") == "True"]
    finished = from_timestamp(over[0].get("lastTransitionTime") or "") if over else None
    after = short(ttl * 1_000_000_000)
    if finished is None:
        return f"Kubernetes deletes it {after} after it has finished (ttlSecondsAfterFinished), which it has not"
    at = to_timestamp(finished + ttl * 1_000_000_000)
    return f"Kubernetes deletes it at {at}, {after} after it has finished (ttlSecondsAfterFinished)"
