"""Holding, releasing and extending objects on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.holds.stage import kubernetes_stage
from tests.conformance.holds.steering_cases import CASES

if TYPE_CHECKING:
    from tests.servers import KubeServer


@pytest.mark.server("kube")
@pytest.mark.parametrize("name", CASES)
async def test_people_steer_objects_of_a_cluster(name: str, shared_kube: KubeServer) -> None:
    async with kubernetes_stage(shared_kube) as stage:
        await CASES[name](stage)
