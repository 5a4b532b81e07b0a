from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from lapse.core.clock import SystemClock
from lapse.proxy.limits import ProxyLimits
from tests.integration.proxy.kit import BEARER, LOOPBACK, Wire, World, asking, ok, program, run_proxy, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MEGABYTE = 1024 * 1024


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as entered:
        yield entered


async def web_program(stack: AsyncExitStack, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> int:
    """Run a real HTTP server as a workspace's program."""
    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, LOOPBACK, 0).start()
    port: int = runner.addresses[0][1]
    return port


async def test_a_request_and_its_answer_pass_as_they_are(stack: AsyncExitStack) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        text = f"{request.method} {request.raw_path} {await request.text()}"
        return web.Response(status=207, text=text, headers={"X-Mine": "yes"})

    world = World()
    world.add("a", await web_program(stack, handle))
    proxy = await stack.enter_async_context(run_proxy(world))
    client = await stack.enter_async_context(aiohttp.ClientSession())
    headers = {**BEARER, "Host": proxy.host("a")}
    url = f"http://{LOOPBACK}:{proxy.port}/x"
    async with client.put(url, data=b"hello", headers=headers, params={"a": "b c"}) as answer:
        assert (answer.status, answer.headers["X-Mine"]) == (207, "yes")
        assert await answer.text() == "PUT /x?a=b+c hello"


async def test_a_path_is_passed_on_as_it_is_and_never_resolved() -> None:
    world = World()
    target = "/a/../../etc/passwd/%2e%2e/%2F..%5c;x=1//?q=../%00"
    async with program(ok()) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), target=target))
        assert await wire.status() == 200
        assert ours.received.startswith(f"GET {target} HTTP/1.1\r\n".encode())


async def test_bodies_of_many_megabytes_pass_both_ways_at_once(stack: AsyncExitStack) -> None:
    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in request.content.iter_any():
            await response.write(piece)
        return response

    world = World()
    world.add("a", await web_program(stack, echo))
    proxy = await stack.enter_async_context(run_proxy(world))
    client = await stack.enter_async_context(aiohttp.ClientSession())
    block = hashlib.sha512(b"block").digest() * (MEGABYTE // 64)

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield block

    url = f"http://{LOOPBACK}:{proxy.port}/"
    async with client.post(url, data=blocks(), headers={**BEARER, "Host": proxy.host("a")}) as answer:
        digest, size = hashlib.sha256(), 0
        async for piece in answer.content.iter_any():
            digest.update(piece)
            size += len(piece)
    assert size == 20 * MEGABYTE
    assert digest.hexdigest() == hashlib.sha256(block * 20).hexdigest()


async def test_an_answer_is_passed_on_before_it_is_complete(stack: AsyncExitStack) -> None:
    go_on = asyncio.Event()

    async def events(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: 2\n\n")
        return response

    world = World()
    world.add("a", await web_program(stack, events))
    proxy = await stack.enter_async_context(run_proxy(world))
    client = await stack.enter_async_context(aiohttp.ClientSession())
    async with client.get(f"http://{LOOPBACK}:{proxy.port}/", headers={**BEARER, "Host": proxy.host("a")}) as answer:
        assert await answer.content.readline() == b"data: 1\n"
        go_on.set()
        assert b"data: 2\n" in await answer.content.read()


async def test_a_request_reaches_the_workspace_before_it_is_complete() -> None:
    world = World()
    async with (
        program(lambda got, writer: None) as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Content-Length: 10", method="POST", body=b"12345"))
        await until(lambda: ours.received.endswith(b"\r\n\r\n12345"), "the first half")


async def test_a_client_that_does_not_read_holds_the_workspace_back() -> None:
    world = World()
    sent = 0

    def flood(got: bytes, writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
            while sent < 200_000_000:
                writer.write(bytes(100_000))
                await writer.drain()
                sent += 100_000

        tasks.append(asyncio.get_running_loop().create_task(run()))

    tasks: list[asyncio.Task[None]] = []
    async with program(flood) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        await wire.head()
        before = -1
        while not sent or sent != before:
            before = sent
            await SystemClock().sleep(0.3)
        assert 0 < sent < 60_000_000, "the kernel's buffers on both ways and little more"
        got = 0
        while got < before + 1_000_000:
            got += len(await asyncio.wait_for(wire.reader.read(1_000_000), 30))
        tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_workspace_that_does_not_read_holds_the_client_back() -> None:
    world = World()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        writer.transport.abort()

    done = asyncio.Event()
    server = await asyncio.start_server(deaf, LOOPBACK, 0)
    world.add("a", server.sockets[0].getsockname()[1])
    async with run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        await wire.send(asking(proxy.host("a"), "Content-Length: 500000000", method="POST"))
        sent = 0
        try:
            while sent < 500_000_000:
                wire.writer.write(bytes(100_000))
                await asyncio.wait_for(wire.writer.drain(), 1)
                sent += 100_000
        except TimeoutError:
            pass
        assert 0 < sent < 60_000_000, "the kernel's buffers on both ways and little more"
        wire.writer.transport.abort()
        done.set()
    server.close()
    await server.wait_closed()


async def test_connections_are_kept_on_both_sides() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        for _ in range(5):
            await wire.send(asking(proxy.host("a")))
            assert b"Connection" not in await wire.head()
            assert await wire.reader.readexactly(2) == b"ok"
        assert len(ours.connections) == 1


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    world = World()
    async with program(ok(b"A")) as one, program(ok(b"B")) as two, run_proxy(world) as proxy:
        world.add("a", one.port)
        world.add("b", two.port)
        async with await Wire.to(proxy.port) as wire:
            body = asking(proxy.host("a"), "Content-Length: 4", method="POST", body=b"\r\n\r\n")
            await wire.send(asking(proxy.host("b")) + body + asking(proxy.host("b"), "Connection: close"))
            answers = await wire.rest()
        assert [part[:1] for part in answers.split(b"\r\n\r\n")[1:]] == [b"B", b"A", b"B"]


async def test_a_kept_connection_that_the_workspace_has_closed_is_not_noticed() -> None:
    def once(got: bytes, writer: asyncio.StreamWriter) -> None:
        if got.count(b"\r\n\r\n") == 1:
            writer.write(ok())
        else:
            writer.transport.abort()  # at the very moment the second request comes

    world = World()
    async with program(once) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        for _ in range(4):
            await wire.send(asking(proxy.host("a")))
            assert await wire.status() == 200
            await wire.reader.readexactly(2)
        assert len(ours.connections) == 4


async def test_a_request_that_changes_something_is_sent_once_on_a_fresh_connection() -> None:
    def refuse_post(got: bytes, writer: asyncio.StreamWriter) -> None:
        if got.startswith(b"POST"):
            writer.transport.abort()
        else:
            writer.write(ok())

    world = World()
    async with program(refuse_post) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        assert await wire.status() == 200
        await wire.reader.readexactly(2)
        await wire.send(asking(proxy.host("a"), "Content-Length: 0", method="POST"))
        assert await wire.status() == 502
        assert ours.received.count(b"POST") == 1


async def test_an_answer_until_the_end_of_the_connection_is_complete_and_leaves_ours_open() -> None:
    def until_close(got: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello")
        writer.close()

    world = World()
    async with program(until_close) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        for _ in range(2):
            await wire.send(asking(proxy.host("a")))
            assert b"Transfer-Encoding: chunked" in await wire.head()
            body = b""
            while not body.endswith(b"0\r\n\r\n"):
                body += await wire.reader.readexactly(1)
            assert b"hello" in body


async def test_an_old_client_gets_an_answer_without_chunks() -> None:
    world = World()
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n"
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert b"chunked" not in head
        assert body == b"abcde"


async def test_an_answer_that_breaks_off_breaks_off_for_the_client() -> None:
    def half(got: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
        writer.close()

    world = World()
    async with program(half) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        try:
            answer = await wire.rest()
        except ConnectionError:
            return
        assert not answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: lapse_session=forged\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
    ids=["both lengths", "two lengths", "a bare line feed", "an upgrade nobody asked for", "no HTTP", "too long"],
)
async def test_a_doubtful_answer_is_not_passed_on(answer: bytes) -> None:
    world = World()
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        assert await wire.status() == 502
        await until(lambda: ours.open == 0, "the end of the doubtful connection")


async def test_bytes_behind_an_answer_are_never_taken_for_the_next_one() -> None:
    world = World()
    async with (
        program(ok() + ok(b"forged")) as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        world.add("a", ours.port)
        for _ in range(3):
            await wire.send(asking(proxy.host("a")))
            assert await wire.status() == 200
            assert await wire.reader.readexactly(2) == b"ok"
        assert len(ours.connections) == 3


async def test_who_expects_to_be_told_to_continue_is_told_by_the_workspace() -> None:
    def careful(got: bytes, writer: asyncio.StreamWriter) -> None:
        if got.endswith(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif got.endswith(b"hello"):
            writer.write(ok())

    world = World()
    async with program(careful) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Content-Length: 5", "Expect: 100-continue", method="POST"))
        assert await wire.status() == 100
        await wire.send(b"hello")
        assert await wire.status() == 200


async def test_an_answer_before_the_end_of_the_request_reaches_the_client() -> None:
    def early(got: bytes, writer: asyncio.StreamWriter) -> None:
        if b"no, thanks" not in sent:
            sent.append(b"no, thanks")
            writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 10\r\n\r\nno, thanks")

    sent: list[bytes] = []
    world = World()
    async with program(early) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(asking(proxy.host("a"), "Content-Length: 5000000", method="POST", body=bytes(1000)))
        head = await wire.head()
        assert head.startswith(b"HTTP/1.1 422")
        assert b"Connection: close" in head
        await wire.send(bytes(100_000))
        assert await wire.rest() == b"no, thanks"


async def test_a_head_request_has_no_body_and_the_next_one_is_understood() -> None:
    world = World()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        for _ in range(2):
            await wire.send(asking(proxy.host("a"), method="HEAD"))
            assert b"Content-Length: 500" in await wire.head()
        await wire.send(asking("nowhere.localhost", "Connection: close", method="HEAD"))
        assert (await wire.rest()).endswith(b"\r\n\r\n")


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    world = World()
    async with program(lambda got, writer: None) as ours, run_proxy(world) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a")))
            await until(lambda: ours.received, "the request")
        await until(lambda: ours.open == 0, "the end of the request at the workspace")


async def test_a_workspace_never_gets_another_ones_connection() -> None:
    world = World()
    async with program(ok(b"A")) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        world.add("b", ours.port)
        for name in "abab":
            await wire.send(asking(proxy.host(name)))
            await wire.head()
            await wire.reader.readexactly(1)
        hosts = [{line for line in bytes(each).split(b"\r\n") if b"Host" in line} for each in ours.connections]
        assert [len(each) for each in hosts] == [2, 2], "Host and X-Forwarded-Host of one workspace each"


async def test_requests_are_accesses() -> None:
    world = World()
    async with (
        program(ok()) as ours,
        run_proxy(world, ProxyLimits(sweep_seconds=3600)) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        place = world.add("a", ours.port)
        for _ in range(3):
            await wire.send(asking(proxy.host("a")))
            await wire.head()
            await wire.reader.readexactly(2)
        assert world.accesses == {place.workspace: 3}


async def test_a_long_request_stays_an_access() -> None:
    world = World()
    async with (
        program(lambda got, writer: None) as ours,
        run_proxy(world) as proxy,
        await Wire.to(proxy.port) as wire,
    ):
        place = world.add("a", ours.port)
        await wire.send(asking(proxy.host("a")))
        await until(lambda: world.accesses[place.workspace] > 3, "further accesses")


async def test_whatever_pieces_the_bytes_come_in_the_requests_and_answers_are_the_same() -> None:
    def drip(got: bytes, writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n":
                writer.write(bytes([byte]))
                await SystemClock().sleep(0)

        if got.endswith(b"0\r\n\r\n"):
            tasks.append(asyncio.get_running_loop().create_task(run()))

    world = World()
    tasks: list[asyncio.Task[None]] = []
    async with program(drip) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        one = asking(proxy.host("a"), "Transfer-Encoding: chunked", method="POST", body=b"3\r\nabc\r\n0\r\n\r\n")
        last = one.replace(b"Transfer-Encoding", b"Connection: close\r\nTransfer-Encoding")
        for byte in one + one + last:
            wire.writer.write(bytes([byte]))
            await SystemClock().sleep(0)
        answers = await wire.rest()
        assert answers.count(b"HTTP/1.1 200 OK") == 3
        assert answers.endswith(b"0\r\n\r\n")
        assert len(ours.connections) == 3
        assert len({bytes(each).partition(b"\r\n\r\n")[0] for each in ours.connections}) == 1
    await asyncio.gather(*tasks)
