"""The TTL manager: puts idle workspaces to standby, and archives those that have been in standby for long.

It changes ``desired_state``, and nothing else of the state; the reconciler makes it true. It is the engine's sweep over
two rules: *standby* (RUNNING to STANDBY), by the row and by its activity, and *archive* (STANDBY to PENDING), by the
row alone. What is decided stands in `lapse.workspaces.expiry`.

The cost grows with what may be due. Each thousand of those is one indexed query, one read of activity and one change;
a workspace that turns out to be active is looked at again when its time may be over (``check_after``, advanced here and
never by an access).

**Unknown is not idle.** While the activity store does not answer, or has not been there for long enough to be believed,
the standby rule ends nothing, and the archive rule goes on. A workspace whose own signal cannot be read is left for the
next tick.

Guarantees: the first to come wins. A user's RUNNING, a connection and a flushed access are compared in the change, so
any of them that came after the decision leaves it without effect; two managers at once make one transition. Not
guaranteed: that a store which fails is asked again before the next tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from lapse.core.log import get_logger
from lapse.engine.domain import Candidate, SignalUnavailableError
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.running.metrics import ErrorKind
from lapse.engine.safety.gate import OpenGate
from lapse.engine.sweep import OVERDUE_PER_SECOND, Sweep, SweepLoop
from lapse.workspaces.activity import port as signals
from lapse.workspaces.activity.port import BATCH, ActivityDoubt, ActivityUnavailableError
from lapse.workspaces.errors import WorkspaceStoreError
from lapse.workspaces.expiry import (
    ARCHIVE,
    REMOVE,
    STANDBY,
    LapseReason,
    action_for,
    decide_archive,
    decide_standby,
    standby_by_row,
    ttl_seconds,
)
from lapse.workspaces.model import DOMAIN, DesiredState, Ms, Workspace
from lapse.workspaces.target import WorkspaceTarget
from lapse.workspaces.trash import TrashRule
from lapse.workspaces.view import address_of, extension_of, hold_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from lapse.core.clock import Clock, UnixNs
    from lapse.core.decision import Decision
    from lapse.engine.domain import Domain, Settled
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.gate import Gate
    from lapse.workspaces.activity.port import Activity, Signal
    from lapse.workspaces.model import CheckPlace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

SOURCE: Final = "activity"
"""The signal, as `lapse_signal_up` names it."""
LOOP: Final = "ttl-manager"
ACTOR: Final = "lapse"
_TARGETS: Final = {STANDBY: DesiredState.STANDBY, ARCHIVE: DesiredState.PENDING}
_OF_THE_STORE: Final = frozenset({ActivityDoubt.EPOCH_ABSENT, ActivityDoubt.EPOCH_YOUNG, ActivityDoubt.UNREACHABLE})
"""Doubts that are not about one workspace: the others would hear the same."""
_UNREAD: Final = signals.ActivityUnknown(ActivityDoubt.UNREADABLE)
_LOOKED: Final = frozenset({Outcome.NOTED, Outcome.HELD})
_OPEN_GATE: Final = OpenGate()
_MS: Final = 1_000_000
_log = get_logger("lapse.workspaces.ttl_manager")


class SeenWorkspace(NamedTuple):
    """A row, and its activity, which was read after it; None while that was not needed."""

    workspace: Workspace
    signal: Signal | None = None


def decide_seen(seen: SeenWorkspace, now: UnixNs, *, action: str, lease_seconds: float) -> Decision:
    """Decide by one of the two rules; without a signal by the row alone."""
    (row, signal), moment = seen, Ms(now // _MS)
    if action == ARCHIVE:
        return decide_archive(row, moment)
    if signal is None:
        return standby_by_row(row, moment)
    return decide_standby(row, signal, moment, lease_seconds=lease_seconds)


def rule_of(workspace: Workspace, action: str) -> str:
    """Return a rule with its limit, as the journal has it for the policy."""
    return f"{action} after {ttl_seconds(workspace, action)}s"


def details_of(action: str) -> dict[str, Any]:
    """Return what the journal is to remember of an act."""
    return {"desired": _TARGETS[action].value}


def policies_of(*actions: str) -> dict[str, str]:
    """Return the policies of rules: each row carries its own TTL, and other defaults are for workspaces to come."""
    return dict.fromkeys(actions, "each its own")


async def governed_by(
    store: WorkspaceStore, actions: Collection[str], *, size: int
) -> AsyncGenerator[Sequence[Candidate[SeenWorkspace]], None]:
    """Yield the workspaces in the states that rules are about."""
    after: str | None = None
    while page := await store.list(limit=size, after=after):
        after = page[-1].name
        yield [candidate_of(one) for one in page if action_for(one) in actions]


class WorkspaceRule:
    """One of the two rules: a domain of the engine, under the name that both have."""

    name: Final = DOMAIN
    is_indexed: Final = False
    """The index by deadline is the database's."""
    reasons: Final = tuple(LapseReason)

    def __init__(self, action: str, store: WorkspaceStore, activity: Activity, *, metrics: Metrics) -> None:
        """Let workspaces go to ``action``."""
        self.action = action
        self._store, self._activity, self._metrics = store, activity, metrics
        self._after: CheckPlace | None = None
        """Where a run that was cut short has come to."""

    async def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenWorkspace]], None]:
        """See `lapse.engine.domain.Domain`: those whose ``check_after`` has come."""
        find = self._store.standby_candidates if self.action == STANDBY else self._store.archive_candidates
        moment, is_asked = Ms(now // _MS), False
        while page := await find(moment, limit=size, after=self._after):
            self._after, is_asked = page[-1].check_place, True
            yield [candidate_of(one) for one in page]
        self._after = None
        if self.action == STANDBY and not is_asked:  # metrics tell also when nobody has to be asked
            await self._is_answering()

    def next_deadline(self) -> UnixNs | None:
        """See `Domain`."""
        return None

    def decide(self, candidate: Candidate[SeenWorkspace], now: UnixNs) -> Decision:
        """See `Domain`."""
        return decide_seen(candidate.state, now, action=self.action, lease_seconds=self._activity.lease_seconds)

    async def refresh(self, candidates: Sequence[Candidate[SeenWorkspace]]) -> Sequence[Candidate[SeenWorkspace]]:
        """Read who is there; the rest is in the row, which the change compares."""
        if self.action == ARCHIVE:
            return candidates
        try:
            heard = await self._activity.read([one.state.workspace.id for one in candidates])
        except ActivityUnavailableError as error:
            raise self._unknown(str(error)) from error
        doubts = (one.reason for one in heard.values() if isinstance(one, signals.ActivityUnknown))
        doubt = next((one for one in doubts if one in _OF_THE_STORE), None)
        if doubt is not None:
            raise self._unknown(doubt.value)
        self._metrics.signal(SOURCE, up=True)
        return [replace(one, state=_heard(one.state.workspace, heard)) for one in candidates]

    def policy(self, candidate: Candidate[SeenWorkspace]) -> str:
        """See `Domain`."""
        return rule_of(candidate.state.workspace, self.action)

    def policy_name(self, candidate: Candidate[SeenWorkspace]) -> str:
        """See `Domain`."""
        return self.action

    def policies(self) -> Mapping[str, str]:
        """See `Domain`."""
        return policies_of(self.action)

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenWorkspace]], None]:
        """See `Domain`: those in the state that the rule is about."""
        async for page in governed_by(self._store, (self.action,), size=size):
            yield page

    def details(self, candidate: Candidate[SeenWorkspace]) -> dict[str, Any] | None:
        """See `Domain`."""
        return details_of(self.action)

    async def settle(self, settled: Sequence[Settled[SeenWorkspace]]) -> None:
        """Put off the next look at those that stay; what is in doubt is looked at in the next tick."""
        checks = {
            one.candidate.state.workspace.candidate: Ms(one.next_check // _MS)
            for one in settled
            if one.outcome in _LOOKED and one.next_check is not None
        }
        if not checks:
            return
        try:
            await self._store.advance_checks(checks)
        except WorkspaceStoreError as error:  # then they are looked at again at the next tick: dearer, and as right
            _log.warning("checks_not_advanced", problem=str(error))
            self._metrics.failed(DOMAIN, ErrorKind.ITEM)

    async def _is_answering(self) -> None:
        try:
            await self._activity.check()
        except ActivityUnavailableError as error:
            self._unknown(str(error))
        else:
            self._metrics.signal(SOURCE, up=True)

    def _unknown(self, problem: str) -> SignalUnavailableError:
        _log.warning("activity_unknown", effect="no workspace counts as idle", problem=problem)
        self._metrics.signal(SOURCE, up=False)
        return SignalUnavailableError(problem=problem)


def ttl_sweeps(  # noqa: PLR0913 - all of them named, one per dependency
    store: WorkspaceStore,
    activity: Activity,
    journal: Journal,
    *,
    clock: Clock,
    metrics: Metrics,
    gate: Gate = _OPEN_GATE,
    actor: str = ACTOR,
    dry_run: bool = False,
    batch: int = BATCH,
) -> list[Sweep[Any]]:
    """Return the sweeps by both rules, and that of the trash; nothing is looked at before they run."""
    metrics.expect_signal(SOURCE)
    executor = Executor(
        WorkspaceTarget(store, clock=clock, batch=batch),
        journal,
        clock=clock,
        metrics=metrics,
        actor=actor,
        gate=gate,
        dry_run=dry_run,
    )
    rules: dict[str, Domain[Any]] = {
        STANDBY: WorkspaceRule(STANDBY, store, activity, metrics=metrics),
        ARCHIVE: WorkspaceRule(ARCHIVE, store, activity, metrics=metrics),
        REMOVE: TrashRule(store),
    }
    return [
        Sweep(rule, executor, journal=journal, clock=clock, metrics=metrics, width=batch, part=action)
        for action, rule in rules.items()
    ]


def ttl_loop(
    sweeps: Sequence[Sweep[Any]], *, interval: float, overdue_per_second: int = OVERDUE_PER_SECOND
) -> SweepLoop:
    """Return the loop that sweeps every ``interval`` seconds, where this process leads. Only time wakes it."""
    return SweepLoop(*sweeps, name=LOOP, interval=interval, overdue_per_second=overdue_per_second)


def candidate_of(row: Workspace) -> Candidate[SeenWorkspace]:
    """Return a workspace as both rules see it, before its activity is read."""
    return Candidate(
        address=address_of(row),
        uid=row.id,
        version=str(row.version),
        state=SeenWorkspace(row),
        handle=row,
        hold=hold_of(row),
        extended=extension_of(row),
    )


def _heard(row: Workspace, heard: Mapping[WorkspaceId, Signal]) -> SeenWorkspace:
    return SeenWorkspace(row, heard.get(row.id, _UNREAD))
