"""The sweep: one way for everything to lapse, whatever it is.

A domain says what may be due, page by page; its pure decision function says what is. What is due is read fresh, as far
as the act's own compare does not cover it, decided *again* at a fresh moment, and only then handed to the `Executor`,
in batches where that saves calls or transactions. An unknown never acts. One failing item is counted and journalled and
never stops the rest; a sweep that may not go on (leadership lost, shutting down) stops between batches.

Where a domain has an index by deadline, finding nothing costs nothing: no call to any store, however much is known.
Pages are worked on by a few workers that pull from the domain, so a list of any length needs no memory of its own.

Not guaranteed: any order between items in flight.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, Keep, KeepReason, Reason, Unknown
from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, around, backoff, chance
from lapse.core.log import current_work, get_logger
from lapse.engine.domain import Settled, SignalUnavailableError, action_of, believed
from lapse.engine.executor import RefusedError
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.metrics import ErrorKind, Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.core.decision import Verdict
    from lapse.engine.domain import Action, Candidate, Domain
    from lapse.engine.executor import Executor
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.coordinator import Turn

    Act = tuple[Candidate[Any], Action]

WIDTH: Final = 128
"""Items in flight, each by itself: enough to fill connections, few enough to stop at once."""
OVERDUE_PER_SECOND: Final = 500
HELD_SECONDS: Final = 600.0
"""How often something held is looked at again, where nobody reports the release: of a kind that is not watched."""
REFUSED_SECONDS: Final = 60.0
"""How often something that a guard was against is tried again."""
_NOT_YET: Final = frozenset({Outcome.REFUSED, Outcome.WOULD_END})
"""What the gate knows when to try again."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one run did, in items."""

    looked: int = 0
    ended: int = 0
    gone: int = 0
    kept: int = 0
    unknown: int = 0
    refused: int = 0
    """Due, and the domain stands still: its budget is spent, it is frozen, or the clock is in doubt."""
    changed: int = 0
    held: int = 0
    would_end: int = 0
    failed: int = 0
    more: bool = False
    """Whether it stopped before everything that may be due was looked at."""


_COUNTS: Final = tuple(field.name for field in fields(SweepReport) if field.name != "more")
_WORDS: Final[Mapping[type[Verdict], str]] = {Due: "due", Keep: "keep", Unknown: "unknown"}


class _Pull(Generic[S]):
    """The one end of the domain's pages that all workers of a run pull at."""

    def __init__(
        self, pages: AsyncGenerator[Sequence[Candidate[S]], None], proceed: Callable[[], bool], limit: int | None
    ) -> None:
        self._pages, self._left, self._turn = pages, limit, asyncio.Lock()
        self.proceed = proceed
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.workers = 1
        self.stopped = False
        self.is_cut = False
        """Whether it stopped before the end of the pages, by a limit or because it may not proceed."""
        self.error: Exception | None = None

    async def take(self) -> Sequence[Candidate[S]]:
        """Return the next page; an empty one when there is none, or none may be begun."""
        async with self._turn:
            if self.error is not None or self.stopped:
                return ()
            if self._left == 0 or not self.proceed():
                self.stopped = self.is_cut = True
                return ()
            try:
                found = await anext(self._pages, None) or ()
            except Exception as error:  # noqa: BLE001 - raised by the run, after the items in flight have ended in order
                self.error = error
                return ()
            if self._left is not None:
                found = found[: self._left]
                self._left -= len(found)
            self.counts["looked"] += len(found)
            return found

    async def close(self) -> None:
        """Give back what was pulled and not settled."""
        await self._pages.aclose()


class _Page(Generic[S]):
    """One page at work: what of it is due, and what came of the rest."""

    def __init__(self, candidates: Sequence[Candidate[S]], pull: _Pull[S]) -> None:
        self.candidates, self.pull = candidates, pull
        self.due: list[Act] = []
        self.settled: list[Settled[S]] = []

    def count(self, what: str) -> None:
        self.pull.counts[what] += 1


class Sweep(Generic[S]):
    """Sweeps one domain. One at a time: two sweeps of one domain would share its index."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        domain: Domain[S],
        executor: Executor,
        *,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        width: int | None = None,
        part: str = "",
        is_pass: bool = False,
        kinds: Collection[str] | None = None,
        settings: str = "",
        chance: Chance = chance,
    ) -> None:
        """Set every metric of the domain to zero; nothing is looked at before `run`.

        ``journal`` is the executor's; ``width`` is how many items are in flight, unless that is left to the sweep;
        ``part`` tells apart the sweeps of a domain that has several; ``kinds`` are those of its addresses, if nothing
        else is to be believed; ``settings`` is a hash of its settings, for one that names no policies.
        ``is_pass`` is for a domain that finds what is due
        by looking at everything, whole groups included, and reports on all of it: its pages come one at a time, so that
        it knows what came of one before it makes the next; they come to the end, also while the domain stands still;
        and the domain itself tells how much is held.
        """
        self.domain = domain
        self.clock = clock
        self._executor, self._journal, self._metrics, self._part = executor, journal, metrics, part
        self._kinds, self._settings = kinds, settings
        batch = executor.target.batch
        in_flight = width or (WIDTH if batch == 1 else 2 * batch)
        self._is_pass = is_pass
        self._page = in_flight if is_pass else min(batch, in_flight)
        self._workers, self._chance = -(-in_flight // self._page), chance
        self._attempts: Counter[str] = Counter()
        self._held: OrderedDict[str, int] = OrderedDict()
        self._began = UnixNs(0)
        expect = metrics.expect_sweep if domain.is_indexed else metrics.expect_passes
        expect(domain.name, reasons=domain.reasons)

    async def run(self, *, proceed: Callable[[], bool], limit: int | None = None) -> SweepReport:
        """Look at everything that may be due, at most ``limit`` items, while ``proceed`` says so."""
        await self._look_at_policies()
        now = self._began = self._now()
        size = self._page if limit is None else min(self._page, limit)
        pull = _Pull(self.domain.due(now, size=size), proceed, limit)
        try:
            async with asyncio.TaskGroup() as group:
                await self._work(pull, group)
        finally:
            await pull.close()
            for verdict, count in pull.verdicts.items():
                self._metrics.decided(self.domain.name, verdict, count=count)
            self._set_gauges()
        if pull.error is not None:
            raise pull.error
        deadline = self.domain.next_deadline()
        more = pull.is_cut and (not self.domain.is_indexed or (deadline is not None and deadline <= now))
        return SweepReport(**{name: pull.counts[name] for name in _COUNTS}, more=more)

    async def _work(self, pull: _Pull[S], group: asyncio.TaskGroup) -> None:
        while candidates := await pull.take():
            if pull.workers < self._workers:  # each page brings one more worker, until there are enough
                pull.workers += 1
                group.create_task(self._work(pull, group))
            try:
                await self._work_on(_Page(candidates, pull))
            except Exception as error:  # noqa: BLE001 - a defect, raised by the run: the other workers must not be cut off in an act
                pull.error = error

    async def _work_on(self, page: _Page[S]) -> None:
        try:
            await self._look(page)
        except SignalUnavailableError:  # the domain has told; whatever comes next would hear the same
            page.pull.stopped = True
            page.pull.counts["unknown"] += len(page.candidates)
            page.pull.verdicts["unknown"] += len(page.candidates)
            return
        if page.due:
            await self._end(page)
        else:  # what is only decided waits for nothing: the rest of the process has its turn
            await self.clock.sleep(0)
        await self._settle(page.settled)

    async def _look(self, page: _Page[S]) -> None:
        """Decide about each, read again what is due, and decide again."""
        due: list[Candidate[S]] = []
        stays: list[tuple[Candidate[S], Decision, UnixNs]] = []
        for candidate in page.candidates:
            now = self._now()
            decision = await self._decided(candidate, now, page)
            if decision is None:
                continue
            if isinstance(decision.verdict, Due):  # held or not: the hold may end while others are read
                due.append(candidate)
            else:
                stays.append((candidate, decision, now))
        refreshed = await self._refreshed(due, page)  # first: without it nothing may be said about any of them
        for candidate, decision, now in stays:
            await self._judged(candidate, decision, now, page=page)
        for fresh in refreshed:
            if fresh is not None:
                now = self._now()
                decision = await self._decided(fresh, now, page)
                if decision is not None:
                    await self._judged(fresh, decision, now, page=page)

    async def _decided(self, candidate: Candidate[S], now: UnixNs, page: _Page[S]) -> Decision | None:
        try:
            _demand_kind(self.domain.name, candidate.address, self._kinds)
            decision = self.domain.decide(candidate, now)
            _demand_verdict(self.domain.name, decision)
            return believed(decision, candidate, now)
        except Exception as error:  # noqa: BLE001 - one failing item never stops the rest
            await self._failed(candidate, error, page)
            return None

    async def _refreshed(self, candidates: Sequence[Candidate[S]], page: _Page[S]) -> Sequence[Candidate[S] | None]:
        """Return them as they are now; None for those that are gone or cannot be read, which are settled here."""
        if not candidates:
            return ()
        try:
            found = await self.domain.refresh(candidates)
            _demand_same(self.domain.name, candidates, found)
        except SignalUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - one failing item never stops the rest
            if len(candidates) > 1:
                return [one for candidate in candidates for one in await self._refreshed([candidate], page)]
            await self._failed(candidates[0], error, page)
            return (None,)
        for candidate, fresh in zip(candidates, found, strict=True):
            if fresh is None:
                page.count(self._settled(candidate, Outcome.GONE, page))
        return found

    async def _judged(self, candidate: Candidate[S], decision: Decision, now: UnixNs, *, page: _Page[S]) -> None:
        """Add an act, or note that it stays."""
        verdict = decision.verdict
        page.pull.verdicts[_WORDS[type(verdict)]] += 1
        try:
            if isinstance(verdict, Due):
                page.due.append((candidate, action_of(self.domain, candidate, decision)))
            else:
                held = isinstance(verdict, Keep) and verdict.reason == KeepReason.HELD
                outcome = Outcome.HELD if held else Outcome.NOTED
                entry = self._entry(candidate, verdict, outcome, now, anchor_ns=decision.anchor)
                await self._journal.note(entry, unless_first=isinstance(verdict, Keep) and not held)
                self._settled(candidate, outcome, page, next_check=verdict.next_check)
                page.count("held" if held else "kept" if isinstance(verdict, Keep) else "unknown")
        except Exception as error:  # noqa: BLE001 - one failing item never stops the rest
            await self._failed(candidate, error, page)

    async def _end(self, page: _Page[S]) -> None:
        pull = page.pull
        if not pull.proceed():  # reading took its time, and the right to act may be gone
            pull.stopped = pull.is_cut = True
            pull.counts["interrupted"] += len(page.due)
            return
        try:
            await self._look_at_policies()  # one may be another one since this run began
            results = await self._executor.execute([action for _, action in page.due])
        except Exception as error:  # noqa: BLE001 - a defect, whose cause is looked for in the log and not in the rest
            for candidate, _ in page.due:
                await self._failed(candidate, error, page)
            return
        is_waiting = any(one.outcome in _NOT_YET for one in results)
        pause = self._executor.gate.pause(self.domain.name) if is_waiting else None
        if not self._is_pass and any(isinstance(one.problem, RefusedError) for one in results):
            pull.stopped = True  # so would be the next, with a row for each
        next_look = None if pause is None else _later(self._now(), pause)
        for (candidate, _), (outcome, problem) in zip(page.due, results, strict=True):
            again = next_look if outcome in _NOT_YET else None
            page.count(self._settled(candidate, outcome, page, next_check=again, problem=problem))

    async def _look_at_policies(self) -> None:
        if not self._is_pass:  # what passes look at, their policies say, and not the domain
            await self._executor.gate.policies.look(self.domain, settings=self._settings)

    async def held_back(self) -> float | None:
        """Return for how many seconds nothing of the domain may be ended, if that is known; asks the gate."""
        if await self._executor.gate.objection(self.domain.name) is None:
            return None
        return self._executor.gate.pause(self.domain.name)

    async def _failed(self, candidate: Candidate[S], error: Exception, page: _Page[S]) -> None:
        name, defect = type(error).__name__, not isinstance(error, LapseError)
        # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
        _log.warning(
            "item_failed",
            domain=self.domain.name,
            address=str(candidate.address),
            error=name,
            exc_info=error if defect else None,
        )
        self._metrics.failed(self.domain.name, ErrorKind.ITEM)
        try:
            verdict = Unknown(SweepReason.ERROR)
            await self._journal.note(
                self._entry(candidate, verdict, Outcome.FAILED, self._now(), details={"error": name})
            )
        except Exception as second:  # noqa: BLE001 - it is counted, and looked at again, also without a row
            _log.error("not_journalled", domain=self.domain.name, error=type(second).__name__)
            self._metrics.failed(self.domain.name, ErrorKind.JOURNAL)
        page.count(self._settled(candidate, Outcome.FAILED, page, problem=error))

    def _settled(
        self,
        candidate: Candidate[S],
        outcome: Outcome,
        page: _Page[S],
        *,
        next_check: UnixNs | None = None,
        problem: Exception | None = None,
    ) -> str:
        """Remember when to look again; return what to count."""
        now = self._now()
        if outcome is Outcome.HELD:
            self._held[candidate.uid] = now
            self._held.move_to_end(candidate.uid)
        else:
            self._held.pop(candidate.uid, None)
        again = self._next_check(candidate, outcome, next_check, now)
        page.settled.append(Settled(candidate, outcome, again, problem))
        return outcome

    async def _settle(self, settled: Sequence[Settled[S]]) -> None:
        try:
            await self.domain.settle(settled)
        except Exception as error:  # noqa: BLE001 - the index is wrong now, what was done is not
            _log.warning("not_settled", domain=self.domain.name, error=type(error).__name__, exc_info=True)
            self._metrics.failed(self.domain.name, ErrorKind.ITEM)

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
        if outcome is Outcome.HELD and asked is None:
            until = candidate.hold.until if candidate.hold is not None and candidate.hold.active(now) else None
            asked = min(moment for moment in (until, _later(now, HELD_SECONDS)) if moment is not None)
        # A moment that is over, also one that a clock which was set back calls over, would be looked at again in this
        # very run, and again.
        floor = max(now, self._began)
        return asked if asked is None or asked > floor else _later(floor, _SOONEST_SECONDS)

    def _entry(
        self,
        candidate: Candidate[S],
        verdict: Keep | Unknown,
        outcome: Outcome,
        now: UnixNs,
        *,
        anchor_ns: int | None = None,
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
            anchor_ns=anchor_ns,
            policy="" if outcome is Outcome.FAILED else self.domain.policy(candidate),
            actor=self._executor.actor,
            outcome=outcome,
            details=details,
            tick=current_work(),
        )

    def _set_gauges(self) -> None:
        # What is held is looked at regularly; what no longer is was deleted by somebody else.
        oldest_ns = self.clock.wall_ns() - round(2 * HELD_SECONDS * _NS)
        while self._held and next(iter(self._held.values())) < oldest_ns:
            self._held.popitem(last=False)
        if not self._is_pass:
            self._metrics.holding(self.domain.name, len(self._held), part=self._part)
        if self.domain.is_indexed:
            deadline = self.domain.next_deadline()
            self._metrics.expecting(self.domain.name, None if deadline is None else deadline / _NS)

    def _now(self) -> UnixNs:
        return UnixNs(self.clock.wall_ns())


def _demand_kind(domain: str, address: Address, kinds: Collection[str] | None) -> None:
    if kinds is not None and address.kind not in kinds:
        raise TypeError(f"{domain} has a candidate {address}: expected an address of the kind {' or '.join(kinds)}")


def _demand_verdict(domain: str, decision: Decision) -> None:
    if type(decision) is not Decision or type(decision.verdict) not in _WORDS:
        raise TypeError(f"decide of {domain} returned {decision!r}: expected a Decision with Keep, Due or Unknown")


def _demand_same(domain: str, asked: Sequence[Candidate[S]], found: Sequence[Candidate[S] | None]) -> None:
    """Refuse what is not an answer about exactly these things: another one was never found to be due."""
    if len(found) != len(asked):
        raise TypeError(f"refresh of {domain} returned {len(found)} for {len(asked)} candidates: expected one for each")
    for before, after in zip(asked, found, strict=True):
        if after is not None and after.uid != before.uid:
            raise TypeError(f"refresh of {domain} returned {after.uid} for {before.uid}: None, if that one is gone")


def _later(now: UnixNs, seconds: float) -> UnixNs:
    return UnixNs(now + round(seconds * _NS))


class SweepLoop:
    """A `lapse.engine.running.coordinator.Loop` over the sweeps of one domain, woken by deadlines.

    Whoever keeps an index calls `wake` when a deadline appears that comes before all others; without it the loop finds
    out at its interval. What was overdue when a term began is ended at ``overdue_per_second``, whenever the index
    learns of it; what becomes due during the term is not slowed down. One sweep that fails does not stop the others.
    """

    def __init__(
        self,
        *sweeps: Sweep[Any],
        name: str,
        interval: float,
        leader_only: bool = True,
        overdue_per_second: int = OVERDUE_PER_SECOND,
        chance: Chance = chance,
    ) -> None:
        """Sweep when the next deadline comes, and every ``interval`` seconds at the latest."""
        self.name, self.interval, self.leader_only = name, interval, leader_only
        self.domain: str = sweeps[0].domain.name
        self.sweeps = sweeps
        self._paced = [_PacedSweep(sweep, overdue_per_second) for sweep in sweeps]
        self._chance = chance
        self._turn: Turn | None = None

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._turn = turn
        for sweep in self._paced:
            sweep.begin()

    def wake(self) -> None:
        """Look at the deadlines again, now. Belongs to the event loop; without a turn there is nothing to wake."""
        if self._turn is not None:
            self._turn.wake()

    async def tick(self) -> float | None:
        """Sweep; return the seconds to the next deadline. Raises the first error, after all sweeps."""
        waits: list[float] = []
        errors: list[Exception] = []
        for sweep in self._paced:
            try:
                waits.append(await sweep.tick(self._proceed))
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return min(around(self.interval, chance=self._chance), *waits)

    def _proceed(self) -> bool:
        return self._turn is None or self._turn.proceed()


class _PacedSweep:
    """A sweep that ends what was overdue when a term began in batches, so that not all of it ends at one moment."""

    def __init__(self, sweep: Sweep[Any], overdue_per_second: int) -> None:
        self._sweep = sweep
        self._batch = max(1, overdue_per_second // _BATCHES_PER_SECOND)
        self._pause = self._batch / overdue_per_second
        self._began_ns = self._next_batch_ns = 0
        self._is_behind = False
        """Without an index: whether what was overdue at the beginning has not been looked at yet."""

    def begin(self) -> None:
        self._began_ns, self._next_batch_ns = self._sweep.clock.wall_ns(), 0
        self._is_behind = not self._sweep.domain.is_indexed

    async def tick(self, proceed: Callable[[], bool]) -> float:
        """Sweep; return the seconds after which it is worth it to do so again."""
        domain, clock = self._sweep.domain, self._sweep.clock
        deadline = domain.next_deadline()
        if not domain.is_indexed or (deadline is not None and deadline <= clock.wall_ns()):
            # While a domain stands still, what is due is not even looked at: it may be very much.
            pause = await self._sweep.held_back()
            if pause is not None:
                return pause
        if not (self._is_behind or (deadline is not None and deadline <= self._began_ns)):
            return self._wait(await self._sweep.run(proceed=proceed))
        now_ns = clock.monotonic_ns()
        if now_ns < self._next_batch_ns:  # somebody woke us, but what is overdue is to be spread
            return (self._next_batch_ns - now_ns) / _NS
        self._next_batch_ns = now_ns + round(self._pause * _NS)
        report = await self._sweep.run(proceed=proceed, limit=self._batch)
        self._is_behind = self._is_behind and report.more
        return self._pause if report.more else self._wait(report)

    def _wait(self, report: SweepReport) -> float:
        deadline = self._sweep.domain.next_deadline()
        if deadline is None:
            return math.inf
        seconds = (deadline - self._sweep.clock.wall_ns()) / _NS
        # Still due after a whole run: it came just now, or nobody could settle it. Either way not at once.
        return seconds if seconds > 0 or report.more else _SHORTEST_WAIT_SECONDS
