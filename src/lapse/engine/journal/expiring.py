"""Expiry warnings: rows of the journal that tell, a configured time before, what is going to lapse.

One row (`Outcome.EXPIRING`) for each thing and deadline, to the second, also over restarts and other leaders: what was
told is read from the journal where it is not remembered. A deadline that moves is another one. What lives for less than
twice the configured time is told of at half of its time, so that something whose deadline moves with every use is not
told of with every use.

Told of is what will be due at its deadline as far as is known now: not what is held until then, nor what is only tried
dry, and nothing while the clock is in doubt. Not guaranteed: that what was told of lapses, because it may be held,
extended or used meanwhile; that all of what lapses was told of before, such as what a limit on a number ends; or that a
warning comes to the second: it is up to `LONGEST_SECONDS` late.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Keep
from lapse.core.log import current_work
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import DomainRules, action_of, decided
from lapse.engine.journal.outbox import DOMAIN, loop_name
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.metrics import ErrorKind
from lapse.engine.safety.holds import Hold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.core.clock import Clock
    from lapse.core.decision import Decision
    from lapse.engine.domain import Action, Candidate, Target
    from lapse.engine.journal.outbox import Store
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.holds import HoldDoubt

NAME: Final = "expiry-warnings"
LONGEST_SECONDS: Final = 300.0
"""The longest time between two looks."""
_LOOKS: Final = 20
"""How many there are within the configured time, at least."""
_PAGE: Final = 500
_REMEMBERED: Final = 100_000
_LOOKED_UP: Final = 10
"""Warnings about one thing that are compared: it had as many deadlines."""
_NS: Final = 1_000_000_000
_STEP_NS: Final = _NS
"""How long after its deadline a thing is due in every domain: none counts in longer steps."""
S = TypeVar("S")


class UpcomingDomain(DomainRules[S], Protocol[S]):
    """As much of a `lapse.engine.domain.ManagedDomain` as a warning needs."""

    @property
    def target(self) -> Target:
        """See `ManagedDomain`."""
        ...

    def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[S]], None]:
        """See `ManagedDomain`."""
        ...


class _Expiring(NamedTuple):
    """A thing that is near its deadline."""

    candidate: Candidate[Any]
    decision: Decision
    deadline: UnixNs
    action: Action
    """What will be done then, unless something changes."""

    def is_held(self, over: Hold | HoldDoubt | None) -> bool:
        """Whether a hold, on itself or the one ``over`` it, keeps it at its deadline, as far as that is known."""
        own = self.candidate.hold
        if own is not None and own.active(self.deadline):
            return True
        return over is not None and (not isinstance(over, Hold) or over.active(self.deadline))


class ExpiryWarnings:
    """A `lapse.engine.running.coordinator.Loop` over domains; one that fails does not keep the others from theirs."""

    domain: Final = DOMAIN
    leader_only: Final = True

    def __init__(
        self,
        domains: Sequence[UpcomingDomain[Any]],
        *,
        before: float,
        store: Store = "folder",
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        actor: str,
    ) -> None:
        """Tell of what lapses within ``before`` seconds; ``store`` is where the things of the domains are."""
        self.name = loop_name(NAME, store)
        self.interval = max(1.0, min(LONGEST_SECONDS, before / _LOOKS))
        self._domains, self._before_ns = domains, round(before * _NS)
        self._journal, self._clock, self._metrics, self._actor = journal, clock, metrics, actor
        self._turn: Turn | None = None
        self._told: OrderedDict[tuple[str, str], UnixNs] = OrderedDict()
        """The last deadline of a thing that was told."""

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`: another leader may have told of other deadlines."""
        self._turn = turn
        self._told.clear()

    async def tick(self) -> float | None:
        """Look at what is near its deadline. Raises the first error, after all domains."""
        errors: list[Exception] = []
        for domain in self._domains:
            try:
                await self._look(domain)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return None

    async def _look(self, domain: UpcomingDomain[Any]) -> None:
        until = UnixNs(self._clock.wall_ns() + self._before_ns)
        pages = domain.upcoming(until, size=_PAGE)
        try:
            async for page in pages:
                if self._clock.in_doubt() or not (self._turn is None or self._turn.proceed()):
                    return
                await self._tell(domain, await self._unheld(domain, self._near(domain, page)))
        finally:
            await pages.aclose()

    def _near(self, domain: UpcomingDomain[Any], page: Sequence[Candidate[Any]]) -> list[_Expiring]:
        """Return what of a page is near its deadline, and will be due then."""
        now, near = UnixNs(self._clock.wall_ns()), list[_Expiring]()
        for candidate in page:
            try:
                decision = decided(domain, candidate, now)
                deadline = decision.deadline
                if deadline is None or candidate.dry_run or not self._is_near(decision, deadline, now):
                    continue
                then = decided(domain, candidate, UnixNs(deadline + _STEP_NS))
                if isinstance(then.verdict, Due):
                    near.append(_Expiring(candidate, decision, deadline, action_of(domain, candidate, then)))
            except Exception:  # noqa: BLE001 - the sweep tells of it; one failing item never stops the rest
                self._metrics.failed(domain.name, ErrorKind.ITEM)
        return near

    def _is_near(self, decision: Decision, deadline: UnixNs, now: UnixNs) -> bool:
        before_ns = self._before_ns
        if decision.anchor is not None:
            before_ns = min(before_ns, (deadline - decision.anchor) // 2)
        return isinstance(decision.verdict, Keep) and deadline - before_ns <= now <= deadline

    async def _unheld(self, domain: UpcomingDomain[Any], near: Sequence[_Expiring]) -> list[_Expiring]:
        """Return what no hold will keep at its deadline; where holds cannot be read, that is not known."""
        if not near:
            return []
        now = UnixNs(self._clock.wall_ns())
        over = await domain.target.holds_over([one.action for one in near], now)
        return [one for one, hold in zip(near, over, strict=True) if not one.is_held(hold)]

    async def _tell(self, domain: UpcomingDomain[Any], near: Sequence[_Expiring]) -> None:
        untold = [one for one in near if not await self._is_told(domain.name, one)]
        if untold:
            await self._journal.append(*(self._entry(one) for one in untold))
        for one in near:
            self._told[domain.name, one.action.uid] = one.deadline
            self._told.move_to_end((domain.name, one.action.uid))
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    async def _is_told(self, domain: str, one: _Expiring) -> bool:
        uid = one.action.uid
        if self._told.get((domain, uid)) == one.deadline:
            return True
        rows = await self._journal.entries(domain=domain, uid=uid, outcome=Outcome.EXPIRING, limit=_LOOKED_UP)
        return any((row.details or {}).get("deadline") == to_timestamp(one.deadline) for row in rows)

    def _entry(self, one: _Expiring) -> Entry:
        action, decision = one.action, one.decision
        return Entry(
            time_ns=self._clock.wall_ns(),
            domain=action.domain,
            address=str(action.address),
            uid=action.uid,
            version=action.version,
            verdict="keep",
            reason=decision.verdict.reason,
            anchor_ns=decision.anchor,
            policy=action.policy,
            actor=self._actor,
            outcome=Outcome.EXPIRING,
            details={"action": action.action, "deadline": to_timestamp(one.deadline)},
            tick=current_work(),
        )
