"""The domain of records and of what retention policies select: one pass of the policies of one kind over a store.

A pass is a sweep of the engine. `PassDomain.due` lists the store in pages, lets the policies judge and yields what is
due; the engine decides, acts and journals as everywhere; `PassDomain.settle` counts what came of it for the reports.

The first listing is read once and not kept: of each object only a number per group stays. What is too old by its own
fields goes soon, some pages at a time, under the uid and the version that were read. Where the number of a group
matters, or which is its last good one, everything is listed *again*, the members of those groups are ranked as they are
then, and only that decides about them: this is the refresh of a whole group. `PassDomain.decide` is a function of the
object, the limits and that rank, which the candidate carries. The time of a decision is the moment at which the pass
began, so that nothing grows old while it runs, and what is created meanwhile is among the newest.

Guarantees: metadata is all that is read where the policies need no more; the newest that a limit allows are never among
what is ended, however many passes run at once; what changed after it was read survives. A pass that may not proceed
stops between pages and between acts. A store that cannot show a moment for as long as it takes to list it has nothing
ended by number, and the report says that it is not complete.

Not guaranteed: that a group which somebody else deletes from, between its ranking and the acts, keeps as many as the
limit allows. Memory: a number per group; the places of the newest of those groups that are ranked; and some pages of
objects. Where there are more than these to be judged, they are listed once more instead.

The precheck: most passes find little to do. Where a store can count (`Summarising`) and all that policies want to know
stands in labels, namespaces and creation times, it is known without reading any object whether something may be due,
and whether only by its age: then no more than what is old enough is listed. A precheck never ends anything: what it
cannot rule out is listed. What it rules out is exact, and so are the numbers that it reports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, UnknownReason
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import Candidate, SignalUnavailableError
from lapse.engine.journal.port import Outcome
from lapse.engine.safety.blast_radius import SHOWN, PolicyCount
from lapse.engine.sweep import Sweep
from lapse.history.api.kinds import HISTORY, RETENTION, domain_of
from lapse.history.policy.policy import CREATED
from lapse.history.records import is_about_records, is_labelled
from lapse.history.retention.listing import ATTEMPTS, LEFT_ALONE, PAGE, Listing
from lapse.history.retention.policy_set import DueObject, PassReport, PolicySet
from lapse.history.retention.rules import DoubtReason, LimitReason
from lapse.kube.errors import GoneError
from lapse.kube.resources import NO_LABELS, Object, ObjectKey, ObjectMeta, PartialObject
from lapse.objects.port import Summarising
from lapse.objects.target import ObjectHandle
from lapse.objects.trash.rules import may_be_in_trash

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.core.decision import Reason
    from lapse.engine.domain import Settled
    from lapse.engine.executor import Executor
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.policy_set import Views
    from lapse.history.retention.rules import RetainedObject, RetentionLimits
    from lapse.kube.resources import Kind, Page
    from lapse.objects.port import Reader

T = TypeVar("T", bound=Object)

_SECOND: Final = 1_000_000_000
_MOST: Final = 50_000
"""Of more than so many different labels a summary would be as long as a list."""


def is_decided_by_labels(policy: Policy) -> bool:
    """Whether objects of the same namespace and labels are all the same to a policy, but for their creation."""
    conditions = policy.only_when if policy.keep_where is None else (*policy.only_when, policy.keep_where)
    paths = (*policy.group_by, *(one.path for one in conditions))
    return policy.age_from == CREATED and all(
        path.steps == ("metadata", "namespace") or (path.steps[:2] == ("metadata", "labels") and len(path.steps) == 3)  # noqa: PLR2004 - a label
        for path in paths
    )


class Precheck(NamedTuple):
    """What is known before anything is read."""

    matched: Sequence[int]
    """How many objects each policy is about."""
    created_before: str | None
    """What may be due was created before this; None when nothing may be due."""


class OldObjects:
    """A `Reader` that lists only what was created before a moment."""

    def __init__(self, direct: Any, moment: str) -> None:  # noqa: ANN401 - a reader that is `Summarising` as well
        """Read nothing yet."""
        self._direct, self._moment = direct, moment
        self.get, self.resolve = direct.get, direct.resolve

    async def list(self, kind: Kind[T], **question: Any) -> Page[T]:  # noqa: ANN401 - passed on
        """See `Reader`."""
        found: Page[T] = await self._direct.list_created_before(kind, self._moment, **question)
        return found


async def precheck(listing: Listing, limits: Sequence[RetentionLimits], now: UnixNs) -> Precheck | None:
    """Return what is known beforehand; None when it does not rule out anything."""
    direct: Any = listing.direct
    if not isinstance(direct, Summarising) or not all(map(is_decided_by_labels, listing.policies)):
        return None
    if may_be_in_trash(listing.kind.kind):  # which no label tells of artifacts
        return None
    reading, labels = listing.reading(), listing.asked_labels()
    counts = [_Count(one, now) for one in limits]
    for namespace in listing.namespaces():
        found = await direct.summary(listing.kind, namespace=namespace, labels=labels, at_most=_MOST)
        if found is None:
            return None
        for summary in found:
            if is_about_records(listing.policies) and not is_labelled(dict(summary.labels)):
                return None  # which group they are of is not in their labels
            oldest = ObjectMeta(
                namespace=summary.namespace, labels=dict(summary.labels), creation_timestamp=summary.oldest
            )
            for count, entry in zip(counts, reading.views(PartialObject(metadata=oldest)), strict=True):
                if entry is not None:
                    count.add(entry, summary.how_many)
    matched, before = [one.matched for one in counts], _before(limits, now)
    if not any(one.too_many or one.too_old for one in counts):
        return Precheck(matched, None)
    # Which are the last ones, or too many, is known only when all of a group are.
    is_by_age = (
        before is not None and not any(one.too_many for one in counts) and not any(one.keep_last for one in limits)
    )
    return Precheck(matched, before) if is_by_age else None


def _before(limits: Sequence[RetentionLimits], now: UnixNs) -> str | None:
    """Return when the youngest that may be too old was created, or a little later; None when age does not matter.

    Creation times are whole seconds.
    """
    ages = [one.max_age for one in limits if one.max_age is not None]
    return to_timestamp(UnixNs(now - min(ages) + 2 * _SECOND)) if ages else None


class _Count:
    """The number of objects that one policy is about, and whether one of them may be due."""

    def __init__(self, limits: RetentionLimits, now: UnixNs) -> None:
        self.matched = 0
        self.too_many = self.too_old = False
        self._limits, self._now = limits, now
        self._groups: Counter[int] = Counter()

    def add(self, oldest: RetainedObject, how_many: int) -> None:
        """Take some objects that are alike, none of them older than this one."""
        limits = self._limits
        self.matched += how_many
        if oldest.group is not None:
            self._groups[hash(oldest.group)] += how_many
            too_many = limits.max_count is not None and self._groups[hash(oldest.group)] > limits.max_count
            self.too_many = self.too_many or too_many
        too_old = oldest.anchor is None or limits.is_expired(oldest.anchor, self._now)
        self.too_old = self.too_old or too_old


__all__ = ["DOMAINS", "HISTORY", "REASONS", "RETENTION", "Pass", "PassDomain", "PassItem", "PassReport"]

DOMAINS: Final = (HISTORY, RETENTION)
"""Domains that can be frozen, and have a deletion budget."""
REASONS: Final[tuple[Reason, ...]] = (DueReason.TTL_EXPIRED, LimitReason.RETENTION_LIMIT)
_PAGES_REMEMBERED: Final = 40
_TOGETHER: Final = 64
"""Acts that are handed over at once, at least: each is a call of its own on a cluster."""
_DOUBT: Final = frozenset({*UnknownReason, *DoubtReason})


class PassItem(NamedTuple):
    """An object that was due in a pass, by which policies, and what came of it; the one that decided is the first."""

    address: Address
    entry: RetainedObject
    verdict: Due
    policies: tuple[str, ...]
    outcome: Outcome
    problem: Exception | None = None
    """The error that says why it was not ended, where there is one."""


def _ignore(_item: PassItem) -> None:
    """Do nothing."""


class Pass:
    """Passes of some policies, all of one kind, one at a time."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        policies: Sequence[Policy],
        *,
        direct: Reader,
        executor: Executor,
        journal: Journal,
        metrics: Metrics,
        clock: Clock,
        left_alone: Collection[str] = LEFT_ALONE,
        page: int = PAGE,
        acting: Collection[str] | None = None,
        on_item: Callable[[PassItem], None] = _ignore,
    ) -> None:
        """Read nothing yet.

        Those that ``acting`` names may delete, all others only protect; None: all may. ``on_item`` is called for
        everything that was due.
        """
        kinds = {(policy.api_version, policy.kind) for policy in policies}
        if len(kinds) != 1:
            raise ValueError(f"one pass is over one kind; the policies are about {sorted(kinds) or 'none'}")
        self.policies = tuple(policies)
        self._direct, self._executor, self._clock = direct, executor, clock
        self._journal, self._metrics = journal, metrics
        self._left_alone, self._page = left_alone, page
        self._acting, self._on_item = acting, on_item

    async def run(
        self, *, labels: Mapping[str, str] = NO_LABELS, proceed: Callable[[], bool] = lambda: True
    ) -> dict[str, PassReport]:
        """Look at everything that the policies are about, or only at what also has ``labels``.

        Returns a report for each policy that may act. ``labels`` that do not name whole groups have less ended, never
        more. Raises what the store answers when it cannot be listed.
        """
        domain = await self._domain(labels, proceed)
        sweep = Sweep(
            domain,
            self._executor,
            journal=self._journal,
            clock=self._clock,
            metrics=self._metrics,
            width=max(_TOGETHER, self._executor.target.batch),
            is_pass=True,
        )
        swept = await sweep.run(proceed=domain.may_proceed)
        reports = domain.reports()
        self._count(domain.name, reports.values(), already=swept.looked)
        return reports

    async def count(self, *, proceed: Callable[[], bool] = lambda: True) -> dict[str, PolicyCount]:
        """Count what each policy that may act governs, and what of it is due; nothing is ended, and nothing journalled.

        Raises what the store answers, and `SignalUnavailableError` when not everything was looked at.
        """
        domain, samples = await self._domain(NO_LABELS, proceed), defaultdict[str, list[str]](list)
        async with aclosing(domain.due(domain.moment, size=self._page)) as pages:
            async for page in pages:
                for one in page:
                    for name in one.state.names:
                        if len(samples[name]) < SHOWN:
                            samples[name].append(str(one.address))
        if not domain.is_complete:
            raise SignalUnavailableError(problem="not everything that the policies are about could be counted")
        return {
            name: PolicyCount(report.matched, report.due.total(), samples[name])
            for name, report in domain.reports().items()
        }

    async def _domain(self, labels: Mapping[str, str], proceed: Callable[[], bool]) -> PassDomain:
        first = self.policies[0]
        listing = Listing(
            policies=self.policies,
            kind=await self._direct.resolve(first.api_version, first.kind),
            direct=self._direct,
            clock=self._clock,
            labels=labels,
            left_alone=self._left_alone,
            page=self._page,
        )
        policies = PolicySet(self.policies, UnixNs(self._clock.wall_ns()), acting=self._acting)
        return PassDomain(listing, policies, proceed=proceed, on_item=self._on_item)

    def _count(self, domain: str, reports: Collection[PassReport], *, already: int) -> None:
        """Count the decisions of each policy; the sweep has counted one for everything that it was handed."""
        verdicts: Counter[str] = Counter(due=-already)
        for report in reports:
            doubt = sum(count for why, count in report.kept.items() if why in _DOUBT)
            verdicts.update(due=report.due.total(), unknown=doubt, keep=report.kept.total() - doubt)
        for verdict, count in verdicts.items():
            if count > 0:
                self._metrics.decided(domain, verdict, count=count)


class PassDomain:
    """A `lapse.engine.domain.Domain`: what one pass finds due. For one run of a `Sweep` with ``is_pass``."""

    is_indexed: Final = False
    reasons: Final = REASONS

    def __init__(
        self,
        listing: Listing,
        policies: PolicySet,
        *,
        proceed: Callable[[], bool],
        on_item: Callable[[PassItem], None],
    ) -> None:
        """List nothing yet."""
        self.name = domain_of(listing.kind)
        self.is_complete = True
        """Whether everything was looked at, so far."""
        self._listing, self._policies, self._proceed, self._on_item = listing, policies, proceed, on_item
        self._remembered = _PAGES_REMEMBERED * listing.page
        self._has_ended = False

    @property
    def moment(self) -> UnixNs:
        """When the pass began."""
        return self._policies.now

    def reports(self) -> dict[str, PassReport]:
        """Return what each policy that may act has seen so far."""
        return self._policies.reports(is_complete=self.is_complete)

    def may_proceed(self) -> bool:
        """Whether to go on; once the answer was no, it stays no."""
        self.is_complete = self.is_complete and self._proceed()
        return self.is_complete

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[DueObject]], None]:
        """See `Domain`: by age alone first, then by the groups that have to be compared."""
        known = await self._precheck() if self.may_proceed() else None
        if known is not None and known.created_before is None:
            return
        for look in (self._first_look, self._second_look):
            found: list[DueObject] = []
            is_gone = False
            try:
                async with aclosing(look()) as pages:
                    async for page in pages:
                        found += page
                        if len(found) >= self._remembered:
                            for start in range(0, len(found), size):
                                yield self._candidates(found[start : start + size])
                            found = []
            except GoneError:
                is_gone = True  # what was judged before is not in doubt
            for start in range(0, len(found), size):
                yield self._candidates(found[start : start + size])
            self.is_complete = self.is_complete and not is_gone
            if known is not None:
                self._count_matched(known)
            if not self.is_complete or self._policies.is_settled:
                return

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`: there is no index over objects of any kind."""
        return None

    def decide(self, candidate: Candidate[DueObject], now: UnixNs) -> Decision:
        """See `Domain`: on the object, the limits and its rank in its groups, at the moment at which the pass began.

        Nothing grows old while a pass runs, so that both decisions are about the same moment: what is decided does not
        depend on how long the listing took.
        """
        said = candidate.state.decide()
        verdict = said.verdict
        return Decision(verdict, said.entry.anchor, verdict.since if isinstance(verdict, Due) else None)

    async def refresh(self, candidates: Sequence[Candidate[DueObject]]) -> Sequence[Candidate[DueObject]]:
        """Read nothing: the act compares the object, and its group was listed again for the page that it came with."""
        return candidates

    def policy(self, candidate: Candidate[DueObject]) -> str:
        """See `Domain`."""
        return candidate.state.wanted_by[0].digest

    def policy_name(self, candidate: Candidate[DueObject]) -> str:
        """See `Domain`."""
        return candidate.state.names[0]

    def policies(self) -> dict[str, str]:
        """See `Domain`."""
        return {member.policy.name: member.digest for member in self._policies.members}

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[DueObject]], None]:
        """See `Domain`: a pass that ends nothing counts, because groups must be ranked for it."""
        raise NotImplementedError

    def details(self, candidate: Candidate[DueObject]) -> dict[str, Any] | None:
        """Name the policies."""
        names = candidate.state.names
        return {"policy": names[0]} if len(names) == 1 else {"policy": names[0], "policies": sorted(names)}

    async def settle(self, settled: Sequence[Settled[DueObject]]) -> None:
        """Count what came of each, for the policies that wanted it."""
        for candidate, outcome, _, problem in settled:
            one = candidate.state
            self._has_ended = self._has_ended or outcome is Outcome.ENDED
            one.count(outcome)
            self._on_item(PassItem(candidate.address, one.entry, one.verdict, one.names, outcome, problem))

    def _candidates(self, objects: Sequence[DueObject]) -> list[Candidate[DueObject]]:
        kind = self._listing.kind
        found = []
        for one in objects:
            entry = one.entry
            key = ObjectKey(entry.namespace, entry.name)
            found.append(
                Candidate(
                    address=kind.address(key),
                    uid=entry.uid,
                    version=entry.version,
                    state=one,
                    handle=ObjectHandle(kind, key, entry.owners, no_trash=one.no_trash),
                    hold=entry.hold,
                    extended=entry.extended,
                    dry_run=one.dry_run,
                )
            )
        return found

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _precheck(self) -> Precheck | None:
        """Look at no more than what may be due, as far as that is known beforehand."""
        limits = [member.limits for member in self._policies.members]
        known = await precheck(self._listing, limits, self._policies.now)
        if known is not None:
            self._count_matched(known)
            if known.created_before is not None:
                self._listing = replace(self._listing, direct=OldObjects(self._listing.direct, known.created_before))
        return known

    def _count_matched(self, known: Precheck) -> None:
        for member, number in zip(self._policies.members, known.matched, strict=True):
            member.report.matched = number

    def _is_outdated(self) -> bool:
        """Whether anything was ended since this was asked before."""
        found, self._has_ended = self._has_ended, False
        return found

    async def _first_look(self) -> AsyncGenerator[list[DueObject], None]:
        """Yield what goes by its own fields, for each page of the listing."""
        async for page in self._listing.pages(self.may_proceed, is_outdated=self._is_outdated):
            yield [one for views in page if (one := self._policies.look(views)) is not None]

    async def _second_look(self) -> AsyncGenerator[list[DueObject], None]:
        """Yield what goes by the place that it has in its group."""
        concerned = await self._rank()
        if not self.is_complete:  # of a group that was read in part, nobody can say which are the newest
            return
        if concerned is not None:
            yield self._judged(concerned)
            return
        async for page in self._listing.pages(self.may_proceed, is_outdated=self._is_outdated):
            yield self._judged(page)

    def _judged(self, concerned: Sequence[Views]) -> list[DueObject]:
        return [one for views in concerned if (one := self._policies.judge_ranked(views)) is not None]

    async def _rank(self) -> list[Views] | None:
        """Rank the members of the groups that matter; return those to judge, None when there are too many."""
        for attempt in range(1, ATTEMPTS + 1):
            self._policies.forget_ranks()
            try:
                return await self._rank_once()
            except GoneError:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    async def _rank_once(self) -> list[Views] | None:
        concerned: list[Views] = []
        is_too_much = False
        async for page in self._listing.pages(self.may_proceed, of_one_moment=True):
            found = [views for views in page if self._policies.rank(views)]
            is_too_much = is_too_much or len(concerned) + len(found) > self._remembered
            concerned = [] if is_too_much else concerned
            concerned += [] if is_too_much else found
        return None if is_too_much else concerned
