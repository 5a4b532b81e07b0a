"""DynamoDB: ours beside aiobotocore, as it comes, with as many connections.

It sends the very requests that Lapse sends, and looks at the expiry of what it gets. The server is DynamoDB Local on
the same machine: a call to AWS takes longer, which makes the difference smaller.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from bench.contest import APP_ID, TTL_SECONDS
from bench.servers import CALLERS, Part, Plan, Tasks
from lapse.keys.backends.dynamodb.items import RequestFactory, live_expiry, place, text
from lapse.keys.backends.layout import Prefix, partition_keys
from tests.servers import dynamodb_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from tests.servers import Server

PLAN: Final = Plan(rounds=21, operations=256, warm_up=512, many_calls=5)
QUICK: Final = Plan(rounds=3, operations=64, warm_up=64, many_calls=2)
_REGION: Final = "eu-west-1"
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "made-up"}


@contextmanager
def _start() -> Iterator[Server]:
    os.environ.update(_CREDENTIALS)  # the contenders' processes inherit them; real ones must not get there
    with dynamodb_server() as server:
        yield server


PART: Final = Part(
    "DynamoDB Local",
    start=_start,
    ours_url=lambda server: server.keys_url(),
    raw="bench.keys_dynamodb:Driver",
    raw_url=lambda server: server.url,
)


class Driver(Tasks):
    """The plain driver."""

    def __init__(self, name: str, url: str) -> None:
        """Connect."""
        super().__init__(name)
        self._driver = self.loop.run_until_complete(_connected(url))
        self._requests = RequestFactory("lapse", margin_seconds=2)
        self._partition = partition_keys(Prefix.APPLICATION_TTL, APP_ID)[0]

    def call(self, kind: str, key: str, value: str) -> Awaitable[object]:
        """See `Tasks`."""
        return self._get(key) if kind == "get" else self._write(kind, key, value.encode())

    async def _get(self, key: str) -> str | None:
        item = (await self._driver.get_item(**self._requests.get(place(self._partition, key.encode())))).get("Item")
        return None if live_expiry(item, time.time_ns()) is None else text(item)

    async def _write(self, kind: str, key: str, value: bytes) -> bool:
        there, now_ns = place(self._partition, key.encode()), time.time_ns()
        if kind == "insert":
            request = self._requests.insert(there, value, TTL_SECONDS, now_ns)
        else:
            request = self._requests.swap(there, value, (value, TTL_SECONDS), now_ns)
        await self._driver.put_item(**request)  # raises when its condition does not hold
        return True

    async def disconnect(self) -> None:
        """See `Tasks`."""
        await self._driver.close()


async def _connected(url: str) -> Any:  # noqa: ANN401 - the driver has no types
    config = AioConfig(max_pool_connections=CALLERS[-1])
    client = AioSession().create_client("dynamodb", region_name=_REGION, endpoint_url=url, config=config)
    return await client.__aenter__()
