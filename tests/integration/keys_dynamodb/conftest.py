from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import pytest
from aiobotocore.session import AioSession

import lapse
from lapse.core.clock import SystemClock
from lapse.core.identity import owner_token
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.dynamodb import init_store
from lapse.keys.url import parse_url
from tests.integration.keys_dynamodb.injector import Injector
from tests.servers import Relay, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.core.clock import Clock
    from lapse.keys.store import Keys


def url_of(endpoint: str, table: str, *options: str) -> str:
    return "&".join([f"dynamodb://eu-west-1/{table}?endpoint={endpoint}", *options])


def init(url: str, clock: Clock | None = None) -> str:
    return init_store(parse_url(url), clock or SystemClock())


def new_table() -> str:
    return f"t-{owner_token()}"


@pytest.fixture
def table(shared_dynamodb: Server, raw: Raw) -> Iterator[str]:
    """A table of its own, made for one bucket."""
    name = new_table()
    init(url_of(shared_dynamodb.url, name))
    yield name
    raw.call("delete_table", TableName=name)


@pytest.fixture
def url(shared_dynamodb: Server, table: str) -> str:
    return url_of(shared_dynamodb.url, table)


@pytest.fixture
def keys(url: str) -> Iterator[Keys]:
    with lapse.open_keys(url) as opened:
        yield opened


@pytest.fixture
def injector(shared_dynamodb: Server) -> Iterator[Injector]:
    with Injector(shared_dynamodb.url) as running:
        yield running


@pytest.fixture
def relay(shared_dynamodb: Server) -> Iterator[Relay]:
    with Relay(shared_dynamodb.port) as running:
        yield running


class Raw:
    """The driver alone, to look into the table. For a ``with`` block."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._client = run_blocking(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        run_blocking(self._stack.aclose())

    async def _open(self) -> Any:  # noqa: ANN401 - the driver has no types
        client = AioSession().create_client("dynamodb", region_name="eu-west-1", endpoint_url=self._endpoint)
        return await self._stack.enter_async_context(client)

    def call(self, operation: str, **request: Any) -> Any:  # noqa: ANN401
        async def ask() -> Any:  # noqa: ANN401
            return await getattr(self._client, operation)(**request)

        return run_blocking(ask())

    def items(self, table: str) -> list[dict[str, Any]]:
        """Everything that is stored, expired or not, but the marker."""
        answer = self.call("scan", TableName=table, ConsistentRead=True)
        return [item for item in answer["Items"] if item["pk"]["B"] != bytes(8)]


@pytest.fixture(scope="session")
def raw(shared_dynamodb: Server) -> Iterator[Raw]:
    with Raw(shared_dynamodb.url) as opened:
        yield opened
