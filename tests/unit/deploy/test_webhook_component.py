"""The component with the admission webhook: complete, closed, and with one right only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lapse.cli import app
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.requests.admission import REVIEWING
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, REQUEST_KINDS
from lapse.settings import load_settings
from lapse.web.api.webhook import POLICIES, REQUESTS

DEPLOY = Path(__file__).parents[3] / "deploy"
FOLDER = DEPLOY / "components" / "webhook"
LABEL = "app.kubernetes.io/name"
NAME, NAMESPACE = "lapse-webhook", "lapse-system"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


FILES = sorted(file.name for file in FOLDER.iterdir() if file.name != "kustomization.yaml")
OBJECTS = {one["kind"]: one for name in FILES for one in documents(FOLDER / name)}
_ISSUER, ISSUED = documents(DEPLOY / "components" / "webhook-cert-manager" / "certificate.yaml")
REQUEST_HOOK, POLICY_HOOK = OBJECTS["ValidatingWebhookConfiguration"]["webhooks"]
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
(OPERATOR,) = documents(DEPLOY / "base" / "deployment.yaml")
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}


def test_it_is_a_component_that_lists_every_file() -> None:
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    assert kustomization["kind"] == "Component"
    assert sorted(kustomization["resources"]) == FILES


@pytest.mark.parametrize("one", OBJECTS.values(), ids=OBJECTS)
def test_names_labels_and_namespaces_are_the_same_everywhere(one: dict[str, Any]) -> None:
    meta = one["metadata"]
    assert (meta["name"], meta["labels"][LABEL]) == (NAME, NAME)
    cluster_wide = one["kind"].startswith("Cluster") or one["kind"].startswith("Validating")
    assert meta.get("namespace") == (None if cluster_wide else NAMESPACE)


def test_the_api_server_asks_about_the_creation_of_every_request_and_takes_only_a_yes_for_one() -> None:
    judged = {
        (group, version, resource)
        for rule in REQUEST_HOOK["rules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for resource in rule["resources"]
    }
    kinds = (*REQUEST_KINDS, CAPTURE_SCHEDULE)
    assert judged == {(kind.group, kind.api_version.rpartition("/")[2], kind.plural) for kind in kinds}
    assert {rule["scope"] for rule in REQUEST_HOOK["rules"]} == {"Namespaced"}
    changes = [rule["resources"] for rule in REQUEST_HOOK["rules"] if rule["operations"] != ["CREATE"]]
    assert changes == [[CAPTURE_SCHEDULE.plural]]
    assert REQUEST_HOOK["rules"][-1]["operations"] == ["CREATE", "UPDATE"]
    demand_a_clear_yes(REQUEST_HOOK)


def test_the_api_server_asks_about_every_write_of_a_policy_and_takes_only_a_yes_for_one() -> None:
    kind = RETENTION_POLICY
    (rule,) = POLICY_HOOK["rules"]
    assert rule == {
        "apiGroups": [kind.group],
        "apiVersions": [kind.api_version.rpartition("/")[2]],
        "resources": [kind.plural],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Cluster",
    }
    demand_a_clear_yes(POLICY_HOOK)


def demand_a_clear_yes(hook: dict[str, Any]) -> None:
    assert (hook["failurePolicy"], hook["matchPolicy"], hook["sideEffects"]) == ("Fail", "Equivalent", "None")
    assert hook["admissionReviewVersions"] == ["v1"]
    assert not hook.keys() & {"namespaceSelector", "objectSelector", "matchConditions"}, "nobody is left out"


@pytest.mark.parametrize(
    ("hook", "path"), [(REQUEST_HOOK, REQUESTS), (POLICY_HOOK, POLICIES)], ids=[REQUESTS, POLICIES]
)
def test_the_api_server_finds_the_pods(hook: dict[str, Any], path: str) -> None:
    service, target = OBJECTS["Service"], hook["clientConfig"]["service"]
    (port,) = service["spec"]["ports"]
    assert target == {"name": NAME, "namespace": NAMESPACE, "path": path, "port": port["port"]}
    assert port["targetPort"] in PORTS
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        service["spec"]["selector"],
        OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"],
        OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= OPERATOR["spec"]["template"]["metadata"]["labels"].items()
    assert not OPERATOR["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_certificate_is_for_the_name_that_the_api_server_calls_and_mounted_where_the_webhook_looks() -> None:
    assert f"{NAME}.{NAMESPACE}.svc" in ISSUED["spec"]["dnsNames"]
    meta = ISSUED["metadata"]
    annotations = OBJECTS["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{meta['namespace']}/{meta['name']}"
    (volume,) = [one for one in POD["volumes"] if "secret" in one]
    assert volume["secret"]["secretName"] == ISSUED["spec"]["secretName"]
    (mount,) = [one for one in CONTAINER["volumeMounts"] if one["name"] == volume["name"]]
    assert "subPath" not in mount
    variables = {one["name"]: one.get("value") for one in CONTAINER["env"]}
    assert variables["LAPSE_WEBHOOK_CERT_FILE"] == f"{mount['mountPath']}/tls.crt"
    assert variables["LAPSE_WEBHOOK_KEY_FILE"] == f"{mount['mountPath']}/tls.key"


def test_its_one_right_is_the_one_that_the_code_needs() -> None:
    given = [
        (verb, group, resource)
        for rule in OBJECTS["ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert given == [(right.verb, right.group, right.resource) for right in REVIEWING]
    binding = OBJECTS["ClusterRoleBinding"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("ClusterRole", NAME)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    assert POD["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]


def test_the_pods_are_as_closed_as_those_of_the_operator_and_there_are_two() -> None:
    pod = OPERATOR["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert POD["securityContext"] == pod["securityContext"]
    assert CONTAINER["securityContext"] == container["securityContext"]
    assert CONTAINER["image"] == f"{container['image']}:unset"
    assert OBJECTS["Deployment"]["spec"]["replicas"] == 2
    assert OBJECTS["PodDisruptionBudget"]["spec"]["minAvailable"] == 1


def test_the_settings_in_the_environment_are_valid_and_the_ports_are_where_others_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAPSE_CONFIG", raising=False)
    for variable in CONTAINER["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value") or "elsewhere")
    settings = load_settings({}, config=None).settings
    assert settings.lease_namespace == "elsewhere"
    assert (settings.webhook_host, settings.webhook_port) == ("0.0.0.0", PORTS["webhook"])  # noqa: S104 - in a pod
    assert (settings.probes_host, settings.probes_port) == ("0.0.0.0", PORTS["probes"])  # noqa: S104 - in a pod
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == "probes"
    command, _bound, _ignored = app.parse_args(CONTAINER["args"], exit_on_error=False, print_error=False)
    assert command.__name__ == "webhook"


def test_only_the_ports_of_the_pod_can_be_reached() -> None:
    policy = OBJECTS["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == OBJECTS["Deployment"]["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule == {"ports": [{"port": name, "protocol": "TCP"} for name in PORTS]}
