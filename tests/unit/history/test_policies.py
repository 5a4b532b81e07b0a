from __future__ import annotations

from typing import Any

import pytest

from lapse.history.api.kinds import RETENTION_POLICY, RetentionPolicy
from lapse.history.policy.policies import LoadedPolicies, conflicts
from lapse.history.policy.policy import Policy, RetentionPolicyError

KEEPS: dict[str, Any] = {"keepLast": {"count": 1}}
ENDS: dict[str, Any] = {"maxAge": "1h"}


def document(name: str, version: str, *namespaces: str, kind: str = "Gadget", **spec: Any) -> RetentionPolicy:  # noqa: ANN401 - as in a document
    selector = {"apiVersion": version, "kind": kind, "namespaces": list(namespaces)}
    return RETENTION_POLICY.convert({"metadata": {"name": name}, "spec": {"selector": selector, **spec}})


def beside(*documents: RetentionPolicy, broken: tuple[RetentionPolicy, ...] = ()) -> LoadedPolicies:
    error = RetentionPolicyError(name="broken", problem="of a test")
    return LoadedPolicies([(one, Policy.read(one)) for one in documents], [(one, error) for one in broken])


def test_who_could_delete_what_another_version_keeps_must_not_and_is_told_why() -> None:
    found = conflicts(beside(document("keeps", "a.io/v1", **KEEPS), document("ends", "a.io/v2", **ENDS)))
    assert {name: str(error) for name, error in found.items()} == {
        "ends": (
            "The retention policy ends cannot be used: spec.selector.apiVersion: the policy keeps keeps the last ones "
            "of this kind as a.io/v1, which cannot be compared with a.io/v2; name the same version in both."
        )
    }


def test_two_that_keep_and_delete_block_each_other() -> None:
    both = {**KEEPS, "maxCount": 3}
    assert set(conflicts(beside(document("one", "a.io/v1", **both), document("two", "a.io/v2", **both)))) == {
        "one",
        "two",
    }


@pytest.mark.parametrize(
    ("keeper", "other"),
    [
        (document("keeps", "a.io/v1", **KEEPS), document("ends", "a.io/v1", **ENDS)),
        (document("keeps", "a.io/v1", **KEEPS), document("ends", "b.io/v2", **ENDS)),
        (document("keeps", "a.io/v1", **KEEPS), document("ends", "a.io/v2", kind="Widget", **ENDS)),
        (document("keeps", "a.io/v1", **KEEPS), document("ends", "a.io/v2")),
        (document("keeps", "a.io/v1", maxCount=3), document("ends", "a.io/v2", **ENDS)),
        (document("keeps", "a.io/v1", "shop", **KEEPS), document("ends", "a.io/v2", "bank", **ENDS)),
    ],
    ids=["same-version", "another-group", "another-kind", "deletes-nothing", "keeps-nothing", "other-namespaces"],
)
def test_who_cannot_delete_what_another_keeps_is_free(keeper: RetentionPolicy, other: RetentionPolicy) -> None:
    assert conflicts(beside(keeper, other)) == {}


def test_who_names_all_namespaces_meets_everybody() -> None:
    assert set(conflicts(beside(document("keeps", "v1", **KEEPS), document("ends", "v2", "shop", **ENDS)))) == {"ends"}


def test_beside_a_keeper_that_nobody_understands_nothing_of_its_kind_is_deleted() -> None:
    keeper = document("keeps", "a.io/v1", groupBy=["no path["], **KEEPS)
    found = conflicts(
        beside(document("ends", "a.io/v1", **ENDS), document("protects", "a.io/v1", **KEEPS), broken=(keeper,))
    )
    assert {name: error.details["problem"] for name, error in found.items()} == {
        "ends": (
            "the policy keeps keeps the last ones of this kind, and cannot be used, so it is not known which "
            "these are; correct keeps, or remove its keepLast"
        )
    }


def test_beside_one_that_keeps_nothing_and_cannot_be_understood_the_others_go_on() -> None:
    broken = document("broken", "a.io/v1", groupBy=["no path["], maxCount=1)
    elsewhere = document("elsewhere", "b.io/v1", groupBy=["no path["], **KEEPS)
    assert conflicts(beside(document("ends", "a.io/v1", **ENDS), broken=(broken, elsewhere))) == {}
