from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock
from lapse.http1.bodies import LAST_CHUNK, chunk
from lapse.proxy.limits import ProxyLimits
from tests.integration.proxy.kit import (
    LOOPBACK,
    Program,
    RunningProxy,
    Wire,
    World,
    asking,
    ok,
    program,
    run_proxy,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MIB = 1 << 20
MOST_BUFFERED = 512 * 1024
"""One piece that was read, and what was there before it."""


@contextlib.asynccontextmanager
async def deaf(port: int) -> AsyncIterator[socket.socket]:
    """Connect as a client that has little room for answers, and reads none unless it is told to."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (LOOPBACK, port))
        yield client


async def push(client: socket.socket, data: bytes, most: int) -> int:
    """Send it again and again until nothing is taken for half a second, or so much was; return how much."""
    sent = 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        while sent < most:
            async with asyncio.timeout(0.5):
                await asyncio.get_running_loop().sock_sendall(client, data)
            sent += len(data)
    return sent


async def watch_buffers(proxy: RunningProxy, seen: list[int]) -> None:
    while True:
        clients = tuple(proxy.server.clients)
        seen += [client.buffered for client in clients]
        seen += [client.transport.get_write_buffer_size() for client in clients]
        await SystemClock().sleep(0.002)


@contextlib.asynccontextmanager
async def watched(proxy: RunningProxy) -> AsyncIterator[list[int]]:
    """Collect how much is kept for clients, both ways."""
    seen = [0]
    task = asyncio.get_running_loop().create_task(watch_buffers(proxy, seen))
    try:
        yield seen
    finally:
        task.cancel()


async def test_requests_sent_ahead_by_a_client_that_reads_no_answer_wait_in_its_own_socket() -> None:
    async with run_proxy(World()) as proxy, deaf(proxy.port) as client, watched(proxy) as seen:
        requests = b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 2000
        assert await push(client, requests, 24 * MIB) < 16 * MIB
        assert max(seen) < MOST_BUFFERED


async def test_requests_sent_ahead_are_all_answered_in_order_and_keep_nobody_waiting() -> None:
    world, count = World(), 20_000
    async with run_proxy(world) as proxy, await Wire.to(proxy.port) as wire, watched(proxy) as seen:
        sending = asyncio.get_running_loop().create_task(
            wire.send(
                b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * (count - 1) + b"GET / HTTP/1.0\r\nHost: nobody\r\n\r\n"
            )
        )
        slowest = 0
        answers = asyncio.get_running_loop().create_task(wire.reader.read(-1))
        while not answers.done():
            begun = SystemClock().monotonic_ns()
            async with await Wire.to(proxy.port) as other:
                await other.send(b"GET / HTTP/1.0\r\nHost: nobody\r\n\r\n")
                assert await other.status() == 404
            slowest = max(slowest, SystemClock().monotonic_ns() - begun)
        await sending
        assert (await answers).count(b"HTTP/1.1 404") == count
        assert slowest < 1_000_000_000
        assert max(seen) < MOST_BUFFERED


async def test_a_head_that_comes_byte_by_byte_costs_as_much_as_its_bytes() -> None:
    async with run_proxy(World()) as proxy, await Wire.to(proxy.port) as wire:
        await wire.send(b"GET / HTTP/1.1\r\nHost: nobody\r\nX: ")
        await until(lambda: any(client.buffered for client in proxy.server.clients), "the beginning")
        client = next(iter(proxy.server.clients))
        begun = time.process_time()
        for _ in range(32_000):
            client.data_received(b"a")
        assert time.process_time() - begun < 1
        await wire.send(b"\r\n\r\n")
        assert await wire.status() == 404


@pytest.mark.parametrize("size", [0, 20_000])
async def test_announcements_for_a_client_that_reads_nothing_wait_at_the_workspace(size: int) -> None:
    world, written = World(), [0]
    writing: set[asyncio.Task[None]] = set()
    piece = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"a" * size + b"\r\n\r\n"

    async def announce(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while written[0] < 24 * MIB:
                writer.write(piece)
                written[0] += len(piece)
                await writer.drain()

    def answer(got: bytes, writer: asyncio.StreamWriter) -> None:
        writing.add(asyncio.get_running_loop().create_task(announce(writer)))

    limits = ProxyLimits(sweep_seconds=0.02, informations=10_000_000)
    async with program(answer) as ours, run_proxy(world, limits) as proxy, watched(proxy) as seen:
        world.add("a", ours.port)
        async with deaf(proxy.port) as client:
            await push(client, asking(proxy.host("a")), 1)
            still = -1
            while written[0] != still and written[0] < 24 * MIB:
                still = written[0]
                await SystemClock().sleep(0.3)
            assert still < 20 * MIB
            assert max(seen) < MOST_BUFFERED
    await asyncio.gather(*writing)


async def test_announcements_that_waited_arrive_with_the_answer() -> None:
    world = World()
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"a" * 20_000 + b"\r\n\r\n"
    async with program(hint * 90 + ok(b"done")) as ours, run_proxy(world) as proxy, deaf(proxy.port) as client:
        world.add("a", ours.port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, asking(proxy.host("a"), "Connection: close"))
        await SystemClock().sleep(0.2)
        got = bytearray()
        async with asyncio.timeout(30):
            while piece := await loop.sock_recv(client, 65_536):
                got += piece
        assert got.count(b"103 Early Hints") == 90
        assert got.endswith(b"done")


async def test_a_workspace_that_announces_without_end_is_given_up() -> None:
    world = World()
    async with program(b"HTTP/1.1 102 Processing\r\n\r\n" * 200) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            statuses = [await wire.status() for _ in range(101)]
            assert statuses == [102] * 100 + [502]


async def test_a_client_that_leaves_its_answer_lie_is_given_up() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, write_seconds=0.3, keep_seconds=2)  # the last if no buffer got full
    async with run_proxy(world, limits) as proxy, deaf(proxy.port) as client:
        await push(client, b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 2000, 24 * MIB)
        await until(lambda: not proxy.server.clients, "the end of the connection")


async def test_tiny_chunks_of_a_workspace_all_arrive_and_keep_nobody_waiting() -> None:
    world, count = World(), 100_000
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"a") * count + LAST_CHUNK
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Connection: close"))
        assert await wire.status() == 200
        rest = await wire.rest()
        assert rest.count(b"a") >= count  # a size in hexadecimal digits may have one as well
        assert rest.endswith(LAST_CHUNK)


async def test_tiny_chunks_of_a_client_all_arrive() -> None:
    world, count = World(), 100_000
    body = chunk(b"z") * count + LAST_CHUNK

    def answer(got: bytes, writer: asyncio.StreamWriter) -> None:
        if got.endswith(LAST_CHUNK):
            writer.write(ok(b"%d" % got.count(b"z")))

    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Transfer-Encoding: chunked", method="POST", body=body))
        assert await wire.status() == 200
        assert await wire.reader.readexactly(6) == b"%d" % count


async def test_connections_that_say_nothing_make_room_for_one_that_does() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, head_seconds=30, connections=20, connections_per_peer=1000)
    async with program(ok()) as ours, run_proxy(world, limits) as proxy, contextlib.AsyncExitStack() as stack:
        world.add("a", ours.port)
        half = [await stack.enter_async_context(await Wire.to(proxy.port)) for _ in range(50)]
        for wire in half[-20:]:
            await wire.send(b"GET / HTTP/1.1\r\nHost: ")
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            assert await wire.status() == 200
        await until(lambda: len(proxy.server.clients) <= 20, "the end of the others")


def _is_more(ours: Program, number: int) -> bool:
    return ours.open > number


async def test_beyond_the_limit_of_one_address_a_connection_is_refused_at_once_if_all_are_at_work() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, connections_per_peer=3)
    async with program(lambda got, writer: None) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(3):
                wire = await stack.enter_async_context(await Wire.to(proxy.port))
                await wire.send(asking(proxy.host("a")))
                await until(partial(_is_more, ours, number), "the request")
            async with await Wire.to(proxy.port) as wire:
                assert await wire.status() == 503
        await until(lambda: not proxy.server.clients, "the end of all")
        async with await Wire.to(proxy.port) as wire:
            await wire.send(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n")
            assert await wire.status() == 404
