"""``lapse requests schedule`` on a real API server, by somebody who has the role of a capturer in one namespace."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli import main
from lapse.core.identity import uuid
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from tests.servers import KubeServer

pytestmark = pytest.mark.timeout(180)
ROLES = Path(__file__).parents[3] / "deploy" / "users"
CREATE = ("create", "nightly", "--claim", "data", "--schedule", "0 3 * * *", "--keep-daily", "7")


@dataclass
class Person:
    """Somebody with a kubeconfig."""

    kube: KubeServer
    namespace: str
    capsys: pytest.CaptureFixture[str]

    def run(self, *line: str, code: int = 0) -> tuple[str, str]:
        flags = [f"--kube-config={self.kube.user_kubeconfig}", f"--namespace={self.namespace}"]
        found = main(["requests", "schedule", *line, *flags])
        out, err = self.capsys.readouterr()
        assert found == code, (out, err)
        return out, " ".join(err.split())

    def json(self, *line: str) -> Any:  # noqa: ANN401 - whatever it prints
        return json.loads(self.run(*line, "-o", "json")[0])


@pytest.fixture
def person(
    shared_kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    namespace = f"schedules-{uuid()}"
    shared_kube.kubectl("create", "namespace", namespace)
    shared_kube.kubectl("apply", "-f", str(ROLES / "capturer.yaml"))
    binding = ("create", "rolebinding", "capturer", "--clusterrole=lapse-capturer", f"--user={shared_kube.user}")
    shared_kube.kubectl(*binding, "-n", namespace)

    def noticed() -> bool:
        try:
            shared_kube.kubectl("auth", "can-i", "delete", "csched", "-n", namespace, user=True)
        except KubectlError:
            return False
        return True

    until(noticed)
    return Person(shared_kube, namespace, capsys)


def test_a_capturer_makes_edits_shows_and_deletes_a_schedule(person: Person) -> None:
    address = f"csched/{person.namespace}/nightly"
    told, said = person.run(*CREATE)
    assert f"Created: {address}. The next run is at" in told
    assert f"warning: There is no pvc/{person.namespace}/data now." in said
    assert "schedule edit" in person.run(*CREATE, code=1)[1]
    assert person.json("edit", "nightly", "--keep-weekly", "4")["keep"] == {"daily": 7, "weekly": 4}
    shown, said = person.run("show", address)
    assert "daily 7, weekly 4" in shown
    assert said.startswith("You may not list its runs")
    assert person.run("delete", "nightly")[0] == f"Deleted: {address}. It has kept nothing.\n"
    for command in ("show", "suspend", "delete"):
        _, said = person.run(command, "nightly", code=1)
        assert said.startswith(f"lapse: There is no CaptureSchedule {person.namespace}/nightly.")


def test_plan_and_status_know_a_cluster_that_has_schedules(person: Person) -> None:
    person.run(*CREATE)
    for command in ("plan", "status"):
        found = main([command, f"--kube-config={person.kube.kubeconfig}"])
        assert found == 0, person.capsys.readouterr()


def test_what_is_held_stays(person: Person) -> None:
    person.run(*CREATE)
    person.kube.kubectl("annotate", "csched", "nightly", "lapse.dev/hold=true", "-n", person.namespace)
    assert "is held" in person.run("delete", "nightly", code=1)[1]
    assert person.kube.kubectl("get", "csched", "nightly", "-n", person.namespace, "-o", "name")


def test_without_the_right_it_is_refused_in_plain_words(person: Person) -> None:
    elsewhere = replace(person, namespace="default")
    assert "get and delete on captureschedules" in elsewhere.run("delete", "nightly", code=1)[1]
