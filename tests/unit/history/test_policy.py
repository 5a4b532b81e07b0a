from __future__ import annotations

from typing import Any

import pytest

from lapse.core.clock import UnixNs
from lapse.core.timestamps import from_timestamp
from lapse.engine.safety.holds import HOLD
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.policy.policy import SYSTEM_NAMESPACE, Policy, RetentionPolicyError
from lapse.history.retention.grouping import judge
from lapse.history.retention.rules import RetentionLimits

NOON = "2030-01-31T12:00:00Z"
DAY = 86_400_000_000_000


def policy(**spec: Any) -> Policy:  # noqa: ANN401 - as in a document
    selector = {"apiVersion": "batch/v1", "kind": "Job"}
    body = {"metadata": {"name": "jobs"}, "spec": {"selector": selector, **spec}}
    return Policy.read(RETENTION_POLICY.convert(body))


def job(
    name: str = "one", *, labels: dict[str, str] | None = None, status: object = None, **metadata: object
) -> dict[str, Any]:
    given = {"name": name, "namespace": "shop", "uid": f"u-{name}", "resourceVersion": "7", "creationTimestamp": NOON}
    return {"metadata": given | {"labels": labels or {}} | metadata, "status": status or {}}


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        ({}, RetentionLimits()),
        ({"maxAge": "0"}, RetentionLimits()),
        ({"maxAge": "0s"}, RetentionLimits()),
        ({"maxAge": "never"}, RetentionLimits()),
        ({"maxCount": 0}, RetentionLimits()),
        ({"maxAge": "0", "maxCount": 0, "keepLast": {"count": 0}}, RetentionLimits()),
        ({"maxAge": "90d"}, RetentionLimits(max_age=90 * DAY)),
        ({"maxAge": "PT24H", "maxCount": 10}, RetentionLimits(max_age=DAY, max_count=10)),
        ({"maxAge": "1ns"}, RetentionLimits(max_age=1)),
        ({"maxCount": 2**62, "keepLast": {"count": 3}}, RetentionLimits(max_count=2**62, keep_last=3)),
    ],
    ids=str,
)
def test_zero_never_and_nothing_are_no_limit(spec: dict[str, Any], limits: RetentionLimits) -> None:
    assert policy(**spec).limits == limits


def test_a_policy_is_dry_until_it_says_otherwise() -> None:
    assert policy().dry_run is True
    assert policy(dryRun=True).dry_run is True
    assert policy(dryRun=False).dry_run is False


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"maxAge": "-1h"}, "spec.maxAge: -1h is below zero; 0 is for no limit"),
        ({"maxAge": "10minutes"}, "spec.maxAge: '10minutes' is not a duration"),
        ({"maxAge": ""}, "spec.maxAge: '' is not a duration"),
        ({"maxCount": -1}, "spec.maxCount: -1 is below zero"),
        ({"keepLast": {"count": -2}}, "spec.keepLast.count: -2 is below zero"),
        ({"ageFrom": "status..when"}, "spec.ageFrom: 'status..when' is not a field path"),
        ({"groupBy": ["metadata.name", "a b"]}, "spec.groupBy[1]: 'a b' is not a field path"),
        ({"onlyWhen": [{"fieldPath": "[", "in": ["a"]}]}, "spec.onlyWhen[0].fieldPath: '[' is not a field path"),
        ({"keepLast": {"count": 1, "where": {"fieldPath": "", "in": ["a"]}}}, "spec.keepLast.where.fieldPath: ''"),
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_meant_is_refused_with_its_name_and_the_place(
    spec: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RetentionPolicyError) as raised:
        policy(**spec)
    assert str(raised.value).startswith("The retention policy jobs cannot be used: ")
    assert problem in str(raised.value)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(RetentionPolicyError) as raised:
        policy(maxAge="-1h", maxCount=-1, ageFrom=".")
    for place in ("spec.maxAge", "spec.maxCount", "spec.ageFrom"):
        assert place in str(raised.value)


# --- objects ----------------------------------------------------------------------------------------------------------


def test_an_entry_says_what_is_needed_to_decide_and_to_end() -> None:
    found = policy(groupBy=["metadata.namespace", "metadata.labels['app']"]).entry(job(labels={"app": "a"}))
    assert found is not None
    assert (found.namespace, found.name, found.uid, found.version) == ("shop", "one", "u-one", "7")
    assert (found.anchor, found.group, found.is_kept, found.hold) == (from_timestamp(NOON), ("shop", "a"), False, None)


@pytest.mark.parametrize("value", [None, "yesterday", 7, ["a"], "2030-02-31T12:00:00Z", "2030-01-31T12:00:00"])
def test_a_path_that_is_no_time_is_no_anchor_and_ends_nothing(value: object) -> None:
    found = policy(ageFrom="status.completionTime", maxAge="1ns", maxCount=1)
    entries = [found.entry(job(str(number), status={"completionTime": value})) for number in range(3)]
    judged = judge([one for one in entries if one is not None], found.limits, UnixNs(2**62))
    assert [one.verdict.reason for one in judged] == ["missing_anchor"] * 3


def test_a_group_without_one_of_its_values_is_no_group() -> None:
    grouped = policy(groupBy=["metadata.namespace", "metadata.labels['app']"])
    found = [grouped.entry(job(labels=labels)) for labels in ({}, {"app": ""}, {"app": "a"})]
    assert [one and one.group for one in found] == [None, ("shop", ""), ("shop", "a")]


@pytest.mark.parametrize(
    ("status", "matches"),
    [
        ({"phase": "Done", "active": 0}, True),
        ({"phase": "Failed", "active": 0}, True),
        ({"phase": "Done", "active": 1}, False),
        ({"phase": "Done"}, False),
        ({"phase": ["Done"], "active": 0}, False),
        ({}, False),
    ],
    ids=str,
)
def test_only_what_meets_all_conditions_is_deleted_or_counted(status: dict[str, Any], *, matches: bool) -> None:
    conditions = [
        {"fieldPath": "status.phase", "in": ["Done", "Failed"]},
        {"fieldPath": "status.active", "in": ["0"]},
    ]
    assert (policy(onlyWhen=conditions).entry(job(status=status)) is not None) is matches


def test_what_is_being_deleted_takes_no_place() -> None:
    assert policy().entry(job(deletionTimestamp=NOON)) is None


def test_the_last_ones_are_those_that_the_condition_names() -> None:
    good = policy(keepLast={"count": 1, "where": {"fieldPath": "status.succeeded", "in": ["1"]}})
    found = [good.entry(job(status=status)) for status in ({"succeeded": 1}, {"succeeded": 0}, {})]
    assert [one and one.is_kept for one in found] == [True, False, False]


def test_a_hold_is_read_from_the_object() -> None:
    found = policy().entry(job(annotations={HOLD: "true"}))
    assert found is not None
    assert found.hold is not None


@pytest.mark.parametrize(
    ("spec", "enough"),
    [
        ({}, True),
        ({"groupBy": ["metadata.labels['a']"], "ageFrom": "metadata.annotations['b']"}, True),
        ({"groupBy": ["metadata.namespace", "spec.owner"]}, False),
        ({"ageFrom": "status.completionTime"}, False),
        ({"onlyWhen": [{"fieldPath": "status.phase", "in": ["a"]}]}, False),
        ({"keepLast": {"count": 1, "where": {"fieldPath": "status.phase", "in": ["a"]}}}, False),
        ({"keepLast": {"count": 1}}, True),
        ({"groupBy": ["metadata.finalizers[0]"]}, False),  # not among what is read of metadata alone
        ({"groupBy": ["metadata"]}, False),
    ],
    ids=str,
)
def test_metadata_is_enough_when_every_path_is_in_it(spec: dict[str, Any], *, enough: bool) -> None:
    assert policy(**spec).is_metadata_enough is enough


def test_the_system_and_our_own_namespace_are_left_alone_unless_named() -> None:
    alone = {SYSTEM_NAMESPACE, "lapse-system"}
    everywhere = policy()
    assert [everywhere.covers(one, left_alone=alone) for one in ("shop", None, "kube-system", "lapse-system")] == [
        True, True, False, False,
    ]  # fmt: skip
    named = policy(selector={"apiVersion": "v1", "kind": "ConfigMap", "namespaces": ["kube-system"]})
    assert [named.covers(one, left_alone=alone) for one in ("shop", "kube-system")] == [False, True]


def test_a_digest_changes_with_what_decides_and_with_nothing_else() -> None:
    one = policy(maxAge="1d", maxCount=1)
    assert one.digest == policy(maxAge="24h", maxCount=1, dryRun=False).digest
    others = [
        policy(maxAge="2d", maxCount=1),
        policy(maxAge="1d", maxCount=2),
        policy(maxAge="1d", maxCount=1, keepLast={"count": 1}),
        policy(maxAge="1d", maxCount=1, keepLast={"count": 0, "where": {"fieldPath": "a", "in": ["b"]}}),
        policy(maxAge="1d", maxCount=1, groupBy=["metadata.name"]),
        policy(maxAge="1d", maxCount=1, ageFrom="status.x"),
        policy(maxAge="1d", maxCount=1, onlyWhen=[{"fieldPath": "a", "in": ["b"]}]),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == len(others) + 1


@pytest.mark.parametrize("version", ["v1alpha1", "v2"])
@pytest.mark.parametrize("age", ["1ms", "59m59s", "1ns"])
def test_a_policy_that_leaves_records_less_than_an_hour_is_not_used(age: str, version: str) -> None:
    selector = {"apiVersion": f"chaos.gushchin.dev/{version}", "kind": "ChaosExperimentHistory"}
    with pytest.raises(RetentionPolicyError, match="maxAge of records must be 0 for any age, or 1h or more"):
        policy(selector=selector, maxAge=age)
    assert policy(selector=selector, maxAge="1h").limits.max_age is not None
    assert policy(selector=selector, maxAge="0").limits.max_age is None
    assert policy(maxAge=age).limits.max_age is not None  # of any other kind it may be short
