"""What is told is what the TTL manager decides: by the same functions, in words."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import Due, KeepReason, UnknownReason
from lapse.engine.domain import decided
from lapse.engine.explanation import Explanation, explanation_of, explanation_rows
from lapse.engine.plans.planner import hold_facts
from lapse.engine.view import to_json
from lapse.workspaces import view
from lapse.workspaces.activity import port as activity
from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnknown, Connected, Quiet, Signal, Timer
from lapse.workspaces.expiry import LapseReason, StayReason, decide_archive, decide_standby
from lapse.workspaces.managed import ManagedWorkspaces
from lapse.workspaces.model import (
    DesiredBy,
    DesiredState,
    Ms,
    ObservedStatus,
    Operation,
    Workspace,
    WorkspaceId,
)
from lapse.workspaces.ttl_manager import SeenWorkspace, candidate_of

NOW = Ms(1_700_000_000_000)
IDLE = Workspace(
    id=WorkspaceId("0b8a7c1e-0000-4000-8000-000000000001"),
    name="lab",
    owner="ann",
    command=("serve",),
    port=9000,
    node_id=None,
    desired_state=DesiredState.RUNNING,
    desired_by=DesiredBy.USER,
    version=3,
    observed_status=ObservedStatus.RUNNING,
    observed_at=NOW,
    status_changed_at=Ms(NOW - 900_000),
    operation=Operation.NONE,
    op_id=None,
    op_started_at=None,
    op_tries=0,
    archive_key=None,
    error_reason=None,
    error_message=None,
    standby_ttl_seconds=300,
    archive_ttl_seconds=86_400,
    last_access_at=Ms(NOW - 600_000),
    check_after=Ms(NOW - 300_000),
    created_at=Ms(NOW - 900_000),
    deleted_at=None,
    hold_reason=None,
    hold_until=None,
)
ASLEEP = replace(IDLE, observed_status=ObservedStatus.STANDBY, desired_state=DesiredState.STANDBY)


def explain(workspace: Workspace, signal: Signal | None, now: Ms, *, lease_seconds: float = 30) -> Explanation:
    domain = ManagedWorkspaces(cast("Any", None), None, clock=VirtualClock(), lease_seconds=lease_seconds)
    seen, moment = replace(candidate_of(workspace), state=SeenWorkspace(workspace, signal)), UnixNs(now * 1_000_000)
    hold = hold_facts(seen.hold) if workspace.held(now) else None
    return explanation_of(domain, seen, decided(domain, seen, moment), hold=hold, now=moment)


def explained(workspace: Workspace, signal: Signal | None) -> dict[str, str]:
    return dict(explanation_rows(explain(workspace, signal, NOW)))


def test_an_idle_one_is_due_by_the_rule_that_is_about_it() -> None:
    told = explained(IDLE, Quiet())

    assert told["verdict"] == "due: nobody was connected for longer than its standby TTL"
    assert told["rule"] == "standby after 5m idle"
    assert told["lost"] == "archive after 1d in standby: keep, other status"
    assert told["counted from"] == "the last access, 2023-11-14T22:03:20Z (10m ago)"
    assert told["over"] == "2023-11-14T22:08:20Z (5m ago)"
    assert told["activity"] == "nobody"
    assert told["saved by"] == "opening it; lapse workspaces start lab"


@pytest.mark.parametrize(
    ("status", "is_archived"), [("RUNNING", False), ("STANDBY", False), ("PENDING", True), ("ERROR", True)]
)
def test_what_is_in_place_is_not_archived_though_its_archive_is_there_still(status: str, is_archived: bool) -> None:  # noqa: FBT001 - a column
    back = replace(IDLE, observed_status=ObservedStatus(status), archive_key="000003-abc")
    assert view.view_of(back, NOW).archived is is_archived


async def test_a_plan_can_tell_that_one_that_goes_to_standby_is_archived_later() -> None:
    domain = ManagedWorkspaces(cast("Any", None), None, clock=VirtualClock(), lease_seconds=30)
    end, day = UnixNs(NOW * 1_000_000), 86_400 * 10**9

    assert await domain.leads_to(candidate_of(IDLE), end) == [("workspace/lab", "archive", end + day)]
    assert await domain.leads_to(candidate_of(ASLEEP), end) == ()


def test_one_in_standby_is_told_of_by_the_other_rule() -> None:
    told = explained(ASLEEP, Connected(2))

    assert told["verdict"] == "keep: its time is not over"
    assert told["rule"] == "archive after 1d in standby"
    assert told["over"] == "2023-11-15T22:03:20Z (in 23h50m)"


def test_who_came_to_its_state_after_the_last_access_is_counted_from_there() -> None:
    told = explained(replace(IDLE, status_changed_at=Ms(NOW - 1_000)), Quiet())

    assert told["counted from"].startswith("when it became RUNNING")
    assert told["verdict"] == "keep: its time is not over"


@pytest.mark.parametrize(
    ("signal", "verdict", "said"),
    [
        (Connected(2), "keep: a user is connected", "2 connected"),
        (Timer(61.0), "keep: a user was connected a short while ago", "which ends in 1m1s"),
        (
            ActivityUnknown(ActivityDoubt.UNREACHABLE),
            "unknown: the activity store does not answer",
            "unknown: the activity store",
        ),
        (
            ActivityUnknown(ActivityDoubt.ELSEWHERE),
            "unknown: not known here: lapse why tells, asked of the process that serves the workspaces (--server)",
            "not known here",
        ),
        (
            None,  # not read: it is about another time
            "due: nobody was connected for longer than its standby TTL",
            "not known at another time than now",
        ),
    ],
)
def test_who_is_there_decides_and_is_told(signal: Signal | None, verdict: str, said: str) -> None:
    told = explained(IDLE, signal)

    assert told["verdict"] == verdict
    assert said in told["activity"]


def test_a_hold_is_told_with_its_reason_and_its_end() -> None:
    told = explained(replace(IDLE, hold_reason="demo on Friday", hold_until=Ms(NOW + 60_000)), Quiet())

    assert told["verdict"] == "keep: it is held"
    assert told["held"] == "demo on Friday until 2023-11-14T22:14:20Z"
    assert "saved by" not in told, "it is saved"


def test_nothing_has_to_save_one_that_does_not_lapse() -> None:
    pending = replace(IDLE, observed_status=ObservedStatus.PENDING, desired_state=DesiredState.PENDING)

    assert not {"saved by", "over"} & set(explained(pending, Quiet()))


def test_another_moment_is_another_verdict() -> None:
    assert explain(ASLEEP, None, Ms(NOW + 86_400_000)).reason == LapseReason.ARCHIVE_TTL_EXPIRED


@pytest.mark.parametrize("workspace", [IDLE, ASLEEP, replace(IDLE, last_access_at=Ms(0))])
@pytest.mark.parametrize("signal", [Quiet(), Connected(1), Timer(5.0), ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)])
def test_verdicts_are_those_of_the_ttl_manager(workspace: Workspace, signal: Signal) -> None:
    told = explain(workspace, signal, NOW, lease_seconds=20)

    decided = {
        "standby": decide_standby(workspace, signal, NOW, lease_seconds=20).verdict,
        "archive": decide_archive(workspace, NOW).verdict,
    }
    for rule in told.rules:
        verdict = decided.pop(rule.action)
        assert (rule.verdict, rule.reason) == (type(verdict).__name__.lower(), verdict.reason)
        times = (verdict.since, None) if isinstance(verdict, Due) else (None, verdict.next_check)
        assert (rule.since, rule.look_again) == times
    assert decided == {}
    body = to_json(told)
    assert [rule["wins"] for rule in body["rules"]] == [True, False]
    assert (body["verdict"], body["reason"]) == (body["rules"][0]["verdict"], body["rules"][0]["reason"])


def test_there_are_words_for_every_reason() -> None:
    unknown = {UnknownReason.MISSING_ANCHOR, UnknownReason.INVALID_TTL, UnknownReason.UNREADABLE_SIGNAL}
    kept = {KeepReason.NOT_YET, KeepReason.HELD, KeepReason.EXTENDED}
    reasons = {*LapseReason, *StayReason, *activity.ActivityDoubt, *kept, *unknown}

    assert set(view._WORDS) == reasons
