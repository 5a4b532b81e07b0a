"""The TTL manager in any world: the flows of the founding document, what it called known issues, and its guards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from lapse.engine.journal.port import Outcome
from lapse.engine.safety.freeze import FreezeReason
from lapse.engine.safety.gate import Grant, OpenGate
from lapse.engine.sweep import SweepReport
from lapse.workspaces.activity import port as signals
from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnavailableError
from lapse.workspaces.errors import WorkspaceStoreUnavailableError
from lapse.workspaces.model import Changes, DesiredBy, DesiredState, Ms, ObservedStatus, Operation, OpId, ProbeAnswer
from tests.conformance.activity.registry import LEASE
from tests.conformance.ttl_manager.harness import ARCHIVE_TTL, IDLE, NOTHING, STANDBY_TTL, A, B, Harness, case

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lapse.core.decision import Reason
    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import Workspace, WorkspaceCandidate, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

PENDING, STANDBY, RUNNING = DesiredState.PENDING, DesiredState.STANDBY, DesiredState.RUNNING
ENDED = ("ended", "standby_ttl_expired")


def only_outcomes(told: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out the intents, which are written only where the journal lives elsewhere."""
    return [one for one in told if one[0] != "intent"]


# --- the flows --------------------------------------------------------------------------------------------------------


@case
async def connect_removes_the_idle_timer_and_the_last_disconnect_sets_it_and_its_expiry_leads_to_standby(
    harness: Harness,
) -> None:
    await harness.settle()
    one = await harness.idle(standby=10)
    await harness.connect(one)
    await harness.connect(one, B)
    await harness.disconnect(one)
    await harness.elapse(IDLE - 60)
    assert (await harness.tick()).standby == SweepReport(looked=1, kept=1), "one of two has gone"
    await harness.disconnect(one, B)
    await harness.connect(one)
    await harness.elapse(IDLE - 60)
    await harness.tick()
    assert await harness.desired(one) is RUNNING, "somebody came back before the timer ran out, and that is gone"
    await harness.disconnect(one)
    await harness.elapse(IDLE - 60)
    await harness.tick()
    assert await harness.desired(one) is RUNNING, "long after the TTL, and the timer still runs"
    await harness.elapse(61)
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1)
    found = await harness.store.get(one.id)
    assert (found.desired_state, found.desired_by) == (STANDBY, DesiredBy.TTL)
    assert found.observed_status is ObservedStatus.RUNNING, "the rest is the reconciler's"


@case
async def idle_for_longer_than_its_ttl_leads_to_standby_and_at_the_instant_it_stays(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    await harness.elapse(STANDBY_TTL)
    assert (await harness.tick()).standby == SweepReport(looked=1, kept=1)
    await harness.elapse(0.001)
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1)
    assert (await harness.tick()).standby == NOTHING
    assert only_outcomes(await harness.told(one)) == [ENDED]


@case
async def idle_time_counts_from_the_last_person_and_not_from_restarts(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    for number in range(1, 8):
        await harness.elapse(STANDBY_TTL / 8)
        await harness.store.observe({one.id: ObservedStatus.STANDBY}, now=harness.now)
        assert await harness.store.note_exit(one.id, status=1, output="", at=harness.now, steady=False) == number
        await harness.store.observe({one.id: ObservedStatus.RUNNING}, now=harness.now)
        await harness.tick()
        assert await harness.desired(one) is RUNNING
    await harness.elapse(STANDBY_TTL / 8 + 0.001)
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1)
    assert only_outcomes(await harness.told(one))[-1] == ENDED


@case
async def one_that_waits_to_be_started_again_lapses_as_if_it_ran(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    await harness.store.observe({one.id: ObservedStatus.STANDBY}, now=harness.now)
    assert await harness.store.note_exit(one.id, status=1, output="", at=harness.now, steady=False) == 1
    await harness.elapse(STANDBY_TTL)
    await harness.tick()
    assert await harness.desired(one) is RUNNING
    await harness.elapse(0.001)
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1)
    found = await harness.store.get(one.id)
    assert (found.observed_status, found.desired_state) == (ObservedStatus.STANDBY, STANDBY)


@case
async def the_archive_is_reached_by_the_database_alone(harness: Harness) -> None:
    one = await harness.idle()
    await harness.settle()
    await harness.tick()
    await harness.stopped(one)
    await harness.elapse(ARCHIVE_TTL)
    assert (await harness.tick(activity=Away(harness.activity))).archive == SweepReport(looked=1, kept=1)
    assert await harness.desired(one) is STANDBY
    await harness.elapse(0.001)
    assert (await harness.tick(activity=Away(harness.activity))).archive == SweepReport(looked=1, ended=1)
    found = await harness.store.get(one.id)
    assert (found.desired_state, found.desired_by) == (PENDING, DesiredBy.TTL)
    assert only_outcomes(await harness.told(one)) == [ENDED, ("noted", "not_yet"), ("ended", "archive_ttl_expired")]


@case
async def an_operation_in_progress_is_skipped(harness: Harness) -> None:
    await harness.settle()
    runs, rests = await harness.idle("runs"), await harness.idle("rests", archive=60)
    await harness.store.set_desired(rests.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(rests)
    await harness.elapse(61)
    for one in (runs, rests):
        assert await harness.store.claim(one.id, Operation.STARTING, OpId("busy"), now=harness.now)
    report = await harness.tick()
    assert (report.standby, report.archive) == (NOTHING, NOTHING)


@case
async def a_deleted_one_is_skipped(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    await harness.store.mark_deleted(one.id, now=harness.now)
    assert (await harness.tick()).standby == NOTHING
    assert await harness.desired(one) is RUNNING


@case
async def what_is_wanted_or_seen_otherwise_is_skipped(harness: Harness) -> None:
    await harness.settle()
    one, other = await harness.idle("one"), await harness.idle("other")
    await harness.store.set_desired(one.id, PENDING, DesiredBy.USER, now=harness.now)
    await harness.store.observe({other.id: ObservedStatus.PENDING}, now=harness.now)
    assert (await harness.tick()).standby == NOTHING
    assert (await harness.desired(one), await harness.desired(other)) == (PENDING, RUNNING)


# --- what the document called known issues ----------------------------------------------------------------------------


@case
async def a_workspace_never_opened_is_not_stopped_at_the_next_tick(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    await harness.elapse(60)
    await harness.tick()
    assert await harness.desired(one) is RUNNING


@case
async def one_that_was_created_long_before_it_ran_counts_from_when_it_did(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    await harness.store.observe({one.id: ObservedStatus.STANDBY}, now=harness.now)
    await harness.elapse(100 * STANDBY_TTL)
    await harness.store.observe({one.id: ObservedStatus.RUNNING}, now=harness.now)
    await harness.elapse(60)
    await harness.tick()
    assert await harness.desired(one) is RUNNING


@case
async def every_workspace_has_ttls_of_its_own(harness: Harness) -> None:
    await harness.settle()
    short, long = await harness.running("short", standby=60), await harness.running("long", standby=7_200)
    await harness.elapse(61)
    await harness.tick()
    assert (await harness.desired(short), await harness.desired(long)) == (STANDBY, RUNNING)
    await harness.elapse(7_200 - 61)
    await harness.tick()
    assert await harness.desired(long) is RUNNING
    await harness.elapse(1)
    await harness.tick()
    assert await harness.desired(long) is STANDBY


@case
async def a_ttl_that_was_made_shorter_counts_at_the_next_tick(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running(standby=86_400)
    await harness.elapse(61)
    await harness.tick()
    await harness.store.configure(one.id, Changes(standby_ttl_seconds=60), now=harness.now)
    await harness.tick()
    assert await harness.desired(one) is STANDBY


@case
async def a_program_that_does_not_answer_its_probe_is_not_stopped_and_one_that_is_idle_is(harness: Harness) -> None:
    await harness.settle()
    one, other = await harness.running("one"), await harness.running("other")
    for each in (one, other):
        await harness.store.configure(each.id, Changes(probe="/alive"), now=harness.now)
    await harness.elapse(STANDBY_TTL + 1)
    await harness.tick()
    assert await harness.desired(one) is await harness.desired(other) is RUNNING, "nobody has asked"
    await harness.store.probed(
        {one.id: ProbeAnswer("/alive", None, "no answer"), other.id: ProbeAnswer("/alive", harness.now)}
    )
    await harness.tick()
    assert await harness.desired(one) is RUNNING
    assert await harness.desired(other) is STANDBY
    await harness.store.probed({one.id: ProbeAnswer("/alive", harness.now)})
    await harness.tick()
    assert await harness.desired(one) is STANDBY


@case
async def access_during_a_long_connection_moves_the_archive_away_too(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running(archive=100)
    await harness.connect(one)
    for _ in range(5):
        await harness.elapse(LEASE / 2)
        await harness.store.flush_access({one.id: harness.now})
        await harness.activity.renew({A: one.id}, LEASE)
    assert (await harness.store.get(one.id)).last_access_at == harness.now
    await harness.store.set_desired(one.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(one)
    await harness.elapse(99)
    await harness.tick()
    assert await harness.desired(one) is STANDBY, "the last access is what counts, not the connection's beginning"


@case
async def a_proxy_that_was_killed_stops_counting_after_its_lease(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running(standby=60)
    await harness.connect(one)
    await harness.elapse(LEASE - 60)
    await harness.tick()
    assert await harness.desired(one) is RUNNING
    await harness.elapse(61)
    await harness.tick()
    assert await harness.desired(one) is STANDBY


@case
async def two_coordinators_make_one_transition(harness: Harness) -> None:
    await harness.settle()
    made = [await harness.running(f"w{number}", standby=60) for number in range(20)]
    await harness.elapse(61)
    other = await harness.stores.another()
    reports = await asyncio.gather(harness.tick(), harness.tick(store=other))
    assert sum(report.standby.ended for report in reports) == 20
    for one in made:
        assert (await harness.store.get(one.id)).version == one.version + 1
        assert only_outcomes(await harness.told(one)).count(ENDED) == 1


# --- whoever comes first wins -----------------------------------------------------------------------------------------


class Meanwhile:
    """A store to which something happens between the decision and the change."""

    def __init__(self, inner: Any, happens: Any) -> None:  # noqa: ANN401
        self._inner, self._happens = inner, happens

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        await self._happens()
        return await self._inner.to_standby(candidates, **how)


@case
async def a_user_who_wants_it_running_at_the_same_moment_wins(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()

    async def insist() -> None:
        await harness.store.set_desired(one.id, RUNNING, DesiredBy.USER, now=harness.now)

    assert (await harness.tick(store=Meanwhile(harness.store, insist))).standby == SweepReport(looked=1, changed=1)
    found = await harness.store.get(one.id)
    assert (found.desired_state, found.desired_by) == (RUNNING, DesiredBy.USER)
    assert only_outcomes(await harness.told(one)) == [("changed", "standby_ttl_expired")]


@case
async def a_user_who_wanted_it_running_a_moment_before_wins_as_well(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    await harness.store.set_desired(one.id, RUNNING, DesiredBy.USER, now=harness.now)

    assert (await harness.tick()).standby == SweepReport(looked=1, kept=1)
    await harness.elapse(STANDBY_TTL - 1)
    assert (await harness.tick()).standby.ended == 0
    await harness.elapse(2)
    assert (await harness.tick()).standby.ended == 1, "it is an access, and no more than that"


@case
async def a_connection_at_the_same_moment_wins(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()

    async def come() -> None:
        await harness.connect(one)

    assert (await harness.tick(store=Meanwhile(harness.store, come))).standby == SweepReport(looked=1, changed=1)
    assert await harness.desired(one) is RUNNING


@case
async def an_access_that_is_flushed_at_the_same_moment_wins(harness: Harness) -> None:
    await harness.settle()
    one, other = await harness.idle("one"), await harness.running("other", standby=1)
    await harness.elapse(2)

    async def ask_for_a_page() -> None:
        await harness.store.flush_access({one.id: harness.now})

    report = await harness.tick(store=Meanwhile(harness.store, ask_for_a_page))
    assert report.standby == SweepReport(looked=2, changed=1, ended=1)
    assert (await harness.desired(one), await harness.desired(other)) == (RUNNING, STANDBY)


@case
async def a_hold_at_the_same_moment_wins(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()

    async def hold() -> None:
        await harness.store.hold(one.id, "demo", now=harness.now)

    await harness.tick(store=Meanwhile(harness.store, hold))
    assert await harness.desired(one) is RUNNING


class Race:
    """Somebody comes to each of many idle workspaces while a tick stops them: some between its decision and its change,
    some right after it, and some at the same moment, with the change sent after a ``lead`` of so many. Half of
    them are users who want it to run, half connections."""

    def __init__(self, harness: Harness, other: WorkspaceStore, workspaces: Sequence[Workspace], *, lead: int) -> None:
        self.harness, self.other, self._inner = harness, other, harness.store
        self.before, self.during, self.after = workspaces[0::3], workspaces[1::3], workspaces[2::3]
        self.lead = lead % len(self.during)
        self.racing: asyncio.Future[Any] | None = None
        self.admitted: asyncio.Queue[Workspace] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        await self.come(self.before)
        self.admitted = asyncio.Queue()
        self.racing = asyncio.ensure_future(self.come(self.during))
        for _ in range(self.lead):
            await self.admitted.get()
        return await self._inner.to_standby(candidates, **how)

    async def run(self) -> SweepReport:
        """Return what the tick did, when all have come and gone."""
        report = (await self.harness.tick(store=self)).standby
        assert self.racing is not None
        await asyncio.gather(self.racing, self.come(self.after))
        return report

    async def come(self, workspaces: Sequence[Workspace]) -> None:
        await asyncio.gather(*(self.come_to(place, one) for place, one in enumerate(workspaces)))

    async def come_to(self, place: int, one: Workspace) -> None:
        if place % 2:
            admitted = await self.other.set_desired(one.id, RUNNING, DesiredBy.USER, now=self.harness.now)
        else:
            await self.harness.activity.connect(one.id, A, lease_seconds=LEASE)
            admitted = await self.other.connected(one.id, now=self.harness.now)
        assert admitted.desired_state is RUNNING
        self.admitted.put_nowait(admitted)
        if not place % 2:
            await self.harness.activity.disconnect(one.id, A, idle_seconds=0)


MANY = 60


@case
async def whoever_races_with_the_tick_is_never_left_outside(harness: Harness) -> None:
    """Whoever is first: when both are done, it is wanted, and by whoever came."""
    await harness.settle()
    other = await harness.stores.another()
    workspaces = [await harness.running(f"w{number:02}", standby=1) for number in range(MANY)]
    versions = [one.version for one in workspaces]
    for lead in range(harness.rounds // MANY):
        await harness.elapse(1.001)
        race = Race(harness, other, workspaces, lead=lead)
        report = await race.run()
        assert (report.looked, report.ended + report.changed) == (MANY, MANY)
        assert len(race.after) <= report.ended <= len(race.after) + len(race.during), "who came before has won"
        found = await harness.store.list(limit=MANY)
        assert {one.desired_state for one in found} == {RUNNING}
        assert DesiredBy.TTL not in {one.desired_by for one in found}
        came = [one.version for one in found]
        assert sum(came) == sum(versions) + MANY + report.ended, "each change is one, and none is lost"
        versions = came


# --- unknown is not idle ----------------------------------------------------------------------------------------------


class Away:
    """An activity store that does not answer."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self.lease_seconds = inner.lease_seconds

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        raise ActivityUnavailableError(backend="redis://gone", problem="it is away")

    async def check(self) -> None:
        raise ActivityUnavailableError(backend="redis://gone", problem="it is away")


class Failing:
    """An activity store that cannot tell about one workspace."""

    def __init__(self, inner: Any, one: WorkspaceId) -> None:  # noqa: ANN401
        self.lease_seconds, self._inner, self._one = inner.lease_seconds, inner, one

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found: dict[WorkspaceId, Signal] = await self._inner.read(workspaces)
        return found | {self._one: signals.ActivityUnknown(ActivityDoubt.UNREADABLE)}


@case
async def while_the_activity_store_is_away_nobody_is_stopped_and_the_archive_goes_on(harness: Harness) -> None:
    await harness.settle()
    runs, rests = await harness.idle("runs"), await harness.idle("rests", archive=60)
    await harness.store.set_desired(rests.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(rests)
    await harness.elapse(61)
    report = await harness.tick(activity=Away(harness.activity))
    assert (report.standby, report.activity_up) == (SweepReport(looked=1, unknown=1), False)
    assert report.archive == SweepReport(looked=1, ended=1)
    assert harness.metric('lapse_signal_up{source="activity"}') == 0
    assert await harness.desired(runs) is RUNNING
    report = await harness.tick()
    assert (report.standby, report.activity_up) == (SweepReport(looked=1, ended=1), True)
    assert harness.metric('lapse_signal_up{source="activity"}') == 1


@case
async def whether_activity_is_known_is_told_also_when_nobody_is_idle(harness: Harness) -> None:
    assert (await harness.tick()).activity_up is True
    assert (await harness.tick(activity=Away(harness.activity))).activity_up is False
    assert harness.metric('lapse_signal_up{source="activity"}') == 0


@case
async def an_activity_store_that_lost_everything_is_not_believed_for_two_leases(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle(standby=60)
    await harness.connect(one)
    await harness.elapse(LEASE - 60)
    await harness.activities.lose_everything()
    for _ in range(2):
        report = await harness.tick()
        assert (report.standby, report.activity_up) == (SweepReport(looked=1, unknown=1), False)
    assert await harness.told(one) == [], "that is news about the store, not about each workspace"
    await harness.elapse(2 * LEASE)
    assert (await harness.tick()).standby.ended == 1


@case
async def one_whose_signal_cannot_be_read_is_left_and_the_others_go_on(harness: Harness) -> None:
    await harness.settle()
    rests = await harness.running("rests", archive=60)
    await harness.store.set_desired(rests.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(rests)
    bad, good = await harness.running("bad"), await harness.running("good")
    await harness.elapse(STANDBY_TTL + 1)
    report = await harness.tick(activity=Failing(harness.activity, bad.id))
    assert (report.standby, report.activity_up) == (SweepReport(looked=2, ended=1, unknown=1), True)
    assert report.archive == SweepReport(looked=1, ended=1)
    states = [await harness.desired(one) for one in (bad, good, rests)]
    assert states == [RUNNING, STANDBY, PENDING]
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1), "it is looked at again at the next tick"


# --- bad rows, stores that fail ---------------------------------------------------------------------------------------


class Choking:
    """A store whose change fails for some rows, with all that are changed together."""

    def __init__(self, inner: Any, bad: set[WorkspaceId], *, alive: bool = True) -> None:  # noqa: ANN401
        self._inner, self._bad, self._alive = inner, bad, alive
        self.steps = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)

    async def check(self) -> None:
        if not self._alive:
            raise WorkspaceStoreUnavailableError(problem="it is away")

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        self.steps += 1
        if self._bad & {one.id for one in candidates}:
            raise WorkspaceStoreUnavailableError(problem="the server answered with error P0001")
        return await self._inner.to_standby(candidates, **how)


@case
async def one_bad_row_does_not_stop_the_others(harness: Harness) -> None:
    await harness.settle()
    made = [await harness.running(f"w{number}") for number in range(30)]
    await harness.elapse(STANDBY_TTL + 1)
    bad = made[17]
    report = await harness.tick(store=Choking(harness.store, {bad.id}))
    assert report.standby == SweepReport(looked=30, ended=29, failed=1)
    assert [one.name for one in made if await harness.desired(one) is RUNNING] == [bad.name]
    ((outcome, _),) = only_outcomes(await harness.told(bad))
    assert outcome == "failed"
    assert harness.metric('lapse_errors_total{domain="workspaces",kind="item"}') == 1
    assert (await harness.tick()).standby == SweepReport(looked=1, ended=1), "and the next tick tries again"


@case
async def a_store_that_is_away_is_not_asked_for_each_row(harness: Harness) -> None:
    await harness.settle()
    made = [await harness.running(f"w{number}") for number in range(30)]
    await harness.elapse(STANDBY_TTL + 1)
    choking = Choking(harness.store, {one.id for one in made}, alive=False)
    assert (await harness.tick(store=choking)).standby == SweepReport(looked=30, failed=30)
    assert choking.steps == 1
    assert (await harness.tick()).standby.ended == 30


@case
async def a_ttl_that_cannot_be_is_unknown_and_stops_nobody_else(harness: Harness) -> None:
    await harness.settle()
    bad, good = await harness.running("bad"), await harness.running("good")
    await harness.elapse(STANDBY_TTL + 1)

    class Spoilt:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            return getattr(harness.store, name)

        async def standby_candidates(self, now: Ms, **how: Any) -> list[Any]:  # noqa: ANN401
            page = await harness.store.standby_candidates(now, **how)
            return [msgspec.structs.replace(one, standby_ttl_seconds=0) if one.id == bad.id else one for one in page]

    report = await harness.tick(store=Spoilt())
    assert report.standby == SweepReport(looked=2, ended=1, unknown=1)
    assert await harness.told(bad) == [("noted", "invalid_ttl")]
    assert (await harness.desired(bad), await harness.desired(good)) == (RUNNING, STANDBY)


@case
async def a_check_that_fails_does_not_stop_the_other(harness: Harness) -> None:
    await harness.settle()
    rests = await harness.idle("rests", archive=60)
    await harness.store.set_desired(rests.id, STANDBY, DesiredBy.USER, now=harness.now)
    await harness.stopped(rests)
    await harness.elapse(61)

    class Half:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            return getattr(harness.store, name)

        async def standby_candidates(self, now: Ms, **how: Any) -> list[Any]:  # noqa: ANN401
            raise WorkspaceStoreUnavailableError(problem="that index is gone")

    problem = ""
    try:
        await harness.tick(store=Half())
    except WorkspaceStoreUnavailableError as error:
        problem = str(error)
    assert "that index is gone" in problem
    assert await harness.desired(rests) is PENDING


# --- holds, dry runs, gate ------------------------------------------------------------------------------------------


@case
async def a_held_one_stays_is_told_once_and_goes_when_it_is_released(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    await harness.store.hold(one.id, "demo", now=harness.now)
    manager = harness.manager()
    assert (await manager.tick()).standby == SweepReport(looked=1, held=1)
    assert harness.metric('lapse_held{domain="workspaces"}') == 1
    await harness.elapse(60)
    assert (await manager.tick()).standby == NOTHING, "it is not looked at every time"
    assert harness.metric('lapse_held{domain="workspaces"}') == 1
    await harness.elapse(STANDBY_TTL)
    assert (await manager.tick()).standby.held == 1
    assert await harness.told(one) == [("held", "held")]
    await harness.store.release(one.id, now=harness.now)
    assert (await manager.tick()).standby.ended == 1
    assert harness.metric('lapse_held{domain="workspaces"}') == 0


@case
async def a_hold_ends_when_it_says_and_a_shorter_one_takes_its_place(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    await harness.store.hold(one.id, "demo", until=Ms(harness.now + 10_000_000), now=harness.now)
    await harness.tick()
    assert (await harness.store.get(one.id)).check_after == harness.now + 600_000, "a plan finds it by that"
    await harness.store.hold(one.id, "shorter", until=Ms(harness.now + 60_000), now=harness.now)
    await harness.tick()
    await harness.elapse(60)
    assert (await harness.tick()).standby.ended == 1


@case
async def a_dry_run_tells_and_does_nothing(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    before = await harness.store.get(one.id)
    for _ in range(2):
        assert (await harness.tick(dry_run=True)).standby == SweepReport(looked=1, would_end=1)
    assert await harness.store.get(one.id) == before
    assert await harness.told(one) == [("would_end", "standby_ttl_expired")]
    assert (await harness.tick()).standby.ended == 1


class LimitedGate(OpenGate):
    """Allows so many, and then nothing."""

    def __init__(self, left: int, *, frozen: bool = False) -> None:
        self.left, self.frozen, self.ended = left, frozen, 0

    async def objection(self, domain: str) -> Reason | None:
        return FreezeReason.FROZEN if self.frozen else None

    async def allow(self, domain: str, count: int = 1) -> Grant:
        if self.left == 0:
            return Grant(0, FreezeReason.BUDGET_SPENT)
        granted = min(count, self.left)
        self.left -= granted
        return Grant(granted)

    def done(self, grant: Grant, *, ended: int) -> None:
        self.ended += ended


@case
async def a_frozen_domain_is_not_even_looked_at(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    report = await harness.tick(gate=LimitedGate(10, frozen=True))
    assert (report.standby, report.refusal) == (NOTHING, FreezeReason.FROZEN)
    assert await harness.desired(one) is RUNNING


@case
async def past_its_budget_nothing_more_is_ended(harness: Harness) -> None:
    await harness.settle()
    made = [await harness.running(f"w{number}") for number in range(9)]
    await harness.elapse(STANDBY_TTL + 1)
    gate = LimitedGate(4)
    report = await harness.tick(gate=gate, batch=3)
    assert report.standby == SweepReport(looked=6, ended=4, refused=2), "and the last page is not even looked at"
    assert gate.ended == 4
    states = [await harness.desired(one) for one in made]
    assert (states.count(STANDBY), states.count(RUNNING)) == (4, 5)
    refused = [told for one in made if (told := await harness.told(one)) == [("refused", "budget_spent")]]
    assert len(refused) == 2


# --- the journal ------------------------------------------------------------------------------------------------------


@case
async def every_transition_is_a_row_with_what_it_was_decided_on(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle(standby=60)
    await harness.tick()
    rows = await harness.rows(one)
    assert rows
    row = rows[-1]
    assert (row.domain, row.address, row.uid, row.version) == ("workspaces", "workspace/notes", one.id, "1")
    assert (row.verdict, row.outcome, row.actor) == ("due", Outcome.ENDED, "lapse")
    assert row.anchor_ns == one.status_changed_at * 1_000_000
    assert row.policy == "standby after 60s"
    assert row.details == {"desired": "STANDBY"}
    assert await harness.journal.unfinished() == []
    assert harness.metric('lapse_deletions_total{domain="workspaces",reason="standby_ttl_expired"}') == 1
    assert harness.metric('lapse_expiry_lag_seconds_count{domain="workspaces"}') == 1


class Mute:
    """A journal that cannot be written."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self._inner = inner

    def shares(self, store: object) -> bool:
        return False

    async def append(self, *entries: object) -> None:
        raise OSError("the disk is full")

    async def note(self, entry: object, *, unless_first: bool = False) -> bool:
        raise OSError("the disk is full")


@case
async def an_intent_that_cannot_be_written_prevents_the_change(harness: Harness) -> None:
    await harness.settle()
    one = await harness.idle()
    assert (await harness.tick(journal=Mute(harness.journal))).standby == SweepReport(looked=1, failed=1)
    assert await harness.desired(one) is RUNNING
    assert harness.metric('lapse_errors_total{domain="workspaces",kind="journal"}') == 1


# --- what it costs ----------------------------------------------------------------------------------------------------


class Counting:
    """Counts calls."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **how: Any) -> Any:  # noqa: ANN401
            self.calls.append(name)
            return found(*args, **how)

        return call


@case
async def a_tick_costs_a_query_a_look_and_a_change_however_many_are_due(harness: Harness) -> None:
    await harness.settle()
    for number in range(40):
        await harness.running(f"w{number}")
    await harness.elapse(STANDBY_TTL + 1)
    store, activity = Counting(harness.store), Counting(harness.activity)
    assert (await harness.tick(store=store, activity=activity)).standby.ended == 40
    assert store.calls == ["standby_candidates", "to_standby", "standby_candidates", "archive_candidates", "trashed"]
    assert activity.calls == ["read"]


@case
async def whoever_is_active_is_looked_at_again_only_when_its_time_may_be_over(harness: Harness) -> None:
    await harness.settle()
    one = await harness.running()
    await harness.elapse(STANDBY_TTL - 1)
    await harness.store.flush_access({one.id: harness.now})
    await harness.elapse(60)
    assert (await harness.tick()).standby == SweepReport(looked=1, kept=1)
    assert (await harness.tick()).standby == NOTHING
    found = await harness.store.get(one.id)
    assert found.check_after == found.last_access_at + STANDBY_TTL * 1000 + 1


@case
async def a_tick_that_may_not_go_on_stops_between_batches(harness: Harness) -> None:
    await harness.settle()
    for number in range(6):
        await harness.running(f"w{number}")
    await harness.elapse(STANDBY_TTL + 1)
    asked = iter([True, True, False])
    report = await harness.manager(batch=3).tick(proceed=lambda: next(asked, False))
    assert report.standby == SweepReport(looked=3, ended=3, more=True)
