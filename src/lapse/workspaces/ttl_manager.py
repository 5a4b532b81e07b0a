"""The TTL manager: puts idle workspaces to standby, and archives those that have been there for long.

It changes ``desired_state``, and nothing else of the state; the reconciler makes it true. Two checks each tick:
*standby* (RUNNING to STANDBY), by the row and by who is there, and *archive* (STANDBY to PENDING), by the row alone.
What is decided stands in `lapse.workspaces.eligibility`, how it is carried out in `lapse.workspaces.transitions`.

The cost grows with what may be due. Each thousand of those is one indexed query, one read of activity and one change;
who turns out to be active is looked at again when its time may be over (``check_after``, advanced here and never by an
access).

**Unknown is not idle.** While the activity store does not answer, or has not been there for long enough to be believed,
the standby check of the tick is given up, and the archive check goes on. One workspace whose own signal cannot be read
is left for the next tick.

Guarantees: whoever comes first wins. A user's RUNNING, a connection and a flushed access are compared in the change, so
any of them that came after the decision leaves it without effect; two managers at once make one transition. One bad row
never stops the others. Not guaranteed: that a store which fails is asked again before the next tick.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from lapse.core.log import get_logger
from lapse.core.verdict import Due, Keep, KeepReason, Unknown
from lapse.engine.brakes import NoBrake
from lapse.engine.journal import Outcome
from lapse.engine.metrics import ErrorKind
from lapse.engine.sweep import OVERDUE_PER_SECOND
from lapse.workspaces import activity as signals
from lapse.workspaces.activity import BATCH, ActivityUnavailableError, Doubt
from lapse.workspaces.eligibility import (
    ARCHIVE,
    STANDBY,
    LapseReason,
    decide_archive,
    decide_standby,
    standby_by_row,
    ttl_seconds,
)
from lapse.workspaces.errors import WorkspaceStoreError
from lapse.workspaces.model import DOMAIN, Ms
from lapse.workspaces.transitions import Act, Transitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.core.verdict import Reason, Verdict
    from lapse.engine.brakes import Brake
    from lapse.engine.coordinator import Turn
    from lapse.engine.journal import Entry, Journal
    from lapse.engine.metrics import Metrics
    from lapse.workspaces.activity import Activity, Signal
    from lapse.workspaces.model import Candidate, CheckPlace, Workspace, WorkspaceId
    from lapse.workspaces.store import WorkspaceStore

    Judged = Sequence[tuple[Workspace, Verdict]]

SOURCE: Final = "activity"
"""The signal, as `lapse_signal_up` names it."""
ACTOR: Final = "lapse"
_OF_THE_STORE: Final = frozenset({Doubt.EPOCH_ABSENT, Doubt.EPOCH_YOUNG, Doubt.UNREACHABLE})
"""Doubts that are not about one workspace: who reads on would hear the same of all."""
_UNREAD: Final = signals.Unknown(Doubt.UNREADABLE)
_NO_BRAKE: Final = NoBrake()
_PAUSES_PER_SECOND: Final = 10
_MS: Final = 1_000_000
_log = get_logger("lapse.workspaces.ttl_manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What one check did, in workspaces."""

    looked: int = 0
    ended: int = 0
    """Those whose desired state was changed."""
    kept: int = 0
    unknown: int = 0
    held: int = 0
    changed: int = 0
    """Due, and somebody else was quicker."""
    refused: int = 0
    would_end: int = 0
    failed: int = 0


_COUNTS: Final = tuple(one.name for one in fields(CheckReport))


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """What one tick did."""

    standby: CheckReport = field(default_factory=CheckReport)
    archive: CheckReport = field(default_factory=CheckReport)
    activity_up: bool | None = None
    """Whether who is there was known; None when nobody asked."""
    refusal: Reason | None = None
    """Why nothing was looked at: the domain is frozen, or nobody knows whether it is."""
    more: bool = False
    """Whether it stopped before everything that may be due was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How to go about what was overdue when a term began: a leader that was long away must not stop all at once."""

    before: Ms
    """What became due later is not slowed down."""
    most: int
    """How many are ended between two pauses."""
    pause: float
    """In seconds."""


class TtlManager:
    """See the module. One tick at a time."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        store: WorkspaceStore,
        activity: Activity,
        journal: Journal,
        *,
        clock: Clock,
        metrics: Metrics,
        brake: Brake = _NO_BRAKE,
        actor: str = ACTOR,
        dry_run: bool = False,
        batch: int = BATCH,
    ) -> None:
        """Set every metric of the domain to zero; nothing is looked at before `tick`."""
        self._store, self._activity, self._metrics = store, activity, metrics
        self._transitions = Transitions(
            store, journal, clock=clock, metrics=metrics, actor=actor, brake=brake, dry_run=dry_run
        )
        self._brake, self._batch, self._clock = brake, batch, clock
        self._held: dict[WorkspaceId, Ms] = {}
        """Those that are due and held, with the time of the next look."""
        metrics.expect_passes(DOMAIN, reasons=LapseReason)
        metrics.expect_signal(SOURCE)

    async def tick(
        self, now: Ms, *, proceed: Callable[[], bool] = lambda: True, spread: Spread | None = None
    ) -> TickReport:
        """Look once at everything that may be due at ``now``, a batch after the other while ``proceed`` says so.

        What is wrong with one check does not stop the other; the first error is raised after both.
        """
        refusal = await self._brake.objection(DOMAIN)
        if refusal is not None:  # what is due is not even looked at: it may be very much
            return TickReport(refusal=refusal)
        round_ = _Round(now, proceed, spread)
        try:
            await self._check_both(round_)
        finally:
            self._tell(round_)
        if round_.errors:
            raise round_.errors[0]
        return TickReport(
            standby=round_.report(STANDBY),
            archive=round_.report(ARCHIVE),
            activity_up=round_.activity_up,
            more=round_.more,
        )

    async def _check_both(self, round_: _Round) -> None:
        for action in (STANDBY, ARCHIVE):
            try:
                await self._check(action, round_)
            except Exception as error:  # noqa: BLE001 - raised by the tick, after the other check
                round_.errors.append(error)
        if round_.activity_up is None:  # nobody had to be asked about: still, whoever watches wants to know
            await self._heard(round_, ())

    async def _check(self, action: str, round_: _Round) -> None:
        find = self._store.standby_candidates if action == STANDBY else self._store.archive_candidates
        after: CheckPlace | None = None
        while not round_.refused:
            if not round_.proceed():
                round_.more = True
                return
            page = await find(round_.now, limit=round_.page_size(after, self._batch), after=after)
            if not page:
                return
            after = page[-1].check_place
            round_.counts[action]["looked"] += len(page)
            judged = await self._judge(action, page, round_)
            if judged is None:
                round_.counts[action]["unknown"] += len(page)
                round_.verdicts["unknown"] += len(page)
                return
            ended = round_.counts[action]["ended"]
            await self._settle(action, judged, round_)
            if round_.counts[action]["ended"] > ended:
                await self._clock.sleep(round_.pause_after(judged))

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def _judge(self, action: str, page: Sequence[Workspace], round_: _Round) -> Judged | None:
        """Decide about a page; None when nothing can be known about any of it."""
        if action == ARCHIVE:
            return [(one, decide_archive(one, round_.now)) for one in page]
        lease = self._activity.lease_seconds
        by_row = [(one, standby_by_row(one, round_.now)) for one in page]
        asked = [one.id for one, verdict in by_row if isinstance(verdict, Due)]
        if not asked:
            return by_row
        heard = await self._heard(round_, asked)
        if heard is None:
            return None
        return [
            (one, decide_standby(one, heard.get(one.id, _UNREAD), round_.now, lease_seconds=lease))
            if isinstance(verdict, Due)
            else (one, verdict)
            for one, verdict in by_row
        ]

    async def _heard(self, round_: _Round, asked: Sequence[WorkspaceId]) -> Mapping[WorkspaceId, Signal] | None:
        """Return who is there; None, and what the metric tells, when the store cannot say."""
        try:
            if not asked:
                await self._activity.check()
            heard = await self._activity.read(asked) if asked else {}
        except ActivityUnavailableError as error:
            _log.warning("activity_unknown", effect="no workspace counts as idle", problem=str(error))
            round_.activity_up = False
            return None
        for signal in heard.values():
            if isinstance(signal, signals.Unknown) and signal.reason in _OF_THE_STORE:
                _log.warning("activity_unknown", effect="no workspace counts as idle", problem=signal.reason.value)
                round_.activity_up = False
                return None
        round_.activity_up = True
        return heard

    # --- settling -----------------------------------------------------------------------------------------------------

    async def _settle(self, action: str, judged: Judged, round_: _Round) -> None:
        """Carry out what is due, note what is news, and say when to look at the others again."""
        acts = [Act(one, verdict) for one, verdict in judged if isinstance(verdict, Due)]
        stays = [(one, verdict) for one, verdict in judged if not isinstance(verdict, Due)]
        round_.verdicts["due"] += len(acts)
        if acts and not round_.proceed():  # reading took its time, and the right to act may be gone
            round_.more = True
            return
        outcomes = await self._transitions.carry_out(action, acts, now=round_.now) if acts else []
        for act, outcome in zip(acts, outcomes, strict=True):
            round_.counts[action][outcome] += 1
            self._held.pop(act.workspace.id, None)
        round_.refused = Outcome.REFUSED in outcomes  # so would everything be that comes next
        checks: dict[Candidate, Ms] = {}
        news: list[tuple[Entry, bool]] = []
        for one, verdict in stays:
            self._stays(action, one, verdict, round_, checks=checks, news=news)
        await asyncio.gather(*[self._transitions.note(entry, unless_first=plain) for entry, plain in news])
        await self._advance(checks)

    def _stays(
        self,
        action: str,
        one: Workspace,
        verdict: Keep | Unknown,
        round_: _Round,
        *,
        checks: dict[Candidate, Ms],
        news: list[tuple[Entry, bool]],
    ) -> None:
        held = verdict.reason is KeepReason.HELD
        keeps = isinstance(verdict, Keep)
        round_.verdicts["keep" if keeps else "unknown"] += 1
        round_.counts[action]["held" if held else "kept" if keeps else "unknown"] += 1
        outcome = Outcome.HELD if held else Outcome.NOTED
        news.append((self._transitions.entry(one, verdict, outcome, action=action), keeps and not held))
        look = _next_look(action, one, verdict, round_.now)
        if look is not None:
            checks[one.candidate] = look
        if held:
            self._held[one.id] = look or round_.now
        else:
            self._held.pop(one.id, None)

    async def _advance(self, checks: Mapping[Candidate, Ms]) -> None:
        if not checks:
            return
        try:
            await self._store.advance_checks(checks)
        except WorkspaceStoreError as error:  # then they are looked at again at the next tick: dearer, and as right
            _log.warning("checks_not_advanced", problem=str(error))
            self._metrics.failed(DOMAIN, ErrorKind.ITEM)

    def _tell(self, round_: _Round) -> None:
        for verdict, count in round_.verdicts.items():
            self._metrics.decided(DOMAIN, verdict, count=count)
        # One whose look was due and that was not found held again is not held any more, or gone.
        self._held = {one: look for one, look in self._held.items() if look > round_.now}
        self._metrics.holding(DOMAIN, len(self._held))
        if round_.activity_up is not None:
            self._metrics.signal(SOURCE, up=round_.activity_up)
        for action, counts in round_.counts.items():
            if counts["ended"] or counts["failed"] or counts["would_end"]:
                _log.info("ttl_checked", check=action, **{name: counts[name] for name in _COUNTS if counts[name]})


class _Round:
    """What one tick has found so far."""

    def __init__(self, now: Ms, proceed: Callable[[], bool], spread: Spread | None) -> None:
        self.now, self.proceed, self._spread = now, proceed, spread
        self.counts: dict[str, Counter[str]] = {STANDBY: Counter(), ARCHIVE: Counter()}
        self.verdicts: Counter[str] = Counter()
        self.activity_up: bool | None = None
        self.refused = self.more = False
        self.errors: list[Exception] = []

    def page_size(self, after: CheckPlace | None, batch: int) -> int:
        """Return how many to look at: few, while they may be overdue, so that who is there is read just before."""
        spread = self._spread
        if spread is None or (after is not None and after.check_after > spread.before):
            return batch
        return min(batch, spread.most)

    def pause_after(self, judged: Judged) -> float:
        """Return how long to rest after a page of which something was ended."""
        spread = self._spread
        if spread is None:
            return 0.0
        overdue = any(isinstance(verdict, Due) and verdict.since <= spread.before * _MS for _, verdict in judged)
        return spread.pause if overdue else 0.0

    def report(self, action: str) -> CheckReport:
        return CheckReport(**{name: self.counts[action][name] for name in _COUNTS})


def _next_look(action: str, workspace: Workspace, verdict: Keep | Unknown, now: Ms) -> Ms | None:
    """Return when to look again; None for the next tick."""
    if isinstance(verdict, Unknown):
        return None
    if verdict.next_check is not None:
        return Ms(verdict.next_check // _MS)
    if verdict.reason is KeepReason.HELD:  # a release brings the look forward, so this is only how often it is counted
        return Ms(now + ttl_seconds(workspace, action) * 1000)
    return None


class TtlLoop:
    """A `lapse.engine.coordinator.Loop`: a tick every interval, where this process leads. Only time wakes it.

    What was overdue when a term began is ended at ``overdue_per_second``; what becomes due during it is not slowed
    down.
    """

    name: Final = "ttl-manager"
    domain: Final = DOMAIN
    leader_only: Final = True

    def __init__(
        self, manager: TtlManager, *, interval: float, clock: Clock, overdue_per_second: int = OVERDUE_PER_SECOND
    ) -> None:
        """Tick every ``interval`` seconds."""
        self.interval = interval
        self._manager, self._clock = manager, clock
        self._most = max(1, overdue_per_second // _PAUSES_PER_SECOND)
        self._pause = self._most / overdue_per_second
        self._turn: Turn | None = None
        self._began = Ms(0)

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.coordinator.Steered`."""
        self._turn, self._began = turn, self._now()

    async def tick(self) -> float | None:
        """Look once."""
        spread = Spread(before=self._began, most=self._most, pause=self._pause)
        await self._manager.tick(self._now(), proceed=self._proceed, spread=spread)
        return None

    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)

    def _proceed(self) -> bool:
        return self._turn is None or self._turn.proceed()
