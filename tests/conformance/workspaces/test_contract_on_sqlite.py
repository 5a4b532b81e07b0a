"""The whole contract on a SQLite file, and what it says about indexes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workspaces.cases import CASES
from tests.conformance.workspaces.worlds import sqlite_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", CASES)
async def test_the_sqlite_store_keeps_the_contract(name: str, tmp_path: Path) -> None:
    async with sqlite_world(tmp_path) as world:
        await CASES[name](world)
