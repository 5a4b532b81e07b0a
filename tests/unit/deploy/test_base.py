"""What `deploy` holds, without a cluster: complete, consistent, and with no more rights than the code uses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.cli import app
from lapse.cli.commands.crds import all_definitions
from lapse.engine.safety.holds import HOLD
from lapse.history.api.kinds import OUR_KINDS as HISTORY_KINDS
from lapse.history.policy.rbac import NEEDED as NEEDED_BY_HISTORY
from lapse.history.policy.rbac import NEEDED_BY_ACCOUNT, account_user, impersonation
from lapse.kube.auth.access import Right
from lapse.requests.admission import NEEDED, NEEDED_BY_BRIDGE, rights_on_gate, rights_on_lease
from lapse.requests.controllers.caches import WATCHED
from lapse.settings import load_settings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
NAMESPACE = "lapse-system"
ACCOUNT = "lapse-retention"
LABEL = "app.kubernetes.io/name"


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


def granted(role: dict[str, Any], namespace: str | None = None) -> list[Right]:
    return [
        Right(verb, group, resource.partition("/")[0], resource.partition("/")[2], namespace, name)
        for rule in role["rules"]
        for name in rule.get("resourceNames", [""])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


DEPLOYMENT = only("Deployment")
POD_SPEC = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD_SPEC["containers"]


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_kustomization_lists_every_file_and_the_definitions() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == ["../crds", *FILES]


def test_the_definitions_list_every_kind() -> None:
    listed = yaml.safe_load((DEPLOY / "crds" / "Kustomization").read_text())["resources"]
    assert listed == sorted(f"{one['spec']['names']['plural']}.yaml" for one in all_definitions())
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
def test_every_binding_gives_a_role_that_there_is_to_the_account_that_it_is_for(one: dict[str, Any]) -> None:
    role = one["roleRef"]["name"]
    only(one["roleRef"]["kind"], role)
    account = only("ServiceAccount", ACCOUNT if role == ACCOUNT else "lapse")["metadata"]
    assert one["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
    assert POD_SPEC["serviceAccountName"] == "lapse"


# --- rights -----------------------------------------------------------------------------------------------------------


def test_the_rights_are_exactly_those_that_the_controllers_need() -> None:
    needed = [*NEEDED, *NEEDED_BY_BRIDGE, *NEEDED_BY_HISTORY]
    assert sorted(map(str, granted(only("ClusterRole")))) == sorted(map(str, needed))
    assert "secrets" not in {right.resource for right in needed}
    assert ("create", "persistentvolumes") not in {(right.verb, right.resource) for right in needed}


def test_policies_act_as_an_account_of_their_own_that_has_rights_on_records_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({}, config=None).settings
    account = only("ServiceAccount", ACCOUNT)
    assert (account["metadata"]["namespace"], account["metadata"]["name"]) == (NAMESPACE, settings.retention_account)
    assert account["automountServiceAccountToken"] is False
    assert account_user(NAMESPACE, ACCOUNT) == f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    assert sorted(granted(only("ClusterRole", ACCOUNT))) == sorted(NEEDED_BY_ACCOUNT)
    assert {right.resource for right in NEEDED_BY_ACCOUNT} == {"chaosexperimenthistories"}
    own = [right for right in (*NEEDED, *NEEDED_BY_HISTORY) if right.resource == "chaosexperimenthistories"]
    assert sorted(right.verb for right in own) == ["get", "list", "patch", "watch"], "for holds; none is deleted"


def test_what_replicas_share_and_the_account_for_policies_are_all_in_the_namespace_of_its_own() -> None:
    role = granted(only("Role"), NAMESPACE)
    shared = [*rights_on_lease(NAMESPACE), *rights_on_gate(NAMESPACE), impersonation(NAMESPACE)]
    assert sorted(map(str, role)) == sorted(map(str, shared))


def test_whatever_is_cached_may_be_listed_and_watched_and_whatever_is_not_may_not() -> None:
    needed = [*NEEDED, *NEEDED_BY_HISTORY]
    watched = {(kind.group, kind.plural) for kind in (*WATCHED, *HISTORY_KINDS)}
    assert {(right.group, right.resource) for right in needed if right.verb == "watch"} == watched
    assert watched <= {(right.group, right.resource) for right in needed if right.verb == "list"}


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
    fields = {"metadata.namespace": "elsewhere"}
    for variable in CONTAINER["env"]:
        value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        monkeypatch.setenv(variable["name"], value)
    settings = load_settings({}, config=None).settings
    (port,) = CONTAINER["ports"]
    assert (settings.probes_host, settings.probes_port) == ("0.0.0.0", port["containerPort"])  # noqa: S104 - in a pod
    assert settings.lease_namespace == "elsewhere"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == port["name"]


def test_the_command_line_accepts_the_arguments() -> None:
    command, _bound, _ignored = app.parse_args(CONTAINER["args"], exit_on_error=False, print_error=False)
    assert command.__name__ == "operator"


def test_the_image_is_a_placeholder_that_is_explained() -> None:
    assert KUSTOMIZATION["images"] == [{"name": CONTAINER["image"], "newName": "lapse", "newTag": "unset"}]
    page = (ROOT / "docs" / "how-to" / "on-your-cluster.md").read_text()
    assert "lapse:unset" in page
    assert "deploy/Containerfile" in page
    assert 'ENTRYPOINT ["lapse"]' in (DEPLOY / "Containerfile").read_text()


def test_the_source_distribution_has_it_too() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "deploy" in build["targets"]["sdist"]["include"]


def test_only_the_ports_of_the_pod_can_be_reached() -> None:
    policy = only("NetworkPolicy")["spec"]
    assert policy["podSelector"] == DEPLOYMENT["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule == {"ports": [{"port": port["name"], "protocol": "TCP"} for port in CONTAINER["ports"]]}
