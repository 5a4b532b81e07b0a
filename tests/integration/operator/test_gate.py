"""Two operators, one budget: on a control plane of their own, because a budget counts what a whole cluster does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.objects.config_map_gate import NAME
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST
from tests.integration.operator.conftest import Operator
from tests.integration.up.test_clock import YEAR, Clock
from tests.servers import kube_server
from tests.servers.lapse_server import COMMAND, lapse, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
NAMESPACE = "lapse-system"
FROZEN = 'lapse_frozen{domain="requests"}'
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server(csi=True) as server:
        server.kubectl("create", "namespace", NAMESPACE)
        yield server


@pytest.fixture
def operate(kube: KubeServer, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Start operators of one Lease on a fresh ConfigMap; all are stopped at the end."""
    kube.kubectl("delete", "configmap", NAME, "-n", NAMESPACE, "--ignore-not-found")
    kube.kubectl("delete", "mcr", "--all", "-n", "default")
    running: list[Operator] = []

    def one(*flags: str, ttl: str = "1s", command: Sequence[str] = COMMAND) -> Operator:
        times = (f"--request-ttl={ttl}", "--retention-interval=1s")  # what is older than its rule waits that long
        running.append(Operator.launch(tmp_path, kube.kubeconfig, *times, *flags, command=command))
        return running[-1]

    yield one
    for operator in running:
        operator.stop()


def finished_requests(kube: KubeServer, count: int) -> None:
    """Put requests into the cluster that were done a while ago."""

    async def put() -> None:
        store = KubernetesStore(KubeClient(load_config(file=kube.kubeconfig, environ={})))
        done = to_timestamp(CLOCK.wall_ns() - 60_000_000_000)
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        for number in range(count):
            meta = {"name": f"r{number:02}", "namespace": "default"}
            spec = {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}
            made = await store.create(MANIFEST_CAPTURE_REQUEST, {"metadata": meta, "spec": spec})
            status = {"conditions": [ready], "completionTimestamp": done}
            await store.patch_status(MANIFEST_CAPTURE_REQUEST, made.metadata.key, status)
        await store.close()

    asyncio.run(put())


def left(kube: KubeServer) -> int:
    return len(kube.kubectl("get", "mcr", "-n", "default", "-o", "name").split())


def stands_still(kube: KubeServer, operator: Operator) -> bool:
    """Whether the operator has noticed a freeze, for which there must be something due: what came too early is gone."""
    if left(kube) == 0:
        finished_requests(kube, 3)
    return operator.metric(FROZEN) == 1


def gate(kube: KubeServer) -> dict[str, str]:
    found = json.loads(kube.kubectl("get", "configmap", NAME, "-n", NAMESPACE, "-o", "json"))
    data: dict[str, str] = found.get("data", {})
    return data


def patch(kube: KubeServer, data: dict[str, Any]) -> None:
    kube.kubectl("patch", "configmap", NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"data": data}))


def journal(*operators: Operator) -> list[tuple[str, str]]:
    """Return which domains were frozen, by the logs of all."""
    lines = [line for operator in operators for line in operator.log if line.startswith("{")]
    rows = [json.loads(line) for line in lines]
    return [(row["domain"], row["reason"]) for row in rows if row["event"] == "journal" and row["outcome"] == "frozen"]


def test_two_operators_share_a_budget_and_a_freeze(
    kube: KubeServer, operate: Callable[..., Operator], tmp_path: Path
) -> None:
    finished_requests(kube, 50)
    both = [operate("--request-deletion-budget=20/1h") for _ in range(2)]
    first = until(lambda: next((one for one in both if one.leads), None))
    other = next(one for one in both if one is not first)
    until(lambda: first.metric(FROZEN) == 1 and left(kube) == 30)
    assert journal(*both) == [("requests", "budget_spent")]
    assert json.loads(gate(kube)["frozen.requests"])["reason"] == "the deletion budget of requests, 20/1h, is spent"
    warning = first.event("domain_frozen")
    assert warning is not None
    assert warning["run"] == "lapse resume --cluster requests"

    first.stop()
    until(lambda: other.leads and other.metric(FROZEN) == 1)
    assert left(kube) == 30
    flags = [f"--kube-config={kube.kubeconfig}", "-o", "json"]
    done = lapse("resume", "requests", *flags, state_dir=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["resumed"]) == (0, ["requests"]), done.stderr
    until(lambda: left(kube) == 10 and other.metric(FROZEN) == 1)
    assert journal(*both) == [("requests", "budget_spent")] * 2


def test_a_person_freezes_with_kubectl_and_with_the_command(
    kube: KubeServer, operate: Callable[..., Operator], tmp_path: Path
) -> None:
    operator = operate()
    until(lambda: operator.leads)
    patch(kube, {"frozen.requests": "looking at it"})
    until(lambda: stands_still(kube, operator))
    event = operator.event("domain_frozen")
    assert event is not None
    assert event["reason"] == "looking at it"
    patch(kube, {"frozen.requests": None})
    until(lambda: left(kube) == 0)

    flag = f"--kube-config={kube.kubeconfig}"
    done = lapse("freeze", "all", "--reason", "enough", flag, state_dir=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert f"Frozen: everything in the ConfigMap {NAMESPACE}/{NAME} of {kube.url}" in done.stdout
    until(lambda: stands_still(kube, operator))
    assert left(kube) > 0
    assert lapse("resume", "all", flag, state_dir=tmp_path).returncode == 0
    until(lambda: left(kube) == 0)


def test_commands_decide_by_the_settings_of_the_operator_that_leads(
    kube: KubeServer, operate: Callable[..., Operator], tmp_path: Path
) -> None:
    finished_requests(kube, 1)
    operator = operate(ttl="3h")
    until(lambda: operator.leads)
    until(lambda: "note.settings" in gate(kube))
    flags = ["mcr/default/r00", f"--kube-config={kube.kubeconfig}", "-o", "json"]
    done = lapse("why", *flags, state_dir=tmp_path)
    told = json.loads(done.stdout)
    anchor, deadline = from_timestamp(told["anchor"]["at"]), from_timestamp(told["deadline"])
    assert anchor is not None
    assert deadline == anchor + 3 * 3600 * 1_000_000_000
    assert "does not decide" not in done.stderr
    file = tmp_path / "own.toml"
    file.write_text('request_ttl = "10s"')
    done = lapse("why", *flags, f"--config={file}", state_dir=tmp_path)
    assert json.loads(done.stdout)["deadline"] == told["deadline"]
    differs = f"warning: {file}:1: request_ttl 10s does not decide in {kube.url}"
    assert f"{differs}: the process that runs there has 3h" in done.stderr.replace("\n", " ")

    patch(kube, {"note.settings": "{"})
    done = lapse("why", *flags, state_dir=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"The settings that decide in {kube.url} cannot be read" in done.stderr.replace("\n", " ")
    assert operator.leads


@pytest.mark.parametrize("when", ["from the start", "while it runs"])
def test_a_clock_that_the_api_server_contradicts_ends_nothing_until_a_person_resumes(
    kube: KubeServer, tmp_path: Path, operate: Callable[..., Operator], when: str
) -> None:
    clock = Clock(tmp_path)
    clock.set(YEAR if when == "from the start" else 0)
    finished_requests(kube, 3)
    operator = operate(ttl="1h", command=clock.command)
    until(lambda: operator.leads)
    if when == "while it runs":
        until(lambda: "note.clock" in gate(kube))
        clock.set(YEAR)
    until(lambda: operator.metric(FROZEN) == 1)
    assert left(kube) == 3
    reason = json.loads(gate(kube)["frozen.requests"])["reason"]
    assert reason.startswith("the clock is 36")
    assert reason.endswith("ahead of what was expected; set it right, then resume")

    done = lapse("resume", "all", f"--kube-config={kube.kubeconfig}", state_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    until(lambda: left(kube) == 0, seconds=150)  # the sweep looks once a minute where nothing was due


def test_a_config_map_that_is_not_understood_ends_nothing_and_says_what_to_run(
    kube: KubeServer, operate: Callable[..., Operator], tmp_path: Path
) -> None:
    operator = operate()
    until(lambda: operator.leads)
    patch(kube, {"spent": "plenty"})
    finished_requests(kube, 3)
    warning = until(lambda: operator.event("brakes_unreadable"))
    assert warning["level"] == "warning"
    assert f"the ConfigMap {NAMESPACE}/{NAME} cannot be read: spent is not a ledger" in warning["problem"]
    assert "lapse resume --cluster all" in warning["problem"]
    assert left(kube) == 3

    assert lapse("resume", "all", f"--kube-config={kube.kubeconfig}", state_dir=tmp_path).returncode == 0
    until(lambda: left(kube) == 0)


def test_a_namespace_or_a_cluster_that_is_not_there_is_one_line(kube: KubeServer, tmp_path: Path) -> None:
    flag = f"--kube-config={kube.kubeconfig}"
    done = lapse("freeze", "all", flag, "--lease-namespace=not-there", state_dir=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "kubectl create namespace not-there" in done.stderr
    done = lapse("freeze", "all", f"--kube-config={kube.user_kubeconfig}", state_dir=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "configmaps" in done.stderr
