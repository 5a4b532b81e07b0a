"""A model of a few lines passes every case, so the cases ask for the rules and not for the product's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.retention.cases import CASES
from tests.conformance.retention.model import Model
from tests.conformance.retention.worlds import Surroundings, embedded_world

if TYPE_CHECKING:
    from pathlib import Path


def model(around: Surroundings) -> Model:
    return Model(around.store, clock=around.clock, metrics=around.metrics)


@pytest.mark.parametrize("name", CASES)
async def test_the_model_keeps_the_rules(name: str, tmp_path: Path) -> None:
    async with embedded_world(tmp_path, model) as world:
        await CASES[name](world)
