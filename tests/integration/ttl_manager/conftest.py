from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import redis

from lapse.core.clock import VirtualClock
from lapse.db.postgres.pool import Patience
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.activity.redis import RedisActivity
from lapse.workspaces.store.postgres import open_postgres_store
from tests.conformance.activity.registry import LEASE
from tests.conformance.ttl_manager.harness import Harness
from tests.conformance.ttl_manager.worlds import own_journal
from tests.conformance.workspaces.worlds import postgres_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lapse.workspaces.activity.port import Activity
    from lapse.workspaces.store.port import WorkspaceStore
    from tests.servers import Server

    Open = Callable[..., AbstractAsyncContextManager[Harness]]

SHORT = Patience(connect=2, queue=1, lock=0.5, statement=5, answer=10)
HASTY = "?timeout=500ms&connect_timeout=500ms"
"""For who is away: else a server on a busy machine has all the time it needs."""
LONG = Patience(connect=30, queue=30, lock=0.5, statement=60, answer=60)
PATIENT = "?timeout=60s&connect_timeout=60s"
A = ConnectionId("a")


@dataclass
class Stores:
    store: WorkspaceStore
    rounds: int = 0


@dataclass
class Activities:
    one: Activity

    async def elapse(self, seconds: float) -> None:
        """Let the server's time be: here only rows become older."""


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    """A database with our tables, for one test."""
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Open a harness on PostgreSQL and Redis, both of which may be away and are old enough to be believed."""

    @asynccontextmanager
    async def open_at(
        database: str, server: Server, *, port: int | None = None, wait: str = PATIENT, patience: Patience = LONG
    ) -> AsyncIterator[Harness]:
        store = await open_postgres_store(database, patience=patience)
        url = f"redis://127.0.0.1:{port or server.port}/0{wait}"
        activity = RedisActivity.at(url, lease_seconds=LEASE)
        with own_journal(tmp_path) as journal:
            try:
                believe(server)
                yield Harness(Stores(store), Activities(activity), journal, clock=VirtualClock(), rounds=0)  # type: ignore[arg-type]
            finally:
                await activity.close()
                await store.close()

    return open_at


def believe(server: Server) -> None:
    """Let the activity store have been there for ever."""
    with redis.Redis.from_url(server.url) as raw:
        raw.set("activity:epoch", 1)
