"""No request that one side sees as one and another as two: our codec beside llhttp and h11 on the same bytes.

What we reject, nobody sees behind us. What we accept, the others read as the same messages or reject; and what the
proxy writes for it, both read as exactly that one request.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - a fixed seed: the same examples every time
from typing import TYPE_CHECKING, Final

import pytest

from lapse.http1.bodies import LAST_CHUNK, chunk
from lapse.http1.heads import CHUNKED, ReceiveBuffer, request_head
from lapse.proxy.exchange import request_bytes
from tests.unit.http1 import peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES: Final = 4000
"""Always the same. A generator of our own, because one that also shrinks takes a hundred times as long."""
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"

LINES = [
    b"GET / HTTP/1.1",
    b"POST /a?b=c HTTP/1.1",
    b"PUT /x HTTP/1.0",
    b"HEAD / HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET  / HTTP/1.1",
    b"GET http://other/ HTTP/1.1",
    b"GET / HTTP/1.2",
    b"GET /",
]
FRAMING = [
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"content-length: 5",
    b"Content-Length: 005",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length : 5",
    b"Content-Length:5 ",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked ",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding:\r\n chunked",
    b"X-Transfer-Encoding: chunked",
]
RIGHT = [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", b"Accept: */*"]
OTHERS = [
    b"Accept: */*",
    b"X: a\tb",
    b"X:",
    b"X: \xe9",
    b"X: a\r\n b",
    b"X: a\nY: b",
    b"X: a\rY: b",
    b"X: \x00",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Content-Length",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Expect: 100-continue",
    b"Host: other",
    b" Folded: a",
    b": a",
    b"No colon",
]
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"05\r\nhello\r\n000\r\n\r\n",
    b"5;ext=1\r\nhello\r\n0\r\n\r\n",
    b"5 ;ext\r\nhello\r\n0\r\n\r\n",
    b"5;e\nhello\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"100000005\r\nhello\r\n0\r\n\r\n",
    b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0\r\n" + HIDDEN,
    b"0\r\n\r\n",
]
ODD = [bytes([each]) for each in b"\r\n \t:;,0159afxX+-\x00\x0b\x7f\x80"] + [b"\r\n", b"\r\n\r\n", b""]


def message(chance: Random, lines: list[bytes]) -> bytes:
    """One message of parts that are right or nearly so."""
    fields = chance.choices(OTHERS if chance.randrange(2) else FRAMING, k=chance.randrange(3))
    if chance.randrange(2):  # often enough right, so that bodies are looked at
        fields = [*fields[:1], chance.choice(RIGHT)]
    if chance.randrange(8):
        fields.insert(chance.randrange(len(fields) + 1), b"Host: h")
    return b"\r\n".join([chance.choice(lines), *fields, b"", b""]) + chance.choice(BODIES)


def damaged(chance: Random, data: bytes) -> bytes:
    """Replace a few bytes, leave some out, or put some between."""
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice(ODD) + data[at + chance.randrange(3) :]
    return data


def connections(lines: list[bytes]) -> Iterator[bytes]:
    """What somebody may send on one connection: a message or two, damaged, and a right request behind."""
    chance = Random(13)
    for _ in range(EXAMPLES):
        yield damaged(chance, b"".join(message(chance, lines) for _ in range(chance.randrange(1, 3))) + HIDDEN)


TRICKS = {
    "length and chunks": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 60\r\n\r\n",
    "the same length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a length of thirty digits": b"Content-Length: " + b"0" * 29 + b"3\r\n\r\nabc",
    "another coding before chunks": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding behind chunks": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a folded value": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare carriage return": b"X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a zero byte": b"X: a\0b\r\n\r\n",
    "two hosts": b"Host: other\r\n\r\n",
    "a chunk with a sign": b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk of seventeen digits": b"Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk that is longer than it says": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "a line feed in an extension": b"Transfer-Encoding: chunked\r\n\r\n3;x\nabc\r\n0\r\n\r\n",
    "a carriage return in an extension": b"Transfer-Encoding: chunked\r\n\r\n3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a request as a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nGET /x HTTP/1.1\r\n\r\n",
    "a length as a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_a_known_trick_is_rejected(trick: bytes) -> None:
    reading = peers.requests_by_us(b"POST / HTTP/1.1\r\nHost: h\r\n" + trick + HIDDEN)
    assert reading.is_over
    assert not reading.messages


@pytest.mark.parametrize("read", [peers.requests_by_llhttp, peers.requests_by_h11])
def test_nobody_sees_other_requests_than_we_do(read: Callable[[bytes], peers.Reading]) -> None:
    accepted = 0
    for data in connections(LINES):
        ours, other = peers.requests_by_us(data), read(data)
        assert not peers.disagree(ours, other), (data, ours, other)
        accepted += bool(ours.messages)
    assert accepted > EXAMPLES // 20, "these examples show something"


def test_we_accept_nothing_that_llhttp_rejects() -> None:
    for data in connections(LINES):
        ours, other = peers.requests_by_us(data).messages, peers.requests_by_llhttp(data).messages
        more = ours[len(other) :]
        # Left out: llhttp knows no methods but those of its list, and stops where an upgrade is offered.
        assert not more or more[0][0] not in peers.METHODS or b"upgrade" in data.lower(), data


def test_what_the_proxy_writes_is_one_request_to_everybody() -> None:
    written = 0
    for data in connections(LINES):
        ours, buffer = peers.requests_by_us(data), ReceiveBuffer()
        buffer.feed(data)
        if not ours.messages:
            continue
        head = request_head(buffer.take_head() or b"", most_fields=peers.MOST_FIELDS)
        if head.upgrade or head.method not in peers.METHODS:
            continue
        method, target, content = ours.messages[0]
        sent = request_bytes(head, peer=b"127.0.0.1", scheme=b"http", cookies=frozenset())
        sent += chunk(content) * bool(content) + LAST_CHUNK if head.length == CHUNKED else content
        expected = peers.Reading([(method, target, content), (b"GET", b"/hidden", b"")])
        for read in (peers.requests_by_us, peers.requests_by_llhttp, peers.requests_by_h11):
            assert read(sent + HIDDEN) == expected, (data, sent)
        written += 1
    assert written > EXAMPLES // 20, "these examples show something"


STATUS_LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 200",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 Not Modified",
    b"HTTP/1.1 404 Not\tFound",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
    b"HTTP/1.1 099 What",
    b"HTTP/1.1  200 OK",
]


@pytest.mark.parametrize("read", [peers.response_by_llhttp, peers.response_by_h11])
def test_a_response_that_we_accept_is_the_same_to_others_or_rejected(
    read: Callable[[bytes], peers.Reading],
) -> None:
    accepted = 0
    for data in connections(STATUS_LINES):
        ours = peers.response_by_us(data)
        other = read(data) if ours.messages else ours
        assert not other.messages or other.messages[0] == ours.messages[0], (data, ours, other)
        accepted += bool(ours.messages and other.messages)
    assert accepted > EXAMPLES // 20, "these examples show something"
