"""``lapse history`` and ``lapse retention`` on a real control plane; within this process, which saves a second each."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lapse.cli import main
from lapse.domains import object_kinds
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from tests.conformance.objects.registry import unique
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import KubeServer

pytestmark = pytest.mark.timeout(180)
RECORDS = "chaosexperimenthistories"


class Printed(NamedTuple):
    """What a command wrote."""

    stdout: str
    stderr: str


@dataclass
class Cluster:
    """A namespace of its own for records and gate, and somebody who runs commands on it."""

    kube: KubeServer
    namespace: str
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *line: str, code: int = 0, user: bool = False, config: Path | None = None) -> Printed:
        config = config or (self.kube.user_kubeconfig if user else self.kube.kubeconfig)
        flags = [f"--kube-config={config}", f"--lease-namespace={self.namespace}"]
        flags += [f"--history-namespace={self.namespace}"] if line[0] == "history" else []
        found = main([*line, *flags])
        out, err = self.capsys.readouterr()
        assert found == code, (out, err)
        assert "Traceback" not in err
        return Printed(out, err)

    def json(self, *line: str, code: int = 0) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json", code=code).stdout)

    def record(self, *hours: int, experiment: str = "shop/kill", status: str = "success") -> list[str]:
        """Record runs that began at these hours; return the names of the records."""
        namespace, _, name = experiment.partition("/")
        specs = [
            {
                "experimentRef": {"name": name, "namespace": namespace, "uid": "u-1"},
                "execution": {"startTime": f"2026-01-31T{hour:02}:00:00Z", "status": status},
            }
            for hour in hours
        ]
        (self.folder / "runs.yaml").write_text("\n---\n".join(map(json.dumps, specs)))
        told = self.json("history", "record", "runs.yaml")
        return [one["name"] for one in told.get("items", [told])]

    def claim_of(self, record: str) -> str:
        """Make a claim that a record owns, held by hand: no owner has a note of it. Return its name."""
        meta = json.loads(self.kube.kubectl("get", RECORDS, record, "-n", self.namespace, "-o", "json"))["metadata"]
        owner = {
            "apiVersion": CHAOS_EXPERIMENT_HISTORY.api_version,
            "kind": CHAOS_EXPERIMENT_HISTORY.kind,
            "name": meta["name"],
            "uid": meta["uid"],
        }
        name = unique("data")
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "an audit"},
                "ownerReferences": [owner],
            },
            "spec": {
                "storageClassName": "",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Mi"}},
            },
        }
        self.kube.kubectl("create", "-f", "-", stdin=json.dumps(body))
        return name

    def release(self, claim: str) -> None:
        self.kube.kubectl("annotate", "pvc", claim, "-n", self.namespace, "lapse.dev/hold-", "lapse.dev/hold-reason-")

    def account(self, *rules: dict[str, Any]) -> Path:
        """Return the kubeconfig of an account that has just these rights, in all namespaces."""
        name, kubectl = unique("some"), self.kube.kubectl
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
        kubectl("create", "-f", "-", stdin=json.dumps({**role, "rules": rules}))
        kubectl("create", "serviceaccount", name, "-n", self.namespace)
        account = f"--serviceaccount={self.namespace}:{name}"
        kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
        config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
        token = kubectl("create", "token", name, "-n", self.namespace).strip()
        config["users"] = [{**one, "user": {"token": token}} for one in config["users"]]
        path = self.folder / "account.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def left(self, plural: str = RECORDS) -> set[str]:
        found = self.kube.kubectl("get", plural, "-n", self.namespace, "-o", "name").split()
        return {one.rpartition("/")[2] for one in found}

    def may(self, verb: str, *where: str) -> bool:
        """Whether the account for policies has a right on widgets."""
        account = f"--as=system:serviceaccount:{self.namespace}:lapse-retention"
        try:
            return self.kube.kubectl("auth", "can-i", verb, "widgets.test.lapse.dev", *where, account).strip() == "yes"
        except KubectlError:  # a plain no is a failure too
            return False

    def policy(self, name: str, *, kind: dict[str, str], **spec: Any) -> str:  # noqa: ANN401 - as in a document
        body = RETENTION_POLICY.body(
            {"metadata": {"name": name}, "spec": {"selector": {**kind, "namespaces": [self.namespace]}, **spec}}
        )
        (self.folder / f"{name}.json").write_text(json.dumps(body))
        return f"{name}.json"


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """Leave the log as it was: a command that ends something on a cluster writes its journal there."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def cluster(
    shared_kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cluster:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    namespace = unique("history")
    shared_kube.kubectl("create", "namespace", namespace)
    return Cluster(shared_kube, namespace, tmp_path, capsys)


def test_records_are_written_once_listed_shown_and_pruned(cluster: Cluster) -> None:
    names = cluster.record(1, 2, 3)
    assert cluster.record(1, 2, 3) == names
    other = cluster.record(1, experiment="bank/net", status="failure")
    shown = cluster.json("history", "show", names[0], "--history-retention-limit=2")
    assert shown["object"]["metadata"]["name"] == names[0]
    assert {one["name"] for one in cluster.json("history", "list")["items"]} == {*names, *other}
    assert [one["name"] for one in cluster.json("history", "list", "--status=failure")["items"]] == other

    line = ("history", "prune", "--history-retention-limit=2", "--yes")
    dry = cluster.json(*line, "--dry-run", "--detailed-exitcode", code=2)
    assert cluster.left() == {*names, *other}
    real = cluster.json(*line)

    assert [one["name"] for one in dry["items"]] == [one["name"] for one in real["items"]] == [names[0]]
    assert (dry["items"][0]["outcome"], real["items"][0]["outcome"]) == ("would_end", "ended")
    assert cluster.left() == {*names[1:], *other}


def prune(cluster: Cluster, _record: str, *, kept: bool) -> None:
    told = cluster.json("history", "prune", "--yes")
    assert [one["outcome"] for one in told["items"]] == ["held" if kept else "ended"]


def delete(cluster: Cluster, record: str, *, kept: bool) -> None:
    done = cluster.run("history", "delete", record, "--yes", code=1 if kept else 0)
    assert not kept or "is held (an audit)" in done.stderr


def run_policy(cluster: Cluster, _record: str, *, kept: bool) -> None:
    kind = {"apiVersion": CHAOS_EXPERIMENT_HISTORY.api_version, "kind": CHAOS_EXPERIMENT_HISTORY.kind}
    file = cluster.policy(unique("runs"), kind=kind, maxCount=1, dryRun=False)
    told = cluster.json("retention", "run", file)
    assert [one["outcome"] for one in told["items"]] == ["held" if kept else "ended"]


def apply(cluster: Cluster, _record: str, *, kept: bool) -> None:
    cluster.run("plan", "--domain=history", "--out=plan.json")
    cluster.run("apply", "plan.json", code=3 if kept else 0)


@pytest.mark.parametrize("end", [prune, delete, run_policy, apply])
def test_a_record_stays_while_a_claim_that_it_owns_is_held(
    cluster: Cluster,
    end: Any,  # noqa: ANN401 - a command
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAPSE_HISTORY_NAMESPACE", cluster.namespace)
    monkeypatch.setenv("LAPSE_HISTORY_RETENTION_LIMIT", "1")
    names = cluster.record(1, 2)
    claim = cluster.claim_of(names[0])

    end(cluster, names[0], kept=True)
    assert cluster.left() == set(names)
    assert cluster.left("pvc") == {claim}
    cluster.release(claim)
    end(cluster, names[0], kept=False)
    assert cluster.left() == {names[1]}


@pytest.mark.parametrize("trash", ["7d", "never"])
def test_a_record_stays_while_a_kind_that_it_may_own_cannot_be_listed(
    cluster: Cluster, trash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_TRASH_TTL", trash)
    names = cluster.record(1, 2)
    config = cluster.account(
        {"apiGroups": sorted({one.group for one in object_kinds()} - {""}), "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps", "persistentvolumes"], "verbs": ["*"]},
    )
    done = cluster.run("history", "prune", "--history-retention-limit=1", "--yes", code=1, config=config)

    assert "persistentvolumeclaims" in done.stdout + done.stderr
    assert cluster.left() == set(names)


def test_what_is_ended_by_a_command_is_in_the_log_as_the_journal_of_a_cluster_is(cluster: Cluster) -> None:
    cluster.record(1, 2)
    done = cluster.run("history", "prune", "--history-retention-limit=1", "--yes")

    assert done.stderr.count("journal") >= 2
    assert "admin" in done.stderr, "the user of the cluster has done it"


def test_a_policy_of_a_file_passes_over_any_kind(cluster: Cluster) -> None:
    for name, phase in (("a", "done"), ("b", "done"), ("c", "busy")):
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": cluster.namespace, "annotations": {"at": "2026-01-31T12:00:00Z"}},
            "data": {"phase": phase},
        }
        cluster.kube.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    file = cluster.policy(
        unique("maps"),
        kind={"apiVersion": "v1", "kind": "ConfigMap"},
        maxAge="1h",
        ageFrom="metadata.annotations['at']",
        onlyWhen=[{"fieldPath": "data.phase", "in": ["done"]}],
        dryRun=False,
    )
    dry = cluster.json("retention", "run", file, "--dry-run")
    assert {"a", "b", "c"} <= cluster.left("configmaps")
    real = cluster.json("retention", "run", file)

    assert [one["address"] for one in dry["items"]] == [one["address"] for one in real["items"]]
    assert [one["address"] for one in real["items"]] == [f"ConfigMap/{cluster.namespace}/{name}" for name in "ab"]
    assert {"a", "b", "c"} & cluster.left("configmaps") == {"c"}


def test_nothing_goes_while_history_is_frozen_on_the_cluster(cluster: Cluster) -> None:
    names = cluster.record(1, 2)
    cluster.run("freeze", "history")
    done = cluster.run("history", "prune", "--history-retention-limit=1", "--yes", code=3)

    assert "must wait until lapse resume" in done.stderr
    assert cluster.left() == set(names)
    cluster.run("resume", "history")
    cluster.run("history", "prune", "--history-retention-limit=1", "--yes")
    assert cluster.left() == {names[1]}


def test_the_roles_that_are_printed_are_what_the_operator_lacked(cluster: Cluster) -> None:
    widgets = cluster.policy(unique("w"), kind={"apiVersion": "test.lapse.dev/v1", "kind": "Widget"}, maxAge="1h")
    printed = cluster.run("retention", "rbac", widgets).stdout

    assert "guess" not in printed
    assert not cluster.may("delete", "-n", cluster.namespace)
    cluster.kube.kubectl("apply", "-f", "-", stdin=printed)
    assert until(lambda: cluster.may("delete", "-n", cluster.namespace))
    assert cluster.may("list", "-n", cluster.namespace)
    assert not cluster.may("list", "-A")
    assert not cluster.may("patch", "-n", cluster.namespace)


def test_a_namespace_that_is_missing_is_named(cluster: Cluster) -> None:
    names, nowhere = cluster.record(1, 2), unique("nowhere")
    line = ["--experiment=a/b", "--status=success", "--start=2026-01-31T12:00:00Z"]
    config = f"--kube-config={cluster.kube.kubeconfig}"

    assert main(["history", "record", *line, f"--history-namespace={nowhere}", config]) == 1
    assert f"run kubectl create namespace {nowhere}" in cluster.capsys.readouterr().err
    line = ["--history-retention-limit=1", f"--history-namespace={cluster.namespace}", f"--lease-namespace={nowhere}"]
    assert main(["history", "prune", "--yes", *line, config]) == 3, "it is not known there that the policy has acted"
    assert "lapse resume --policy history" in cluster.capsys.readouterr().err
    assert main(["resume", "--policy", "history", "--cluster", line[-1], config]) != 0
    assert f"run kubectl create namespace {nowhere}" in cluster.capsys.readouterr().err
    assert cluster.left() == set(names)


@pytest.mark.parametrize(
    ("line", "right"),
    [
        (("history", "list"), "list on retentionpolicies"),
        (("history", "show", "x"), f"get and list on {RECORDS}"),
        (
            ("history", "record", "--experiment=a/b", "--status=success", "--start=2026-01-31T12:00:00Z"),
            "create and get",
        ),
        (("history", "prune"), f"list and delete on {RECORDS}"),
        (("retention", "list"), "list on retentionpolicies"),
    ],
    ids=str,
)
def test_a_right_that_is_missing_is_one_line(cluster: Cluster, line: tuple[str, ...], right: str) -> None:
    done = cluster.run(*line, code=1, user=True)

    assert done.stdout == ""
    assert right in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_kind_and_a_record_that_is_not_there_are_said(cluster: Cluster) -> None:
    file = cluster.policy(unique("p"), kind={"apiVersion": "example.org/v1", "kind": "Frob"}, maxAge="1h")

    assert "does not know the kind Frob of example.org/v1" in cluster.run("retention", "run", file, code=1).stderr
    assert "does not know the kind Frob of example.org/v1" in cluster.run("retention", "rbac", file, code=1).stderr
    assert f"There is no record {cluster.namespace}/x" in cluster.run("history", "show", "x", code=1).stderr
    assert CHAOS_EXPERIMENT_HISTORY.plural == RECORDS
