from __future__ import annotations

from typing import Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.duration import HOUR, NEVER, Duration
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.default_policy import (
    DEFAULT_TTL,
    HistorySettingError,
    check_keep_last_success,
    check_limit,
    history_document,
    read_ttl,
    ttl_warning,
)
from lapse.history.policy.policy import Policy
from lapse.history.records import record
from lapse.history.retention.grouping import judge
from lapse.history.retention.rules import RetainedObject, RetentionLimits

NOW = UnixNs(from_timestamp("2030-01-31T12:00:00Z") or 0)
RULE = "Expected 0 to keep records of any age, or 1h or more, such as 720h."


def history_policy(**values: Any) -> Policy:  # noqa: ANN401 - those of the flags
    return Policy.read(history_document(**values))


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ttl"),
    [
        ("0", Duration(0)),
        ("0s", Duration(0)),
        ("1h", Duration(HOUR)),
        ("60m", Duration(HOUR)),
        ("720h", Duration(720 * HOUR)),
        ("30d", Duration(720 * HOUR)),
        ("P30D", Duration(720 * HOUR)),
        ("106751d", Duration.parse("106751d")),
        ("never", NEVER),
    ],
)
def test_a_ttl_is_off_or_an_hour_or_more(text: str, ttl: Duration) -> None:
    assert read_ttl(text) == ttl


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1h", "--history-ttl cannot be -1h: it is below zero."),
        ("-720h", "--history-ttl cannot be -30d: it is below zero."),
        ("1ns", "--history-ttl cannot be 1ns: it is shorter than an hour."),
        ("30m", "--history-ttl cannot be 30m: it is shorter than an hour."),
        ("59m59s", "--history-ttl cannot be 59m59s: it is shorter than an hour."),
        ("720", "--history-ttl cannot be '720': it has no unit (seconds would be 720s)."),
        ("10minutes", "--history-ttl cannot be '10minutes': 'minutes' is not a unit."),
        ("", "--history-ttl cannot be '': it holds no number."),
        ("1y", "--history-ttl cannot be '1y': 'y' is not a unit."),
        ("300000d", "--history-ttl cannot be '300000d': it is longer than 292 years; write never for no limit."),
    ],
)
def test_any_other_ttl_is_an_error_that_names_the_flag_and_the_rule(text: str, problem: str) -> None:
    with pytest.raises(HistorySettingError) as raised:
        read_ttl(text)
    assert str(raised.value) == f"{problem} {RULE}"


@pytest.mark.parametrize(
    ("text", "warns"),
    [("0", False), ("1h", True), ("23h59m59s", True), ("24h", False), ("720h", False), ("never", False)],
)
def test_a_ttl_below_a_day_is_worth_a_warning(text: str, *, warns: bool) -> None:
    found = ttl_warning(read_ttl(text))
    assert (found is not None) is warns
    assert found is None or found.startswith("history_ttl is ")


@pytest.mark.parametrize(
    ("check", "flag"),
    [(check_limit, "--history-retention-limit"), (check_keep_last_success, "--history-keep-last-success")],
)
def test_a_number_below_zero_is_an_error_that_names_the_flag(check: object, flag: str) -> None:
    assert callable(check)
    check(0)
    check(1_000_000)
    with pytest.raises(HistorySettingError, match=f"{flag} cannot be -1: it is below zero"):
        check(-1)


def test_no_policy_is_made_of_values_that_no_flag_may_have() -> None:
    for wrong in ({"ttl": Duration(-HOUR)}, {"ttl": Duration(1)}, {"limit": -1}, {"keep_last_success": -1}):
        with pytest.raises(HistorySettingError):
            history_policy(**wrong)


# --- the policy -------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_flags() -> None:
    found = history_policy()
    assert found.limits == RetentionLimits(max_age=DEFAULT_TTL.nanoseconds, max_count=100, keep_last=0)
    assert found.namespaces == ("chaos-system",)
    assert found.is_metadata_enough


@pytest.mark.parametrize("ttl", [Duration(0), NEVER])
def test_zero_really_disables(ttl: Duration) -> None:
    found = history_policy(ttl=ttl, limit=0)
    assert found.limits == RetentionLimits()
    assert deleted(found, [stored(age_hours=hours) for hours in range(0, 10_000, 100)]) == []


def stored(
    experiment: str = "kill", *, age_hours: int, namespace: str = "shop", uid: str = "u-1", status: str = "success"
) -> dict[str, object]:
    """A record as a store has it, made so many hours ago."""
    moment = to_timestamp(NOW - age_hours * HOUR)
    ref = ExperimentRef(name=experiment, namespace=namespace, uid=uid)
    spec = HistorySpec(experiment_ref=ref, execution=Execution(start_time=moment, status=status))
    body = CHAOS_EXPERIMENT_HISTORY.body(record(spec, namespace="chaos-system"))
    body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": "1", "creationTimestamp": moment}
    return {"metadata": body["metadata"]}  # metadata is all that is read


def entries(policy: Policy, documents: list[dict[str, object]]) -> list[RetainedObject]:
    return [found for one in documents if (found := policy.entry(one)) is not None]


def deleted(policy: Policy, documents: list[dict[str, object]]) -> list[tuple[int, str]]:
    """What goes, as its age in hours and the reason."""
    judged = judge(entries(policy, documents), policy.limits, NOW)
    return [
        ((NOW - (one.entry.anchor or 0)) // HOUR, one.verdict.reason)
        for one in judged
        if one.verdict.reason in {"ttl_expired", "retention_limit"}
    ]


def test_both_strategies_work_together_on_backdated_records() -> None:
    policy = history_policy(ttl=Duration(50 * HOUR), limit=3)
    documents = [stored(age_hours=hours) for hours in (10, 20, 30, 40, 50, 60)]
    assert deleted(policy, documents) == [(40, "retention_limit"), (50, "retention_limit"), (60, "ttl_expired")]


def test_experiments_of_the_same_name_have_budgets_of_their_own() -> None:
    documents = [
        stored(age_hours=hours, namespace=namespace, uid=uid)
        for hours, (namespace, uid) in enumerate([("shop", "u-1"), ("bank", "u-2"), ("shop", "u-3")] * 2)
    ]
    assert deleted(history_policy(limit=2), documents) == []
    assert [age for age, _ in deleted(history_policy(limit=1), documents)] == [3, 4, 5]


def test_the_last_successes_stay_when_asked_for() -> None:
    documents = [
        stored(age_hours=1, status="failure"),
        stored(age_hours=800, status="success"),
        stored(age_hours=900, status="success"),
        stored(age_hours=1000, status="partial"),
    ]
    assert [age for age, _ in deleted(history_policy(), documents)] == [800, 900, 1000]
    assert [age for age, _ in deleted(history_policy(keep_last_success=1), documents)] == [900, 1000]
    assert [age for age, _ in deleted(history_policy(keep_last_success=9), documents)] == [1000]
