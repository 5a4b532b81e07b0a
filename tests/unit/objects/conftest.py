"""A store in a fresh file, on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.objects.embedded import EmbeddedStore, open_embedded
from tests.unit.objects.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[EmbeddedStore]:
    opened = open_embedded(tmp_path / "objects.db", kinds=KINDS, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    await opened.close()
