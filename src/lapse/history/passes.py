"""One pass of one policy over a store: list in pages, judge, and end what is due by the engine's own helper.

The first listing is read once and not kept: of each object only a number per group stays. What is too old by its own
fields goes at once, page by page, under the uid and the version that were read. Where the number of a group matters, or
who is its last good one, those groups are listed *again*, judged as they are then, and only that judgement deletes;
``now`` is the moment at which the pass began, so that nothing grows old while it runs.

Guarantees: metadata is all that is read where the policy needs no more; the newest that a limit allows are never among
what is ended, however many passes run at once; what changed after it was read survives. A pass that may not proceed
stops between pages and between acts.

Not guaranteed: that a group which somebody else deletes from, between its second listing and the acts, keeps as many
as the limit allows. Memory: a number per group, and the entries of the groups that are read again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.verdict import Due, DueReason, KeepReason
from lapse.engine.ending import Ending
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY
from lapse.history.listing import LEFT_ALONE, PAGE, Listing
from lapse.history.retention import LimitReason, Survey, judge
from lapse.kube.resources import NO_LABELS, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lapse.core.clock import Clock
    from lapse.core.verdict import Reason
    from lapse.engine.ending import Ender
    from lapse.history.policy import Policy
    from lapse.history.retention import Entry, Judgement
    from lapse.kube.resources import Kind
    from lapse.objects.port import Reader

HISTORY: Final = "history"
RETENTION: Final = "retention"
"""Domains, as metrics and journal name them."""
DOMAINS: Final = (HISTORY, RETENTION)
"""What can be frozen, and has a deletion budget."""
REASONS: Final[tuple[Reason, ...]] = (DueReason.TTL_EXPIRED, LimitReason.RETENTION_LIMIT)
_TOGETHER: Final = 64
"""Acts that are handed over at once: as many as one transaction of a sweep has."""


@dataclass(slots=True)
class PassReport:
    """What a pass found and did."""

    matched: int = 0
    """Objects that the policy is about, in the first listing."""
    due: Counter[str] = field(default_factory=Counter)
    """By reason."""
    kept: Counter[str] = field(default_factory=Counter)
    """By reason; doubt is among them."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """What came of what was due."""
    is_complete: bool = True
    """Whether everything was looked at."""


class Pass:
    """Passes of one policy, one at a time."""

    def __init__(
        self,
        policy: Policy,
        *,
        direct: Reader,
        ender: Ender,
        clock: Clock,
        left_alone: Collection[str] = LEFT_ALONE,
        page: int = PAGE,
    ) -> None:
        """Read nothing yet. Of a policy that is a dry run, ``ender`` must be a dry one."""
        if policy.dry_run and not ender.dry_run:
            raise ValueError(f"the policy {policy.name} is a dry run, and its ender is not")
        self.policy = policy
        self._direct, self._ender, self._clock = direct, ender, clock
        self._left_alone, self._page = left_alone, page

    async def run(
        self, *, labels: Mapping[str, str] = NO_LABELS, proceed: Callable[[], bool] = lambda: True
    ) -> PassReport:
        """Look at everything that the policy is about, or only at what also has ``labels``.

        ``labels`` must name whole groups. Raises what the store answers when it cannot be listed.
        """
        listing = Listing(
            policy=self.policy,
            kind=await self._direct.resolve(self.policy.api_version, self.policy.kind),
            direct=self._direct,
            clock=self._clock,
            labels=labels,
            left_alone=self._left_alone,
            page=self._page,
        )
        run = _Run(listing, self._ender, now=UnixNs(self._clock.wall_ns()), proceed=proceed)
        await run.survey()
        await run.read_again()
        return run.report


class _Run:
    """One pass under way."""

    def __init__(self, listing: Listing, ender: Ender, *, now: UnixNs, proceed: Callable[[], bool]) -> None:
        self.report = PassReport()
        self._listing, self._policy, self._kind = listing, listing.policy, listing.kind
        self._ender, self._now, self._proceed = ender, now, proceed
        self._survey = Survey(self._policy.limits, now)
        self._acts: list[Ending] = []

    async def survey(self) -> None:
        """Read everything once, and end what is due by its own fields."""
        async for entries in self._listing.pages(self._may_proceed):
            self.report.matched += len(entries)
            for entry in entries:
                judged = self._survey.look(entry)
                if judged is not None:
                    await self._take(judged)
        await self._act()

    async def read_again(self) -> None:
        """Read the groups that matter once more, and end what is due there."""
        concerned: list[Entry] = []
        if not self._survey.is_clear:
            again = self._listing.pages(self._may_proceed)
            concerned = [one async for entries in again for one in entries if self._survey.concerns(one)]
        if self.report.is_complete:  # of a group that was read in part, nobody can say who is the newest
            for judged in judge(concerned, self._policy.limits, self._now):
                await self._take(judged)
            await self._act()
        told = self.report.due.total() + self.report.kept.total()
        off = self._policy.limits.max_age is None and self._policy.limits.max_count is None
        self.report.kept[KeepReason.NO_LIMIT if off else KeepReason.NOT_YET] += max(0, self.report.matched - told)

    async def _take(self, judged: Judgement) -> None:
        verdict = judged.verdict
        if not isinstance(verdict, Due):
            self.report.kept[verdict.reason] += 1
            return
        self.report.due[verdict.reason] += 1
        self._acts.append(self._ending(judged.entry, verdict))
        if len(self._acts) >= _TOGETHER:
            await self._act()

    async def _act(self) -> None:
        acts, self._acts = self._acts, []
        if acts and self._may_proceed():
            self.report.outcomes.update(await self._ender.end_all(acts))

    def _may_proceed(self) -> bool:
        self.report.is_complete = self.report.is_complete and self._proceed()
        return self.report.is_complete

    def _ending(self, entry: Entry, verdict: Due) -> Ending:
        return Ending(
            domain=HISTORY if _is_history(self._kind) else RETENTION,
            address=address(self._kind, ObjectKey(entry.namespace, entry.name)),
            kind=self._kind,
            key=ObjectKey(entry.namespace, entry.name),
            uid=entry.uid,
            version=entry.version,
            reason=verdict.reason,
            since=verdict.since,
            anchor_ns=entry.anchor,
            policy=self._policy.digest,
            hold=entry.hold,
            details={"policy": self._policy.name},
        )


def address(kind: Kind[Any], key: ObjectKey) -> Address:
    """Return where an object of any kind is found."""
    if _is_history(kind):
        return Address(HISTORY, key.namespace, key.name)
    return Address(f"{kind.kind}.{kind.group}" if kind.group else kind.kind, key.namespace, key.name)


def _is_history(kind: Kind[Any]) -> bool:
    # By name: a store that was not told the type of records reads them as any other document.
    return (kind.api_version, kind.kind) == (CHAOS_EXPERIMENT_HISTORY.api_version, CHAOS_EXPERIMENT_HISTORY.kind)
