"""A control plane with a namespace per test, and clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import Cluster, KubeConfig, User, load_config
from lapse.kube.resources import untyped
from tests.conformance.objects.registry import unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.servers import KubeServer

NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)


@pytest.fixture
async def clients(shared_kube: KubeServer) -> AsyncIterator[Callable[..., KubeClient]]:
    """Makes clients that are closed at the end: of the administrator, or of a user with these fields."""
    made: list[KubeClient] = []

    def make(config: KubeConfig | None = None, **user: Any) -> KubeClient:  # noqa: ANN401 - fields of User
        if config is None and user:
            config = KubeConfig(cluster=Cluster(server=shared_kube.url, ca=shared_kube.ca_file), user=User(**user))
        made.append(KubeClient(config or load_config(file=shared_kube.kubeconfig, environ={}), watch_seconds=4.0))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def admin(clients: Callable[..., KubeClient]) -> KubeClient:
    return clients()


@pytest.fixture
async def namespace(admin: KubeClient) -> str:
    name = unique("kube")
    await admin.create(NAMESPACE, {"metadata": {"name": name}})
    return name
