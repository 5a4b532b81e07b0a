"""The whole contract on a real API server: what the embedded store must do is what this one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.objects.cases import CASES
from tests.conformance.objects.worlds import kubernetes_world

if TYPE_CHECKING:
    from tests.servers import KubeServer


@pytest.mark.server("kube")
@pytest.mark.parametrize("name", CASES)
async def test_kubernetes_keeps_the_contract(name: str, shared_kube: KubeServer) -> None:
    async with kubernetes_world(shared_kube) as world:
        await CASES[name](world)
