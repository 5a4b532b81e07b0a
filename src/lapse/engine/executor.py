"""The executor: the only place of the product that ends a thing.

Everything that lapses, by a sweep, a controller or a person, is an `Action` handed to `Executor.execute`. An action
carries the uid and the version that it was decided on, so exactly that is ended, or nothing. Holds, dry runs, freezes,
budgets and the clock are looked at here, so that no caller can forget them. Where it cannot be told whether something
is held, or since when it is due, it is kept.

- Things and journal in one database: acts and rows are one transaction, and holds are looked for again in it.
- Otherwise: rows with the intents, the acts, rows with the outcomes. Intents that cannot be written prevent the acts.
- What goes to the trash is there before its intent is written. What cannot be put there is not ended.

Whatever goes wrong is an outcome, never an exception: journalled, counted and logged. A batch that fails although the
store answers is divided until the items that are to blame are alone. Not guaranteed: after FAILED a thing may be ended
nevertheless, when the store did not answer; the next look tells.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import KeepReason, Reason, UnknownReason
from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.log import current_work, get_logger
from lapse.core.timestamps import is_moment
from lapse.db.errors import DatabaseValueError
from lapse.engine.domain import Result
from lapse.engine.explanation import words
from lapse.engine.journal.port import DeletionReason, Entry, Outcome
from lapse.engine.running.metrics import ErrorKind, Metrics
from lapse.engine.safety.blast_radius import PolicyStanding
from lapse.engine.safety.gate import OpenGate
from lapse.engine.safety.holds import HeldError, Hold, HoldDoubt, held_error
from lapse.engine.trash import TrashingTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import Clock
    from lapse.engine.domain import Action, Target
    from lapse.engine.journal.port import Journal
    from lapse.engine.safety.gate import Gate

_NS: Final = 1_000_000_000
_OPEN_GATE: Final = OpenGate()
_MAY_BE_DONE: Final = frozenset({Outcome.ENDED, Outcome.FAILED})
"""What spends a deletion budget: a failure may be an answer that was lost."""
_OF_A_TARGET: Final = frozenset({Outcome.ENDED, Outcome.GONE, Outcome.CHANGED, Outcome.HELD, Outcome.FAILED})
"""What a target may say of an act."""
_MOST_DIVISIONS: Final = 50
"""Enough to find a few bad items among a thousand; when more fail, it is not about items."""
_MOST_LINES: Final = 10
"""Lines of the log about one batch; a wave of thousands is told by their number."""
_log = get_logger("lapse.engine.executor")


class HoldUnknownError(LapseError):
    """{address} is kept, because it is not known whether it is held: {problem}."""


class MissingAnchorError(LapseError):
    """{address} is kept: the time that its age would be counted from is not set."""


class NotDueYetError(LapseError):
    """{address} is kept: it is said to be due since a time that is still to come."""


class RefusedError(LapseError):
    """{address} is kept: {because}."""


class _WrongResultsError(TypeError):
    """What a target returned says nothing about what it did."""


class Executor:
    """Ends things of one target on behalf of ``actor``, or of the person that an action names."""

    def __init__(
        self,
        target: Target,
        journal: Journal,
        *,
        clock: Clock,
        metrics: Metrics,
        actor: str,
        gate: Gate = _OPEN_GATE,
        dry_run: bool = False,
    ) -> None:
        """Ask ``gate`` before every batch; with ``dry_run`` everything happens but the act."""
        self.target, self.gate, self.actor, self.dry_run = target, gate, actor, dry_run
        self._journal, self._shared = journal, journal.shares(target)
        self._clock, self._metrics = clock, metrics

    async def execute(self, actions: Sequence[Action]) -> list[Result]:
        """Carry out actions of one domain, unless they are held, changed or refused; return what came of each."""
        now = UnixNs(self._clock.wall_ns())
        held = await self._held(actions, now)
        against = [self._against(one, over, now) for one, over in zip(actions, held, strict=True)]
        await self._note([row for found in against if found is not None for row in found[1:]])
        free = [one for one, found in zip(actions, against, strict=True) if found is None]
        done = iter(await self._gated(free))
        results = [next(done) if found is None else found[0] for found in against]
        self._count(actions, results)
        return results

    # --- whether ------------------------------------------------------------------------------------------------------

    async def _held(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """Return what holds each of them now; a look that failed is a doubt about all of them."""
        try:
            found = await self.target.holds_over(actions, now)
        except Exception as error:  # noqa: BLE001 - a hold that cannot be seen is in the way: doubt means keep
            defect = None if isinstance(error, LapseError) else error
            _log.warning("holds_not_read", error=type(error).__name__, exc_info=defect)
            found = [HoldDoubt(str(error) if isinstance(error, LapseError) else "")] * len(actions)
        return [_own_hold(one, now) or other for one, other in zip(actions, found, strict=True)]

    def _against(
        self, action: Action, held: Hold | HoldDoubt | None, now: UnixNs
    ) -> tuple[Result] | tuple[Result, Entry] | None:
        """Return why it is not even tried, with the row that tells, if there is one; None when it is."""
        is_dated = action.anchor_ns is None or is_moment(action.anchor_ns)
        is_due = action.since <= now
        standing = self.gate.policies.standing(action, now)
        is_dry = self.dry_run or action.dry_run
        if held is None and is_dated and is_due and standing is PolicyStanding.ACTS and not is_dry:  # nearly always
            return None
        if not is_dated:
            row = self._row(action, Outcome.REFUSED, now, verdict="unknown", reason=UnknownReason.MISSING_ANCHOR)
            return Result(Outcome.REFUSED, MissingAnchorError(address=action.address)), replace(row, anchor_ns=None)
        if not is_due:  # a clock that was set back since, or a wrong decision
            row = self._row(action, Outcome.REFUSED, now, verdict="unknown", reason=UnknownReason.CLOCK_JUMPED)
            return Result(Outcome.REFUSED, NotDueYetError(address=action.address)), row
        if isinstance(held, Hold):
            return self._kept(action, held, now)
        if held is not None:
            _log.warning("hold_unknown", address=str(action.address), reason=held.problem)
            self._metrics.failed(action.domain, ErrorKind.ITEM)
            row = self._row(action, Outcome.REFUSED, now, verdict="unknown", reason=UnknownReason.UNREADABLE_SIGNAL)
            problem = HoldUnknownError(address=action.address, problem=held.problem)
            return Result(Outcome.REFUSED, problem), replace(row, details={"problem": held.problem})
        return self._kept_by_policy(action, PolicyStanding.DRY if is_dry else standing, now)

    def _kept_by_policy(
        self, action: Action, standing: PolicyStanding, now: UnixNs
    ) -> tuple[Result] | tuple[Result, Entry]:
        if standing is PolicyStanding.DRY:
            return Result(Outcome.WOULD_END), self._row(action, Outcome.WOULD_END, now)
        if standing is PolicyStanding.WAITS:  # one row has told it, with the list
            return (Result(Outcome.REFUSED, self.gate.policies.refusal(action)),)
        reason = UnknownReason.UNREADABLE_SIGNAL
        row = self._row(action, Outcome.REFUSED, now, verdict="unknown", reason=reason)
        return Result(Outcome.REFUSED, RefusedError(address=action.address, because=_because(reason))), row

    def _kept(self, action: Action, hold: Hold, now: UnixNs) -> tuple[Result, Entry]:
        row = self._row(action, Outcome.HELD, now, verdict="keep", reason=KeepReason.HELD)
        row = replace(row, details={"hold": hold.reason, "until_ns": hold.until})
        return Result(Outcome.HELD, held_error(action.address, hold)), row

    async def _gated(self, actions: Sequence[Action]) -> list[Result]:
        """Do what the gate allows, as far as it does."""
        results: list[Result] = []
        while len(results) < len(actions):
            left = actions[len(results) :]
            grant = await self.gate.allow(left[0].domain, len(left))
            # Read now, because the gate may have been asked for a while: budgets count rows by their time.
            now = UnixNs(self._clock.wall_ns())
            if grant.refusal is not None:
                rows = [self._row(one, Outcome.REFUSED, now, verdict="unknown", reason=grant.refusal) for one in left]
                await self._note(rows)
                because = grant.told or _because(grant.refusal)
                return results + [
                    Result(Outcome.REFUSED, RefusedError(address=one.address, because=because)) for one in left
                ]
            if grant.is_dry:
                await self._note([self._row(one, Outcome.WOULD_END, now) for one in left])
                return results + [Result(Outcome.WOULD_END)] * len(left)
            done = grant.count  # if nobody lives to tell
            try:
                came = await self._prepared(left[: grant.count], now)
                done = sum(result.outcome in _MAY_BE_DONE for result in came)
            finally:
                self.gate.done(grant, ended=done)
            await self.gate.release(left[0].domain)
            results += came
        return results

    # --- the act ------------------------------------------------------------------------------------------------------

    async def _prepared(self, actions: Sequence[Action], now: UnixNs) -> list[Result]:
        """Put into the trash what goes there, and carry out the rest of the way; what cannot be put there stays."""
        if not isinstance(self.target, TrashingTarget):
            return await self._journalled(actions, now)
        try:
            found = await self.target.into_trash(actions, now)
        except Exception as error:  # noqa: BLE001 - nothing was ended yet
            found = [error] * len(actions)
        kept = {place: one for place, one in enumerate(found) if isinstance(one, Exception)}
        done = iter(await self._journalled([one for one in found if not isinstance(one, Exception)], now))
        results = [Result(Outcome.FAILED, kept[place]) if place in kept else next(done) for place in range(len(found))]
        stays = [actions[place] for place in kept]
        rows = [self._row(one, Outcome.FAILED, now) for one in stays]
        await self._tell(stays, rows, [results[place] for place in kept])
        return results

    async def _journalled(self, actions: Sequence[Action], now: UnixNs) -> list[Result]:
        rows = [self._row(one, Outcome.ENDED, now) for one in actions]
        if self._shared:
            return await self._carried_out(actions, rows)
        rows = [replace(row, attempt=owner_token()) for row in rows]
        problems = await self._intend(rows)
        begun = [place for place, problem in enumerate(problems) if problem is None]
        done = iter(await self._carried_out([actions[place] for place in begun], [rows[place] for place in begun]))
        return [next(done) if problem is None else Result(Outcome.FAILED, problem) for problem in problems]

    async def _intend(self, rows: Sequence[Entry]) -> list[Exception | None]:
        """Write the intents; return why each could not be written. A bad row is no obstacle to the others."""
        problems: list[Exception | None] = [None] * len(rows)
        parts, failures = [range(len(rows))], 0
        while parts:
            part = parts.pop()
            error = await self._append([replace(rows[place], outcome=Outcome.INTENT) for place in part])
            if error is None:
                continue
            failures += 1
            is_about_rows = isinstance(error, DatabaseValueError) or not isinstance(error, LapseError)
            if len(part) > 1 and failures <= _MOST_DIVISIONS and is_about_rows:
                parts += _halves(part)
                continue
            for place in part:
                problems[place] = error
        return problems

    async def _carried_out(self, actions: Sequence[Action], rows: Sequence[Entry]) -> list[Result]:
        if not actions:
            return []
        came = await self._apply(actions, rows)
        if not self._journal.is_log:
            _log_ended([one for one, result in zip(actions, came, strict=True) if result.outcome is Outcome.ENDED])
        if not self._shared:
            rows = [replace(row, time_ns=self._clock.wall_ns()) for row in rows]
        await self._tell(actions, rows, came)
        return came

    async def _apply(self, actions: Sequence[Action], rows: Sequence[Entry]) -> list[Result]:
        """Carry out all of them in one step, or in as many as bad ones among them make necessary."""
        came = [Result(Outcome.FAILED)] * len(actions)
        parts, failures = [range(len(actions))], 0
        while parts:
            part = parts.pop()
            try:
                also = self._journal.writer(*[rows[place] for place in part]) if self._shared else None
                found = await self.target.apply([actions[place] for place in part], also=also)
                _demand_results(found, len(part))
            except _WrongResultsError as error:  # all of it may be done: it is not tried again in parts
                found = [Result(Outcome.FAILED, error)] * len(part)
            except Exception as error:  # noqa: BLE001 - whatever it was, one failing item must not stop the rest
                failures += 1
                if len(part) > 1 and failures <= _MOST_DIVISIONS and not await self.target.is_in_doubt(error):
                    parts += _halves(part)
                    continue
                found = [Result(Outcome.FAILED, error)] * len(part)
            for place, result in zip(part, found, strict=True):
                came[place] = result
        return came

    async def _tell(self, actions: Sequence[Action], rows: Sequence[Entry], came: Sequence[Result]) -> None:
        """Journal what came of each, as far as it was not written with the act."""
        told: list[Entry] = []
        for action, row, result in zip(actions, rows, came, strict=True):
            if isinstance(result.problem, HeldError):  # since it was looked at before
                _, kept = self._kept(action, cast("Hold", result.problem.details["hold"]), UnixNs(row.time_ns))
                told.append(replace(kept, attempt=row.attempt))
            # Where acts and rows are one, what was ended has its row, and what is gone that of who was quicker.
            elif not (self._shared and result.outcome in {Outcome.ENDED, Outcome.GONE}):
                told.append(_with_problem(row, result))
            if result.outcome is Outcome.FAILED:
                self._log_failure(action, result.problem)
        # Without these rows intents stay unfinished, which is the truth that is left.
        await self._append(told)

    def _log_failure(self, action: Action, error: Exception | None) -> None:
        # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
        defect = None if isinstance(error, LapseError) else error
        _log.warning(
            "not_ended",
            domain=action.domain,
            address=str(action.address),
            error=type(error).__name__,
            exc_info=defect,
        )
        self._metrics.failed(action.domain, ErrorKind.ITEM)

    # --- journal and metrics ----------------------------------------------------------------------------------------

    async def _note(self, rows: Sequence[Entry]) -> None:
        """Journal that nothing was done, once: whoever asks again and again gets one row."""
        await asyncio.gather(*[self._note_one(row) for row in rows])  # so that they share commits

    async def _note_one(self, row: Entry) -> None:
        try:
            await self._journal.note(row)
        except Exception as error:  # noqa: BLE001 - it stays whether or not that could be written
            self._not_journalled(row, error)

    async def _append(self, rows: Sequence[Entry]) -> Exception | None:
        """Journal what is done, or about to be; return why that could not be written."""
        if not rows:
            return None
        try:
            await self._journal.append(*rows)
        except Exception as error:  # noqa: BLE001 - what was done is done, and what was not is not begun
            self._not_journalled(rows[0], error)
            return error
        return None

    def _not_journalled(self, row: Entry, error: Exception) -> None:
        _log.error(
            "not_journalled",
            domain=row.domain,
            address=row.address,
            outcome=row.outcome,
            error=type(error).__name__,
        )
        self._metrics.failed(row.domain, ErrorKind.JOURNAL)

    def _count(self, actions: Sequence[Action], results: Sequence[Result]) -> None:
        now_ns = self._clock.wall_ns()
        lags: defaultdict[tuple[str, Reason], list[float]] = defaultdict(list)
        for action, result in zip(actions, results, strict=True):
            if result.outcome is Outcome.ENDED:
                lags[action.domain, action.reason].append(max(0.0, (now_ns - action.since) / _NS))
        for (domain, reason), these in lags.items():
            was_due = reason is not DeletionReason.BY_PERSON  # otherwise it could not be late either
            self._metrics.deleted(domain, reason, count=len(these), lags=these if was_due else ())

    def _row(
        self, action: Action, outcome: Outcome, now: UnixNs, *, verdict: str = "due", reason: str | None = None
    ) -> Entry:
        return Entry(
            time_ns=now,
            domain=action.domain,
            address=str(action.address),
            uid=action.uid,
            version=action.version,
            verdict=verdict,
            reason=action.reason if reason is None else reason,
            anchor_ns=action.anchor_ns,
            policy=action.policy,
            actor=action.actor or self.actor,
            outcome=outcome,
            details=action.details,
            tick=current_work(),
        )


async def delete_by_person(
    target: Target, journal: Journal, action: Action, *, clock: Clock, metrics: Metrics | None = None
) -> None:
    """Carry out what a person asked for now; raises the error that says why it was not done.

    Holds are honoured, and the rows are written, as for everything that lapses. A budget or a freeze does not keep a
    person from it, and the clock plays no part; but it counts for the budgets, by its row. ``metrics`` are those of the
    process, if anybody can ask for them.
    """
    executor = Executor(target, journal, clock=clock, metrics=metrics or Metrics(""), actor=action.actor or "")
    (result,) = await executor.execute([action])
    if result.problem is not None:
        raise result.problem


def _demand_results(found: Sequence[Result], wanted: int) -> None:
    if not isinstance(found, list | tuple) or not all(isinstance(one, Result) for one in found):
        raise _WrongResultsError(
            f"apply returned {type(found).__name__}: expected a list with a Result for each action"
        )
    if len(found) != wanted:
        raise _WrongResultsError(f"apply returned {len(found)} results for {wanted} actions: expected one for each")
    odd = next((one.outcome for one in found if one.outcome not in _OF_A_TARGET), None)
    if odd is not None:
        raise _WrongResultsError(
            f"apply returned the outcome {odd!r}: expected one of {', '.join(sorted(_OF_A_TARGET))}"
        )


def _halves(part: range) -> list[range]:
    """Divide what failed as one; the first half is to be tried first, so it stands last."""
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


def _because(reason: Reason) -> str:
    return f"{words(reason.value)}; lapse status tells what stands still"


def _own_hold(action: Action, now: UnixNs) -> Hold | HoldDoubt | None:
    """Return the hold that stands on the thing itself, if it is active; one that cannot be read is a doubt."""
    try:
        return action.hold if action.hold is not None and action.hold.active(now) else None
    except TypeError:
        return HoldDoubt("its end is not a time")


def _log_ended(ended: Sequence[Action]) -> None:
    """Log what was ended, for people who watch: the journal is a database here, and tells only who asks it."""
    for action in ended[:_MOST_LINES]:
        _log.info("lapsed", domain=action.domain, address=str(action.address), reason=action.reason)
    if len(ended) > _MOST_LINES:
        _log.info("lapsed", domain=ended[0].domain, more=len(ended) - _MOST_LINES)


def _with_problem(row: Entry, result: Result) -> Entry:
    if result.outcome is not Outcome.FAILED:
        return replace(row, outcome=result.outcome)
    # Only our own messages are known to hold no secret.
    text = str(result.problem) if isinstance(result.problem, LapseError) else ""
    details: dict[str, Any] = {**(row.details or {}), "error": type(result.problem).__name__, "problem": text}
    return replace(row, outcome=Outcome.FAILED, details=details)
