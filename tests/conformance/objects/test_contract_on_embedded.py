"""The whole contract on the embedded store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.objects.cases import CASES
from tests.conformance.objects.worlds import embedded_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_the_embedded_store_keeps_the_contract(name: str, tmp_path: Path) -> None:
    async with embedded_world(tmp_path) as world:
        await CASES[name](world)
