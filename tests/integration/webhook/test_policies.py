"""``lapse webhook`` asked by a real API server about policies: people select what they may list and delete, no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.webhook.conftest import Webhook, binding, ca_bundle, component, place_certificate
from tests.servers import kube_server
from tests.servers.certificate import make_authority
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import KubeServer

pytestmark = pytest.mark.server("kube", private=True)
DEPLOY = Path(__file__).parents[3] / "deploy"
OPERATOR = "system:serviceaccount:lapse-system:lapse"
DENIED = 'admission webhook "retention-policies.lapse.dev" denied the request'


class Cluster:
    """A control plane of one's own that asks a webhook about policies."""

    def __init__(self, kube: KubeServer, webhook: Webhook) -> None:
        self.kube, self.webhook = kube, webhook

    def apply(self, *objects: dict[str, Any]) -> None:
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kube.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(everything))

    def allow(self, user: str, role: str, *rule: str, namespace: str | None = None) -> None:
        """Give a user a role, everywhere or in one namespace."""
        kind = "clusterrole" if namespace is None else "role"
        place = () if namespace is None else ("-n", namespace)
        self.kube.kubectl("create", kind, role, *rule, *place)
        self.kube.kubectl("create", f"{kind}binding", role, f"--{kind}={role}", f"--user={user}", *place)

    def write(self, name: str, user: str, kind: str = "PersistentVolumeClaim", **spec: Any) -> str:  # noqa: ANN401 - any field
        """Apply a policy as a user; return what kubectl complains of, nothing when it was stored."""
        selector = {"apiVersion": "v1", "kind": kind, "namespaces": spec.pop("namespaces", [])}
        body = {
            "apiVersion": "lapse.dev/v1alpha1",
            "kind": "RetentionPolicy",
            "metadata": {"name": name},
            "spec": {"selector": selector, "maxAge": "1h", **spec},
        }
        try:
            self.kube.kubectl("apply", "-f", "-", f"--as={user}", stdin=json.dumps(body))
        except KubectlError as error:
            return str(error)
        return ""

    def policies(self) -> list[str]:
        return sorted(self.kube.kubectl("get", "retentionpolicies", "-o", "jsonpath={.items[*].metadata.name}").split())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("policies")
    authority = make_authority(folder / "authority", tell_stderr)
    place_certificate(authority, "loopback", folder)
    with kube_server() as kube:
        kube.kubectl("apply", "--server-side", "-k", str(DEPLOY / "base"))
        webhook = Webhook.launch(folder, f"--kube-config={kube.kubeconfig}")
        try:
            made = Cluster(kube, webhook)
            (configuration,) = component("webhook-configuration.yaml")
            _requests, hook = configuration["webhooks"]
            url = str((webhook.event("listening") or {})["policies"])
            hook |= {"clientConfig": {"url": url, "caBundle": ca_bundle(authority)}, "timeoutSeconds": 30}
            made.apply({**configuration, "webhooks": [hook]})
            for user in ("jane", "mallory"):
                role = f"{user}-writes"
                made.allow(user, role, "--verb=create,get,patch", "--resource=retentionpolicies.lapse.dev")
            until(lambda: DENIED in made.write("probe", "mallory"))
            yield made
        finally:
            webhook.stop()


def test_an_author_who_may_not_delete_what_a_policy_selects_stores_none(cluster: Cluster) -> None:
    said = cluster.write("everything", "mallory", dryRun=False)
    assert DENIED in said
    assert "mallory may not list persistentvolumeclaims in the whole cluster" in said
    for kind in ("PersistentVolume", "Namespace", "Secret"):
        assert DENIED in cluster.write("everything", "mallory", kind)
    assert "everything" not in cluster.policies()


def test_an_author_stores_a_policy_about_the_namespaces_in_which_they_may_list_and_delete(cluster: Cluster) -> None:
    cluster.kube.kubectl("create", "namespace", "shop")
    rule = ("--verb=list,delete", "--resource=persistentvolumeclaims")
    cluster.allow("jane", "jane-deletes", *rule, namespace="shop")

    until(lambda: cluster.write("of-shop", "jane", namespaces=["shop"]) == "")
    said = cluster.write("of-more", "jane", namespaces=["shop", "default"])
    assert "jane may not list persistentvolumeclaims in default, delete" in said
    assert DENIED in cluster.write("of-all", "jane")
    assert "of-shop" in cluster.policies()
    assert not {"of-more", "of-all"} & set(cluster.policies())


def test_a_policy_of_another_is_not_widened_or_made_live_without_the_right(cluster: Cluster) -> None:
    cluster.kube.kubectl("create", "namespace", "bank")
    rule = ("--verb=list,delete", "--resource=persistentvolumeclaims")
    cluster.allow("jane", "jane-deletes-too", *rule, namespace="bank")
    until(lambda: cluster.write("of-bank", "jane", namespaces=["bank"]) == "")

    assert DENIED in cluster.write("of-bank", "mallory", namespaces=["bank"], dryRun=False)
    assert DENIED in cluster.write("of-bank", "mallory", namespaces=[])
    found = json.loads(cluster.kube.kubectl("get", "retentionpolicy", "of-bank", "-o", "json"))["spec"]
    assert (found["selector"]["namespaces"], found.get("dryRun", True)) == (["bank"], True)

    # What says nothing about what is deleted needs no right to delete.
    cluster.kube.kubectl("annotate", "retentionpolicy", "of-bank", "note=hello", "--as=mallory")
    assert cluster.write("of-bank", "jane", namespaces=["bank"], dryRun=False) == ""


def test_the_operator_publishes_the_policy_of_the_history_by_its_right_to_act_for_policies(cluster: Cluster) -> None:
    cluster.apply(
        binding(
            "ClusterRoleBinding",
            "nothing-but-policies",
            "ClusterRole",
            "mallory-writes",
            {"kind": "User", "name": OPERATOR},
        )
    )
    assert cluster.write("history", OPERATOR) == ""
    assert "history" in cluster.policies()
