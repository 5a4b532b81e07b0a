"""The TTL manager on SQLite and in one process, with its journal in the same database and in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.ttl_manager import cases  # noqa: F401 - fills the registry
from tests.conformance.ttl_manager.harness import REGISTRY
from tests.conformance.ttl_manager.worlds import embedded

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("name", REGISTRY)
async def test_the_ttl_manager_in_one_process(name: str, shares: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async with embedded(tmp_path, shares=shares) as harness:
        assert harness.journal.shares(harness.store) is shares
        await REGISTRY[name](harness)
