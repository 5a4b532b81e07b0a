"""Which step a workspace needs: the whole table, the limits of time, and that every way leads to what is wanted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.workspaces.model import DesiredState, Ms, ObservedStatus, Operation, OpId, Workspace
from lapse.workspaces.runtime.steps import (
    LIMITS_MS,
    TARGETS,
    Begin,
    GoOn,
    Lane,
    Observe,
    Rest,
    RestReason,
    Step,
    is_wanted,
    lane_of,
    plan,
    restart_pause_seconds,
)
from tests.unit.workspaces.test_eligibility import RUNNING

NOW = Ms(1_700_000_000_000)
PENDING, STANDBY = ObservedStatus.PENDING, ObservedStatus.STANDBY
WORKING = [operation for operation in Operation if operation is not Operation.NONE]


def row(**changes: Any) -> Workspace:  # noqa: ANN401
    return msgspec.structs.replace(RUNNING, **changes)


@pytest.mark.parametrize(
    ("observed", "desired", "expected"),
    [
        ("PENDING", "PENDING", Rest(RestReason.AS_WANTED)),
        ("PENDING", "STANDBY", Begin(Operation.PROVISIONING)),
        ("PENDING", "RUNNING", Begin(Operation.PROVISIONING)),
        ("STANDBY", "PENDING", Begin(Operation.ARCHIVING)),
        ("STANDBY", "STANDBY", Rest(RestReason.AS_WANTED)),
        ("STANDBY", "RUNNING", Begin(Operation.STARTING)),
        ("RUNNING", "PENDING", Begin(Operation.STOPPING)),
        ("RUNNING", "STANDBY", Begin(Operation.STOPPING)),
        ("RUNNING", "RUNNING", Rest(RestReason.AS_WANTED)),
        ("ERROR", "PENDING", Observe()),
        ("ERROR", "STANDBY", Observe()),
        ("ERROR", "RUNNING", Observe()),
    ],
)
def test_the_step_follows_from_what_is_seen_and_what_is_wanted(observed: str, desired: str, expected: Step) -> None:
    found = row(observed_status=ObservedStatus(observed), desired_state=DesiredState(desired))
    assert plan(found) == expected


def test_one_with_an_archive_is_restored() -> None:
    found = row(observed_status=PENDING, archive_key="key")
    assert plan(found) == Begin(Operation.RESTORING)


@pytest.mark.parametrize("observed", list(ObservedStatus))
def test_an_error_stays_until_a_user_acts(observed: ObservedStatus) -> None:
    found = row(observed_status=observed, error_reason="port_taken", desired_state=DesiredState.STANDBY)
    assert plan(found) == Rest(RestReason.ERROR)


@pytest.mark.parametrize("observed", list(ObservedStatus))
@pytest.mark.parametrize("reason", [None, "stop_failed"])
def test_a_deleted_one_is_removed_whatever_it_is_like(observed: ObservedStatus, reason: str | None) -> None:
    found = row(observed_status=observed, deleted_at=NOW, error_reason=reason)
    assert plan(found) == Begin(Operation.DELETING)


@pytest.mark.parametrize("operation", WORKING)
def test_an_operation_under_way_is_gone_on_with_however_long_ago_it_began(operation: Operation) -> None:
    assert LIMITS_MS[operation] == (300_000 if operation in {Operation.STARTING, Operation.STOPPING} else 1_800_000)
    for started in (NOW, Ms(1), Ms(2 * NOW)):
        assert plan(row(operation=operation, op_id=OpId("x"), op_started_at=started)) == GoOn(operation, OpId("x"))


def test_the_pause_before_a_restart_doubles_and_has_an_end() -> None:
    assert [restart_pause_seconds(count) for count in (0, 1, 2, 3, 6, 7, 1_000_000)] == [1, 1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize("desired", list(DesiredState))
def test_what_takes_a_workspace_down_is_wanted_as_long_as_nobody_comes(desired: DesiredState) -> None:
    assert is_wanted(Operation.STOPPING, desired) is (desired is not DesiredState.RUNNING)
    assert is_wanted(Operation.ARCHIVING, desired) is (desired is DesiredState.PENDING)
    assert is_wanted(Operation.RESTORING, desired)
    waits_for_archives = lane_of(Operation.ARCHIVING, desired) is Lane.AWAY
    assert waits_for_archives is (desired is DesiredState.PENDING), "to abandon it waits for nobody's archive"


def test_every_operation_has_a_target_and_a_limit() -> None:
    assert set(TARGETS) == set(LIMITS_MS) == set(WORKING)


@given(
    observed=st.sampled_from([status for status in ObservedStatus if status is not ObservedStatus.ERROR]),
    desired=st.sampled_from(list(DesiredState)),
    archive=st.sampled_from([None, "key"]),
)
def test_steps_lead_to_what_is_wanted_and_then_end(
    observed: ObservedStatus, desired: DesiredState, archive: str | None
) -> None:
    found = row(observed_status=observed, desired_state=desired, archive_key=archive)
    for _ in range(3):
        step = plan(found)
        if isinstance(step, Rest):
            break
        assert isinstance(step, Begin)
        found = msgspec.structs.replace(found, observed_status=TARGETS[step.operation])
    assert plan(found) == Rest(RestReason.AS_WANTED)
    assert found.observed_status.value == desired.value
