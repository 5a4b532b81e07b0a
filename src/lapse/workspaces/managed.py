"""Workspaces as people see and steer them: `lapse.engine.domain.ManagedDomain`.

What decides is what the TTL manager decides by: two rules, of which the one that is about the workspace's state wins.
A plan is made from the rows alone, and leaves out who is connected now: nobody knows who will be there later. Before
anything is ended, activity is read; where it is counted by another process, it is unknown, and unknown is not idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, KeepReason
from lapse.core.duration import NEVER, Duration
from lapse.engine.domain import Consequence
from lapse.engine.explanation import Grounds, RuleVerdict, verdict_word
from lapse.engine.sweep import HELD_SECONDS
from lapse.engine.view import Moment
from lapse.workspaces import verbs
from lapse.workspaces.activity import port as activity
from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnavailableError, ActivityUnknown
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.expiry import (
    ARCHIVE,
    STANDBY,
    StayReason,
    action_for,
    decide_archive,
    decide_standby,
    ttl_seconds,
)
from lapse.workspaces.model import DOMAIN, Ms
from lapse.workspaces.target import DeletionTarget, WorkspaceTarget
from lapse.workspaces.ttl_manager import (
    SeenWorkspace,
    candidate_of,
    decide_seen,
    details_of,
    governed_by,
    policies_of,
    rule_of,
)
from lapse.workspaces.view import activity_words, anchor_source, probe_words, problem_words, reason_words, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.core.clock import Clock
    from lapse.core.decision import Decision, Verdict
    from lapse.engine.domain import Candidate, Target
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.holds import Hold
    from lapse.workspaces.activity.port import Activity, Signal
    from lapse.workspaces.model import CheckPlace, Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

_MS: Final = 1_000_000
_PUT_OFF_MS: Final = int(HELD_SECONDS * 1000)
"""For so long a sweep does not look at what is held and due."""
_NOT_DELETED: Final = "nothing of it is deleted; it comes back when it is opened, or with lapse workspaces start"
_ELSEWHERE: Final = ActivityUnknown(ActivityDoubt.ELSEWHERE)


class ManagedWorkspaces:
    """See the module."""

    name: Final = DOMAIN
    is_indexed: Final = True
    not_undoable: str | None = None

    def __init__(
        self,
        store: WorkspaceStore,
        activity: Activity | None,
        *,
        clock: Clock,
        lease_seconds: float,
        trash_ttl: Duration = NEVER,
    ) -> None:
        """Steer the workspaces of a store; ``activity`` is None where another process counts it."""
        self._store, self._activity, self._clock, self._lease = store, activity, clock, lease_seconds
        self._trash_ttl = trash_ttl
        self.target: Target = WorkspaceTarget(store, clock=clock)

    @property
    def _now(self) -> Ms:
        return Ms(self._clock.wall_ns() // _MS)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, address: Address) -> Candidate[SeenWorkspace] | None:
        """See `ManagedDomain`."""
        try:
            return candidate_of(await self._store.by_name(address.name))
        except UnknownWorkspaceError:
            return None

    async def find_all(self, addresses: Sequence[Address]) -> Sequence[Candidate[SeenWorkspace] | None]:
        """See `ManagedDomain`."""
        return [await self.find(one) for one in addresses]

    async def refresh(self, candidates: Sequence[Candidate[SeenWorkspace]]) -> Sequence[Candidate[SeenWorkspace]]:
        """See `ManagedDomain`: read who is there; the rest is in the row, which the change compares."""
        heard = await self._heard([one.state.workspace for one in candidates])
        return [
            replace(one, state=SeenWorkspace(one.state.workspace, heard.get(one.state.workspace.id, _ELSEWHERE)))
            for one in candidates
        ]

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenWorkspace]], None]:
        """See `ManagedDomain`: by the index of the database; who is connected now is left out."""
        last = Ms(until // _MS + _PUT_OFF_MS)
        for find in (self._store.standby_candidates, self._store.archive_candidates):
            after: CheckPlace | None = None
            while page := await find(last, limit=size, after=after):
                after = page[-1].check_place
                heard = await self._heard(page) if self._activity is not None else {}
                yield [candidate_of(row) for row in page if not isinstance(heard.get(row.id), activity.Connected)]

    async def _heard(self, rows: Sequence[Workspace]) -> Mapping[WorkspaceId, Signal]:
        if self._activity is None or not rows:
            return {}
        try:
            return await self._activity.read([one.id for one in rows])
        except ActivityUnavailableError:
            return {one.id: ActivityUnknown(ActivityDoubt.UNREACHABLE) for one in rows}

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, candidate: Candidate[SeenWorkspace], now: UnixNs) -> Decision:
        """See `ManagedDomain`: as if nobody held it, because a plan tells of what is due and held."""
        row, signal = candidate.state
        seen = SeenWorkspace(_unheld(row), signal)
        return decide_seen(seen, now, action=_action(candidate), lease_seconds=self._lease)

    def policy(self, candidate: Candidate[SeenWorkspace]) -> str:
        """See `ManagedDomain`."""
        return rule_of(candidate.state.workspace, _action(candidate))

    def policy_name(self, candidate: Candidate[SeenWorkspace]) -> str:
        """See `ManagedDomain`."""
        return _action(candidate)

    def policies(self) -> Mapping[str, str] | None:
        """See `ManagedDomain`."""
        return policies_of(STANDBY, ARCHIVE)

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[SeenWorkspace]], None]:
        """See `ManagedDomain`."""
        async for page in governed_by(self._store, (STANDBY, ARCHIVE), size=size):
            yield page

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """See `ManagedDomain`."""
        await guard.look(self)

    def details(self, candidate: Candidate[SeenWorkspace]) -> dict[str, Any] | None:
        """See `ManagedDomain`."""
        return details_of(_action(candidate))

    def explain(self, candidate: Candidate[SeenWorkspace], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        held, signal = candidate.state
        row = _unheld(held)
        moment, wins = Ms(now // _MS), _action(candidate)
        seen = activity.Quiet() if signal is None else signal
        verdicts = {
            STANDBY: decide_standby(row, seen, moment, lease_seconds=self._lease).verdict,
            ARCHIVE: decide_archive(row, moment).verdict,
        }
        view = view_of(row, moment)
        rules = [_rule(row, action, verdicts[action], wins=action == wins) for action in verdicts]
        probe = probe_words(view)
        return Grounds(
            rules=tuple(sorted(rules, key=lambda one: not one.wins)),
            because=reason_words(row, decision.verdict),
            anchor_source=anchor_source(row),
            activity=_activity(signal) if wins == STANDBY else None,
            trouble=problem_words(view) or None,
            facts={"probe": probe} if probe else None,
            saved_by=_savers(row.name, decision),
            next_check=row.check_after * _MS,
            not_undoable=_NOT_DELETED,
        )

    async def takes_along(self, candidate: Candidate[SeenWorkspace]) -> Sequence[str]:
        """See `ManagedDomain`: nothing."""
        return ()

    async def leads_to(self, candidate: Candidate[SeenWorkspace], end: UnixNs) -> Sequence[Consequence]:
        """See `ManagedDomain`: what is in standby goes to the archive when nobody comes."""
        if _action(candidate) != STANDBY:
            return ()
        seconds = ttl_seconds(candidate.state.workspace, ARCHIVE)
        return [Consequence(str(candidate.address), ARCHIVE, UnixNs(end + seconds * 1000 * _MS))]

    # --- steering -----------------------------------------------------------------------------------------------------

    async def deletion_target(self, candidate: Candidate[SeenWorkspace]) -> Target:
        """See `ManagedDomain`: a person's deletion gives the name free, and the reconciler does the rest."""
        return DeletionTarget(self._store, clock=self._clock, trash_ttl=self._trash_ttl)

    async def hold(self, candidate: Candidate[SeenWorkspace], hold: Hold, *, replace: bool) -> None:
        """See `ManagedDomain`."""
        await verbs.hold(self._store, candidate.state.workspace, hold, replace=replace, now=self._now)

    async def release(
        self, candidate: Candidate[SeenWorkspace], *, by: str, legal: bool, only: str | None = None
    ) -> Hold | None:
        """See `ManagedDomain`."""
        return await verbs.release(self._store, candidate.state.workspace, by=by, legal=legal, only=only, now=self._now)

    async def extend(self, candidate: Candidate[SeenWorkspace], until: UnixNs, *, by: str) -> None:
        """See `ManagedDomain`."""
        await self._store.extend(candidate.state.workspace.id, Ms(-(-until // _MS)), now=self._now)


def _unheld(row: Workspace) -> Workspace:
    """Return a workspace without its hold: the engine looks at that by itself."""
    return row if row.hold_reason is None else replace(row, hold_reason=None)


def _action(candidate: Candidate[SeenWorkspace]) -> str:
    return action_for(candidate.state.workspace) or STANDBY


def _rule(workspace: Workspace, action: str, verdict: Verdict, *, wins: bool) -> RuleVerdict:
    ttl = Duration.of_seconds(ttl_seconds(workspace, action))
    return RuleVerdict(
        rule=f"standby after {ttl} idle" if action == STANDBY else f"archive after {ttl} in standby",
        action=action,
        wins=wins,
        verdict=verdict_word(verdict),
        reason=verdict.reason.value,
        since=Moment(verdict.since) if isinstance(verdict, Due) else None,
        look_again=None if isinstance(verdict, Due) else Moment.of(verdict.next_check),
    )


def _activity(signal: Signal | None) -> str:
    """Say who is there; what is explained as of now was read, and of another time nobody knows."""
    return "not known at another time than now" if signal is None else activity_words(signal)


def _savers(name: str, decision: Decision) -> tuple[str, ...]:
    """Say what would keep it beside the verbs of every domain; nothing where nothing lapses."""
    waits = decision.verdict.reason in {KeepReason.NOT_YET, StayReason.CONNECTED, StayReason.IDLE_TIMER}
    if not waits and not isinstance(decision.verdict, Due):
        return ()
    return ("opening it", f"lapse workspaces start {name}")
