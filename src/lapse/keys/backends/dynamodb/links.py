"""The driver's clients: one per event loop, opened at first use, closed on their own loop.

The driver's own retries are off: it would repeat a conditional write whose answer was lost, and the second answer would
be wrong. Credentials come from the usual AWS chain and are seen by nobody else.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from lapse.http1.sockets import new_socket
from lapse.keys.errors import BackendClosedError

_OPENING_SECONDS: Final = 30
"""To load the driver's description of the service, and to find credentials: a role may have to be assumed for them."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a URL says about a table and the way to it."""

    name: str
    """For error messages."""
    region: str
    table: str
    endpoint: str | None
    buckets: int
    timeout: float
    connect_timeout: float
    connections: int
    max_skew_ns: int


class Link:
    """One loop's client. ``slots`` bounds what is under way, so that nobody waits for a connection in the driver."""

    def __init__(self, settings: TableSettings) -> None:
        """Open nothing yet. To be made on the loop that will use it."""
        self.slots = asyncio.Semaphore(settings.connections)
        self.client: Any = None
        self._settings = settings
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Make the client, once; callers that come meanwhile wait for it."""
        async with self._opening, asyncio.timeout(_OPENING_SECONDS):
            if self.client is None:
                self.client = await self._stack.enter_async_context(_client(self._settings))

    async def close(self) -> None:
        """Close the client's connections."""
        async with self._opening:
            self.client = None
            await self._stack.aclose()


def _client(settings: TableSettings) -> Any:  # noqa: ANN401 - the driver has no types
    config = AioConfig(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=min(settings.connect_timeout, settings.timeout),
        read_timeout=settings.timeout,
        max_pool_connections=settings.connections,
        connector_args={"socket_factory": new_socket},
        parameter_validation=False,  # `items` makes them right, and the check costs as much as the signature
        warm_up_loader_caches=True,  # in a thread: the loop must not stand still for it
    )
    return AioSession().create_client(
        "dynamodb", region_name=settings.region, endpoint_url=settings.endpoint, config=config
    )


class Links:
    """The links of all loops that use a store. Loops of several threads may use it."""

    def __init__(self, settings: TableSettings) -> None:
        """Start with none."""
        self._settings = settings
        self._links: dict[asyncio.AbstractEventLoop, Link] = {}
        self._closed = False

    async def get(self) -> Link:
        """Return the running loop's link, open."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            if self._closed:
                raise BackendClosedError
            for gone in [other for other in list(self._links) if other.is_closed()]:
                self._links.pop(gone, None)  # its sockets went with it
            link = self._links.setdefault(loop, Link(self._settings))
        if link.client is None:
            await link.open()
        return link

    async def close(self) -> None:
        """Close the link of the running loop, and let other loops close theirs. Idempotent.

        Others are not awaited: such a loop may be standing still in this very call.
        """
        self._closed = True
        for loop, link in list(self._links.items()):
            self._links.pop(loop, None)
            if loop is asyncio.get_running_loop():
                await link.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(link.close(), loop)
