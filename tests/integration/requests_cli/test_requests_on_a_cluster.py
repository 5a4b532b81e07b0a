"""``lapse requests`` on a real API server: by its administrator, and by somebody who may capture in one namespace."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main
from lapse.core.identity import uuid
from tests.integration.requests_cli.test_schedules_on_a_cluster import ROLES
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import KubeServer

pytestmark = pytest.mark.timeout(180)
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}


@dataclass
class Person:
    """Somebody with a kubeconfig."""

    kubeconfig: Path
    namespace: str
    capsys: pytest.CaptureFixture[str]

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        found = main(["requests", *line, f"--kube-config={self.kubeconfig}", f"--namespace={self.namespace}"])
        out, err = self.capsys.readouterr()
        assert found == code, (out, err)
        return out, " ".join(err.split())

    def json(self, *line: str) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json")[0])


@pytest.fixture
def admin(
    shared_kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    namespace = f"requests-{uuid()}"
    shared_kube.kubectl("create", "namespace", namespace)
    (tmp_path / "claim.json").write_text(json.dumps(CLAIM))
    shared_kube.kubectl("apply", "-n", namespace, "-f", str(tmp_path / "claim.json"))
    return Person(shared_kube.kubeconfig, namespace, capsys)


@pytest.fixture
def capturer(admin: Person, shared_kube: KubeServer) -> Person:
    shared_kube.kubectl("apply", "-f", str(ROLES / "capturer.yaml"))
    binding = ("create", "rolebinding", "capturer", "--clusterrole=lapse-capturer", f"--user={shared_kube.user}")
    shared_kube.kubectl(*binding, "-n", admin.namespace)

    def noticed() -> bool:
        try:
            shared_kube.kubectl("auth", "can-i", "create", "vcr", "-n", admin.namespace, user=True)
        except KubectlError:
            return False
        return True

    until(noticed)
    return replace(admin, kubeconfig=shared_kube.user_kubeconfig)


def test_a_capture_is_asked_for_listed_shown_and_deleted_on_a_cluster(admin: Person) -> None:
    address = f"vcr/{admin.namespace}/nightly"
    assert admin.run("capture", "nightly", "--claim", "data")[0].startswith(f"Created: {address}. ")
    (listed,) = admin.json("list", "requests")["items"]
    shown = admin.json("show", "nightly")

    assert listed == {name: value for name, value in shown.items() if name != "object"}
    assert shown["object"]["spec"]["target"]["name"] == "data"
    assert address in admin.run("show", address)[0]
    assert admin.run("delete", "vcr/nightly", "--yes")[0].startswith(f"Deleted: {address}.")
    absent = f"lapse: There is no request nightly in the namespace {admin.namespace}."
    assert admin.run("show", "nightly", code=1)[1].startswith(absent)


def test_a_directory_of_this_machine_is_none_of_a_cluster(admin: Person, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert (
        "--directory names a directory of this machine" in admin.run("capture", "x", "--directory", "data", code=64)[1]
    )


def test_who_may_only_capture_sees_captures(capturer: Person) -> None:
    address = f"vcr/{capturer.namespace}/nightly"
    capturer.run("capture", "nightly", "--claim", "data")

    assert [one["address"] for one in capturer.json("list", "vcr")["items"]] == [address]
    assert capturer.json("show", "nightly")["address"] == address
    assert address in capturer.run("show", "nightly")[0]
    assert "list on what is listed" in capturer.run("list", code=1)[1]
