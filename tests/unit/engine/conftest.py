from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from tests.unit.engine.harness import Things, open_journal, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from lapse.objects.embedded import EmbeddedStore


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics("test")
    metrics.expect_domain("test", reasons=[])
    return metrics


@pytest.fixture
async def store(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[EmbeddedStore]:
    opened = open_store(tmp_path / "objects.db", clock)
    yield opened
    await opened.close()


@pytest.fixture
def journal(store: EmbeddedStore) -> SQLiteJournal:
    """The journal in the database of the objects."""
    return SQLiteJournal(store.database)


@pytest.fixture
def far_journal(tmp_path: Path) -> Iterator[SQLiteJournal]:
    """A journal in a database of its own."""
    opened = open_journal(tmp_path / "journal.db")
    yield opened
    opened.database.close()


@pytest.fixture
def things(store: EmbeddedStore, clock: VirtualClock) -> Things:
    return Things(store, clock)
