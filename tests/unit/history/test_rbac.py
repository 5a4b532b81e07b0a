from __future__ import annotations

from typing import Any

import pytest
import yaml

from lapse.history.api.kinds import OUR_KINDS, RETENTION_POLICY
from lapse.history.policy.policy import Policy
from lapse.history.policy.rbac import Resource, plural_of, resource_of, to_text


def policy(
    name: str = "jobs",
    *,
    api_version: str = "batch/v1",
    kind: str = "Job",
    namespaces: tuple[str, ...] = (),
    **spec: Any,  # noqa: ANN401 - as in a document
) -> Policy:
    selector = {"apiVersion": api_version, "kind": kind, "namespaces": list(namespaces)}
    return Policy.read(RETENTION_POLICY.convert({"metadata": {"name": name}, "spec": {"selector": selector, **spec}}))


def documents(*policies: Policy) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(to_text(policies, namespace="lapse-system", kinds=OUR_KINDS)))


def test_a_policy_that_names_no_namespace_needs_a_cluster_role() -> None:
    role, binding = documents(policy())

    assert (role["kind"], role["metadata"]["name"]) == ("ClusterRole", "lapse-retention-jobs")
    assert role["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "delete"]},
        {"apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["get"]},  # whose holds cover their Jobs
    ]
    assert binding["kind"] == "ClusterRoleBinding"
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "lapse-retention-jobs",
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "lapse-retention", "namespace": "lapse-system"}]


def test_a_policy_that_names_namespaces_needs_a_role_in_each_and_nothing_elsewhere() -> None:
    found = documents(policy(namespaces=("shop", "bank")))

    assert [(one["kind"], one["metadata"]["namespace"]) for one in found] == [
        ("Role", "shop"),
        ("RoleBinding", "shop"),
        ("Role", "bank"),
        ("RoleBinding", "bank"),
    ]
    assert {one["roleRef"]["kind"] for one in found if "roleRef" in one} == {"Role"}


def test_a_kind_without_namespaces_needs_a_cluster_role_whatever_the_policy_names() -> None:
    role, _ = documents(policy(api_version="v1", kind="PersistentVolume", namespaces=("shop",)))

    assert role["kind"] == "ClusterRole"
    assert role["rules"][0]["apiGroups"] == [""]


def test_several_policies_are_one_stream_of_documents() -> None:
    found = documents(policy("a"), policy("b", namespaces=("shop",)))

    assert [one["metadata"]["name"] for one in found] == ["lapse-retention-a"] * 2 + ["lapse-retention-b"] * 2


def test_remarks_say_what_a_dry_run_needs_and_what_was_guessed() -> None:
    text = to_text([policy(api_version="example.org/v1", kind="Policy", dryRun=True)], namespace="x")

    assert "# It is a dry run, for which list is enough" in text
    assert "# The name policies is a guess" in text
    assert "guess" not in to_text([policy(dryRun=False)], namespace="x")
    assert "dry run" not in to_text([policy(dryRun=False)], namespace="x")


def test_the_longest_name_of_a_policy_still_makes_a_name() -> None:
    one, other = policy("a" * 253), policy("a" * 252 + "b")
    names = [each["metadata"]["name"] for each in documents(one, other)]

    assert len(set(names)) == 2
    assert all(len(name) <= 253 for name in names)


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Job", "jobs"),
        ("NetworkPolicy", "networkpolicies"),
        ("Ingress", "ingresses"),
        ("Gateway", "gateways"),
        ("Endpoints", "endpoints"),
        ("StorageClass", "storageclasses"),
        ("Batch", "batches"),
    ],
)
def test_plurals(kind: str, plural: str) -> None:
    assert plural_of(kind) == plural


def test_kinds_that_are_known_are_not_guessed() -> None:
    assert resource_of("v1", "ConfigMap") == Resource("", "configmaps")
    assert resource_of("batch/v1beta1", "CronJob") == Resource("batch", "cronjobs")
    assert resource_of("lapse.dev/v1alpha1", "RetentionPolicy", kinds=OUR_KINDS) == Resource(
        "lapse.dev", "retentionpolicies", namespaced=False
    )
    assert resource_of("example.org/v1", "Widget") == Resource("example.org", "widgets", guessed=True)
