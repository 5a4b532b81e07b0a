"""The contract on Redis and Valkey: servers of our own, because the epoch is one for a whole server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.conformance.activity import cases  # noqa: F401 - fills the registries
from tests.conformance.activity.registry import REGISTRY, SERVER_REGISTRY
from tests.conformance.activity.worlds import ServerWorld
from tests.servers import Server, redis_server, valkey_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

STARTERS = {"redis": redis_server, "valkey": valkey_server}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.server(name, private=True)) for name in STARTERS]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with STARTERS[request.param]() as started:
        yield started


@pytest.fixture
async def world(server: Server) -> AsyncIterator[ServerWorld]:
    with redis.Redis.from_url(server.url) as raw:
        prepared = ServerWorld(server, raw)
        yield prepared
        await prepared.close()


@pytest.mark.parametrize("name", [*REGISTRY, *SERVER_REGISTRY])
async def test_activity_on_a_server(name: str, world: ServerWorld) -> None:
    await (REGISTRY | SERVER_REGISTRY)[name](world)
