"""The TTL manager on real servers: PostgreSQL with Redis, and with Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.conformance.ttl_manager import cases  # noqa: F401 - fills the registry
from tests.conformance.ttl_manager.harness import REGISTRY
from tests.conformance.ttl_manager.worlds import on_servers
from tests.conformance.workspaces.worlds import postgres_database
from tests.servers import Server, redis_server, valkey_server

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTERS = {"redis": redis_server, "valkey": valkey_server}
ROUNDS = 4_000
"""Of the race, in which a user or a connection comes at the moment of the tick."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.server(name, private=True)) for name in STARTERS]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with STARTERS[request.param]() as started:
        yield started


@pytest.fixture(scope="module")
def database(shared_postgres: Server) -> Iterator[str]:
    with postgres_database(shared_postgres) as url:
        yield url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", REGISTRY)
async def test_the_ttl_manager_on_servers(name: str, database: str, server: Server) -> None:
    with redis.Redis.from_url(server.url) as raw:
        async with on_servers(database=database, server=server, raw=raw, rounds=ROUNDS) as harness:
            await REGISTRY[name](harness)
