"""The sweep: one way for everything to lapse, whatever it is.

A domain says what may be due, from an index by deadline; its pure decision function says what is. What is due is read
fresh, as far as the act's own compare does not cover it, decided *again* at a fresh moment, and only then handed to the
`Ender`; what needed no reading goes there by the dozen, where that saves transactions. An unknown never acts. One
failing item is counted and journalled and never stops the rest; a sweep that may not go on (leadership lost, shutting
down) stops between items, or between transactions.

Finding nothing costs nothing: no call to any store, however much is known. Items are worked on by a few workers that
pull from the domain's iterator, so a list of any length needs no memory of its own.

Not guaranteed: any order between items in flight. What limits acts (budget, freeze, a clock that jumped) stands in
`lapse.engine.ending.Guard`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, around, backoff, chance
from lapse.core.log import current_work, get_logger
from lapse.core.verdict import Due, Keep, KeepReason, Reason, Unknown, Verdict
from lapse.engine.ending import Ender, Ending
from lapse.engine.holds import Hold
from lapse.engine.journal import Entry, Outcome
from lapse.engine.metrics import ErrorKind, Metrics
from lapse.kube.resources import Kind, ObjectKey, OwnerReference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lapse.core.clock import Clock
    from lapse.engine.coordinator import Turn
    from lapse.engine.journal import Journal

WIDTH: Final = 128
"""Items in flight, each by itself: enough to fill connections, few enough to stop at once."""
_TOGETHER: Final = 128
"""Items of one transaction, where they can share one: half of those in flight, the rest is prepared meanwhile."""
OVERDUE_PER_SECOND: Final = 500
HELD_SECONDS: Final = 600.0
"""How often something held is looked at again: its hold may stand on another object, whose release nobody reports."""
REFUSED_SECONDS: Final = 60.0
"""How often something that a guard was against is tried again."""
_NOT_YET: Final = frozenset({Outcome.REFUSED, Outcome.WOULD_END})
"""What the brake knows when to try again."""
_BATCHES_PER_SECOND: Final = 10
_SHORTEST_WAIT_SECONDS: Final = 0.1
_SOONEST_SECONDS: Final = 0.01
_FAILING_REMEMBERED: Final = 100_000
_LONGEST_RETRY_SECONDS: Final = 300.0
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.sweep")

S = TypeVar("S")


class SweepReason(Reason):
    """Why the sweep itself knows nothing about an item."""

    ERROR = "error"
    """Deciding or reading it failed."""


class Candidate(msgspec.Struct, Generic[S], frozen=True, kw_only=True, gc=False):
    """Something that may be due, as it was last seen. Its hold is part of it."""

    address: Address
    kind: Kind[Any]
    key: ObjectKey
    uid: str
    version: str
    state: S
    """What the domain decides on."""
    hold: Hold | None = None
    owners: tuple[OwnerReference, ...] | None = None
    """None when they were not read."""

    def ending(
        self, verdict: Due, *, domain: str, policy: str, anchor_ns: int | None, details: dict[str, Any] | None = None
    ) -> Ending:
        """Return what ends it, as it was seen."""
        return Ending(
            domain=domain,
            address=self.address,
            kind=self.kind,
            key=self.key,
            uid=self.uid,
            version=self.version,
            reason=verdict.reason,
            since=verdict.since,
            anchor_ns=anchor_ns,
            policy=policy,
            hold=self.hold,
            owners=self.owners,
            details=details,
        )


class Domain(Protocol[S]):
    """What a domain knows about the things that lapse in it."""

    @property
    def name(self) -> str:
        """A metric label and a column of the journal."""
        ...

    @property
    def policy(self) -> str:
        """A short hash of the policy, for the journal."""
        ...

    @property
    def reasons(self) -> Iterable[Reason]:
        """Every reason for which something can be due: labels that start at zero."""
        ...

    def due(self, now: UnixNs) -> Iterator[Candidate[S]]:
        """Yield what may be due, earliest deadline first. Costs what is due, and no call to a store.

        Items are `settled` while the iterator runs. What was yielded and not settled must be yielded again next time.
        """
        ...

    def next_deadline(self) -> UnixNs | None:
        """Return when something may next be due; None when nothing is known to become due."""
        ...

    def decide(self, candidate: Candidate[S], now: UnixNs) -> Verdict:
        """Decide. Pure."""
        ...

    async def refresh(self, candidate: Candidate[S]) -> Candidate[S] | None:
        """Read fresh whatever an act that compares uid and version does not cover; None when it is gone.

        Returns the candidate itself when there is nothing of the kind.
        """
        ...

    def details(self, candidate: Candidate[S]) -> dict[str, Any] | None:
        """Return what the journal is to remember of something that is ended."""
        ...

    def anchor(self, candidate: Candidate[S]) -> UnixNs | None:
        """Return what its time is counted from."""
        ...

    def settled(self, candidate: Candidate[S], outcome: Outcome, next_check: UnixNs | None) -> None:
        """Take note of what came of a candidate that `due` has yielded, and look again at ``next_check``.

        None means: only when something about it changes. After ENDED and GONE it can be forgotten.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one run did, in items."""

    looked: int = 0
    ended: int = 0
    gone: int = 0
    kept: int = 0
    unknown: int = 0
    """Also what a guard was against."""
    changed: int = 0
    held: int = 0
    would_end: int = 0
    failed: int = 0
    more: bool = False
    """Whether it stopped before everything that may be due was looked at."""


_COUNTS: Final = tuple(field.name for field in fields(SweepReport) if field.name != "more")
_WORDS: Final[Mapping[type[Verdict], str]] = {Due: "due", Keep: "keep", Unknown: "unknown"}


class _Pull(Generic[S]):
    """The one end of the domain's iterator that all workers of a run pull at."""

    def __init__(self, items: Iterator[Candidate[S]], proceed: Callable[[], bool], limit: int | None) -> None:
        self._items, self._left = items, limit
        self.proceed = proceed
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.workers = 1
        self.stopped = False
        self.error: Exception | None = None

    def take_some(self, count: int) -> list[Candidate[S]]:
        """Return the next items, at most ``count``; none when there is none, or none may be begun."""
        taken: list[Candidate[S]] = []
        while len(taken) < count and (found := self._take()) is not None:
            taken.append(found)
        return taken

    def _take(self) -> Candidate[S] | None:
        if self.error is not None or self.stopped:
            return None
        if self._left == 0 or not self.proceed():
            self.stopped = True
            return None
        try:
            found = next(self._items, None)
        except Exception as error:  # noqa: BLE001 - raised by the run, after the items in flight have ended in order
            self.error = error
            return None
        if found is not None:
            self.counts["looked"] += 1
            self._left = None if self._left is None else self._left - 1
        return found

    def close(self) -> None:
        """Give back what was pulled and not settled."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


class Sweep(Generic[S]):
    """Sweeps one domain. One at a time: two sweeps of one domain would share its index."""

    def __init__(
        self,
        domain: Domain[S],
        ender: Ender,
        *,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        width: int | None = None,
        chance: Chance = chance,
    ) -> None:
        """Set every metric of the domain to zero; nothing is looked at before `run`.

        ``journal`` is the ender's; ``width`` is how many items are in flight, unless that is better left to the sweep.
        """
        self.domain = domain
        self.clock = clock
        self._ender, self._journal, self._metrics = ender, journal, metrics
        in_flight = width or (2 * _TOGETHER if ender.together else WIDTH)
        self._at_once = min(_TOGETHER, in_flight) if ender.together else 1
        self._workers, self._chance = -(-in_flight // self._at_once), chance
        self._attempts: Counter[str] = Counter()
        self._held: OrderedDict[str, int] = OrderedDict()
        self._began = UnixNs(0)
        metrics.expect_sweep(domain.name, reasons=domain.reasons)

    async def run(self, *, proceed: Callable[[], bool], limit: int | None = None) -> SweepReport:
        """Look at everything that may be due, at most ``limit`` items, while ``proceed`` says so."""
        now = self._began = self._now()
        pull = _Pull(self.domain.due(now), proceed, limit)
        try:
            async with asyncio.TaskGroup() as group:
                await self._work(pull, group)
        finally:
            pull.close()
            for verdict, count in pull.verdicts.items():
                self._metrics.decided(self.domain.name, verdict, count=count)
            self._tell_gauges()
        if pull.error is not None:
            raise pull.error
        deadline = self.domain.next_deadline()
        more = pull.stopped and deadline is not None and deadline <= now
        return SweepReport(**{name: pull.counts[name] for name in _COUNTS}, more=more)

    async def _work(self, pull: _Pull[S], group: asyncio.TaskGroup) -> None:
        while candidates := pull.take_some(self._at_once):
            if pull.workers < self._workers:  # each take brings one more worker, until there are enough
                pull.workers += 1
                group.create_task(self._work(pull, group))
            due: list[tuple[Candidate[S], Ending]] = []
            for candidate in candidates:
                try:
                    came_to = await self._look(candidate, pull, due)
                except Exception as error:  # noqa: BLE001 - one failing item never stops the rest
                    came_to = await self._failed(candidate, error)
                if came_to is not None:
                    pull.counts[came_to] += 1
            if due:
                await self._end(due, pull)
            else:  # what is only decided waits for nothing: the rest of the process has its turn
                await self.clock.sleep(0)

    async def _look(
        self, candidate: Candidate[S], pull: _Pull[S], due: list[tuple[Candidate[S], Ending]]
    ) -> str | None:
        """Decide, recheck, and act or add to ``due``; return what to count, None for what is only added."""
        now = self._now()
        verdict = self.domain.decide(candidate, now)
        held = candidate.hold is not None and candidate.hold.active(now)
        asked = candidate
        if isinstance(verdict, Due) and not held:
            fresh = await self.domain.refresh(candidate)
            if fresh is None:
                return self._settle(candidate, Outcome.GONE)
            if fresh is not candidate:  # otherwise nothing was read, and nothing can be decided differently
                candidate, now = fresh, self._now()
                verdict = self.domain.decide(candidate, now)
        pull.verdicts[_WORDS[type(verdict)]] += 1
        if not isinstance(verdict, Due):
            return await self._stays(candidate, verdict, now)
        act = (candidate, self._ending(candidate, verdict))
        if candidate is asked:
            due.append(act)
        else:  # what was read beside it grows old, so it does not wait for the others
            await self._end([act], pull)
        return None

    async def _end(self, acts: list[tuple[Candidate[S], Ending]], pull: _Pull[S]) -> None:
        if not pull.proceed():  # reading took its time, and the right to act may be gone
            pull.stopped = True
            pull.counts["interrupted"] += len(acts)
            return
        try:
            outcomes = await self._ender.end_all([ending for _, ending in acts])
        except Exception as error:  # noqa: BLE001 - a defect, whose cause is looked for in the log and not in the rest
            for candidate, _ in acts:
                pull.counts[await self._failed(candidate, error)] += 1
            return
        pause = None if _NOT_YET.isdisjoint(outcomes) else self._ender.brake.pause(self.domain.name)
        if (
            pause is not None and Outcome.REFUSED in outcomes
        ):  # whatever comes next would be refused as well, with a row for each
            pull.stopped = True
        next_look = None if pause is None else _later(self._now(), pause)
        for (candidate, _), outcome in zip(acts, outcomes, strict=True):
            again = next_look if outcome in _NOT_YET else None
            pull.counts[self._settle(candidate, outcome, next_check=again)] += 1

    async def held_back(self) -> float | None:
        """Return for how many seconds nothing of the domain may be ended, if that is known; asks the brakes."""
        if await self._ender.brake.objection(self.domain.name) is None:
            return None
        return self._ender.brake.pause(self.domain.name)

    async def _stays(self, candidate: Candidate[S], verdict: Keep | Unknown, now: UnixNs) -> str:
        held = isinstance(verdict, Keep) and verdict.reason == KeepReason.HELD
        entry = self._entry(candidate, verdict, Outcome.HELD if held else Outcome.NOTED, now)
        goes_without_saying = isinstance(verdict, Keep) and not held
        await self._journal.note(entry, unless_first=goes_without_saying)
        self._settle(candidate, entry.outcome, next_check=verdict.next_check)
        return "held" if held else "kept" if isinstance(verdict, Keep) else "unknown"

    async def _failed(self, candidate: Candidate[S], error: Exception) -> str:
        name, defect = type(error).__name__, not isinstance(error, LapseError)
        # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
        _log.warning("item_failed", domain=self.domain.name, error=name, exc_info=error if defect else None)
        self._metrics.failed(self.domain.name, ErrorKind.ITEM)
        try:
            verdict = Unknown(SweepReason.ERROR)
            await self._journal.note(
                self._entry(candidate, verdict, Outcome.FAILED, self._now(), details={"error": name})
            )
        except Exception as second:  # noqa: BLE001 - it is counted, and looked at again, also without a row
            _log.error("not_journalled", domain=self.domain.name, error=type(second).__name__)
            self._metrics.failed(self.domain.name, ErrorKind.JOURNAL)
        return self._settle(candidate, Outcome.FAILED)

    def _settle(self, candidate: Candidate[S], outcome: Outcome, *, next_check: UnixNs | None = None) -> str:
        """Tell the domain when to look again; return what to count."""
        now = self._now()
        if outcome is Outcome.HELD:
            self._held[candidate.uid] = now
            self._held.move_to_end(candidate.uid)
        else:
            self._held.pop(candidate.uid, None)
        try:
            self.domain.settled(candidate, outcome, self._next_check(candidate, outcome, next_check, now))
        except Exception as error:  # noqa: BLE001 - the index is wrong now, what was done is not
            _log.warning("not_settled", domain=self.domain.name, error=type(error).__name__, exc_info=True)
            self._metrics.failed(self.domain.name, ErrorKind.ITEM)
        return "unknown" if outcome is Outcome.REFUSED else outcome

    def _next_check(
        self, candidate: Candidate[S], outcome: Outcome, asked: UnixNs | None, now: UnixNs
    ) -> UnixNs | None:
        if outcome in {Outcome.CHANGED, Outcome.FAILED}:
            if len(self._attempts) > _FAILING_REMEMBERED:  # left by what failed and was then deleted by somebody else
                self._attempts.clear()
            attempt = self._attempts[candidate.uid]
            self._attempts[candidate.uid] += 1
            asked = _later(now, backoff(attempt, first=1.0, longest=_LONGEST_RETRY_SECONDS, chance=self._chance))
        else:
            self._attempts.pop(candidate.uid, None)
        if outcome is Outcome.REFUSED and asked is None:
            asked = _later(now, REFUSED_SECONDS)
        if outcome is Outcome.HELD:
            until = candidate.hold.until if candidate.hold is not None and candidate.hold.active(now) else None
            asked = min(moment for moment in (asked, until, _later(now, HELD_SECONDS)) if moment is not None)
        # A moment that is over, also one that a clock which was set back calls over, would be looked at again in this
        # very run, and again.
        return None if asked is None else max(asked, _later(max(now, self._began), _SOONEST_SECONDS))

    def _ending(self, candidate: Candidate[S], verdict: Due) -> Ending:
        anchor, details = self.domain.anchor(candidate), self.domain.details(candidate)
        return candidate.ending(
            verdict, domain=self.domain.name, policy=self.domain.policy, anchor_ns=anchor, details=details
        )

    def _entry(
        self,
        candidate: Candidate[S],
        verdict: Keep | Unknown,
        outcome: Outcome,
        now: UnixNs,
        *,
        details: dict[str, Any] | None = None,
    ) -> Entry:
        return Entry(
            time_ns=now,
            domain=self.domain.name,
            address=str(candidate.address),
            uid=candidate.uid,
            version=candidate.version,
            verdict=_WORDS[type(verdict)],
            reason=verdict.reason,
            anchor_ns=None if outcome is Outcome.FAILED else self.domain.anchor(candidate),
            policy=self.domain.policy,
            actor=self._ender.actor,
            outcome=outcome,
            details=details,
            tick=current_work(),
        )

    def _tell_gauges(self) -> None:
        # What is held is looked at regularly; what no longer is was deleted by somebody else.
        oldest_ns = self.clock.wall_ns() - round(2 * HELD_SECONDS * _NS)
        while self._held and next(iter(self._held.values())) < oldest_ns:
            self._held.popitem(last=False)
        self._metrics.holding(self.domain.name, len(self._held))
        deadline = self.domain.next_deadline()
        self._metrics.expecting(self.domain.name, None if deadline is None else deadline / _NS)

    def _now(self) -> UnixNs:
        return UnixNs(self.clock.wall_ns())


def _later(now: UnixNs, seconds: float) -> UnixNs:
    return UnixNs(now + round(seconds * _NS))


class SweepLoop:
    """A `lapse.engine.coordinator.Loop` over one sweep, woken by deadlines.

    Whoever keeps the domain's index calls `wake` when a deadline appears that comes before all others; without it the
    loop finds out at its interval. What was overdue when a term began is ended at ``overdue_per_second``, whenever the
    index learns of it; what becomes due during the term is not slowed down.
    """

    def __init__(
        self,
        sweep: Sweep[Any],
        *,
        name: str,
        interval: float,
        leader_only: bool = True,
        overdue_per_second: int = OVERDUE_PER_SECOND,
        chance: Chance = chance,
    ) -> None:
        """Sweep when the next deadline comes, and every ``interval`` seconds at the latest."""
        self.name, self.interval, self.leader_only = name, interval, leader_only
        self.domain: str = sweep.domain.name
        self._sweep, self._chance = sweep, chance
        self._batch = max(1, overdue_per_second // _BATCHES_PER_SECOND)
        self._pause = self._batch / overdue_per_second
        self._turn: Turn | None = None
        self._began_ns = 0
        self._next_batch_ns = 0

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.coordinator.Steered`."""
        self._turn, self._began_ns, self._next_batch_ns = turn, self._sweep.clock.wall_ns(), 0

    def wake(self) -> None:
        """Look at the deadlines again, now. Belongs to the event loop; without a turn there is nothing to wake."""
        if self._turn is not None:
            self._turn.wake()

    async def tick(self) -> float | None:
        """Sweep; return the seconds to the next deadline."""
        deadline = self._sweep.domain.next_deadline()
        if deadline is not None and deadline <= self._sweep.clock.wall_ns():
            # While a domain stands still, what is due is not even looked at: it may be very much.
            pause = await self._sweep.held_back()
            if pause is not None:
                return min(pause, self.interval)
        if deadline is None or deadline > self._began_ns:
            return self._wait(await self._sweep.run(proceed=self._proceed))
        now_ns = self._sweep.clock.monotonic_ns()
        if now_ns < self._next_batch_ns:  # somebody woke us, but what is overdue is to be spread
            return (self._next_batch_ns - now_ns) / _NS
        self._next_batch_ns = now_ns + round(self._pause * _NS)
        report = await self._sweep.run(proceed=self._proceed, limit=self._batch)
        return self._pause if report.more else self._wait(report)

    def _proceed(self) -> bool:
        return self._turn is None or self._turn.proceed()

    def _wait(self, report: SweepReport) -> float:
        longest = around(self.interval, chance=self._chance)
        deadline = self._sweep.domain.next_deadline()
        if deadline is None:
            return longest
        seconds = (deadline - self._sweep.clock.wall_ns()) / _NS
        # Still due after a whole run: it came just now, or nobody could settle it. Either way not at once.
        return min(longest, seconds if seconds > 0 or report.more else _SHORTEST_WAIT_SECONDS)
