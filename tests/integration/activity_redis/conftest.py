from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from lapse.workspaces.activity.redis import RedisActivity
from tests.servers import Server, redis_server, valkey_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    Start = Callable[..., AbstractContextManager[Server]]
    Open = Callable[..., AbstractAsyncContextManager[RedisActivity]]
    Raw = Callable[[Server], redis.Redis]

STARTERS: dict[str, Start] = {"redis": redis_server, "valkey": valkey_server}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.server(name, private=True)) for name in STARTERS])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a Redis, then a Valkey, of the test's own: the epoch is one for a whole server."""
    return STARTERS[request.param]


@pytest.fixture
def opened() -> Open:
    """Opens an activity at a server or a relay to it, with leases of a minute unless told otherwise."""

    @asynccontextmanager
    async def open_at(port: int, query: str = "", *, lease_seconds: float = 60) -> AsyncIterator[RedisActivity]:
        activity = RedisActivity.at(f"redis://127.0.0.1:{port}/0{query}", lease_seconds=lease_seconds)
        try:
            yield activity
        finally:
            await activity.close()

    return open_at


@pytest.fixture
def raw() -> Iterator[Raw]:
    """Looks into a server past Lapse, with the plain driver."""
    clients: list[redis.Redis] = []

    def connect(server: Server) -> redis.Redis:
        clients.append(redis.Redis.from_url(server.url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
