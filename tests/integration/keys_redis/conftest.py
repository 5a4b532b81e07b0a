from __future__ import annotations

import itertools
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.servers import Server, redis_server, valkey_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Start = Callable[..., AbstractContextManager[Server]]
    Raw = Callable[[Server], redis.Redis]

STARTERS: dict[str, Start] = {"redis": redis_server, "valkey": valkey_server}
_numbers = itertools.count()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.server(name, private=True)) for name in STARTERS])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a Redis, then a Valkey, of the test's own: one that may be killed, paused and filled."""
    return STARTERS[request.param]


@pytest.fixture
def raw() -> Iterator[Raw]:
    """Looks into a server past Lapse, with the plain driver."""
    clients: list[redis.Redis] = []

    def connect(server: Server, **options: Any) -> redis.Redis:  # noqa: ANN401 - the driver's own
        client = redis.Redis.from_url(server.url, **options)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        with closing(client):
            pass


@pytest.fixture
def namespace() -> str:
    """A part of a shared server that no other test uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"  # several processes share the server
