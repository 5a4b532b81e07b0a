"""What stands in the way of a start is one clear line, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import kube_server
from tests.servers.lapse_server import lapse

if TYPE_CHECKING:
    import subprocess

    from tests.servers import KubeServer

CRDS = Path(__file__).parents[3] / "deploy" / "crds"


def operate(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return lapse("operator", "--probes-port=0", *flags, state_dir=folder)


def expect_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = operate(tmp_path, f"--kube-config={kubeconfig(tmp_path, 'https://127.0.0.1:9')}")
    expect_one_line(done, 1, "The cluster at https://127.0.0.1:9 cannot be used", str(tmp_path / "config"))


def test_a_kubeconfig_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    expect_one_line(operate(tmp_path, "--kube-config=/nowhere/config"), 64, "/nowhere/config")


def test_a_context_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "https://127.0.0.1:9")
    expect_one_line(operate(tmp_path, f"--kube-config={file}", "--kube-context=there"), 64, "there")


def test_a_lease_needs_a_name_that_an_object_can_have(tmp_path: Path) -> None:
    done = operate(tmp_path, "--lease-name=Not a name")
    assert done.returncode == 64
    assert "--lease-name: lease_name = 'Not a name': expected a name of lower-case letters" in done.stderr


def test_rights_that_are_missing_are_named(shared_kube: KubeServer, tmp_path: Path) -> None:
    done = operate(tmp_path, f"--kube-config={shared_kube.user_kubeconfig}")
    expect_one_line(done, 1, "may not get volumecapturerequests.storage.deckhouse.io", " more on ")


def test_a_namespace_for_the_lease_that_is_missing_is_named(shared_kube: KubeServer, tmp_path: Path) -> None:
    done = operate(tmp_path, f"--kube-config={shared_kube.kubeconfig}", "--lease-namespace=not-there")
    expect_one_line(done, 1, "kubectl create namespace not-there")


@pytest.mark.server("kube", private=True)
def test_definitions_that_are_missing_or_of_another_version_are_named_with_what_to_run(tmp_path: Path) -> None:
    with kube_server(crds=()) as server:
        flag = f"--kube-config={server.kubeconfig}"
        expect_one_line(
            operate(tmp_path, flag), 1, "VolumeCaptureRequest (storage.deckhouse.io/v1alpha1)", "crds install"
        )

        text = (CRDS / "volumecapturerequests.yaml").read_text(encoding="utf-8").replace("v1alpha1", "v1alpha9")
        server.kubectl("create", "-f", "-", stdin=text)
        server.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=50s")
        expect_one_line(operate(tmp_path, flag), 1, "storage.deckhouse.io only as v1alpha9", "needs v1alpha1")

        server.kubectl("delete", "crd", "--all")
        server.kubectl("create", "-f", str(CRDS))
        server.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=50s")
        expect_one_line(
            operate(tmp_path, flag), 1, "VolumeSnapshotContent (snapshot.storage.k8s.io/v1)", "external-snap"
        )

        server.kubectl("delete", "crd", "chaosexperimenthistories.chaos.gushchin.dev", "retentionpolicies.lapse.dev")
        records = "ChaosExperimentHistory (chaos.gushchin.dev/v1alpha1), RetentionPolicy (lapse.dev/v1alpha1)"
        expect_one_line(operate(tmp_path, flag), 1, f"does not know {records}; run lapse crds install")
