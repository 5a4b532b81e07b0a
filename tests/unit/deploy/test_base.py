"""What `deploy` holds, without a cluster: complete, consistent, and with no more rights than the code uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.cli import app
from lapse.engine.holds import HOLD
from lapse.kube.events import EVENT
from lapse.kube.lease import LEASE
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, MANIFEST_CHUNK, OBJECT_KEEPER, OUR_KINDS, REQUEST_KINDS
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.caches import WATCHED
from lapse.settings import load_settings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
NAMESPACE = "lapse-system"
LABEL = "app.kubernetes.io/name"
READ = {"get", "list", "watch"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / name).read_text()))


KUSTOMIZATION = documents("kustomization.yaml")[0]
FILES = sorted(file.name for file in BASE.iterdir() if file.name != "kustomization.yaml")
OBJECTS = [one for name in FILES for one in documents(name)]


def only(kind: str, name: str = "lapse") -> dict[str, Any]:
    (found,) = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def named(one: dict[str, Any]) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


def rights(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert (group, resource) not in found, f"{resource} stands in two rules"
                found[group, resource] = set(rule["verbs"])
    return found


RIGHTS = rights(only("ClusterRole"))
DEPLOYMENT = only("Deployment")
POD_SPEC = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD_SPEC["containers"]


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_kustomization_lists_every_file_and_the_definitions() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == ["../crds", *FILES]


def test_the_definitions_list_every_kind() -> None:
    listed = yaml.safe_load((DEPLOY / "crds" / "Kustomization").read_text())["resources"]
    assert listed == sorted(f"{kind.plural}.yaml" for kind in OUR_KINDS)
    assert listed == sorted(file.name for file in (DEPLOY / "crds").glob("*.yaml"))


def test_no_object_is_there_twice() -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in OBJECTS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("one", OBJECTS, ids=named)
def test_names_labels_and_namespaces_are_the_same_everywhere(one: dict[str, Any]) -> None:
    meta = one["metadata"]
    assert meta["labels"][LABEL] == "lapse"
    if one["kind"] == "Namespace":
        assert meta["name"] == NAMESPACE
    elif one["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
        assert "namespace" not in meta
    else:
        assert meta["namespace"] == NAMESPACE


@pytest.mark.parametrize("one", [one for one in OBJECTS if one["kind"].endswith("Binding")], ids=named)
def test_every_binding_gives_a_role_that_there_is_to_the_account_of_the_pod(one: dict[str, Any]) -> None:
    only(one["roleRef"]["kind"], one["roleRef"]["name"])
    account = only("ServiceAccount")["metadata"]
    assert one["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
    assert POD_SPEC["serviceAccountName"] == account["name"]


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [only("ClusterRole"), only("Role")], ids=["cluster", "namespace"])
def test_no_right_is_for_everything(role: dict[str, Any]) -> None:
    for (group, resource), verbs in rights(role).items():
        assert "*" not in f"{group}{resource}"
        assert verbs <= {"get", "list", "watch", "create", "patch", "delete"}


def test_the_rights_are_those_that_the_controllers_use() -> None:
    expected = {(kind.group, kind.plural): READ for kind in WATCHED}

    def allow(kind: Any, *verbs: str) -> None:  # noqa: ANN401 - a kind of any objects
        expected[kind.group, kind.plural] = expected.get((kind.group, kind.plural), set()) | set(verbs)

    for kind in REQUEST_KINDS:
        allow(kind, "patch", "delete")
    allow(OBJECT_KEEPER, "create", "patch", "delete")
    for kind in (MANIFEST_CHECKPOINT, MANIFEST_CHUNK, VOLUME_SNAPSHOT_CONTENT):
        allow(kind, "create")
    allow(PERSISTENT_VOLUME_CLAIM, "patch", "delete")
    allow(PERSISTENT_VOLUME, "patch")
    allow(POD, "list")
    allow(STORAGE_CLASS, "get")
    allow(VOLUME_SNAPSHOT_CLASS, "get")
    for kind in OUR_KINDS:
        if kind.status:
            expected[kind.group, f"{kind.plural}/status"] = {"patch"}
    allow(EVENT, "list", "create", "patch")
    assert expected == RIGHTS


def test_the_lease_is_the_only_thing_in_the_namespace_of_its_own() -> None:
    assert rights(only("Role")) == {(LEASE.group, LEASE.plural): {"get", "create", "patch"}}


def test_no_manifest_can_be_captured_before_somebody_says_so() -> None:
    reader = only("ClusterRole", "lapse-manifest-reader")
    assert "rules" not in reader
    (selector,) = reader["aggregationRule"]["clusterRoleSelectors"]
    (label,) = selector["matchLabels"]
    assert label.partition("/")[0] == HOLD.partition("/")[0]
    assert not [one for one in OBJECTS if label in one["metadata"]["labels"]]
    assert f'{label}: "true"' in (ROOT / "docs" / "how-to" / "on-your-cluster.md").read_text()


# --- the pods ---------------------------------------------------------------------------------------------------------


def test_the_pods_are_those_that_the_selectors_mean() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert labels == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert labels == only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert 0 < only("PodDisruptionBudget")["spec"]["minAvailable"] < DEPLOYMENT["spec"]["replicas"] == 2


def test_the_pods_may_do_nothing_that_they_do_not_need() -> None:
    assert POD_SPEC["securityContext"]["runAsNonRoot"] is True
    assert POD_SPEC["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert only("Namespace", NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    user = POD_SPEC["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}\n" in (DEPLOY / "Containerfile").read_text()


def test_the_settings_in_the_environment_are_valid_and_the_probes_are_where_the_kubelet_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAPSE_CONFIG", raising=False)
    for variable in CONTAINER["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = load_settings({}, config=None).settings
    (port,) = CONTAINER["ports"]
    assert (settings.probes_host, settings.probes_port) == ("0.0.0.0", port["containerPort"])  # noqa: S104 - in a pod
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == port["name"]


@pytest.mark.skipif("operator" not in list(app), reason="there is no command lapse operator yet")
def test_the_command_line_accepts_the_arguments() -> None:
    command, _bound, _ignored = app.parse_args(CONTAINER["args"], exit_on_error=False, print_error=False)
    assert command.__name__ == "operator"


def test_the_image_is_a_placeholder_that_is_explained() -> None:
    assert KUSTOMIZATION["images"] == [{"name": CONTAINER["image"], "newName": "lapse", "newTag": "unset"}]
    page = (ROOT / "docs" / "how-to" / "on-your-cluster.md").read_text()
    assert "lapse:unset" in page
    assert "deploy/Containerfile" in page
    assert 'ENTRYPOINT ["lapse"]' in (DEPLOY / "Containerfile").read_text()
