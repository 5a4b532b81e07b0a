"""When a workspace may lapse: every rule alone, every boundary at its instant, and all together by generated rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, Keep, KeepReason, Unknown, UnknownReason
from lapse.workspaces.activity import port as activity
from lapse.workspaces.activity.port import ActivityDoubt, Connected, Quiet, Timer
from lapse.workspaces.expiry import (
    ARCHIVE,
    STANDBY,
    LapseReason,
    StayReason,
    decide_archive,
    decide_standby,
    due_after,
)
from lapse.workspaces.model import (
    LONGEST_TTL_SECONDS,
    DesiredBy,
    DesiredState,
    Ms,
    ObservedStatus,
    Operation,
    Workspace,
    WorkspaceId,
)

if TYPE_CHECKING:
    from lapse.core.decision import Verdict
    from lapse.workspaces.activity.port import Signal

T0 = 1_700_000_000_000
"""When the workspaces here were opened last, and had been running for an hour."""
HOUR = 3_600_000
STANDBY_TTL, ARCHIVE_TTL = 300, 86_400
STANDBY_OVER, ARCHIVE_OVER = T0 + STANDBY_TTL * 1000, T0 + ARCHIVE_TTL * 1000

RUNNING = Workspace(
    id=WorkspaceId("0b51ad5c-9f8e-4f5e-8b1e-0d3c6a3f7a11"),
    name="notebook",
    owner="ada",
    command=("python", "-m", "notebook"),
    port=8000,
    node_id=None,
    desired_state=DesiredState.RUNNING,
    desired_by=DesiredBy.USER,
    version=1,
    observed_status=ObservedStatus.RUNNING,
    observed_at=Ms(T0),
    status_changed_at=Ms(T0 - HOUR),
    operation=Operation.NONE,
    op_id=None,
    op_started_at=None,
    op_tries=0,
    archive_key=None,
    error_reason=None,
    error_message=None,
    standby_ttl_seconds=STANDBY_TTL,
    archive_ttl_seconds=ARCHIVE_TTL,
    last_access_at=Ms(T0),
    check_after=Ms(T0),
    created_at=Ms(T0 - 2 * HOUR),
    deleted_at=None,
    hold_reason=None,
    hold_until=None,
)


def with_(workspace: Workspace, **changes: Any) -> Workspace:  # noqa: ANN401 - any column
    return msgspec.structs.replace(workspace, **changes)


STOPPED = with_(RUNNING, observed_status=ObservedStatus.STANDBY, desired_state=DesiredState.STANDBY)


def ns(moment: int) -> UnixNs:
    return UnixNs(moment * 1_000_000)


def standby_verdict(
    workspace: Workspace, signal: Signal, now: Ms, *, lease_seconds: float = activity.DEFAULT_LEASE_SECONDS
) -> Verdict:
    return decide_standby(workspace, signal, now, lease_seconds=lease_seconds).verdict


def archive_verdict(workspace: Workspace, now: Ms) -> Verdict:
    return decide_archive(workspace, now).verdict


@pytest.mark.parametrize("since", [-5, 1, 2**62, True, 1.5, "yesterday"])
def test_a_workspace_with_an_odd_start_is_not_known_to_be_idle(since: Any) -> None:  # noqa: ANN401 - anything
    odd = with_(RUNNING, running_since=since)

    assert standby_verdict(odd, Quiet(), Ms(STANDBY_OVER + 1)) == Unknown(UnknownReason.MISSING_ANCHOR)


@pytest.mark.parametrize("until", [0, -1, 1, 2**62, True, "tomorrow"])
def test_a_hold_whose_end_is_no_time_has_none(until: Any) -> None:  # noqa: ANN401 - anything
    held = with_(RUNNING, hold_reason="audit", hold_until=until)

    assert standby_verdict(held, Quiet(), Ms(STANDBY_OVER + 1)) == Keep(KeepReason.HELD)


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_running_workspace_is_due_one_millisecond_after_its_ttl_and_not_at_the_instant() -> None:
    assert standby_verdict(RUNNING, Quiet(), Ms(STANDBY_OVER)) == Keep(KeepReason.NOT_YET, ns(STANDBY_OVER + 1))
    expected = Due(STANDBY, LapseReason.STANDBY_TTL_EXPIRED, ns(STANDBY_OVER))
    assert standby_verdict(RUNNING, Quiet(), Ms(STANDBY_OVER + 1)) == expected


def test_a_workspace_in_standby_is_due_one_millisecond_after_its_ttl_and_not_at_the_instant() -> None:
    assert archive_verdict(STOPPED, Ms(ARCHIVE_OVER)) == Keep(KeepReason.NOT_YET, ns(ARCHIVE_OVER + 1))
    expected = Due(ARCHIVE, LapseReason.ARCHIVE_TTL_EXPIRED, ns(ARCHIVE_OVER))
    assert archive_verdict(STOPPED, Ms(ARCHIVE_OVER + 1)) == expected


@pytest.mark.parametrize("signal", [Quiet(), activity.ActivityUnknown(ActivityDoubt.UNREADABLE)])
@pytest.mark.parametrize("now", [T0, STANDBY_OVER, STANDBY_OVER + 1, T0 + 10 * ARCHIVE_TTL * 1000])
def test_a_decision_carries_its_anchor_and_its_deadline_whatever_the_verdict(signal: Signal, now: int) -> None:
    standby, archive = decide_standby(RUNNING, signal, Ms(now)), decide_archive(STOPPED, Ms(now))

    assert (standby.anchor, standby.deadline) == (ns(T0), ns(STANDBY_OVER))
    assert (archive.anchor, archive.deadline) == (ns(T0), ns(ARCHIVE_OVER))
    assert standby.deadline == ns(due_after(RUNNING) or 0)


def test_the_deadline_of_who_is_there_or_was_just_now_is_not_over() -> None:
    signals: list[tuple[Signal, int]] = [(Connected(1), STANDBY_TTL), (Timer(5.0), 5)]
    for signal, seconds in signals:
        used = decide_standby(RUNNING, signal, LATE)
        assert (used.anchor, used.deadline) == (ns(T0), ns(LATE + seconds * 1000))
        early = decide_standby(RUNNING, signal, Ms(STANDBY_OVER))
        assert early.deadline == ns(STANDBY_OVER), "by its row it is not due yet, and nobody is asked"


def test_a_workspace_that_nobody_has_opened_yet_counts_from_the_moment_it_became_running() -> None:
    just_started = with_(RUNNING, last_access_at=Ms(T0 - 24 * HOUR), status_changed_at=Ms(T0))
    assert standby_verdict(just_started, Quiet(), Ms(T0 + 60_000)) == Keep(KeepReason.NOT_YET, ns(STANDBY_OVER + 1))
    assert isinstance(standby_verdict(just_started, Quiet(), Ms(STANDBY_OVER + 1)), Due)


def test_a_workspace_that_was_just_stopped_counts_from_then() -> None:
    just_stopped = with_(STOPPED, last_access_at=Ms(T0 - 240 * HOUR), status_changed_at=Ms(T0))
    assert archive_verdict(just_stopped, Ms(ARCHIVE_OVER)) == Keep(KeepReason.NOT_YET, ns(ARCHIVE_OVER + 1))
    assert isinstance(archive_verdict(just_stopped, Ms(ARCHIVE_OVER + 1)), Due)


@pytest.mark.parametrize("ttl", [1, 60, LONGEST_TTL_SECONDS])
def test_each_workspace_has_ttls_of_its_own_in_seconds(ttl: int) -> None:
    over = T0 + ttl * 1000
    running = with_(RUNNING, standby_ttl_seconds=ttl)
    stopped = with_(STOPPED, archive_ttl_seconds=ttl)
    assert isinstance(standby_verdict(running, Quiet(), Ms(over)), Keep)
    assert isinstance(standby_verdict(running, Quiet(), Ms(over + 1)), Due)
    assert isinstance(archive_verdict(stopped, Ms(over)), Keep)
    assert isinstance(archive_verdict(stopped, Ms(over + 1)), Due)


def test_a_clock_behind_that_of_the_last_access_keeps() -> None:
    assert isinstance(standby_verdict(RUNNING, Quiet(), Ms(T0 - HOUR)), Keep)
    assert isinstance(archive_verdict(STOPPED, Ms(T0 - HOUR)), Keep)


# --- what the row says ------------------------------------------------------------------------------------------------

LATE = Ms(T0 + 1000 * HOUR)
OTHER_BUSINESS = [
    ({"deleted_at": Ms(T0)}, StayReason.DELETED),
    *(({"operation": operation}, StayReason.OPERATION) for operation in Operation if operation is not Operation.NONE),
]


@pytest.mark.parametrize(("changes", "reason"), OTHER_BUSINESS)
def test_deleted_ones_and_those_that_are_worked_on_are_left_alone(changes: dict[str, Any], reason: StayReason) -> None:
    assert standby_verdict(with_(RUNNING, **changes), Quiet(), LATE) == Keep(reason)
    assert archive_verdict(with_(STOPPED, **changes), LATE) == Keep(reason)


@pytest.mark.parametrize("status", ObservedStatus)
def test_each_check_is_about_one_observed_status(status: ObservedStatus) -> None:
    running, stopped = with_(RUNNING, observed_status=status), with_(STOPPED, observed_status=status)
    is_due = isinstance(standby_verdict(running, Quiet(), LATE), Due)
    assert is_due == (status is ObservedStatus.RUNNING)
    assert is_due or standby_verdict(running, Quiet(), LATE) == Keep(StayReason.OTHER_STATUS)
    is_due = isinstance(archive_verdict(stopped, LATE), Due)
    assert is_due == (status is ObservedStatus.STANDBY)
    assert is_due or archive_verdict(stopped, LATE) == Keep(StayReason.OTHER_STATUS)


@pytest.mark.parametrize("desired", DesiredState)
def test_who_wants_something_else_already_gets_it(desired: DesiredState) -> None:
    running, stopped = with_(RUNNING, desired_state=desired), with_(STOPPED, desired_state=desired)
    is_due = isinstance(standby_verdict(running, Quiet(), LATE), Due)
    assert is_due == (desired is DesiredState.RUNNING)
    assert is_due or standby_verdict(running, Quiet(), LATE) == Keep(StayReason.OTHER_DESIRED)
    is_due = isinstance(archive_verdict(stopped, LATE), Due)
    assert is_due == (desired is DesiredState.STANDBY)
    assert is_due or archive_verdict(stopped, LATE) == Keep(StayReason.OTHER_DESIRED)


def test_a_hold_keeps_until_the_instant_it_ends() -> None:
    until = Ms(LATE + HOUR)
    held = {"hold_reason": "demo on Friday", "hold_until": until}
    for now in (LATE, Ms(until - 1)):
        # Nothing says when to look again: what is put off until then would be missing from a plan.
        assert standby_verdict(with_(RUNNING, **held), Quiet(), now) == Keep(KeepReason.HELD)
        assert archive_verdict(with_(STOPPED, **held), now) == Keep(KeepReason.HELD)
    assert isinstance(standby_verdict(with_(RUNNING, **held), Quiet(), until), Due)
    assert isinstance(archive_verdict(with_(STOPPED, **held), until), Due)


def test_a_hold_without_an_end_keeps_until_it_is_released() -> None:
    held = {"hold_reason": "evidence", "hold_until": None}
    assert standby_verdict(with_(RUNNING, **held), Quiet(), LATE) == Keep(KeepReason.HELD)
    assert archive_verdict(with_(STOPPED, **held), LATE) == Keep(KeepReason.HELD)


# --- rows that cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["last_access_at", "status_changed_at"])
@pytest.mark.parametrize("value", [None, 0, -1, "2026", 1.5, True])
def test_a_time_that_is_missing_or_cannot_be_is_never_long_ago(column: str, value: object) -> None:
    expected = Unknown(UnknownReason.MISSING_ANCHOR)
    assert standby_verdict(with_(RUNNING, **{column: value}), Quiet(), LATE) == expected
    assert archive_verdict(with_(STOPPED, **{column: value}), LATE) == expected
    assert due_after(with_(RUNNING, **{column: value})) is None


@pytest.mark.parametrize("ttl", [None, 0, -1, "300", 1.5, True, LONGEST_TTL_SECONDS + 1])
def test_a_ttl_that_cannot_be_is_unknown(ttl: object) -> None:
    expected = Unknown(UnknownReason.INVALID_TTL)
    assert standby_verdict(with_(RUNNING, standby_ttl_seconds=ttl), Quiet(), LATE) == expected
    assert archive_verdict(with_(STOPPED, archive_ttl_seconds=ttl), LATE) == expected


# --- who is there -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubt", ActivityDoubt)
def test_unknown_is_not_idle(doubt: ActivityDoubt) -> None:
    assert standby_verdict(RUNNING, activity.ActivityUnknown(doubt), LATE) == Unknown(doubt)


def test_who_is_connected_stays_and_is_looked_at_again_when_a_crash_before_the_look_would_be_a_ttl_ago() -> None:
    expected = Keep(StayReason.CONNECTED, ns(LATE + (STANDBY_TTL - 30) * 1000 + 1))
    assert standby_verdict(RUNNING, Connected(1), LATE, lease_seconds=30) == expected
    assert standby_verdict(RUNNING, Connected(40), LATE, lease_seconds=30) == expected


def test_a_connection_whose_lease_may_outlive_the_ttl_is_looked_at_every_time() -> None:
    expected = Keep(StayReason.CONNECTED, ns(LATE + 1))
    assert standby_verdict(RUNNING, Connected(1), LATE, lease_seconds=STANDBY_TTL + 1) == expected


@pytest.mark.parametrize(("left", "look_after_ms"), [(300.0, 300_000), (0.001, 1), (0.0001, 1), (1.0005, 1001)])
def test_an_idle_timer_keeps_until_it_has_run_out(left: float, look_after_ms: int) -> None:
    assert standby_verdict(RUNNING, Timer(left), LATE) == Keep(StayReason.IDLE_TIMER, ns(LATE + look_after_ms))


def test_before_its_time_nothing_needs_to_be_known() -> None:
    for signal in (Quiet(), Connected(1), Timer(1.0), activity.ActivityUnknown(ActivityDoubt.UNREACHABLE)):
        assert standby_verdict(RUNNING, signal, Ms(STANDBY_OVER)) == Keep(KeepReason.NOT_YET, ns(STANDBY_OVER + 1))


# --- all together -----------------------------------------------------------------------------------------------------

moments = st.integers(T0 - 10_000, T0 + 10_000).map(Ms)
signals = st.one_of(
    st.just(Quiet()),
    st.integers(1, 3).map(Connected),
    st.floats(0.001, 10).map(Timer),
    st.sampled_from(ActivityDoubt).map(activity.ActivityUnknown),
)
workspaces = st.builds(
    with_,
    st.just(RUNNING),
    desired_state=st.sampled_from(DesiredState),
    observed_status=st.sampled_from(ObservedStatus),
    operation=st.sampled_from([Operation.NONE, Operation.NONE, Operation.STOPPING]),
    deleted_at=st.none() | moments,
    last_access_at=moments,
    status_changed_at=moments,
    standby_ttl_seconds=st.integers(1, 10),
    archive_ttl_seconds=st.integers(1, 10),
    hold_reason=st.none() | st.just("because"),
    hold_until=st.none() | moments,
)


def may_lapse(workspace: Workspace, now: int, ttl_seconds: int) -> bool:
    """The specification, in its own words."""
    held = workspace.hold_reason is not None and (workspace.hold_until is None or now < workspace.hold_until)
    idle = now - max(workspace.last_access_at, workspace.status_changed_at)
    return workspace.operation == "NONE" and workspace.deleted_at is None and not held and idle > ttl_seconds * 1000


@given(workspace=workspaces, signal=signals, now=moments)
def test_only_what_the_specification_says_is_due(workspace: Workspace, signal: activity.Signal, now: Ms) -> None:
    standby = may_lapse(workspace, now, workspace.standby_ttl_seconds) and signal == Quiet()
    standby = standby and (workspace.observed_status, workspace.desired_state) == ("RUNNING", "RUNNING")
    archive = may_lapse(workspace, now, workspace.archive_ttl_seconds)
    archive = archive and (workspace.observed_status, workspace.desired_state) == ("STANDBY", "STANDBY")
    assert isinstance(standby_verdict(workspace, signal, now), Due) == standby
    assert isinstance(archive_verdict(workspace, now), Due) == archive


@given(workspace=workspaces, signal=signals, now=moments)
def test_a_next_look_is_in_the_future_and_never_later_than_it_may_be_due(
    workspace: Workspace, signal: activity.Signal, now: Ms
) -> None:
    for verdict in (standby_verdict(workspace, signal, now), archive_verdict(workspace, now)):
        if not isinstance(verdict, Keep) or verdict.next_check is None:
            continue
        look = Ms(verdict.next_check // 1_000_000)
        assert look > now
        if verdict.reason in {KeepReason.NOT_YET, KeepReason.HELD}:
            assert not isinstance(standby_verdict(workspace, Quiet(), Ms(look - 1)), Due)
            assert not isinstance(archive_verdict(workspace, Ms(look - 1)), Due)


@given(workspace=workspaces, now=moments)
def test_nothing_is_due_at_the_instant_that_the_row_names_or_before(workspace: Workspace, now: Ms) -> None:
    over = due_after(workspace)
    if over is None:
        assert workspace.observed_status in {ObservedStatus.PENDING, ObservedStatus.ERROR}
        return
    for verdict in (standby_verdict(workspace, Quiet(), now), archive_verdict(workspace, now)):
        assert not isinstance(verdict, Due) or (now > over and verdict.since == ns(over))


# --- probes -----------------------------------------------------------------------------------------------------------

ASKED = msgspec.structs.replace(RUNNING, probe="/alive", probed_at=Ms(STANDBY_OVER))


def test_a_program_that_has_just_answered_may_be_idle() -> None:
    for now in (STANDBY_OVER + 1, STANDBY_OVER + 60_000):
        assert isinstance(standby_verdict(ASKED, Quiet(), Ms(now)), Due)


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"probed_at": None}, ActivityDoubt.PROBE_UNANSWERED),
        ({"probed_at": Ms(STANDBY_OVER - 1)}, ActivityDoubt.PROBE_UNANSWERED),
        ({"probed_at": Ms(STANDBY_OVER - 60_000)}, ActivityDoubt.PROBE_UNANSWERED),
        ({"probed_at": Ms(STANDBY_OVER + HOUR)}, ActivityDoubt.PROBE_UNANSWERED),
        ({"probe_error": "no answer"}, ActivityDoubt.PROBE_FAILED),
        ({"probe_error": "no answer", "probed_at": None}, ActivityDoubt.PROBE_FAILED),
    ],
)
def test_a_program_that_did_not_answer_its_probe_is_unknown_and_kept(
    change: dict[str, Any], doubt: ActivityDoubt
) -> None:
    asked = msgspec.structs.replace(ASKED, **change)
    assert standby_verdict(asked, Quiet(), Ms(STANDBY_OVER + 1)) == Unknown(doubt)
    without = msgspec.structs.replace(asked, probe=None)
    assert isinstance(standby_verdict(without, Quiet(), Ms(STANDBY_OVER + 1)), Due)


def test_an_answer_is_not_believed_for_ever() -> None:
    assert standby_verdict(ASKED, Quiet(), Ms(STANDBY_OVER + 60_001)) == Unknown(ActivityDoubt.PROBE_UNANSWERED)


def test_a_program_that_was_at_work_a_ttl_ago_is_asked_again_first() -> None:
    worked = msgspec.structs.replace(ASKED, last_access_at=Ms(STANDBY_OVER), standby_ttl_seconds=3)
    assert standby_verdict(worked, Quiet(), Ms(STANDBY_OVER + 3_001)) == Unknown(ActivityDoubt.PROBE_UNANSWERED)


def test_a_connection_is_told_before_a_probe_that_fails() -> None:
    asked = msgspec.structs.replace(ASKED, probe_error="no answer")
    verdict = standby_verdict(asked, Connected(1), Ms(STANDBY_OVER + 1))
    assert (type(verdict), verdict.reason) == (Keep, StayReason.CONNECTED)
