"""Two proxies in front of one workspace, on one real Redis: a real client says everything through either of them, and
both count together."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from websockets.exceptions import ConnectionClosed

from lapse.core.clock import SystemClock
from lapse.core.identity import secret_bytes
from lapse.workspaces.activity.port import Connected, Timer
from lapse.workspaces.activity.redis import RedisActivity
from lapse.workspaces.model import WorkspaceId
from tests.integration.proxy.kit import World, run_proxy
from tests.integration.proxy.test_websockets import echo_program, visit
from tests.servers import redis_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.server import ServerConnection

    from lapse.proxy.server import Ports
    from lapse.workspaces.activity.port import Signal
    from tests.integration.proxy.kit import RunningProxy
    from tests.servers import Server

pytestmark = pytest.mark.server("redis", private=True)
A = WorkspaceId("id-a")


class Shared(World):
    """A world whose connections are counted on a server."""

    def count_on(self, activity: RedisActivity) -> None:
        self.activity = activity

    def ports(self) -> Ports:
        return replace(super().ports(), activity=self.activity)


@dataclass
class Two:
    """Two proxies, each with a client of its own of the same Redis."""

    proxies: list[RunningProxy]
    visitors: list[ServerConnection]
    reader: RedisActivity

    async def count(self) -> Signal:
        return (await self.reader.read([A]))[A]

    async def becomes(self, expected: Signal | type[Signal]) -> None:
        async with asyncio.timeout(60):
            while (found := await self.count()) != expected and type(found) is not expected:
                await SystemClock().sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


@pytest.fixture
async def two(server: Server) -> AsyncIterator[Two]:
    with redis.Redis.from_url(server.url) as raw:
        raw.flushall()
        raw.set("activity:epoch", 1)  # it has been there for ever
    async with AsyncExitStack() as stack:
        clients = [RedisActivity.at(server.url) for _ in range(3)]
        for client in clients:
            stack.push_async_callback(client.close)
        worlds = [Shared(), Shared()]
        visitors = await stack.enter_async_context(echo_program(worlds[0], subprotocols=["chat"]))
        worlds[1].places = worlds[0].places
        proxies = []
        for world, client in zip(worlds, clients, strict=False):
            world.count_on(client)
            proxies.append(await stack.enter_async_context(run_proxy(world)))
        yield Two(proxies, visitors, clients[-1])


async def say_everything(client: ClientConnection) -> None:
    for message in ("", "ä" * 70_000, b"", secret_bytes(70_000), secret_bytes(10_000_000)):
        await client.send(message)
        assert await client.recv() == message
    await client.send(["in ", "three ", "parts"])
    assert await client.recv() == "in three parts"
    await asyncio.wait_for(await client.ping(b"from the client"), 60)


async def test_texts_binaries_ten_megabytes_pings_and_subprotocols_pass_through_both_at_once(two: Two) -> None:
    one, other = two.proxies
    options: dict[str, Any] = {"subprotocols": ["chat"], "compression": None, "ping_interval": None}
    async with visit(one, **options) as here, visit(other, **options) as there:
        assert (here.subprotocol, there.subprotocol) == ("chat", "chat")
        assert await two.count() == Connected(2)
        await asyncio.gather(say_everything(here), say_everything(there))
        for visitor in two.visitors:
            await asyncio.wait_for(await visitor.ping(b"from the workspace"), 60)
    await two.becomes(Timer)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4001, "own")])
async def test_close_codes_pass_both_ways_through_either(two: Two, code: int, reason: str) -> None:
    for proxy in two.proxies:
        async with visit(proxy, subprotocols=["chat"]) as client:
            await client.close(code, reason)
            await asyncio.wait_for(two.visitors[-1].wait_closed(), 60)
            assert (two.visitors[-1].close_code, two.visitors[-1].close_reason) == (code, reason)
        async with visit(proxy, subprotocols=["chat"]) as client:
            await two.visitors[-1].close(code, reason)
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (code, reason)
    await two.becomes(Timer)


async def test_a_peer_that_breaks_off_stops_counting_and_whoever_is_at_the_other_proxy_stays(two: Two) -> None:
    one, other = two.proxies
    async with visit(other, subprotocols=["chat"]) as stays:
        goes = await visit(one, subprotocols=["chat"])
        assert await two.count() == Connected(2)
        goes.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        goes.transport.abort()
        await asyncio.wait_for(two.visitors[-1].wait_closed(), 60)
        assert two.visitors[-1].close_code == 1006
        await two.becomes(Connected(1))
        await stays.send("still here")
        assert await stays.recv() == "still here"
    await two.becomes(Timer)


async def test_a_proxy_that_stops_gives_its_connections_back_and_leaves_the_others(two: Two) -> None:
    one, other = two.proxies
    async with visit(other, subprotocols=["chat"]) as stays, visit(one, subprotocols=["chat"]) as goes:
        await one.server.stop(grace_seconds=5)
        assert await two.count() == Connected(1)
        with pytest.raises(ConnectionClosed):
            await goes.recv()
        await stays.send("still here")
        assert await stays.recv() == "still here"
