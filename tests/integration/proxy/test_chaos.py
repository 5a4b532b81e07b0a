"""Clients and programs that do whatever they like; afterwards nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random  # noqa: TID251 - seeded, for moods
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock
from lapse.proxy.limits import ProxyLimits
from tests.integration.proxy.kit import LOOPBACK, Wire, World, asking, ok, run_proxy, until
from tests.integration.proxy.test_websockets import ACCEPTED, UPGRADE

if TYPE_CHECKING:
    from tests.integration.proxy.kit import RunningProxy

ANSWERS = (
    ok(b"x" * 5000),
    ok(b""),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 100 Continue\r\n\r\n" + ok(),
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    ACCEPTED + b"hello",
    b"no HTTP at all\r\n\r\n",
    b"",
)


class Moody:
    """A program that answers one of many things, in pieces, and may leave at any moment."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop's word for a closed connection
                while await reader.read(self.dice.choice((10, 1000, 100_000))):
                    answer = self.dice.choice(ANSWERS)
                    cut = self.dice.randrange(len(answer) + 1)
                    writer.write(answer[:cut])
                    if self.dice.random() < 0.2:
                        writer.transport.abort()
                        return
                    await SystemClock().sleep(self.dice.choice((0, 0, 0.01)))
                    writer.write(answer[cut:])
                    if self.dice.random() < 0.3:
                        return
        finally:
            self.open -= 1
            writer.close()


async def client(proxy: RunningProxy, dice: Random) -> None:
    """Send one of many things, in pieces, and leave at any moment."""
    host = proxy.host(dice.choice(("a", "a", "a", "none")))
    body = dice.choice((b"", bytes(10), bytes(300_000)))
    requests = [
        asking(host),
        asking(host, f"Content-Length: {len(body)}", method="POST", body=body),
        asking(host, "Transfer-Encoding: chunked", method="PUT", body=b"a\r\n0123456789\r\n0\r\n\r\n"),
        asking(host, "Transfer-Encoding: chunked", method="PUT", body=b"a\r\n01234567890\r\n"),
        asking(host, *UPGRADE, body=b"ahead"),
        asking(host, *UPGRADE),
        b"no HTTP at all\r\n\r\n",
    ]
    with contextlib.suppress(ConnectionError, TimeoutError, RuntimeError):
        async with await Wire.to(proxy.port) as wire:
            for _ in range(dice.randrange(1, 4)):
                request = dice.choice(requests)
                cut = dice.randrange(len(request) + 1)
                await wire.send(request[:cut])
                await SystemClock().sleep(dice.choice((0, 0.005)))
                if dice.random() < 0.2:
                    wire.writer.transport.abort()
                    return
                await wire.send(request[cut:])
                async with asyncio.timeout(dice.choice((0.01, 0.2))):
                    await wire.reader.read(dice.choice((1, 100_000)))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_clients_and_workspaces_do_nothing_is_left_behind(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice = Random(seed)
    world, moody = World(), Moody(dice)
    server = await asyncio.start_server(moody.serve, LOOPBACK, 0)
    limits = ProxyLimits(
        sweep_seconds=0.02, head_seconds=1, idle_seconds=1, answer_seconds=1, half_seconds=0.5, linger_seconds=0.5
    )
    async with run_proxy(world, limits) as proxy:
        world.add("a", server.sockets[0].getsockname()[1])
        for _ in range(5):
            await asyncio.gather(*(client(proxy, dice) for _ in range(40)))
        await until(lambda: not proxy.server.clients, "the end of all connections of clients")
        await until(lambda: not proxy.server.connections, "the end of all websockets")
        await until(lambda: not world.leases, "the end of all leases")
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("none")))
            assert await wire.status() == 404
    await until(lambda: not moody.open, "the end of all connections to the workspace")
    server.close()
    await server.wait_closed()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert not errors, errors[0]
