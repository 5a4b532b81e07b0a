"""Holding, releasing and extending objects of the embedded store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.holds.stage import embedded_stage
from tests.conformance.holds.steering_cases import CASES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_people_steer_objects_of_the_embedded_store(name: str, tmp_path: Path) -> None:
    async with embedded_stage(tmp_path) as stage:
        await CASES[name](stage)
