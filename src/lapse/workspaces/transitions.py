"""Transitions: the one place where a workspace's desired state is changed because its time is over.

What `lapse.engine.ending.Ender` is for objects, for rows of which a thousand are changed by one statement. Everything
that was decided on is compared in that statement, so it changes exactly what was decided about, or leaves it. Holds,
brakes and dry runs are looked at here, so that no caller can forget them. Each transition is a row of the journal.

- Rows and journal in one database: the rows of a batch are written in the transaction of the batch.
- Otherwise: rows with the intents, the batch, rows with the outcomes. Intents that cannot be written prevent it.

Whatever goes wrong is an outcome, never an exception. A batch that fails although the store answers is divided until
the rows that are to blame are alone: one bad row never stops the others. Not guaranteed: after FAILED a row may be
changed nevertheless, when the store did not answer; the next look tells.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from lapse.core.address import Address
from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.log import current_work, get_logger
from lapse.core.verdict import Due, Keep, KeepReason, Reason, Unknown
from lapse.engine.brakes import NoBrake
from lapse.engine.journal import Entry, Outcome
from lapse.engine.metrics import ErrorKind
from lapse.workspaces.eligibility import ARCHIVE, STANDBY, anchor, ttl_seconds
from lapse.workspaces.errors import OutcomeUnknownError, StoreClosedError
from lapse.workspaces.model import DOMAIN, DesiredState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from lapse.core.clock import Clock
    from lapse.core.verdict import Verdict
    from lapse.engine.brakes import Brake
    from lapse.engine.journal import Journal
    from lapse.engine.metrics import Metrics
    from lapse.workspaces.model import Ms, Workspace, WorkspaceId
    from lapse.workspaces.store import WorkspaceStore

_TARGETS: Final = {STANDBY: DesiredState.STANDBY, ARCHIVE: DesiredState.PENDING}
_WORDS: Final[dict[type[Verdict], str]] = {Due: "due", Keep: "keep", Unknown: "unknown"}
_MAY_BE_DONE: Final = frozenset({Outcome.ENDED, Outcome.FAILED})
"""What spends a deletion budget: a failure may be an answer that was lost."""
_MOST_DIVISIONS: Final = 50
"""Enough to find a few bad rows among a thousand; when more fail, it is not about rows."""
_MS: Final = 1_000_000
_NS: Final = 1_000_000_000
_NO_BRAKE: Final = NoBrake()
_log = get_logger("lapse.workspaces.transitions")


@dataclass(frozen=True, slots=True)
class Act:
    """A workspace whose time is over, as it was decided on."""

    workspace: Workspace
    verdict: Due


Came = bool | Exception
"""What came of one row: whether it was changed, or why that is not known."""


class Transitions:
    """Carries out what was decided, on behalf of ``actor``."""

    def __init__(
        self,
        store: WorkspaceStore,
        journal: Journal,
        *,
        clock: Clock,
        metrics: Metrics,
        actor: str,
        brake: Brake = _NO_BRAKE,
        dry_run: bool = False,
    ) -> None:
        """Ask ``brake`` before every batch; with ``dry_run`` everything happens but the change."""
        self.brake, self.dry_run = brake, dry_run
        self._store, self._journal, self._shared = store, journal, journal.shares(store)
        self._clock, self._metrics, self._actor = clock, metrics, actor

    async def carry_out(self, action: str, acts: Sequence[Act], *, now: Ms) -> list[Outcome]:
        """Change what is still as it was decided on; return what came of each."""
        against = [self._against(act, now) for act in acts]
        await self._note_all(
            [self._stays(act, action, no) for act, no in zip(acts, against, strict=True) if no is not None]
        )
        free = [act for act, no in zip(acts, against, strict=True) if no is None]
        done = iter(await self._braked(action, free, now))
        outcomes = [next(done) if no is None else no for no in against]
        self._count(acts, outcomes)
        return outcomes

    def entry(self, workspace: Workspace, verdict: Verdict, outcome: Outcome, *, action: str) -> Entry:
        """Return the row that tells of a workspace."""
        return Entry(
            time_ns=self._clock.wall_ns(),
            domain=DOMAIN,
            address=str(Address("workspace", None, workspace.name)),
            uid=workspace.id,
            version=str(workspace.version),
            verdict=_WORDS[type(verdict)],
            reason=verdict.reason,
            anchor_ns=anchor(workspace) * _MS if isinstance(verdict, Due) else None,
            policy=f"{action} after {ttl_seconds(workspace, action)}s",
            actor=self._actor,
            outcome=outcome,
            details={"desired": _TARGETS[action].value} if isinstance(verdict, Due) else None,
            tick=current_work(),
        )

    async def note(self, entry: Entry, *, unless_first: bool = False) -> None:
        """Journal that nothing was done, once: whoever is looked at again and again gets one row."""
        try:
            await self._journal.note(entry, unless_first=unless_first)
        except Exception as error:  # noqa: BLE001 - it stays as it is whether or not that could be written
            self._not_journalled(entry, error)

    # --- whether ------------------------------------------------------------------------------------------------------

    def _against(self, act: Act, now: Ms) -> Outcome | None:
        if act.workspace.held(now):
            return Outcome.HELD
        return Outcome.WOULD_END if self.dry_run else None

    def _stays(self, act: Act, action: str, outcome: Outcome, reason: Reason | None = None) -> Entry:
        due = self.entry(act.workspace, act.verdict, outcome, action=action)
        match outcome:
            case Outcome.HELD:
                details = {"hold": act.workspace.hold_reason, "until_ms": act.workspace.hold_until}
                return replace(due, verdict="keep", reason=KeepReason.HELD, details=details)
            case Outcome.REFUSED:
                return replace(due, verdict="unknown", reason=reason or "")
        return due

    async def _braked(self, action: str, acts: Sequence[Act], now: Ms) -> list[Outcome]:
        """Do what the brake allows, as far as it does."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(acts):
            left = acts[len(outcomes) :]
            grant = await self.brake.allow(DOMAIN, len(left))
            if grant.refusal is not None:
                await self._note_all([self._stays(act, action, Outcome.REFUSED, grant.refusal) for act in left])
                return outcomes + [Outcome.REFUSED] * len(left)
            if grant.is_dry:
                await self._note_all([self._stays(act, action, Outcome.WOULD_END) for act in left])
                return outcomes + [Outcome.WOULD_END] * len(left)
            done = grant.count  # if nobody lives to tell
            try:
                came_to = await self._journalled(action, left[: grant.count], now)
                done = sum(outcome in _MAY_BE_DONE for outcome in came_to)
            finally:
                self.brake.done(grant, ended=done)
            outcomes += came_to
        return outcomes

    # --- the change ---------------------------------------------------------------------------------------------------

    async def _journalled(self, action: str, acts: Sequence[Act], now: Ms) -> list[Outcome]:
        rows = [self.entry(act.workspace, act.verdict, Outcome.ENDED, action=action) for act in acts]
        if not self._shared:
            rows = [replace(row, attempt=owner_token()) for row in rows]
            if not await self._tell([replace(row, outcome=Outcome.INTENT) for row in rows]):
                return [Outcome.FAILED] * len(acts)
        came = await self._change(action, acts, rows, now)
        told = [_told(row, what) for row, what in zip(rows, came, strict=True)]
        # What was changed has its row already where that is part of the change. Elsewhere an intent whose outcome
        # cannot be written stays unfinished, which is the truth that is left.
        await self._tell([row for row in told if not (self._shared and row.outcome is Outcome.ENDED)])
        self._tell_failures([what for what in came if isinstance(what, Exception)])
        return [row.outcome for row in told]

    async def _change(self, action: str, acts: Sequence[Act], rows: Sequence[Entry], now: Ms) -> list[Came]:
        """Change all rows in one step, or in as many as bad ones among them make necessary."""
        came: list[Came] = [False] * len(acts)
        parts, failures = [range(len(acts))], 0
        while parts:
            part = parts.pop()
            try:
                changed = await self._step(
                    action, [acts[place] for place in part], [rows[place] for place in part], now
                )
            except Exception as error:  # noqa: BLE001 - whatever it was, one failing row must not stop the rest
                failures += 1
                if len(part) > 1 and failures <= _MOST_DIVISIONS and await self._is_about_rows(error):
                    middle = len(part) // 2
                    parts += [part[:middle], part[middle:]]
                else:
                    for place in part:
                        came[place] = error
            else:
                for place in part:
                    came[place] = acts[place].workspace.id in changed
        return came

    async def _step(self, action: str, acts: Sequence[Act], rows: Sequence[Entry], now: Ms) -> AbstractSet[WorkspaceId]:
        change = self._store.to_standby if action == STANDBY else self._store.to_pending
        also = self._journal.writer(*rows) if self._shared else None
        return await change([act.workspace.candidate for act in acts], now=now, also=also)

    async def _is_about_rows(self, error: Exception) -> bool:
        """Whether to try again with fewer: not where the store is away, or may have done it."""
        if isinstance(error, OutcomeUnknownError | StoreClosedError):
            return False
        try:
            await self._store.check()
        except Exception:  # noqa: BLE001 - the first error is the one that is told
            return False
        return True

    # --- telling ------------------------------------------------------------------------------------------------------

    async def _note_all(self, rows: Sequence[Entry]) -> None:
        await asyncio.gather(*[self.note(row) for row in rows])  # so that they share commits

    async def _tell(self, rows: Sequence[Entry]) -> bool:
        if not rows:
            return True
        try:
            await self._journal.append(*rows)
        except Exception as error:  # noqa: BLE001 - what was done is done, and what was not is not begun
            self._not_journalled(rows[0], error)
            return False
        return True

    def _not_journalled(self, entry: Entry, error: Exception) -> None:
        _log.error("not_journalled", domain=DOMAIN, outcome=entry.outcome, error=type(error).__name__)
        self._metrics.failed(DOMAIN, ErrorKind.JOURNAL)

    def _tell_failures(self, errors: Sequence[Exception]) -> None:
        for error in {id(error): error for error in errors}.values():
            # A LapseError says all there is to say; anything else is a defect, and needs its traceback.
            known = isinstance(error, LapseError)
            problem = str(error) if known else type(error).__name__
            _log.warning("not_changed", domain=DOMAIN, problem=problem, exc_info=None if known else error)
        for _ in errors:
            self._metrics.failed(DOMAIN, ErrorKind.ITEM)

    def _count(self, acts: Sequence[Act], outcomes: Sequence[Outcome]) -> None:
        now_ns = self._clock.wall_ns()
        for act, outcome in zip(acts, outcomes, strict=True):
            if outcome is Outcome.ENDED:
                lag = max(0.0, (now_ns - act.verdict.since) / _NS)
                self._metrics.deleted(DOMAIN, act.verdict.reason, count=1, lags=[lag])


def _told(row: Entry, came: Came) -> Entry:
    if came is True:
        return row
    if came is False:
        return replace(row, outcome=Outcome.CHANGED)
    # Only our own messages are known to hold no secret.
    problem = str(came) if isinstance(came, LapseError) else ""
    details = {**(row.details or {}), "error": type(came).__name__, "problem": problem}
    return replace(row, outcome=Outcome.FAILED, details=details)
