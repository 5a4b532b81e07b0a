"""The pages about history and retention, to the letter: their blocks for clusters run in order on a control plane.

There are no nodes, so the operator is a process with the rights of its ServiceAccount, and Jobs are left as their
controller would leave them. It passes every other second; the pages wait for as long as an hourly one may take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.core.duration import DAY, MINUTE
from lapse.core.timestamps import to_timestamp
from tests.acceptance.test_docs import FENCE, shown_as
from tests.integration.kube.test_cluster_page import commands
from tests.integration.operator.deployed import apply_base, start_operator
from tests.servers import kube_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import KubeServer

Json = Mapping[str, Any]
pytestmark = pytest.mark.server("kube", private=True)
ROOT = Path(__file__).parents[3]
PAGES = ("keep-history", "keep-records-for-90-days", "keep-the-last-ten")
JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.org/none"}]}}}
MARK = "not run here: needs a cluster"


@pytest.mark.timeout(600)
def test_every_command_of_the_pages_prints_what_it_shows(tmp_path: Path) -> None:
    with kube_server(csi=True) as server:
        apply_base(server)
        operator = start_operator(server, tmp_path, "--retention-interval=2s", "--trash-ttl=never")
        path = f"{Path(sys.executable).parent}:{server.programs}:{os.environ['PATH']}"
        env = os.environ | {"KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path), "PATH": path, "NO_COLOR": "1"}
        try:
            for command, expected in on_clusters():
                if "retention/jobs.yaml" in command:
                    leave_jobs(server)
                printed = output(command, env)
                assert shown_as(expected).fullmatch(printed), f"$ {command}\n{printed}"
        finally:
            operator.stop()


def on_clusters() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
        blocks = [match["body"] for match in FENCE.finditer(text) if MARK in match["notes"]]
        assert blocks
        yield from commands(blocks)


def output(command: str, env: dict[str, str]) -> str:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=180,
    ).stdout


# --- what a cluster with a CronJob has --------------------------------------------------------------------------------


def leave_jobs(kube: KubeServer) -> None:
    """Thirteen Jobs of one CronJob, the first of which succeeded; two of them ended long ago, and another one runs."""
    now = SystemClock().wall_ns()
    uid = make(kube, "CronJob", "nightly", {"schedule": "0 2 * * *", "jobTemplate": {"spec": JOB}})
    # It must be there: garbage collection takes what is owned by nobody.
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": uid}
    for number in range(1, 15):
        make(kube, "Job", f"nightly-{number:02}", JOB, owner)
    for number in range(1, 14):
        ended = now - (40 * DAY if number <= 2 else (20 - number) * MINUTE)
        end(kube, number, to_timestamp(ended))


def make(kube: KubeServer, kind: str, name: str, spec: Json, *owners: Json) -> str:
    metadata = {"name": name, "namespace": "shop", "ownerReferences": owners}
    body = json.dumps({"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": spec})
    return kube.kubectl("create", "-f", "-", "-o", "jsonpath={.metadata.uid}", stdin=body)


def end(kube: KubeServer, number: int, when: str) -> None:
    kinds = ("SuccessCriteriaMet", "Complete") if number == 1 else ("FailureTarget", "Failed")
    condition = {"status": "True", "lastProbeTime": when, "lastTransitionTime": when}
    status: dict[str, Any] = {"startTime": when, "conditions": [{**condition, "type": kind} for kind in kinds]}
    if number == 1:
        status |= {"completionTime": when, "succeeded": 1}
    patch = json.dumps({"status": status})
    kube.kubectl(
        "patch", "job", f"nightly-{number:02}", "-n", "shop", "--subresource=status", "--type=merge", "-p", patch
    )
