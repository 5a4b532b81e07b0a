"""`lapse crds` and `deploy/base` on a control plane that has none of our definitions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from lapse.cli.commands.crds import all_definitions
from lapse.core.identity import uuid
from lapse.requests.api.kinds import definitions
from tests.servers import kube_server
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.resources import Json
    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
BASE = Path(__file__).parents[3] / "deploy" / "base"
NAMES = [one["metadata"]["name"] for one in all_definitions()]
KEEPERS = "objectkeepers.deckhouse.io"
ACCOUNT = "system:serviceaccount:lapse-system:lapse"


@pytest.fixture(scope="module")
def server() -> Iterator[KubeServer]:
    with kube_server(crds=()) as server:
        yield server


def lapse(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "lapse", "crds", *arguments],
        env=os.environ | {"KUBECONFIG": str(config), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def results(config: Path) -> dict[str, str]:
    done = lapse(config, "install", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return {row["definition"]: row["result"] for row in json.loads(done.stdout)["items"]}


def set_up(server: KubeServer) -> None:
    assert lapse(server.kubeconfig, "install").returncode == 0


def remove_all(server: KubeServer) -> None:
    server.kubectl("delete", "crd", "--ignore-not-found", "--wait=false", *NAMES)
    until(lambda: all_are_gone(server), seconds=150)


def all_are_gone(server: KubeServer) -> bool:
    """Look for what is left, and touch it: the server cleans up ever more seldom, and at once after a change."""
    left = [name for name in NAMES if f"/{name}" in server.kubectl("get", "crd", "-o", "name")]
    for name in left:
        with suppress(KubectlError):
            server.kubectl("annotate", "crd", name, "--overwrite", f"test.lapse.dev/touched={uuid()}")
    return not left


def test_what_is_missing_is_said_and_then_created_and_served(server: KubeServer) -> None:
    remove_all(server)
    missing = lapse(server.kubeconfig, "diff", "--detailed-exitcode")
    assert missing.returncode == 2
    assert [line.split() for line in missing.stdout.splitlines()[1:]] == [[name, "missing"] for name in NAMES]
    assert lapse(server.kubeconfig, "diff").returncode == 0

    assert results(server.kubeconfig) == dict.fromkeys(NAMES, "created")

    assert server.kubectl("get", "vcr,vrr,mcr,mcp,mcpchunk,objectkeepers", "-A") == ""
    same = lapse(server.kubeconfig, "diff", "--detailed-exitcode")
    assert (same.returncode, same.stdout) == (0, "")
    assert same.stderr == "Nothing differs: all 9 definitions are up to date.\n"
    assert results(server.kubeconfig) == dict.fromkeys(NAMES, "unchanged")


def test_what_somebody_changed_is_shown_and_repaired_and_his_labels_stay(server: KubeServer) -> None:
    set_up(server)
    changes = [
        {"op": "replace", "path": "/spec/versions/0/additionalPrinterColumns/0/name", "value": "How"},
        {"op": "add", "path": "/spec/names/shortNames", "value": ["ok"]},
        {"op": "add", "path": "/metadata/labels", "value": {"team": "storage"}},
    ]
    server.kubectl("patch", "crd", KEEPERS, "--type=json", "-p", json.dumps(changes))

    shown = lapse(server.kubeconfig, "diff", "--detailed-exitcode")
    assert shown.returncode == 2
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [
        [KEEPERS, "different", "spec.names.shortNames", '["ok"]', "-"],
        [KEEPERS, "different", "spec.versions[0].additionalPrinterColumns[0].name", '"How"', '"Mode"'],
    ]
    assert results(server.kubeconfig) == {**dict.fromkeys(NAMES, "unchanged"), KEEPERS: "updated"}

    assert lapse(server.kubeconfig, "diff", "--detailed-exitcode").returncode == 0
    found = json.loads(server.kubectl("get", "crd", KEEPERS, "-o", "json"))
    assert found["metadata"]["labels"] == {"team": "storage"}
    assert "shortNames" not in found["spec"]["names"]


def keeper_definition() -> Json:
    return next(one for one in definitions() if one["metadata"]["name"] == KEEPERS)


def test_a_definition_with_versions_of_its_own_is_left_alone(server: KubeServer) -> None:
    set_up(server)
    later = {**keeper_definition()["spec"]["versions"][0], "name": "v1", "storage": False}
    change = [{"op": "add", "path": "/spec/versions/-", "value": later}]
    server.kubectl("patch", "crd", KEEPERS, "--type=json", "-p", json.dumps(change))
    try:
        done = lapse(server.kubeconfig, "install")
        assert done.returncode == 1
        assert done.stderr.startswith(f"lapse: The cluster's {KEEPERS} has versions unknown here (v1),")
        assert len(done.stderr.splitlines()) == 1
        assert "unchanged" in done.stdout
        assert KEEPERS not in done.stdout
        found = json.loads(server.kubectl("get", "crd", KEEPERS, "-o", "json"))
        assert [version["name"] for version in found["spec"]["versions"]] == ["v1alpha1", "v1"]
    finally:
        server.kubectl("delete", "crd", KEEPERS)


def test_a_definition_that_is_being_deleted_is_no_success(server: KubeServer) -> None:
    set_up(server)
    held, free = ({"metadata": {"finalizers": some}} for some in (["test.lapse.dev/stay"], None))
    server.kubectl("patch", "crd", KEEPERS, "--type=merge", "-p", json.dumps(held))
    server.kubectl("delete", "crd", KEEPERS, "--wait=false")
    try:
        done = lapse(server.kubeconfig, "install")
        assert done.returncode == 1
        assert done.stderr == (
            f"lapse: The definition {KEEPERS} is stored but not served: it is being deleted."
            " Run this again when it is gone.\n"
        )
    finally:
        server.kubectl("patch", "crd", KEEPERS, "--type=merge", "-p", json.dumps(free))


def test_names_that_another_kind_has_are_an_error_at_once(server: KubeServer) -> None:
    remove_all(server)
    other = keeper_definition()
    other["metadata"]["name"] = "somethings.storage.deckhouse.io"
    other["spec"]["group"] = "storage.deckhouse.io"
    other["spec"]["names"] = {"kind": "Something", "plural": "somethings", "shortNames": ["vcr"]}
    server.kubectl("apply", "-f", "-", stdin=json.dumps(other))
    server.kubectl("wait", "--for=condition=Established", "crd/somethings.storage.deckhouse.io")
    try:
        done = lapse(server.kubeconfig, "install")
        assert done.returncode == 1
        assert done.stderr.startswith(
            "lapse: The definition volumecapturerequests.storage.deckhouse.io is stored but not served:"
        )
        assert '"vcr" is already in use' in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        server.kubectl("delete", "crd", "somethings.storage.deckhouse.io")
        remove_all(server)


def test_whoever_may_not_is_told_what_he_needs(server: KubeServer) -> None:
    for command, verbs in (("install", "get, create and patch"), ("diff", "get")):
        done = lapse(server.user_kubeconfig, command)
        assert (done.returncode, done.stdout) == (1, "")
        user = f"context tests of {server.user_kubeconfig}"
        assert done.stderr.startswith(f"lapse: The user of {user} may not do this on {server.url}: ")
        assert done.stderr.endswith(f"Ask for the rights {verbs} on customresourcedefinitions.\n")
        assert len(done.stderr.splitlines()) == 1


def test_what_is_printed_is_what_is_installed(server: KubeServer) -> None:
    printed = lapse(Path("/nowhere"), "print")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert list(yaml.safe_load_all(printed.stdout)) == all_definitions()
    server.kubectl("apply", "-f", "-", stdin=printed.stdout)
    assert results(server.kubeconfig) == dict.fromkeys(NAMES, "unchanged")


def test_the_base_applies_and_gives_the_operator_what_it_needs_and_no_more(server: KubeServer) -> None:
    remove_all(server)
    server.kubectl("create", "namespace", "lapse-system")  # a rehearsal stores nothing, so it must be there before
    rehearsed = server.kubectl("apply", "-k", str(BASE), "--dry-run=server")
    assert "deployment.apps/lapse created (server dry run)" in rehearsed
    server.kubectl("delete", "namespace", "lapse-system")

    server.kubectl("apply", "-k", str(BASE))

    image = "jsonpath={.spec.template.spec.containers[0].image}"
    assert server.kubectl("get", "deployment", "lapse", "-n", "lapse-system", "-o", image) == "lapse:unset"
    server.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in NAMES))
    assert results(server.kubeconfig) == dict.fromkeys(NAMES, "unchanged")
    assert may(server, "watch", "volumecapturerequests", group="storage.deckhouse.io")
    assert may(server, "patch", "objectkeepers", group="deckhouse.io", subresource="status")
    assert may(server, "create", "volumecapturerequests", group="storage.deckhouse.io")  # runs of schedules
    assert not may(server, "create", "volumerestorerequests", group="storage.deckhouse.io")
    assert may(server, "patch", "leases", group="coordination.k8s.io", namespace="lapse-system")
    assert not may(server, "patch", "leases", group="coordination.k8s.io", namespace="default")
    assert not may(server, "get", "secrets", namespace="lapse-system")
    assert not may(server, "delete", "persistentvolumes")


def may(server: KubeServer, verb: str, resource: str, *, group: str = "", namespace: str = "", **more: str) -> bool:
    asked = {"verb": verb, "resource": resource, "group": group, "namespace": namespace, **more}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": asked},
    }
    answer = server.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=json.dumps(review))
    return {"true": True, "false": False}[answer]
