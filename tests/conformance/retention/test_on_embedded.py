"""All cases of retention on the embedded store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.retention.cases import CASES
from tests.conformance.retention.product import Product
from tests.conformance.retention.worlds import embedded_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_retention_holds_on_the_embedded_store(name: str, tmp_path: Path) -> None:
    async with embedded_world(tmp_path, Product) as world:
        await CASES[name](world)
