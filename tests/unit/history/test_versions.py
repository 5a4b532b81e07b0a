from __future__ import annotations

from typing import Any

import pytest

from lapse.history.api.kinds import RETENTION_POLICY
from lapse.history.policy import Policy
from lapse.history.versions import blocked

KEEPS: dict[str, Any] = {"keepLast": {"count": 1}}
ENDS: dict[str, Any] = {"maxAge": "1h"}


def policy(name: str, version: str, *namespaces: str, kind: str = "Gadget", **spec: Any) -> Policy:  # noqa: ANN401 - as in a document
    selector = {"apiVersion": version, "kind": kind, "namespaces": list(namespaces)}
    return Policy.read(RETENTION_POLICY.convert({"metadata": {"name": name}, "spec": {"selector": selector, **spec}}))


def test_who_could_delete_what_another_version_keeps_must_not_and_is_told_why() -> None:
    found = blocked([policy("keeps", "a.io/v1", **KEEPS), policy("ends", "a.io/v2", **ENDS)])
    assert {name: str(error) for name, error in found.items()} == {
        "ends": (
            "The retention policy ends cannot be used: spec.selector.apiVersion: the policy keeps keeps the last ones "
            "of this kind as a.io/v1, which cannot be compared with a.io/v2; name the same version in both."
        )
    }


def test_two_that_keep_and_delete_block_each_other() -> None:
    both = {**KEEPS, "maxCount": 3}
    assert set(blocked([policy("one", "a.io/v1", **both), policy("two", "a.io/v2", **both)])) == {"one", "two"}


@pytest.mark.parametrize(
    ("keeper", "other"),
    [
        (policy("keeps", "a.io/v1", **KEEPS), policy("ends", "a.io/v1", **ENDS)),
        (policy("keeps", "a.io/v1", **KEEPS), policy("ends", "b.io/v2", **ENDS)),
        (policy("keeps", "a.io/v1", **KEEPS), policy("ends", "a.io/v2", kind="Widget", **ENDS)),
        (policy("keeps", "a.io/v1", **KEEPS), policy("ends", "a.io/v2")),
        (policy("keeps", "a.io/v1", maxCount=3), policy("ends", "a.io/v2", **ENDS)),
        (policy("keeps", "a.io/v1", "shop", **KEEPS), policy("ends", "a.io/v2", "bank", **ENDS)),
    ],
    ids=["same-version", "another-group", "another-kind", "deletes-nothing", "keeps-nothing", "other-namespaces"],
)
def test_who_cannot_delete_what_another_keeps_is_free(keeper: Policy, other: Policy) -> None:
    assert blocked([keeper, other]) == {}


def test_who_names_all_namespaces_meets_everybody() -> None:
    assert set(blocked([policy("keeps", "v1", **KEEPS), policy("ends", "v2", "shop", **ENDS)])) == {"ends"}
