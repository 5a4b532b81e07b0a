from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.http1.heads import (
    CHUNKED,
    UNTIL_CLOSE,
    RejectedError,
    RequestHead,
    ResponseHead,
    request_head,
    response_head,
)

HOST = "Host: a.w.localhost"


def head(*lines: str, first: str = "GET / HTTP/1.1") -> RequestHead:
    return request_head("\r\n".join([first, *lines]).encode("latin-1"), most_fields=100)


def response(*lines: str, first: str = "HTTP/1.1 200 OK", method: bytes = b"GET") -> ResponseHead:
    return response_head("\r\n".join([first, *lines]).encode("latin-1"), method=method, most_fields=100)


def test_a_head_is_taken_apart() -> None:
    found = head(HOST, "Content-Length: 12", "X-Thing:  a b \t", first="POST /a/../b?c=%2e%2E HTTP/1.1")
    assert (found.method, found.target, found.length) == (b"POST", b"/a/../b?c=%2e%2E", 12)
    assert found.host == b"a.w.localhost"
    assert found.values[b"x-thing"] == b"a b"
    assert found.fields[-1] == (b"x-thing", b"a b", b"X-Thing:  a b \t")


REFUSED = {
    "both lengths": (400, [HOST, "Content-Length: 4", "Transfer-Encoding: chunked"]),
    "both lengths, the other way round": (400, [HOST, "Transfer-Encoding: chunked", "Content-Length: 4"]),
    "two lengths": (400, [HOST, "Content-Length: 4", "Content-Length: 5"]),
    "the same length twice": (400, [HOST, "Content-Length: 4", "content-length: 4"]),
    "a list of lengths": (400, [HOST, "Content-Length: 4, 4"]),
    "a length with a sign": (400, [HOST, "Content-Length: +4"]),
    "a negative length": (400, [HOST, "Content-Length: -4"]),
    "a hexadecimal length": (400, [HOST, "Content-Length: 0x4"]),
    "a length with an underscore": (400, [HOST, "Content-Length: 1_0"]),
    "a length in other digits": (400, [HOST, "Content-Length: \xb2"]),
    "a length without end": (400, [HOST, f"Content-Length: {'9' * 30}"]),
    "an empty length": (400, [HOST, "Content-Length:"]),
    "two codings": (400, [HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"]),
    "chunked twice": (501, [HOST, "Transfer-Encoding: chunked, chunked"]),
    "another coding": (501, [HOST, "Transfer-Encoding: gzip, chunked"]),
    "a coding in disguise": (501, [HOST, "Transfer-Encoding: xchunked"]),
    "a coding with a tab": (501, [HOST, "Transfer-Encoding: \x0b chunked".replace("\x0b", "\t,")]),
    "a vertical tab": (400, [HOST, "Transfer-Encoding: \x0bchunked"]),
    "a space before the colon": (400, [HOST, "Transfer-Encoding : chunked"]),
    "a space before the name": (400, [HOST, " Transfer-Encoding: chunked"]),
    "a continued line": (400, [HOST, "X-Thing: a", " b"]),
    "a continued line by tab": (400, [HOST, "X-Thing: a", "\tTransfer-Encoding: chunked"]),
    "a bare line feed": (400, [HOST, "X-Thing: a\nTransfer-Encoding: chunked"]),
    "a bare carriage return": (400, [HOST, "X-Thing: a\rTransfer-Encoding: chunked"]),
    "a zero byte": (400, [HOST, "X-Thing: a\0b"]),
    "a name that is none": (400, [HOST, "X Thing: a"]),
    "no name": (400, [HOST, ": a"]),
    "no colon": (400, [HOST, "X-Thing"]),
    "no host": (400, ["X-Thing: a"]),
    "two hosts": (400, [HOST, "Host: b.w.localhost"]),
    "two authorizations": (400, [HOST, "Authorization: a", "Authorization: b"]),
    "two origins": (400, [HOST, "Origin: http://a", "Origin: http://b"]),
    "a hop that hides the host": (400, [HOST, "Connection: close, Host"]),
    "a hop that hides the length": (400, [HOST, "Connection: content-length", "Content-Length: 4"]),
    "a hop that hides the origin": (400, [HOST, "Connection: Origin", "Origin: http://evil"]),
    "a hop that hides the cookie": (400, [HOST, "Connection: keep-alive", "Connection: cookie"]),
    "more fields than allowed": (431, [HOST, *["X-Thing: a"] * 100]),
}


@pytest.mark.parametrize(("status", "lines"), REFUSED.values(), ids=REFUSED)
def test_a_doubtful_head_is_refused(status: int, lines: list[str]) -> None:
    with pytest.raises(RejectedError) as caught:
        head(*lines, first="POST / HTTP/1.1")
    assert caught.value.status == status
    assert caught.value.words


FIRST_LINES = {
    "an address of another server": (400, "GET http://other/ HTTP/1.1"),
    "a name for a tunnel": (501, "CONNECT other:443 HTTP/1.1"),
    "a tunnel to a path": (501, "CONNECT / HTTP/1.1"),
    "a request for what was sent": (501, "TRACE / HTTP/1.1"),
    "an asterisk": (400, "OPTIONS * HTTP/1.1"),
    "no path": (400, "GET HTTP/1.1"),
    "two spaces": (400, "GET  / HTTP/1.1"),
    "a space in the path": (400, "GET /a b HTTP/1.1"),
    "a fragment": (400, "GET /a#b HTTP/1.1"),
    "a byte beyond ASCII": (400, "GET /\xe9 HTTP/1.1"),
    "HTTP/2": (400, "GET / HTTP/2.0"),
    "HTTP/0.9": (400, "GET /"),
    "HTTP in lower case": (400, "GET / http/1.1"),
    "a tab": (400, "GET\t/ HTTP/1.1"),
    "the preface of HTTP/2": (400, "PRI * HTTP/2.0"),
}


@pytest.mark.parametrize(("status", "first"), FIRST_LINES.values(), ids=FIRST_LINES)
def test_a_first_line_that_is_not_for_a_workspace_is_refused(status: int, first: str) -> None:
    with pytest.raises(RejectedError) as caught:
        head(HOST, first=first)
    assert caught.value.status == status


def test_http_1_0_knows_no_chunks_and_is_not_kept() -> None:
    assert not head(HOST, "Connection: keep-alive", first="GET / HTTP/1.0").keep
    with pytest.raises(RejectedError):
        head(HOST, "Transfer-Encoding: chunked", first="POST / HTTP/1.0")


@pytest.mark.parametrize(
    ("lines", "upgrade"),
    [
        (["Connection: keep-alive, Upgrade", "Upgrade: WebSocket"], True),
        (["Connection: Upgrade"], False),
        (["Upgrade: websocket"], False),
        (["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"], False),
        (["Connection: Upgrade", "Upgrade: websocket, h2c"], False),
    ],
)
def test_only_a_websocket_is_an_upgrade(lines: list[str], upgrade: bool) -> None:  # noqa: FBT001 - the expected value
    assert head(HOST, *lines).upgrade is upgrade


@pytest.mark.timeout(10)
@pytest.mark.parametrize("value", [b"a" + b" " * 16_000 + b"b", b" " * 16_000 + b"\x01", b"\t " * 8000 + b"a\x7f"])
def test_blanks_in_a_value_are_read_in_one_go(value: bytes) -> None:
    begun = time.process_time()
    with contextlib.suppress(RejectedError):
        request_head(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + value, most_fields=100)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("lines", "first", "method", "length"),
    [
        (["Content-Length: 5"], "HTTP/1.1 200 OK", b"GET", 5),
        (["Transfer-Encoding: chunked"], "HTTP/1.1 200 OK", b"GET", CHUNKED),
        ([], "HTTP/1.1 200 OK", b"GET", UNTIL_CLOSE),
        ([], "HTTP/1.1 200", b"GET", UNTIL_CLOSE),
        (["Content-Length: 5"], "HTTP/1.1 200 OK", b"HEAD", 0),
        (["Transfer-Encoding: chunked"], "HTTP/1.1 200 OK", b"HEAD", 0),
        (["Content-Length: 5"], "HTTP/1.1 304 Not Modified", b"GET", 0),
        ([], "HTTP/1.1 204 No Content", b"GET", 0),
        ([], "HTTP/1.1 101 Switching Protocols", b"GET", 0),
    ],
)
def test_a_response_says_how_long_its_body_is(lines: list[str], first: str, method: bytes, length: int) -> None:
    assert response(*lines, first=first, method=method).length == length


@pytest.mark.parametrize(
    ("first", "lines"),
    [
        ("HTTP/1.1 200 OK", ["Content-Length: 5", "Transfer-Encoding: chunked"]),
        ("HTTP/1.1 200 OK", ["Content-Length: 5", "Content-Length: 5"]),
        ("HTTP/1.1 200 OK", ["Content-Length: five"]),
        ("HTTP/1.1 200 OK", ["Transfer-Encoding: gzip"]),
        ("HTTP/1.1 200 OK", ["X-Thing: a\nSet-Cookie: b=c"]),
        ("HTTP/1.1 200 O\nK", []),
        ("HTTP/1.1 999 What", []),
        ("HTTP/2 200", []),
        ("SSH-2.0-OpenSSH", []),
    ],
)
def test_a_doubtful_response_is_rejected(first: str, lines: list[str]) -> None:
    with pytest.raises(RejectedError):
        response(*lines, first=first)


@given(st.binary(max_size=200))
def test_whatever_comes_is_understood_or_refused(data: bytes) -> None:
    try:
        found = request_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + data, most_fields=100)
    except RejectedError:
        return
    for name, value, line in found.fields:
        assert re.fullmatch(rb"[^\x00-\x20:\x7f-\xff]+", name)
        assert not set(value) & {0, 10, 13}
        assert b"\r" not in line
        assert b"\n" not in line
