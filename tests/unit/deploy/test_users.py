"""The example roles for people: complete, about our kinds only, and without rights to steer the operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.cli.commands.crds import all_definitions

ROOT = Path(__file__).parents[3]
USERS = ROOT / "deploy" / "users"
PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
ROLES_PAGE = ROOT / "docs" / "how-to" / "who-may-capture-and-restore.md"
FILES = sorted(file.name for file in USERS.iterdir() if file.name != "kustomization.yaml")
ROLES: list[dict[str, Any]] = [one for name in FILES for one in yaml.safe_load_all((USERS / name).read_text())]
KINDS = {(one["spec"]["group"], one["spec"]["names"]["plural"]) for one in all_definitions()}
NAMESPACED = {one["spec"]["names"]["plural"] for one in all_definitions() if one["spec"]["scope"] == "Namespaced"}
READING = {"get", "list", "watch"}
JUDGED = {
    "lapse-capturer": {("", "persistentvolumeclaims", "get")},
    "lapse-restore-source-reader": {
        ("snapshot.storage.k8s.io", "volumesnapshotcontents", "get"),
        ("", "persistentvolumes", "get"),
    },
}
"""What the webhook asks the author of a request for, of kinds that are not ours."""


def grants(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def name_of(role: dict[str, Any]) -> str:
    name: str = role["metadata"]["name"]
    return name


def test_the_kustomization_lists_every_role() -> None:
    listed = yaml.safe_load((USERS / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == FILES


@pytest.mark.parametrize("role", ROLES, ids=name_of)
def test_a_role_is_about_our_kinds_and_says_so_in_full(role: dict[str, Any]) -> None:
    assert (role["apiVersion"], role["kind"]) == ("rbac.authorization.k8s.io/v1", "ClusterRole")
    assert set(role["rules"][0]) == {"apiGroups", "resources", "verbs"}
    ours = grants(role) - JUDGED.get(name_of(role), set())
    assert {(group, resource) for group, resource, _ in ours} <= KINDS, "no wildcard, no status, no other kind"
    assert all(verb in {*READING, "create", "update", "patch", "delete"} for _, _, verb in grants(role))


@pytest.mark.parametrize("role", ROLES, ids=name_of)
def test_no_role_lets_a_person_forge_what_the_operator_trusts_or_read_captured_manifests(role: dict[str, Any]) -> None:
    for _, resource, verb in grants(role):
        assert "/status" not in resource
        assert resource != "manifestcheckpointcontentchunks"
        assert verb in READING or resource not in {"objectkeepers", "manifestcheckpoints"}
        assert verb in READING or resource in NAMESPACED or name_of(role) == "lapse-policy-author"


def test_the_viewer_only_looks_and_whoever_changes_something_changes_one_kind_or_only_annotates() -> None:
    by_name = {name_of(role): grants(role) for role in ROLES}
    changes = {
        name: {(resource, verb) for _, resource, verb in granted if verb not in READING}
        for name, granted in by_name.items()
    }
    assert changes["lapse-viewer"] == set()
    assert {verb for _, verb in changes["lapse-hold-operator"]} == {"patch"}
    assert {resource for resource, _ in changes["lapse-capturer"]} == {"volumecapturerequests", "captureschedules"}
    assert {resource for resource, _ in changes["lapse-restorer"]} == {"volumerestorerequests"}


def test_whoever_captures_or_restores_has_the_rights_that_the_webhook_asks_for_but_not_that_to_delete_claims() -> None:
    by_name = {name_of(role): grants(role) for role in ROLES}
    for name, rights in JUDGED.items():
        assert rights <= by_name[name]
    assert by_name["lapse-restore-source-reader"] == JUDGED["lapse-restore-source-reader"]
    assert not any(("", "persistentvolumeclaims", "delete") in granted for granted in by_name.values())


def test_the_pages_name_every_role_and_every_right_that_one_of_them_gives() -> None:
    text = PAGE.read_text()
    for role in ROLES:
        assert f"`{name_of(role)}`" in text
        assert f"| `{name_of(role)}` |" in ROLES_PAGE.read_text()
    for _, resource, verb in {grant for role in ROLES for grant in grants(role)}:
        if verb in {"create", "patch"}:
            assert re.search(rf"`{verb}`[^|\n]*`{resource}`", text), (verb, resource)
