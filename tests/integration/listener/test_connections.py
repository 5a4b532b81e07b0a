"""A listener under clients that are slow, silent, deaf or many, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.web.server.connections import ConnectionLimits
from lapse.web.server.listener import Endpoint, Listener
from tests.servers.certificate import make_authority
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope, Send

HOST = "127.0.0.1"
MIB = 1 << 20
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
QUICK = ConnectionLimits(sweep_seconds=0.02)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body; /big with much, /slow never."""
    size, more = 0, True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.Event().wait()
    body = b"a" * 16 * MIB if scope["path"] == "/big" else b"%d" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits = QUICK, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    endpoint = Endpoint(HOST, 0, setting="http")
    stopping = asyncio.Event()
    listener = Listener("http", app, endpoint, tls=tls, idle_seconds=30, limits=limits)
    running = asyncio.create_task(listener.run(stopping))
    try:
        yield endpoint.port
    finally:
        stopping.set()
        await running


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(port: int, first: bytes = b"", **options: Any) -> AsyncIterator[Pair]:  # noqa: ANN401 - asyncio's
    reader, writer = await asyncio.open_connection(HOST, port, **options)
    try:
        writer.write(first)
        yield reader, writer
    finally:
        writer.transport.abort()


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(20):
        return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side is gone, one way or the other."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            await reader.read()


@pytest.mark.parametrize("first", [b"", b"GET / HT", GET[:-2]])
async def test_a_head_that_does_not_come_is_not_waited_for(first: bytes) -> None:
    async with serving(ConnectionLimits(sweep_seconds=0.02, head_seconds=0.2)) as port:
        async with connected(port, first) as (reader, _):
            assert await status(reader) == 408
            await ended(reader)
        async with connected(port, GET) as (reader, writer):  # nor the second one on a connection
            assert await status(reader) == 200
            assert await reader.readexactly(1) == b"0"
            writer.write(b"GET")
            assert await status(reader) == 408


async def test_what_is_too_slow_is_answered_with_a_problem_document_that_nobody_keeps() -> None:
    limits = ConnectionLimits(sweep_seconds=0.02, head_seconds=0.2)
    async with serving(limits) as port, connected(port, GET[:-2]) as (reader, _), asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        told = json.loads(body)
    assert (told["status"], told["code"]) == (408, "RequestTooSlowError")
    for line in (b"content-type: application/problem+json", b"cache-control: no-store", b"connection: close"):
        assert line in head.lower()
    assert f"x-request-id: {told['instance']}".encode() in head


async def test_a_head_that_drips_is_not_waited_for() -> None:
    limits = ConnectionLimits(sweep_seconds=0.02, head_seconds=0.3)
    async with serving(limits) as port, connected(port, GET[:-4]) as (reader, writer):

        async def drip() -> None:
            while True:
                writer.write(b"a")
                await SystemClock().sleep(0.02)

        task = asyncio.create_task(drip())
        assert await status(reader) == 408
        task.cancel()


async def test_a_body_has_to_be_complete_in_time_however_steadily_it_drips() -> None:
    limits = ConnectionLimits(sweep_seconds=0.02, body_seconds=0.3)
    async with (
        serving(limits) as port,
        connected(port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n") as (reader, writer),
    ):

        async def drip() -> None:
            while True:
                writer.write(b"a")
                await SystemClock().sleep(0.02)

        task = asyncio.create_task(drip())
        assert await status(reader) == 408
        task.cancel()


async def test_half_heads_make_room_for_whole_requests() -> None:
    limits = ConnectionLimits(sweep_seconds=0.02, connections=40)
    async with serving(limits) as port, contextlib.AsyncExitStack() as stack:
        half = [await stack.enter_async_context(connected(port, b"GET / HT")) for _ in range(280)]
        async with connected(port, GET) as (reader, _):
            assert await status(reader) == 200
        for reader, _ in half[:200]:
            await ended(reader)


@pytest.mark.parametrize("limits", [{"connections": 3}, {"connections_per_peer": 3}])
async def test_with_all_at_work_a_new_connection_is_refused_at_once(limits: dict[str, int]) -> None:
    async with serving(ConnectionLimits(sweep_seconds=0.02, **limits)) as port, contextlib.AsyncExitStack() as stack:
        asked = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
        _, writer = [await stack.enter_async_context(connected(port, asked)) for _ in range(3)][-1]
        await SystemClock().sleep(0.1)
        async with connected(port) as (reader, _):
            assert await status(reader) == 503
        writer.transport.abort()
        await SystemClock().sleep(0.1)
        async with connected(port, GET) as (reader, _):
            assert await status(reader) == 200


@pytest.mark.parametrize("limits", [{"connections": 3}, {"connections_per_peer": 3}])
async def test_requests_whose_body_does_not_come_make_room_for_others(limits: dict[str, int]) -> None:
    async with serving(ConnectionLimits(sweep_seconds=0.02, **limits)) as port, contextlib.AsyncExitStack() as stack:
        half = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx"
        for _ in range(3):
            await stack.enter_async_context(connected(port, half))
        await SystemClock().sleep(0.1)
        async with connected(port, GET) as (reader, _):
            assert await status(reader) == 200


async def test_requests_sent_ahead_by_a_client_that_reads_nothing_wait_in_its_own_socket() -> None:
    loop = asyncio.get_running_loop()
    async with serving() as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, (HOST, port))
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 48 * MIB:
                    async with asyncio.timeout(1):
                        await loop.sock_sendall(client, GET * 4000)
                    sent += len(GET) * 4000
            assert sent < 24 * MIB


async def test_requests_sent_ahead_are_all_answered() -> None:
    count = 3000
    async with serving() as port, connected(port) as (reader, writer):
        writer.write(GET * count + GET.replace(b"Host", b"Connection: close\r\nHost"))
        async with asyncio.timeout(60):
            assert (await reader.read()).count(b"HTTP/1.1 200") == count + 1


async def test_a_client_that_does_not_take_its_answer_is_given_up() -> None:
    limits = ConnectionLimits(sweep_seconds=0.02, write_seconds=0.3)
    async with serving(limits) as port, connected(port, GET.replace(b"/ ", b"/big "), limit=1024) as (reader, _):
        await SystemClock().sleep(1)
        async with asyncio.timeout(20):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(16 * MIB)


async def test_handshakes_of_tls_are_limited_in_time_and_make_room(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = make_authority(tmp_path_factory.mktemp("authority"), tell_stderr)
    made = authority.issue("a", subject="/CN=localhost", extensions="subjectAltName=DNS:localhost,IP:127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate_file, made.key_file)
    trusting = ssl.create_default_context(cafile=str(authority.ca_file))
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    async with serving(ConnectionLimits(sweep_seconds=0.02, head_seconds=0.5), server) as port:
        async with connected(port, b"\x16\x03\x01") as (reader, _):
            await ended(reader)
        async with connected(port, GET[:-2], ssl=trusting) as (reader, _):
            assert await status(reader) == 408
    limits = ConnectionLimits(sweep_seconds=0.02, connections=20)
    async with serving(limits, server) as port, contextlib.AsyncExitStack() as stack:
        half = [await stack.enter_async_context(connected(port, b"\x16\x03\x01")) for _ in range(60)]
        for _ in range(3):
            async with connected(port, GET, ssl=trusting) as (reader, _):
                assert await status(reader) == 200
        for reader, _ in half[:40]:
            await ended(reader)
