from __future__ import annotations

import pytest

from lapse.kube.resources import READY, Condition, ready_condition
from lapse.requests.api.conditions import NOT_FINAL, ConditionReason, is_final


def ready(status: str, reason: str = "") -> Condition:
    return Condition(type=READY, status=status, reason=reason)


@pytest.mark.parametrize("reason", [*ConditionReason, "SomethingNobodyKnows", ""])
def test_ready_is_final_whatever_its_reason(reason: str) -> None:
    assert is_final([ready("True", reason)])


@pytest.mark.parametrize("reason", sorted(set(ConditionReason) - NOT_FINAL))
def test_a_failure_is_final(reason: str) -> None:
    assert is_final([ready("False", reason)])


def test_a_failure_for_a_reason_that_nobody_knows_is_final() -> None:
    assert is_final([ready("False", "SomethingNobodyKnows")])


@pytest.mark.parametrize("reason", ["Pending", "Running", "Processing", "TargetsPending"])
def test_work_that_goes_on_is_not_final(reason: str) -> None:
    assert not is_final([ready("False", reason)])


@pytest.mark.parametrize("status", ["Unknown", "", "true"])
def test_doubt_is_not_final(status: str) -> None:
    assert not is_final([ready(status, ConditionReason.FAILED)])


@pytest.mark.parametrize("conditions", [None, (), [Condition(type="Other", status="True", reason="Completed")]])
def test_without_a_ready_condition_nothing_is_final(conditions: list[Condition] | None) -> None:
    assert not is_final(conditions)
    assert ready_condition(conditions) is None


def test_the_ready_condition_is_found_among_others() -> None:
    one = ready("False", ConditionReason.NOT_FOUND)
    assert ready_condition([Condition(type="Other", status="True"), one]) is one


def test_the_reasons_are_those_that_users_of_these_apis_know() -> None:
    assert {*ConditionReason} == {
        *("Completed", "Failed", "NotFound", "RBACDenied", "InvalidMode", "InvalidSource", "Incompatible"),
        *("UnsupportedTargetKind", "PVBound", "RestoreFailed", "InternalError", "InvalidTTL", "DeadlineExceeded"),
        *("Pending", "Running", "Processing", "TargetsPending"),
    }
