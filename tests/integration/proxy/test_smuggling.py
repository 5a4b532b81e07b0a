"""Attempts to make the proxy and a workspace see different requests in the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.proxy.limits import ProxyLimits
from tests.integration.proxy.kit import TOKEN, Wire, World, asking, ok, program, run_proxy, until

if TYPE_CHECKING:
    import asyncio

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: {host}\r\n\r\n"
START = b"POST / HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"

ATTEMPTS = {
    "length and chunks": START + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": START + b"Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    "the same length twice": START + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + HIDDEN,
    "a list of lengths": START + b"Content-Length: 0, 60\r\n\r\n" + HIDDEN,
    "a length with a sign": START + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "chunks in disguise": START + b"Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "chunks behind a tab": START + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks, a space before the colon": START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a folded line": START + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a folded value": START + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a bare line feed in the head": START + b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a bare carriage return": START + b"X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "line feeds only": b"GET / HTTP/1.1\nHost: {host}\n\n" + HIDDEN,
    "a head that ends in line feeds": START + b"X: a\n\nGET /hidden HTTP/1.1\r\n\r\n",
    "a zero byte": START + b"X: a\0b\r\n\r\n" + HIDDEN,
    "a hop that hides the length": START + b"Connection: Content-Length\r\nContent-Length: 60\r\n\r\n" + HIDDEN,
    "a hop that hides the chunks": START
    + b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two hosts": START + b"Host: b.w.localhost\r\n\r\n" + HIDDEN,
    "another server's address": b"GET http://other/hidden HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a chunk with a sign": START + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n" + HIDDEN,
    "a chunk that is longer than it says": START
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"
    + HIDDEN,
    "a chunk that ends in a line feed": START + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n" + HIDDEN,
    "a chunk's extension with a line feed": START + b"Transfer-Encoding: chunked\r\n\r\n3;x\nabc\r\n0\r\n\r\n" + HIDDEN,
    "chunks in the old protocol": START.replace(b"/1.1", b"/1.0")
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "more fields than allowed": START + b"X: a\r\n" * 200 + b"\r\n" + HIDDEN,
    "a head without end": START + b"X: " + b"a" * 70_000,
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_an_attempt_is_refused_and_nothing_of_it_is_a_request(attempt: bytes) -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        await wire.send(attempt.replace(b"{host}", proxy.host("a").encode()))
        answer = await wire.rest()
        status = int(answer.split()[1])
        assert 400 <= status <= 501, answer
        assert answer.count(b"HTTP/1.1 ") == 1, "one answer, and the end of the connection"
        assert b"Connection: close" in answer
        assert b"hidden" not in ours.received


async def test_a_request_in_a_body_stays_a_body() -> None:
    """What a client that counts and a client that chunks would disagree about is one body here, framed anew."""
    world = World()

    def answer(got: bytes, writer: asyncio.StreamWriter) -> None:
        if got.endswith((b"0\r\n\r\n", b"GET /hidden HTTP/1.1\r\n\r\n")):
            writer.write(ok())

    hidden = b"GET /hidden HTTP/1.1\r\n\r\n"
    async with program(answer) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        length = f"Content-Length: {len(hidden)}"
        await wire.send(asking(proxy.host("a"), length, method="POST", body=hidden))
        assert await wire.status() == 200
        await wire.reader.readexactly(2)
        chunked = (
            b"".join(b"1;ext=%d\r\n%c\r\n" % (place, byte) for place, byte in enumerate(hidden)) + b"0\r\nX: y\r\n\r\n"
        )
        await wire.send(asking(proxy.host("a"), "Transfer-Encoding: chunked", method="POST", body=chunked))
        assert await wire.status() == 200
        counted, in_chunks = (bytes(each) for each in ours.connections)
        assert counted.endswith(f"{length}\r\n\r\n".encode() + hidden)
        assert b"ext=" not in in_chunks
        assert b"X: y" not in in_chunks
        assert in_chunks.count(b"\r\n\r\n") >= 2


async def test_an_upgrade_to_http_2_is_not_passed_on() -> None:
    world = World()
    async with program(ok()) as ours, run_proxy(world) as proxy, await Wire.to(proxy.port) as wire:
        world.add("a", ours.port)
        lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
        await wire.send(asking(proxy.host("a"), *lines))
        assert await wire.status() == 200
        assert b"h2c" not in ours.received
        assert b"HTTP2" not in ours.received
        assert b"Connection" not in ours.received


async def test_an_oversize_body_is_refused_before_and_while_it_comes() -> None:
    world = World()
    limits = ProxyLimits(sweep_seconds=0.02, body_bytes=1000)
    async with program(lambda got, writer: None) as ours, run_proxy(world, limits) as proxy:
        world.add("a", ours.port)
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a"), "Content-Length: 1001", method="POST"))
            assert await wire.status() == 413
            assert not ours.connections
        async with await Wire.to(proxy.port) as wire:
            await wire.send(asking(proxy.host("a"), "Transfer-Encoding: chunked", method="POST"))
            await wire.send(b"1f4\r\n" + bytes(500) + b"\r\n")
            await until(lambda: ours.received, "the beginning at the workspace")
            await wire.send(b"1f5\r\n" + bytes(501) + b"\r\n")
            assert await wire.status() == 413
            await until(lambda: not ours.open, "the end at the workspace")
