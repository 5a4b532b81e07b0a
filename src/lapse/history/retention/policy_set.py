"""The set of policies that are about the same objects: their judgements, weighed together, and their reports. Pure.

- Each policy judges by itself, all objects that it is about; `rules.combine` weighs what they say. A hold, one of the
  last ones, and doubt whether it is one, win over any deletion; otherwise either limit of any policy deletes.
- A policy that is a dry run deletes nothing, and what it keeps is kept nevertheless: doubt means keep. What a real
  policy wants as well is really ended.
- A policy that may not act wants nothing, and protects as it always does.

Three looks at the objects, at most: `PolicySet.look` at each (what can be judged by its own fields is judged there,
unless another policy has to compare its group first), `rank` for those of the groups that matter, and `judge_ranked`
for these.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.decision import Due, KeepReason
from lapse.engine.journal.port import Outcome
from lapse.history.retention.grouping import GroupCounts, GroupRanking, Unjudged
from lapse.history.retention.rules import DoubtReason, Protection, RetainReason, Standing, decide, weigh

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lapse.core.clock import UnixNs
    from lapse.core.decision import Reason
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.rules import Judgement, RetainedObject

    Views = tuple[RetainedObject | None, ...]
    """One object as each policy sees it; None for a policy that is not about it."""


NO_TRASH: Final = "a policy that wants it gone says trash: never"


@dataclass(slots=True)
class PassReport:
    """Numbers of a pass, as one policy sees it: what it keeps may go by another one."""

    matched: int = 0
    """Objects that the policy is about, in the first listing."""
    due: Counter[str] = field(default_factory=Counter)
    """By reason."""
    kept: Counter[str] = field(default_factory=Counter)
    """By reason; doubt is among them, and so is what another policy protects."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of what was due; of a policy that is a dry run, those that would have come."""
    unlabelled: int = 0
    """Records among ``matched`` that another operator wrote, without our labels: they were read whole."""
    is_complete: bool = True
    """Whether everything was looked at."""


@dataclass(frozen=True, slots=True)
class DueObject:
    """An object that goes, what is decided on, and the policies that want it: the one that decided is the first."""

    standings: tuple[Standing, ...]
    """The object as each policy that is about it judges it, those included that keep it."""
    moment: UnixNs
    """When the pass began: nothing grows old while it runs."""
    entry: RetainedObject
    verdict: Due
    """What was said when it was found, for those who are told of it."""
    wanted_by: tuple[Member, ...]
    dry_run: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that want it."""
        return tuple([member.policy.name for member in self.wanted_by])

    @property
    def no_trash(self) -> str:
        """Why it does not go to the trash; empty, unless one of the policies that want it says so."""
        return "" if all(member.policy.is_trashed for member in self.wanted_by) else NO_TRASH

    def decide(self) -> Judgement:
        """Decide about it, at the moment at which the pass began."""
        return decide(self.standings, self.moment)

    def count(self, outcome: Outcome) -> None:
        """Count what came of it, for each policy that wanted it."""
        for member in self.wanted_by:
            member.count(outcome)


class Member:
    """One policy of the set, and what it has seen so far."""

    def __init__(self, policy: Policy, now: UnixNs, *, is_acting: bool) -> None:
        """Take nothing but what is kept of a policy that may not act."""
        limits = policy.limits if is_acting else replace(policy.limits, max_age=None, max_count=None)
        self.policy, self.limits, self.is_acting = policy, limits, is_acting
        self.digest = policy.digest
        self.report = PassReport()
        self.counts = GroupCounts(limits, now)
        self.ranking = self.new_ranking(now)

    def new_ranking(self, now: UnixNs) -> GroupRanking:
        """Return a ranking without any object."""
        return GroupRanking(self.limits, now, dry_run=self.policy.dry_run, policy=self.policy.name)

    def alone(self, entry: RetainedObject) -> Standing:
        """Return an object that was judged by its own fields."""
        return Standing(entry, self.limits, dry_run=self.policy.dry_run, policy=self.policy.name)

    def count(self, outcome: Outcome) -> None:
        """Count what came of something that it wanted."""
        would = self.policy.dry_run and outcome is Outcome.ENDED  # by another policy, that is
        self.report.outcomes[Outcome.WOULD_END if would else outcome] += 1

    def finish(self, *, is_complete: bool) -> PassReport:
        """Count what nothing was said about."""
        judged = self.report.due.total() + self.report.kept.total()
        off = self.limits.max_age is None and self.limits.max_count is None
        self.report.kept[KeepReason.NO_LIMIT if off else KeepReason.NOT_YET] += max(0, self.report.matched - judged)
        self.report.is_complete = is_complete
        return self.report


class PolicySet:
    """Policies of one kind, for one pass; see the module."""

    def __init__(
        self,
        policies: Sequence[Policy],
        now: UnixNs,
        *,
        acting: Collection[str] | None = None,
        with_held: bool = False,
    ) -> None:
        """Let those that ``acting`` names delete, and all others protect; None: all may delete.

        ``with_held`` also finds what would go if nobody held it, for people who look; nothing of that may be ended.
        """
        self.now, self._with_held = now, with_held
        self.members = tuple(
            Member(policy, now, is_acting=acting is None or policy.name in acting) for policy in policies
        )

    def look(self, views: Views) -> DueObject | None:
        """Look at an object for the first time; return it if it goes, whatever its groups are like."""
        judged: list[tuple[Member, Judgement]] = []
        opened: list[tuple[Member, RetainedObject]] = []
        for member, entry in self._pairs(views):
            member.report.matched += 1
            member.report.unlabelled += entry.is_unlabelled
            found = member.counts.look(entry)
            if found is Unjudged.OPEN:
                opened.append((member, entry))
            elif found is not Unjudged.STAYS:
                judged.append((member, found))
        if not judged:
            return None
        _count(judged)
        if opened and any(self._is_wanted(one) for _, one in judged):
            for member, entry in opened:  # it may protect the object, or want it as well
                member.counts.mark(entry)
            return None
        return self._weighed([(member, member.alone(one.entry), one) for member, one in judged])

    def _is_wanted(self, judged: Judgement) -> bool:
        """Whether an object goes by a judgement, or would if nobody held it, where that is asked for."""
        return isinstance(judged.verdict, Due) or (self._with_held and judged.verdict.reason is KeepReason.HELD)

    @property
    def is_settled(self) -> bool:
        """Whether everything was judged by the first look."""
        return all(member.counts.is_settled for member in self.members)

    def forget_ranks(self) -> None:
        """Begin to rank anew."""
        for member in self.members:
            member.ranking = member.new_ranking(self.now)

    def rank(self, views: Views) -> bool:
        """Let an object have its places; return whether it is one to judge by them."""
        concerned = False
        for member, entry in self._pairs(views):
            concerns = member.counts.concerns(entry)
            concerned = concerned or concerns
            # One policy alone asks for the groups that it needs; what it may protect from others is known only now.
            if concerns or (entry.is_kept and len(self.members) > 1):
                member.ranking.add(entry)
        return concerned

    def judge_ranked(self, views: Views) -> DueObject | None:
        """Judge an object of a group that was compared, if it was not judged before; return it if it goes."""
        pairs = list(self._pairs(views))
        if not any(member.counts.concerns(entry) for member, entry in pairs):
            return None
        ranked = [(member, member.ranking.standing(entry)) for member, entry in pairs]
        judged = [(member, one, one.judge(self.now)) for member, one in ranked]
        # What was judged at the first look was counted there.
        _count([(one[0], one[2]) for one in judged if one[0].counts.judge_alone(one[1].entry) is Unjudged.OPEN])
        return self._weighed(judged)

    def _weighed(self, judged: Sequence[tuple[Member, Standing, Judgement]]) -> DueObject | None:
        """Weigh what was said about one object, and count what is due."""
        hold = judged[0][1].entry.hold
        if self._with_held and hold is not None and hold.active(self.now):
            bare = [(member, _unheld(one)) for member, one, _ in judged]
            judged = [(member, one, one.judge(self.now)) for member, one in bare]
        wanting = [(member, one, one.verdict) for member, _, one in judged if isinstance(one.verdict, Due)]
        if not wanting:
            return None
        best = weigh([(one, said) for _, one, said in judged])
        if not isinstance(best.verdict, Due):
            for member, _, _ in wanting:
                member.report.kept[_saved_by(best)] += 1
            return None
        for member, _, verdict in wanting:
            member.report.due[verdict.reason] += 1
        wanting.sort(key=lambda one: one[1] is not best)
        wanted_by = tuple([member for member, _, _ in wanting])
        is_dry = all(member.policy.dry_run for member in wanted_by)
        entry = best.entry if best.entry.hold == hold else msgspec.structs.replace(best.entry, hold=hold)
        return DueObject(tuple([one for _, one, _ in judged]), self.now, entry, best.verdict, wanted_by, dry_run=is_dry)

    def rank_all(self, views: Views) -> None:
        """Let an object have its places, whether its groups matter or not: for a look at single objects."""
        for member, entry in self._pairs(views):
            member.ranking.add(entry)

    def standings(self, views: Views) -> tuple[Standing, ...]:
        """Return an object as each policy that is about it judges it, among those that were ranked."""
        return tuple([member.ranking.standing(entry) for member, entry in self._pairs(views)])

    @property
    def needs_ranks(self) -> bool:
        """Whether a judgement depends on other objects than the one that is judged."""
        return any(one.limits.max_count is not None or one.limits.keep_last > 0 for one in self.members)

    def reports(self, *, is_complete: bool) -> dict[str, PassReport]:
        """Return the reports of those that may act, by their names."""
        return {one.policy.name: one.finish(is_complete=is_complete) for one in self.members if one.is_acting}

    def _pairs(self, views: Views) -> Iterator[tuple[Member, RetainedObject]]:
        return ((member, entry) for member, entry in zip(self.members, views, strict=True) if entry is not None)


def _unheld(standing: Standing) -> Standing:
    """Return an object as it would be judged if nobody held it."""
    return msgspec.structs.replace(standing, entry=msgspec.structs.replace(standing.entry, hold=None))


def _count(judged: Sequence[tuple[Member, Judgement]]) -> None:
    """Count what is not due."""
    for member, one in judged:
        if not isinstance(one.verdict, Due):
            member.report.kept[one.verdict.reason] += 1


def _saved_by(winner: Judgement) -> Reason:
    """Return why an object stays that some policy wants gone."""
    if winner.protection is Protection.CERTAIN and winner.verdict.reason != KeepReason.HELD:
        return RetainReason.KEEP_LAST
    if winner.protection is Protection.POSSIBLE and winner.verdict.reason == KeepReason.NOT_YET:
        return DoubtReason.UNKNOWN_GROUP
    return winner.verdict.reason
