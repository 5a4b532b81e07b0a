"""All cases of retention on a real API server: creation times are real, and the injected clock goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.retention.cases import CASES
from tests.conformance.retention.product import Product
from tests.conformance.retention.worlds import kubernetes_world

if TYPE_CHECKING:
    from tests.servers import KubeServer


@pytest.mark.server("kube")
@pytest.mark.parametrize("name", CASES)
async def test_retention_holds_on_kubernetes(name: str, shared_kube: KubeServer) -> None:
    async with kubernetes_world(shared_kube, Product) as world:
        await CASES[name](world)
