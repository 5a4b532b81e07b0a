"""One pass of the policies of one kind over a store: list in pages, judge, and end what is due.

The first listing is read once and not kept: of each object only a number per group stays. What is too old by its own
fields goes soon, some pages at a time, under the uid and the version that were read. Where the number of a group
matters, or who is its last good one, everything is listed *again*, the members of those groups are ranked as they are
then, and only that decides about them. ``now`` is the moment at which the pass began, so that nothing grows old while
it runs, and what is created meanwhile is among the newest.

Guarantees: metadata is all that is read where the policies need no more; the newest that a limit allows are never among
what is ended, however many passes run at once; what changed after it was read survives. A pass that may not proceed
stops between pages and between acts. A store that cannot show a moment for as long as it takes to list it has nothing
ended by number, and the report says that it is not complete.

Not guaranteed: that a group which somebody else deletes from, between its ranking and the acts, keeps as many as the
limit allows. Memory: a number per group; the places of the newest of those groups that are ranked; and some pages of
objects. Where there are more than these to be settled, they are listed once more instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import DueReason
from lapse.history.retention.acting import HISTORY, RETENTION, Acts, Told, address
from lapse.history.retention.listing import ATTEMPTS, LEFT_ALONE, PAGE, Listing
from lapse.history.retention.policy_set import PassReport, Several
from lapse.history.retention.precheck import glance
from lapse.history.retention.rules import LimitReason
from lapse.kube.errors import GoneError
from lapse.kube.resources import NO_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.core.decision import Reason
    from lapse.engine.executor import Executor
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.policy_set import Views
    from lapse.objects.port import Reader

__all__ = ["DOMAINS", "HISTORY", "REASONS", "RETENTION", "Pass", "PassReport", "Told", "address"]

DOMAINS: Final = (HISTORY, RETENTION)
"""What can be frozen, and has a deletion budget."""
REASONS: Final[tuple[Reason, ...]] = (DueReason.TTL_EXPIRED, LimitReason.RETENTION_LIMIT)
_PAGES_REMEMBERED: Final = 40


def _tell_nobody(_told: Told) -> None:
    """Do nothing."""


class Pass:
    """Passes of some policies, all of one kind, one at a time."""

    def __init__(
        self,
        policies: Sequence[Policy],
        *,
        direct: Reader,
        executor: Executor,
        clock: Clock,
        left_alone: Collection[str] = LEFT_ALONE,
        page: int = PAGE,
        acting: Collection[str] | None = None,
        told: Callable[[Told], None] = _tell_nobody,
    ) -> None:
        """Read nothing yet.

        Those that ``acting`` names may delete, all others only protect; None: all may. ``told`` hears of everything
        that was due.
        """
        kinds = {(policy.api_version, policy.kind) for policy in policies}
        if len(kinds) != 1:
            raise ValueError(f"one pass is over one kind; the policies are about {sorted(kinds) or 'none'}")
        self.policies = tuple(policies)
        self._direct, self._executor, self._clock = direct, executor, clock
        self._left_alone, self._page = left_alone, page
        self._acting, self._told = acting, told

    async def run(
        self, *, labels: Mapping[str, str] = NO_LABELS, proceed: Callable[[], bool] = lambda: True
    ) -> dict[str, PassReport]:
        """Look at everything that the policies are about, or only at what also has ``labels``.

        Returns a report for each policy that may act. ``labels`` that do not name whole groups have less ended, never
        more. Raises what the store answers when it cannot be listed.
        """
        first = self.policies[0]
        kind = await self._direct.resolve(first.api_version, first.kind)
        listing = Listing(
            policies=self.policies,
            kind=kind,
            direct=self._direct,
            clock=self._clock,
            labels=labels,
            left_alone=self._left_alone,
            page=self._page,
        )
        several = Several(self.policies, UnixNs(self._clock.wall_ns()), acting=self._acting)
        run = _Run(listing, several, proceed)
        most = _PAGES_REMEMBERED * self._page
        acts = Acts(kind, self._executor, proceed=run.may_proceed, told=self._told, most=most)
        await run.whole(acts, remembered=most)
        return several.reports(is_complete=run.is_complete)


class _Run:
    """One pass under way."""

    def __init__(self, listing: Listing, several: Several, proceed: Callable[[], bool]) -> None:
        self.is_complete = True
        self._listing, self._several, self._proceed = listing, several, proceed

    async def whole(self, acts: Acts, *, remembered: int) -> None:
        """Look at everything, and then at the groups that matter."""
        if self.may_proceed() and await self._is_clear_at_a_glance():
            return
        try:
            await self._look(acts)
            if self.is_complete and not self._several.is_clear:
                await self._look_again(acts, remembered)
        except GoneError:
            await acts.finish()  # what was settled before is not in doubt
            self.is_complete = False

    def may_proceed(self) -> bool:
        """Whether to go on; once the answer was no, it stays no."""
        self.is_complete = self.is_complete and self._proceed()
        return self.is_complete

    async def _is_clear_at_a_glance(self) -> bool:
        members = self._several.members
        matched = await glance(self._listing, [member.limits for member in members], self._several.now)
        for member, number in zip(members, matched or (), strict=matched is not None):
            member.report.matched = number
        return matched is not None

    async def _look(self, acts: Acts) -> None:
        async for page in self._listing.pages(self.may_proceed, is_outdated=acts.has_ended):
            for views in page:
                settled = self._several.look(views)
                if settled is not None:
                    await acts.add(settled)
        await acts.finish()

    async def _look_again(self, acts: Acts, remembered: int) -> None:
        concerned = await self._rank(remembered)
        if not self.is_complete:  # of a group that was read in part, nobody can say who is the newest
            return
        if concerned is not None:
            await self._settle(concerned, acts)
        else:
            async for page in self._listing.pages(self.may_proceed, is_outdated=acts.has_ended):
                await self._settle(page, acts)
        await acts.finish()

    async def _rank(self, remembered: int) -> list[Views] | None:
        """Rank the members of the groups that matter; return those to settle, None when there are too many."""
        for attempt in range(1, ATTEMPTS + 1):
            self._several.forget_ranks()
            try:
                return await self._rank_once(remembered)
            except GoneError:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    async def _rank_once(self, remembered: int) -> list[Views] | None:
        concerned: list[Views] = []
        is_too_much = False
        async for page in self._listing.pages(self.may_proceed, of_one_moment=True):
            found = [views for views in page if self._several.rank(views)]
            is_too_much = is_too_much or len(concerned) + len(found) > remembered
            concerned = [] if is_too_much else concerned
            concerned += [] if is_too_much else found
        return None if is_too_much else concerned

    async def _settle(self, concerned: Sequence[Views], acts: Acts) -> None:
        for views in concerned:
            settled = self._several.settle(views)
            if settled is not None:
                await acts.add(settled)
