"""Retention by a real operator on a control plane of its own, with the rights of `deploy/base` and those given here.

Creation times are the API server's, so nothing here is old by them: counts, and ages from a field of ours.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.records import record
from tests.integration.operator.deployed import NAMESPACE, POLICIES_ACCOUNT, apply_base, start_operator
from tests.integration.operator.own import log_events
from tests.servers import kube_server
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.operator.conftest import Operator
    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
RECORDS = "chaos-system"
MADE_AT = "example.org/made-at"
LONG_AGO, FAR_OFF = "2020-01-01T00:00:00Z", "2199-01-01T00:00:00Z"
OFTEN = ("--retention-interval=1s", "--history-retention-limit=3", "--trash-ttl=never")


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server(csi=True) as server:
        apply_base(server)
        server.kubectl("create", "namespace", RECORDS)
        yield server


@contextmanager
def operating(kube: KubeServer, folder: Path, *flags: str) -> Iterator[Operator]:
    """Run one operator; one that stayed would lead for ever."""
    running = start_operator(kube, folder, *flags)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def operator(kube: KubeServer, tmp_path: Path) -> Iterator[Operator]:
    """One that passes every second."""
    with operating(kube, tmp_path, *OFTEN, "--history-ttl=720h") as running:
        yield running


# --- steps ------------------------------------------------------------------------------------------------------------


def apply(kube: KubeServer, manifest: Json) -> None:
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def record_run(kube: KubeServer, experiment: str, number: int) -> str:
    ref = ExperimentRef(name=experiment, namespace="shop", uid=f"u-{experiment}")
    execution = Execution(start_time=f"2030-01-01T00:00:{number:02}Z", status="success")
    made = record(HistorySpec(experiment_ref=ref, execution=execution), namespace=RECORDS)
    kube.kubectl("create", "-f", "-", stdin=json.dumps(CHAOS_EXPERIMENT_HISTORY.body(made)))
    return made.metadata.name


def records(kube: KubeServer, experiment: str) -> list[str]:
    return names(kube, "cehist", RECORDS, f"lapse.dev/experiment-name={experiment}")


def names(kube: KubeServer, what: str, namespace: str, label: str) -> list[str]:
    found = kube.kubectl("get", what, "-n", namespace, "-l", label, "-o", "jsonpath={.items[*].metadata.name}")
    return sorted(found.split())


def make_policy(kube: KubeServer, name: str, **spec: Any) -> None:  # noqa: ANN401 - any field
    selector = {"apiVersion": "v1", "kind": "ConfigMap", **spec.pop("selector", {})}
    body = {"selector": selector, "dryRun": False, **spec}
    apply(
        kube,
        {"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", "metadata": {"name": name}, "spec": body},
    )


def status(kube: KubeServer, name: str) -> Json:
    text = kube.kubectl("get", "retentionpolicy", name, "--ignore-not-found", "-o", "json")
    found: Json = json.loads(text or "{}").get("status", {})
    return found


def reason(kube: KubeServer, name: str) -> str:
    conditions = status(kube, name).get("conditions", [{"reason": "none"}])
    return str(conditions[0]["reason"])


def passed_again(kube: KubeServer, name: str) -> None:
    """Wait for a pass that begins after now."""
    before = status(kube, name).get("lastRun")
    until(lambda: status(kube, name).get("lastRun") not in {None, before})


def give(kube: KubeServer, role: str, resource: str) -> None:
    """Give what a policy on that kind needs, as ``lapse retention rbac`` prints it."""
    kube.kubectl("create", "clusterrole", role, "--verb=list,delete", f"--resource={resource}")
    bind(kube, role)


def bind(kube: KubeServer, role: str) -> None:
    account = f"--serviceaccount={NAMESPACE}:{POLICIES_ACCOUNT}"
    kube.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)


def make_config(kube: KubeServer, name: str, namespace: str, label: str, **annotations: str) -> None:
    meta = {"name": name, "namespace": namespace, "labels": {"app": label}, "annotations": annotations}
    apply(kube, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_are_told_about_first_and_then_the_newest_of_each_experiment_stay(
    kube: KubeServer, tmp_path: Path
) -> None:
    many = [record_run(kube, "often", number) for number in range(5)]
    few = [record_run(kube, "seldom", number) for number in range(2)]

    with operating(kube, tmp_path, "--history-retention-limit=3") as first:
        until(lambda: reason(kube, "history") == "Completed")
    assert status(kube, "history")["dryRun"] is True
    assert status(kube, "history")["deleted"] == {"retention_limit": 2}
    assert [event["would_delete"] for event in log_events(first, "first_pass_was_dry")] == [{"retention_limit": 2}]
    assert records(kube, "often") == many

    with operating(kube, tmp_path, *OFTEN) as second:
        until(lambda: len(records(kube, "often")) == 3)
        until(lambda: status(kube, "history")["dryRun"] is False)
        # Of records of one second the greater name is the newer one, and names grow with the time of the run.
        assert records(kube, "often") == many[2:]
        assert records(kube, "seldom") == few
        assert second.metric('lapse_deletions_total{domain="history",reason="retention_limit"}') == 2
    found = json.loads(kube.kubectl("get", "retentionpolicy", "history", "-o", "json"))
    assert found["metadata"]["labels"] == {"lapse.dev/from": "settings"}


def test_a_completion_is_noticed_without_waiting_for_the_hour(kube: KubeServer, tmp_path: Path) -> None:
    flags = ("--history-retention-limit=3", "--history-ttl=720h")
    with operating(kube, tmp_path, *flags) as operator:
        until(lambda: operator.metric('lapse_loop_last_success_timestamp_seconds{loop="retention"}') > 0)
        made: list[str] = []
        while len(made) < 30:  # the watch may begin a moment after the first pass
            made.append(record_run(kube, "quick", len(made)))
            if len(made) > 3 and len(records(kube, "quick")) <= 3:
                break
        until(lambda: records(kube, "quick") == made[-3:])


# --- any kind ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("operator")
def test_a_policy_waits_for_its_rights_and_then_deletes_what_is_old_by_a_field_of_its_own(kube: KubeServer) -> None:
    kube.kubectl("create", "namespace", "shop")
    for place in ("shop", "kube-system", NAMESPACE):
        make_config(kube, "old", place, "aged", **{MADE_AT: LONG_AGO})
    make_config(kube, "young", "shop", "aged", **{MADE_AT: FAR_OFF})
    make_config(kube, "odd", "shop", "aged", **{MADE_AT: "yesterday"})
    make_config(kube, "bare", "shop", "aged")
    make_config(kube, "held", "shop", "aged", **{MADE_AT: LONG_AGO, "lapse.dev/hold": "true"})
    make_policy(
        kube,
        "aged",
        selector={"labels": {"app": "aged"}},
        maxAge="1h",
        ageFrom=f"metadata.annotations['{MADE_AT}']",
    )
    until(lambda: reason(kube, "aged") == "Forbidden")
    said = status(kube, "aged")["conditions"][0]["message"]
    assert 'lapse-retention" cannot list resource "configmaps"' in said
    assert "lapse retention rbac" in said
    passed_again(kube, "history")
    assert "old" in names(kube, "configmap", "shop", "app=aged")

    give(kube, "aged-configmaps", "configmaps")
    until(lambda: "old" not in names(kube, "configmap", "shop", "app=aged"))
    assert names(kube, "configmap", "shop", "app=aged") == ["bare", "held", "odd", "young"]
    for place in ("kube-system", NAMESPACE):
        assert names(kube, "configmap", place, "app=aged") == ["old"]
    until(lambda: reason(kube, "aged") == "Completed")
    passed_again(kube, "aged")
    found = status(kube, "aged")
    assert (found["matched"], found["deleted"]) == (4, {})
    assert found["kept"] == {"missing_anchor": 2, "held": 1, "not_yet": 1}
    kube.kubectl("delete", "retentionpolicy", "aged")


@pytest.mark.usefixtures("operator")
def test_broken_policies_and_unknown_kinds_say_so_and_the_others_go_on(kube: KubeServer) -> None:
    make_policy(kube, "bad-path", ageFrom="metadata..x", maxAge="1h")
    make_policy(kube, "too-early", selector={"apiVersion": "example.org/v1", "kind": "Gizmo"}, maxCount=1)
    until(lambda: reason(kube, "bad-path") == "InvalidPolicy")
    until(lambda: reason(kube, "too-early") == "UnknownKind")
    assert "spec.ageFrom" in status(kube, "bad-path")["conditions"][0]["message"]
    passed_again(kube, "history")
    assert reason(kube, "history") == "Completed"

    apply(kube, definition_of_gizmos())
    kube.kubectl("wait", "crd/gizmos.example.org", "--for=condition=Established", "--timeout=50s")
    give(kube, "gizmos", "gizmos.example.org")
    until(lambda: reason(kube, "too-early") == "Completed")
    for name in ("a", "b"):
        apply(kube, {"apiVersion": "example.org/v1", "kind": "Gizmo", "metadata": {"name": name}})
    until(lambda: len(kube.kubectl("get", "gizmos", "-o", "name").split()) == 1)
    kube.kubectl("delete", "retentionpolicy", "bad-path", "too-early")


def definition_of_gizmos() -> Json:
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gizmos.example.org"},
        "spec": {
            "group": "example.org",
            "names": {"kind": "Gizmo", "plural": "gizmos"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_who_may_list_and_not_delete_is_told_and_nothing_goes(kube: KubeServer, operator: Operator) -> None:
    kube.kubectl("create", "clusterrole", "list-accounts", "--verb=list", "--resource=serviceaccounts")
    bind(kube, "list-accounts")
    for name in ("one", "two"):
        meta = {"name": name, "namespace": "default", "labels": {"app": "spare"}}
        apply(kube, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    make_policy(kube, "accounts", selector={"kind": "ServiceAccount", "labels": {"app": "spare"}}, maxCount=1)
    until(lambda: reason(kube, "accounts") == "Forbidden")

    assert "could not be deleted" in status(kube, "accounts")["conditions"][0]["message"]
    passed_again(kube, "accounts")
    assert names(kube, "serviceaccount", "default", "app=spare") == ["one", "two"]
    warned = [event for event in log_events(operator, "policy_failed") if event["level"] == "warning"]
    assert [event["policy"] for event in warned] == ["accounts"]
    kube.kubectl("delete", "retentionpolicy", "accounts")


# --- a tenant with one right ------------------------------------------------------------------------------------------


def grant(kube: KubeServer, role: str, user: str, *rule: str) -> None:
    kube.kubectl("create", "clusterrole", role, *rule)
    kube.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--user={user}")


@pytest.mark.usefixtures("operator")
def test_whoever_may_create_policies_and_nothing_else_deletes_nothing_of_others(kube: KubeServer) -> None:
    grant(kube, "write-policies", "mallory", "--verb=create,patch,get", "--resource=retentionpolicies.lapse.dev")
    kube.kubectl("create", "namespace", "victim")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": ""}
    meta = {"name": "data", "namespace": "victim", "annotations": {MADE_AT: LONG_AGO}}
    apply(kube, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim})
    keeper = {"mode": "TTL", "ttl": "1000h"}
    meta = {"name": "backup", "annotations": {MADE_AT: LONG_AGO}}
    apply(kube, {"apiVersion": "deckhouse.io/v1alpha1", "kind": "ObjectKeeper", "metadata": meta, "spec": keeper})

    for name, version, kind in (
        ("claims", "v1", "PersistentVolumeClaim"),
        ("volumes", "v1", "PersistentVolume"),
        ("keepers", "deckhouse.io/v1alpha1", "ObjectKeeper"),
        ("captures", "storage.deckhouse.io/v1alpha1", "VolumeCaptureRequest"),
    ):
        selector = {"apiVersion": version, "kind": kind}
        spec = {
            "selector": selector,
            "maxAge": "1h",
            "ageFrom": f"metadata.annotations['{MADE_AT}']",
            "dryRun": False,
        }
        body = {"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", "metadata": {"name": name}}
        kube.kubectl("create", "-f", "-", "--as=mallory", stdin=json.dumps({**body, "spec": spec}))
        until(partial(is_forbidden, kube, name))
        assert "lapse retention rbac" in status(kube, name)["conditions"][0]["message"]
    passed_again(kube, "history")
    left = json.loads(kube.kubectl("get", "pvc", "data", "-n", "victim", "-o", "json"))
    assert "deletionTimestamp" not in left["metadata"]
    assert kube.kubectl("get", "objectkeeper", "backup", "-o", "name")

    # With the role that an administrator grants, and with no other, it deletes.
    give(kube, "delete-claims", "persistentvolumeclaims")
    until(lambda: not kube.kubectl("get", "pvc", "data", "-n", "victim", "--ignore-not-found", "-o", "name"))
    assert kube.kubectl("get", "objectkeeper", "backup", "-o", "name")
    kube.kubectl("delete", "retentionpolicy", "claims", "volumes", "keepers", "captures")


def patch_rules(kube: KubeServer, rules: list[Json]) -> None:
    kube.kubectl("patch", "role", "lapse", "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"rules": rules}))


def test_an_operator_that_may_not_act_as_the_account_says_so_and_deletes_nothing(
    kube: KubeServer, operator: Operator
) -> None:
    until(lambda: reason(kube, "history") == "Completed")
    rules = json.loads(kube.kubectl("get", "role", "lapse", "-n", NAMESPACE, "-o", "json"))["rules"]
    patch_rules(kube, [rule for rule in rules if "impersonate" not in rule["verbs"]])
    try:
        many = [record_run(kube, "unreachable", number) for number in range(5)]
        until(lambda: reason(kube, "history") == "Forbidden")
        said = status(kube, "history")["conditions"][0]["message"]
        assert "cannot impersonate resource" in said
        assert "lapse retention rbac" in said
        assert records(kube, "unreachable") == many
    finally:
        patch_rules(kube, rules)
    until(lambda: len(records(kube, "unreachable")) == 3)
    assert operator.metric('lapse_errors_total{domain="history",kind="policy"}') >= 1


def is_forbidden(kube: KubeServer, policy: str) -> bool:
    return bool(reason(kube, policy) == "Forbidden")
