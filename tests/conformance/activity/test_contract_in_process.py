from __future__ import annotations

import pytest

from tests.conformance.activity import cases  # noqa: F401 - fills the registry
from tests.conformance.activity.registry import REGISTRY
from tests.conformance.activity.worlds import InProcessWorld


@pytest.mark.parametrize("name", REGISTRY)
async def test_activity_of_one_process(name: str) -> None:
    await REGISTRY[name](InProcessWorld())
