"""Ending: the only place of the product that removes an object on its own account.

Everything that lapses, by a sweep or by a controller, goes through `Ender.end`. The act carries the uid and the version
that the decision was made on, so it removes exactly what was decided about or nothing. Holds, wherever they stand,
guards and dry runs are looked at here, so that no caller can forget them. Where it cannot be told whether something is
held, it is kept.

- Objects and journal in one database: act and row are one transaction, and so may several acts be. Holds are looked at
  before, and again in that transaction.
- Otherwise: holds are looked at right before; then come a row with the intent, the act, and a row with the outcome. An
  intent that cannot be written prevents the act.

Whatever goes wrong is an outcome, never an exception: journalled, counted and logged. Not guaranteed: after FAILED the
object may be gone nevertheless, when the store did not answer; the next look tells.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec
from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.log import current_work, get_logger
from lapse.core.verdict import KeepReason, Reason, UnknownReason
from lapse.engine.brakes import Brake, NoBrake
from lapse.engine.holds import Doubt, HeldError, Hold
from lapse.engine.journal import Entry, Journal, Outcome
from lapse.engine.metrics import ErrorKind, Metrics
from lapse.kube.errors import ConflictError, NotFoundError, StoreUnavailableError
from lapse.kube.resources import Kind, ObjectKey, OwnerReference
from lapse.objects.port import Deletion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import Clock
    from lapse.engine.holds import HoldLookup
    from lapse.objects.port import ObjectStore, TransactionalStore

_NS: Final = 1_000_000_000
_NO_BRAKE: Final = NoBrake()
_MAY_BE_DONE: Final = frozenset({Outcome.ENDED, Outcome.FAILED})
"""What spends a deletion budget: a failure may be an answer that was lost."""
_MOST_LINES: Final = 10
"""Lines of the log about one batch; a wave of thousands is told by their number."""
_log = get_logger("lapse.engine.ending")


class Ending(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is to be ended, and why."""

    domain: str
    address: Address
    kind: Kind[Any]
    key: ObjectKey
    uid: str
    version: str
    reason: Reason
    since: UnixNs
    """When it became due."""
    anchor_ns: int | None
    """What the time was counted from."""
    policy: str
    hold: Hold | None
    """That of the object itself, in the version that was decided on."""
    owners: tuple[OwnerReference, ...] | None = None
    """Its owners in that version; None when they were not read."""
    details: dict[str, Any] | None = None
    """What the journal is to remember of it, such as the handle of a volume."""
    dry_run: bool = False
    """For this act alone what `Ender.dry_run` is for all."""


class HoldUnknownError(LapseError):
    """{address} is kept, because it is not known whether it is held: {problem}."""


class Guard(Protocol):
    """Somebody who may be against an act at any time: a deletion budget, a frozen domain, a clock that jumped."""

    def objection(self, ending: Ending, now: UnixNs) -> Reason | None:
        """Return why nothing may be ended now; None when it may."""
        ...


class Ender:
    """Ends objects of one store on behalf of ``actor``."""

    def __init__(  # noqa: PLR0913 - all of them named, one per dependency
        self,
        store: ObjectStore,
        journal: Journal,
        *,
        holds: HoldLookup,
        clock: Clock,
        metrics: Metrics,
        actor: str,
        dry_run: bool = False,
        guards: Sequence[Guard] = (),
        brake: Brake = _NO_BRAKE,
    ) -> None:
        """Ask ``holds``, ``guards`` and ``brake`` before every act; with ``dry_run`` everything happens but the act."""
        self.actor, self.brake = actor, brake
        self._store, self._journal = store, journal
        self._shared = cast("TransactionalStore", store) if journal.shares(store) else None
        self._holds, self._clock, self._metrics = holds, clock, metrics
        self.dry_run = dry_run
        self._guards = tuple(guards)
        self.last_problem: Exception | None = None
        """Why the last of those that failed did: an outcome does not say."""

    @property
    def together(self) -> bool:
        """Whether `end_all` saves anything: several acts can be one transaction."""
        return self._shared is not None

    async def end(self, ending: Ending) -> Outcome:
        """Remove the object, unless it is held, changed or refused; return what came of it."""
        (outcome,) = await self.end_all([ending])
        return outcome

    async def end_all(self, endings: Sequence[Ending]) -> list[Outcome]:
        """Do the same with several of one domain; what comes of one does not touch the others."""
        now = UnixNs(self._clock.wall_ns())
        careful = self.dry_run or bool(self._guards)  # nearly always nothing can be against it, and there are many
        against = [
            await self._against(one, held, now) if careful or held is not None or one.dry_run else None
            for one, held in zip(endings, await self._held(endings, now), strict=True)
        ]
        done = iter(await self._act([ending for ending, no in zip(endings, against, strict=True) if no is None]))
        outcomes = [next(done) if no is None else no for no in against]
        now_ns = self._clock.wall_ns()
        lags: defaultdict[tuple[str, Reason], list[float]] = defaultdict(list)
        for ending, outcome in zip(endings, outcomes, strict=True):
            if outcome is Outcome.ENDED:
                lags[ending.domain, ending.reason].append(max(0.0, (now_ns - ending.since) / _NS))
        for (domain, reason), these in lags.items():
            self._metrics.deleted(domain, reason, count=len(these), lags=these)
        return outcomes

    async def _held(self, endings: Sequence[Ending], now: UnixNs) -> Sequence[Hold | Doubt | None]:
        """Return what holds each of them now; a look that failed is a doubt about all of them."""
        try:
            found = await self._holds.holds_over([_deletion(one) for one in endings], now)
        except Exception as error:  # noqa: BLE001 - a hold that cannot be seen is in the way: doubt means keep
            defect = None if isinstance(error, LapseError) else error
            _log.warning("holds_not_read", error=type(error).__name__, exc_info=defect)
            found = [Doubt(str(error) if isinstance(error, LapseError) else "")] * len(endings)
        return [
            one.hold if one.hold is not None and one.hold.active(now) else other
            for one, other in zip(endings, found, strict=True)
        ]

    async def _act(self, endings: Sequence[Ending]) -> list[Outcome]:
        """End what the brake allows, as far as it does."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(endings):
            left = endings[len(outcomes) :]
            grant = await self.brake.allow(left[0].domain, len(left))
            # Read again, because the brake may have been asked for a while: budgets count rows by their time.
            now = UnixNs(self._clock.wall_ns())
            if grant.refusal is not None:
                return outcomes + [await self._refuse(ending, grant.refusal, now) for ending in left]
            if grant.is_dry:
                return outcomes + [await self._would_end(ending, now) for ending in left]
            acts = [(ending, self._entry(ending, Outcome.ENDED, now)) for ending in left[: grant.count]]
            ended = grant.count  # if nobody lives to tell
            try:
                came_to = await (self._end_together(acts) if self.together else self._end_side_by_side(acts))
                ended = sum(outcome in _MAY_BE_DONE for outcome in came_to)
            finally:
                self.brake.done(grant, ended=ended)
            outcomes += came_to
        return outcomes

    async def _end_side_by_side(self, acts: Sequence[tuple[Ending, Entry]]) -> list[Outcome]:
        if len(acts) == 1:  # a sweep has workers of its own: a task for each would be for nothing
            return [await self._end_apart(*acts[0])]
        return await asyncio.gather(*[self._end_apart(*act) for act in acts])

    async def _refuse(
        self, ending: Ending, reason: Reason, now: UnixNs, *, details: dict[str, Any] | None = None
    ) -> Outcome:
        due = self._entry(ending, Outcome.REFUSED, now)
        refused = replace(due, verdict="unknown", reason=reason, details=details or due.details)
        return await self._stays(refused, Outcome.REFUSED)

    async def _keep(self, ending: Ending, hold: Hold, now: UnixNs) -> Outcome:
        due = self._entry(ending, Outcome.HELD, now)
        held = {"hold": hold.reason, "until_ns": hold.until}
        return await self._stays(replace(due, verdict="keep", reason=KeepReason.HELD, details=held), Outcome.HELD)

    async def _against(self, ending: Ending, held: Hold | Doubt | None, now: UnixNs) -> Outcome | None:
        """Return why it is not even tried; None when it is."""
        if isinstance(held, Hold):
            return await self._keep(ending, held, now)
        if held is not None:
            _log.warning("hold_unknown", address=str(ending.address), reason=held.problem)
            self._metrics.failed(ending.domain, ErrorKind.ITEM)
            self.last_problem = HoldUnknownError(address=ending.address, problem=held.problem)
            details = {"problem": held.problem}
            return await self._refuse(ending, UnknownReason.UNREADABLE_SIGNAL, now, details=details)
        objection = self._objection(ending, now) if self._guards else None
        if objection is not None:
            return await self._refuse(ending, objection, now)
        if self.dry_run or ending.dry_run:
            return await self._would_end(ending, now)
        return None

    async def _would_end(self, ending: Ending, now: UnixNs) -> Outcome:
        return await self._stays(self._entry(ending, Outcome.WOULD_END, now), Outcome.WOULD_END)

    def _objection(self, ending: Ending, now: UnixNs) -> Reason | None:
        try:
            return next((found for guard in self._guards if (found := guard.objection(ending, now))), None)
        except Exception as error:  # noqa: BLE001 - a guard that cannot speak is against it: doubt means keep
            _log.warning("guard_failed", domain=ending.domain, error=type(error).__name__, exc_info=True)
            self._metrics.failed(ending.domain, ErrorKind.ITEM)
            return UnknownReason.UNREADABLE_SIGNAL

    async def _end_together(self, acts: Sequence[tuple[Ending, Entry]]) -> list[Outcome]:
        if self._shared is None or not acts:
            return []
        deletions = [_deletion(ending) for ending, _ in acts]
        refusals: Sequence[Exception | None]
        try:
            refusals = await self._shared.delete_all(deletions, also=self._journal.writer(*[row for _, row in acts]))
        except StoreUnavailableError as error:
            refusals = [error] * len(acts)
        except Exception as error:  # noqa: BLE001 - whatever it was, one failing item must not stop the rest
            if len(acts) > 1:  # which one it was is not known: each for itself
                return [outcome for act in acts for outcome in await self._end_together([act])]
            refusals = [error]
        outcomes = [
            Outcome.ENDED if no is None else await self._told(ending, row, no)
            for (ending, row), no in zip(acts, refusals, strict=True)
        ]
        _log_ended([ending for (ending, _), no in zip(acts, refusals, strict=True) if no is None])
        return outcomes

    async def _told(self, ending: Ending, due: Entry, refusal: Exception) -> Outcome:
        if isinstance(refusal, HeldError):  # since it was looked at before
            return await self._keep(ending, cast("Hold", refusal.details["hold"]), UnixNs(due.time_ns))
        outcome = self._outcome(ending, refusal)
        if outcome is not Outcome.GONE:  # whoever was quicker has written the row of what is gone
            await self._tell(_with_problem(due, outcome, refusal))
        return outcome

    async def _end_apart(self, ending: Ending, due: Entry) -> Outcome:
        attempt = owner_token()
        if not await self._tell(replace(due, outcome=Outcome.INTENT, attempt=attempt)):
            return Outcome.FAILED
        refusal: Exception | None = None
        try:
            await self._store.delete(ending.kind, ending.key, uid=ending.uid, version=ending.version)
        except Exception as error:  # noqa: BLE001 - as above
            refusal = error
        outcome = self._outcome(ending, refusal)
        told = replace(due, time_ns=self._clock.wall_ns(), attempt=attempt)
        # Without this row the intent stays unfinished, which is the truth that is left.
        await self._tell(_with_problem(told, outcome, refusal))
        return outcome

    def _outcome(self, ending: Ending, refusal: Exception | None) -> Outcome:
        match refusal:
            case None:
                return Outcome.ENDED
            case NotFoundError():
                return Outcome.GONE
            case ConflictError():
                return Outcome.CHANGED
        # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
        defect = None if isinstance(refusal, LapseError) else refusal
        self.last_problem = refusal
        _log.warning("not_ended", domain=ending.domain, error=type(refusal).__name__, exc_info=defect)
        self._metrics.failed(ending.domain, ErrorKind.ITEM)
        return Outcome.FAILED

    async def _stays(self, due: Entry, outcome: Outcome) -> Outcome:
        """Journal that nothing was done, once: whoever asks again and again gets one row."""
        try:
            await self._journal.note(replace(due, outcome=outcome))
        except Exception as error:  # noqa: BLE001 - it stays whether or not that could be written
            self._not_journalled(due, error)
        return outcome

    async def _tell(self, entry: Entry) -> bool:
        try:
            await self._journal.append(entry)
        except Exception as error:  # noqa: BLE001 - what was done is done, and what was not is not begun
            self._not_journalled(entry, error)
            return False
        return True

    def _not_journalled(self, entry: Entry, error: Exception) -> None:
        _log.error("not_journalled", domain=entry.domain, outcome=entry.outcome, error=type(error).__name__)
        self._metrics.failed(entry.domain, ErrorKind.JOURNAL)

    def _entry(self, ending: Ending, outcome: Outcome, now: UnixNs) -> Entry:
        return Entry(
            time_ns=now,
            domain=ending.domain,
            address=str(ending.address),
            uid=ending.uid,
            version=ending.version,
            verdict="due",
            reason=ending.reason,
            anchor_ns=ending.anchor_ns,
            policy=ending.policy,
            actor=self.actor,
            outcome=outcome,
            details=ending.details,
            tick=current_work(),
        )


def _log_ended(ended: Sequence[Ending]) -> None:
    """Log what was ended, for people who watch: the journal is a database here, and tells only who asks it."""
    for ending in ended[:_MOST_LINES]:
        _log.info("lapsed", domain=ending.domain, address=str(ending.address), reason=ending.reason)
    if len(ended) > _MOST_LINES:
        _log.info("lapsed", domain=ended[0].domain, more=len(ended) - _MOST_LINES)


def _deletion(ending: Ending) -> Deletion:
    return Deletion(ending.kind, ending.key, ending.uid, ending.version, ending.owners)


def _with_problem(entry: Entry, outcome: Outcome, problem: Exception | None) -> Entry:
    if outcome is not Outcome.FAILED:
        return replace(entry, outcome=outcome)
    # Only our own messages are known to hold no secret.
    text = str(problem) if isinstance(problem, LapseError) else ""
    details = {**(entry.details or {}), "error": type(problem).__name__, "problem": text}
    return replace(entry, outcome=outcome, details=details)
