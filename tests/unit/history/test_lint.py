from __future__ import annotations

from typing import Any

import pytest

from lapse.core.duration import HOUR
from lapse.history.policy.lint import Finding, Severity, lint

JOBS = {"apiVersion": "batch/v1", "kind": "Job"}
OWNER = "metadata.labels['app']"
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def document(name: str = "jobs", *, selector: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - as in a file
    chosen = {"namespaces": ["shop"], **JOBS, **(selector or {})}
    body = {"selector": chosen, "dryRun": False, **spec}
    return {"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", "metadata": {"name": name}, "spec": body}


def told(*documents: object, interval: int = HOUR) -> list[Finding]:
    return lint(documents, interval=interval)


def only(*documents: object) -> Finding:
    (found,) = told(*documents)
    return found


def test_nothing_is_said_about_a_policy_that_is_as_it_should_be() -> None:
    assert told(document(maxAge="90d")) == []
    assert told(document(maxCount=10, groupBy=[OWNER])) == []
    assert told(document(maxCount=10, maxAge="90d", groupBy=[OWNER], keepLast={"count": 3})) == []


@pytest.mark.parametrize(
    ("spec", "severity", "place", "what"),
    [
        # limits that can never hit
        ({}, ERROR, "spec", "neither maxAge nor maxCount"),
        ({"maxAge": "0", "maxCount": 0}, ERROR, "spec", "neither maxAge nor maxCount"),
        ({"maxAge": "never"}, ERROR, "spec", "neither maxAge nor maxCount"),
        ({"keepLast": {"count": 2}, "groupBy": [OWNER]}, NOTE, "spec", "only protects"),
        ({"maxCount": 5, "groupBy": ["metadata.uid"]}, ERROR, "spec.groupBy", "no two objects share a group"),
        ({"maxCount": 5, "groupBy": [OWNER, "metadata.uid"]}, ERROR, "spec.groupBy", "no two objects share a group"),
        ({"maxCount": 5, "groupBy": ["metadata.name"]}, ERROR, "spec.groupBy", "maxCount 5 is never exceeded"),
        (
            {"maxCount": 5, "groupBy": [OWNER], "keepLast": {"count": 6}},
            WARNING,
            "spec.keepLast.count",
            "keepLast keeps 6 of each group, so maxCount 5 never takes effect",
        ),
        (
            {"maxCount": 5, "maxAge": "9d", "groupBy": [OWNER], "keepLast": {"count": 5}},
            WARNING,
            "spec.maxAge",
            "maxAge never takes effect",
        ),
        ({"maxCount": 5, "groupBy": [OWNER], "keepLast": {"count": 5}}, NOTE, "spec.keepLast", "keeps anyway"),
        ({"maxAge": "30m"}, WARNING, "spec.maxAge", "maxAge 30m is shorter than the 1h between passes"),
        (
            {
                "maxAge": "9d",
                "onlyWhen": [
                    {"fieldPath": "status.phase", "in": ["Failed"]},
                    {"fieldPath": "status.phase", "in": ["Succeeded"]},
                ],
            },
            ERROR,
            "spec.onlyWhen",
            "no object can have all the values demanded of status.phase",
        ),
        (
            {"maxAge": "9d", "onlyWhen": [{"fieldPath": "metadata.namespace", "in": ["other"]}]},
            ERROR,
            "spec.onlyWhen",
            "no object can have all the values demanded of metadata.namespace",
        ),
        (
            {
                "maxAge": "9d",
                "groupBy": [OWNER],
                "onlyWhen": [{"fieldPath": "status.phase", "in": ["Failed"]}],
                "keepLast": {"count": 1, "where": {"fieldPath": "status.phase", "in": ["Succeeded"]}},
            },
            WARNING,
            "spec.keepLast.where",
            "keepLast keeps nothing",
        ),
        # groups
        ({"maxCount": 5}, WARNING, "spec.groupBy", "groupBy is empty, so everything is one group: maxCount 5"),
        ({"maxAge": "9d", "keepLast": {"count": 3}}, WARNING, "spec.groupBy", "everything is one group: keepLast 3"),
        ({"maxCount": 5, "groupBy": ["kind"]}, WARNING, "spec.groupBy", "kind is the same for all, so everything is"),
        ({"maxCount": 5, "groupBy": ["apiVersion"]}, WARNING, "spec.groupBy", "apiVersion is the same for all"),
        ({"maxCount": 5, "groupBy": ["metadata.namespace"]}, WARNING, "spec.groupBy", "everything is one group"),
        ({"maxCount": 5, "groupBy": ["kind", OWNER]}, NOTE, "spec.groupBy", "kind is the same for all"),
        (
            {
                "maxCount": 5,
                "groupBy": ["status.phase"],
                "onlyWhen": [{"fieldPath": "status.phase", "in": ["Failed"]}],
            },
            WARNING,
            "spec.groupBy",
            "status.phase is the same for all",
        ),
        ({"maxAge": "9d", "groupBy": [OWNER]}, NOTE, "spec.groupBy", "the policy has neither"),
        # ages
        ({"maxAge": "9d", "ageFrom": "metadata.name"}, ERROR, "spec.ageFrom", "metadata.name is not a time"),
        ({"maxAge": "9d", "ageFrom": "metadata.labels['since']"}, ERROR, "spec.ageFrom", "is not a time"),
        ({"maxAge": "9d", "ageFrom": "metadata"}, ERROR, "spec.ageFrom", "is not a time"),
        ({"maxAge": "9d", "ageFrom": "status"}, ERROR, "spec.ageFrom", "is not a time"),
        ({"maxAge": "9d", "ageFrom": "status.phase"}, ERROR, "spec.ageFrom", "status.phase is not a time"),
        ({"maxAge": "9d", "ageFrom": "status.conditions[0]"}, ERROR, "spec.ageFrom", "is not a time"),
        ({"maxAge": "9d", "ageFrom": "metadata.deletionTimestamp"}, ERROR, "spec.ageFrom", "being deleted already"),
        # what people should know
        ({"maxAge": "9d", "dryRun": True}, NOTE, "spec.dryRun", "deletes nothing"),
    ],
    ids=str,
)
def test_what_is_odd_is_found_once_and_says_what_to_do(
    spec: dict[str, Any], severity: Severity, place: str, what: str
) -> None:
    found = only(document(**spec))

    assert (found.severity, found.policy, found.place) == (severity, "jobs", place)
    assert what in found.what
    assert found.advice


@pytest.mark.parametrize(
    "age_from", ["status.completionTime", "metadata.annotations['since']", "status.conditions[0].lastTransitionTime"]
)
def test_what_may_be_a_time_is_not_found_odd(age_from: str) -> None:
    assert told(document(maxAge="9d", ageFrom=age_from)) == []


@pytest.mark.parametrize(
    ("spec", "place", "what"),
    [
        ({"maxAge": "9d", "groupBy": ["a..b"]}, "spec.groupBy[0]", "'a..b' is not a field path"),
        ({"maxAge": "9d", "ageFrom": "status.[0]"}, "spec.ageFrom", "is not a field path"),
        (
            {"maxAge": "9d", "onlyWhen": [{"fieldPath": "x.", "in": ["a"]}]},
            "spec.onlyWhen[0].fieldPath",
            "it ends with a dot",
        ),
        (
            {"maxAge": "9d", "keepLast": {"count": 1, "where": {"fieldPath": "[0]", "in": ["a"]}}},
            "spec.keepLast.where.fieldPath",
            "is not a field path",
        ),
        ({"maxAge": "-1h"}, "spec.maxAge", "must be a duration"),
        ({"maxAge": "90"}, "spec.maxAge", "must be a duration"),
        ({"maxAge": 90}, "spec.maxAge", "must be of type string"),
        ({"maxCount": -1}, "spec.maxCount", "must be at least 0"),
        ({"maxage": "9d"}, "spec.maxage", "there is no such field; did you mean maxAge?"),
        ({"maxAge": "9d", "keepLast": {"count": 1, "were": {}}}, "spec.keepLast.were", "did you mean where?"),
        ({"maxAge": "9d", "frobnicate": 1}, "spec.frobnicate", "there is no such field: ageFrom, dryRun"),
        ({"maxAge": "9d", "selector": {"kind": "Job"}}, "spec.selector.apiVersion", "is required"),
        ({"maxAge": "9d", "selector": 7}, "spec.selector", "must be of type object"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_an_error_at_its_place(spec: dict[str, Any], place: str, what: str) -> None:
    broken = document()
    broken["spec"] |= spec
    found = only(broken)

    assert (found.severity, found.place) == (ERROR, place)
    assert what in found.what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (None, "it is not a document"),
        ([], "it is not a document"),
        ("text", "it is not a document"),
        ({}, "it names no apiVersion and no kind; expected apiVersion: lapse.dev/v1alpha1"),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "it is v1/ConfigMap; expected"),
        ({"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", "spec": {"selector": JOBS}}, "is required"),
        ({**document(), "metadata": {"name": "No"}}, "metadata.name is 'No'; expected"),
        ({**document(), "metadata": {"name": 7}}, "metadata.name is 7; expected"),
        ({**document(), "metadata": {"name": "x", "labels": {"a": 1}}}, "metadata.labels['a'] is 1; expected text"),
        ({**document(maxAge="9d"), "sepc": {}}, "did you mean spec?"),
    ],
    ids=str,
)
def test_another_kind_of_document_is_an_error(given: object, what: str) -> None:
    assert what in only(given).what


@pytest.mark.parametrize(
    ("spec", "place", "what"),
    [
        (
            {"selector": {"namespaces": []}, "dryRun": True},
            "spec.selector.namespaces",
            "all namespaces except kube-system",
        ),
        ({"selector": {"namespaces": ["Shop"]}}, "spec.selector.namespaces[0]", "no namespace can have this name"),
        ({"selector": {"apiVersion": "v1"}}, "spec.selector.apiVersion", "Job is not of v1: it is of batch"),
        ({"name": "history"}, "metadata.name", "that of the policy that the settings make"),
    ],
    ids=str,
)
def test_what_it_selects_may_be_odd_as_well(spec: dict[str, Any], place: str, what: str) -> None:
    found = [one for one in told(document(**{"maxAge": "9d", **spec})) if one.place != "spec.dryRun"]

    assert [one.place for one in found] == [place]
    assert what in found[0].what


@pytest.mark.parametrize(
    ("version", "kind", "takes"),
    [
        ("v1", "Namespace", "everything in a namespace goes with it"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "all objects of a kind go with its definition"),
        ("v1", "PersistentVolume", "the data of a volume may go with it"),
        ("v1", "PersistentVolumeClaim", "the data of its volume may go with a claim"),
        ("v1", "Node", "all pods of a node go with it"),
        ("v1", "Secret", "programs stop without their passwords"),
    ],
)
def test_a_policy_that_really_deletes_all_of_a_kind_that_takes_much_along_is_warned_of(
    version: str, kind: str, takes: str
) -> None:
    selector = {"apiVersion": version, "kind": kind, "namespaces": []}
    live = [one for one in told(document(selector=selector, maxAge="9d")) if one.severity is WARNING]
    dry = told(document(selector=selector, maxAge="9d", dryRun=True))

    assert [one.place for one in live] == ["spec.selector.kind", "spec.selector"]
    assert takes in live[0].what
    assert f"it deletes, and selects every {kind} " in live[1].what
    assert not [one for one in dry if one.severity is WARNING]


def test_a_live_policy_that_labels_or_namespaces_limit_is_not_warned_of() -> None:
    assert told(document(selector={"namespaces": [], "labels": {"a": "b"}}, maxAge="9d"))[0].severity is NOTE
    assert told(document(maxAge="9d")) == []


@pytest.mark.parametrize("age", ["1ms", "59m59s", "PT30M", "1ns"])
def test_records_are_kept_for_an_hour_at_least(age: str) -> None:
    records = {"apiVersion": "chaos.gushchin.dev/v1alpha1", "kind": "ChaosExperimentHistory"}
    found = told(document(selector=records, maxAge=age))

    assert [(one.severity, one.place) for one in found] == [(ERROR, "spec")]
    assert found[0].what == "maxAge of records must be 0 for any age, or 1h or more, such as 720h"
    assert [one for one in told(document(selector=records, maxAge="1h")) if one.severity is ERROR] == []


def test_a_kind_of_the_whole_cluster_is_not_said_to_be_in_namespaces() -> None:
    volumes = {"apiVersion": "v1", "kind": "PersistentVolume", "namespaces": []}

    assert "namespace" not in " ".join(one.place for one in told(document(selector=volumes, maxAge="9d")))
    found = told(document(selector=volumes, maxCount=3, groupBy=["metadata.name"]))
    assert [one.place for one in found if "no two objects" in one.what] == ["spec.groupBy"]


def test_names_that_occur_in_several_namespaces_are_groups_that_few_people_mean() -> None:
    both = {"namespaces": ["shop", "bank"]}
    found = only(document(selector=both, maxCount=3, groupBy=["metadata.name"]))

    assert found.severity is WARNING
    assert "objects of one name in several namespaces are one group" in found.what


def test_the_time_between_passes_is_what_an_age_is_compared_with() -> None:
    assert told(document(maxAge="30m"), interval=HOUR // 4) == []
    assert told(document(maxAge="1h"), interval=HOUR) == []


def test_a_keep_last_of_some_is_not_taken_for_one_of_all() -> None:
    good = {"fieldPath": "status.succeeded", "in": ["1"]}

    assert told(document(maxAge="9d", maxCount=5, groupBy=[OWNER], keepLast={"count": 9, "where": good})) == []
    pinned = document(maxCount=5, groupBy=[OWNER], onlyWhen=[good], keepLast={"count": 9, "where": good})
    assert only(pinned).place == "spec.keepLast.count"


# --- several ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"namespaces": ["shop", "bank"]}, {"namespaces": ["bank"]}),
        ({"labels": {"a": "1"}}, {"labels": {"b": "1"}}),
        ({"labels": {"a": "1"}}, {}),
    ],
    ids=str,
)
def test_policies_that_may_select_the_same_are_told(first: dict[str, Any], second: dict[str, Any]) -> None:
    found = only(document("a", selector=first, maxAge="9d"), document("b", selector=second, maxAge="8d"))

    assert (found.severity, found.policy, found.place) == (WARNING, "a", "spec.selector")
    assert found.what == "b may select the same Job: an object is deleted when either policy says so"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"namespaces": ["shop"]}, {"namespaces": ["bank"]}),
        ({"labels": {"a": "1"}}, {"labels": {"a": "2"}}),
        ({}, {"apiVersion": "v1", "kind": "Pod"}),
        ({}, {"apiVersion": "example.org/v1", "kind": "Job"}),
    ],
    ids=str,
)
def test_policies_that_cannot_select_the_same_are_not(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert told(document("a", selector=first, maxAge="9d"), document("b", selector=second, maxAge="8d")) == []


def test_what_only_when_tells_apart_does_not_overlap() -> None:
    failed = [{"fieldPath": "status.failed", "in": ["1"]}]
    other = [{"fieldPath": "status.failed", "in": ["0", "2"]}]

    assert told(document("a", maxAge="9d", onlyWhen=failed), document("b", maxAge="1d", onlyWhen=other)) == []


def test_who_names_no_namespace_does_not_meet_who_names_kube_system() -> None:
    found = told(
        document("a", selector={"namespaces": []}, maxAge="9d"),
        document("b", selector={"namespaces": ["kube-system"]}, maxAge="9d"),
    )

    assert [one.place for one in found] == ["spec.selector", "spec.selector.namespaces"]


def test_a_policy_that_only_protects_may_overlap() -> None:
    found = told(document("a", maxAge="9d"), document("b", groupBy=[OWNER], keepLast={"count": 1}))

    assert {one.severity for one in found} == {NOTE}


def test_the_same_kind_in_two_versions_is_told_because_nothing_protects_across_them() -> None:
    found = only(document("a", maxAge="9d"), document("b", selector={"apiVersion": "batch/v1beta1"}, maxAge="9d"))

    assert found.place == "spec.selector.apiVersion"
    assert "keepLast of the one does not protect from the other" in found.advice


def test_two_policies_of_one_name_are_an_error() -> None:
    found = told(document("a", maxAge="9d"), document("a", selector={"namespaces": ["bank"]}, maxAge="9d"))

    assert [(one.severity, one.place) for one in found] == [(ERROR, "metadata.name")]


def test_a_broken_policy_beside_good_ones_does_not_hide_what_is_odd_about_them() -> None:
    found = told(document("a", maxAge="1m"), document("b", maxAge="soon"), document("c", maxCount=1))

    assert [(one.policy, one.severity) for one in found] == [
        ("a", WARNING),
        ("b", ERROR),
        ("c", WARNING),
        ("a", WARNING),
    ]
