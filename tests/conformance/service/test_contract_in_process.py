from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.service import cases  # noqa: F401 - fills the registry
from tests.conformance.service.registry import REGISTRY
from tests.conformance.service.worlds import local_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", REGISTRY)
async def test_verbs_of_one_process(name: str, tmp_path: Path) -> None:
    async with local_world(tmp_path) as world:
        await REGISTRY[name](world)
