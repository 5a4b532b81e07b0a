"""What the engine promises holds for every domain: those of Lapse itself, the example, and one made for the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.domains import REGISTRY
from tests.conformance.domains.cases import CASES
from tests.conformance.domains.worlds import WORLDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("domain", WORLDS)
@pytest.mark.parametrize("case", CASES)
async def test_the_engine_keeps_its_promise(case: str, domain: str, tmp_path: Path) -> None:
    await CASES[case](tmp_path, WORLDS[domain])


def test_no_domain_is_left_out() -> None:
    assert set(REGISTRY.freezable()) <= WORLDS.keys()
