"""Real operators on the shared control plane.

All of them share one Lease and one policy, so that whoever leads treats the requests of every test alike. Finished
requests go within seconds, and for good: a test that wants to look at one holds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

import pytest

from lapse.core.identity import uuid
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.controller.lease import LEASE
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.api.upstream import ALL_KINDS
from tests.servers.lapse_server import COMMAND, NO_SETTINGS, LapseServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from tests.servers import KubeServer

POLICY = ("--request-ttl=2s", "--keeper-ttl=2s", "--trash-ttl=never")


class Operator(LapseServer):
    """A running ``lapse operator``."""

    @classmethod
    def launch(
        cls,
        folder: Path,
        kubeconfig: Path,
        *flags: str,
        settings: Mapping[str, str] = NO_SETTINGS,
        command: Sequence[str] = COMMAND,
    ) -> Self:
        """Start it, with ``settings`` in its environment, and wait until it has looked over the cluster."""
        line = ("operator", f"--kube-config={kubeconfig}", *flags)
        return cls.spawn(folder, *line, settings=settings, command=command)

    @property
    def leads(self) -> bool:
        return self.metric("lapse_leader") == 1


Launch = Callable[..., Operator]


@pytest.fixture(scope="session")
def lease_namespace(shared_kube: KubeServer) -> str:
    name = "lapse-system"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    shared_kube.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))  # every worker of a run comes by here
    return name


@pytest.fixture
def kube(shared_kube: KubeServer) -> KubeServer:
    """The control plane of a test: the shared one, unless its module has one of its own."""
    return shared_kube


@pytest.fixture
def launch(kube: KubeServer, lease_namespace: str, tmp_path: Path) -> Iterator[Launch]:
    """Start operators, as the administrator unless another kubeconfig is given; all are stopped at the end."""
    running: list[Operator] = []

    def one(kubeconfig: Path = kube.kubeconfig) -> Operator:
        running.append(Operator.launch(tmp_path, kubeconfig, *POLICY, f"--lease-namespace={lease_namespace}"))
        return running[-1]

    yield one
    for operator in running:
        operator.stop()
        print("".join(operator.log[-100:]))  # noqa: T201 - shown beside a failure


@pytest.fixture
async def store(kube: KubeServer) -> AsyncIterator[KubernetesStore]:
    """The cluster as its administrator sees it."""
    client = KubeClient(load_config(file=kube.kubeconfig, environ={}))
    store = KubernetesStore(client, kinds=[*ALL_KINDS, LEASE])
    yield store
    await store.close()


@pytest.fixture
def namespace(shared_kube: KubeServer) -> str:
    name = f"operator-{uuid()}"
    shared_kube.kubectl("create", "namespace", name)
    return name
