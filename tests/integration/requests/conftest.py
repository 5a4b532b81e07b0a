"""Worlds for the tests of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.requests.world import World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world with the default policy."""
    async with opened(tmp_path) as found:
        yield found
