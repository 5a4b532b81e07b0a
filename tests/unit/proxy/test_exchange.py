from __future__ import annotations

import pytest

from lapse.http1.heads import request_head, response_head
from lapse.proxy.exchange import request_bytes, response_bytes, upgrade_bytes, without_cookies

OWN = frozenset({b"lapse_session"})


def sent(*lines: str, first: str = "GET /a HTTP/1.1") -> list[str]:
    """The lines that a workspace gets."""
    data = "\r\n".join([first, "Host: A.w.localhost:8080", *lines]).encode("latin-1")
    head = request_head(data, most_fields=100)
    out = request_bytes(head, peer=b"10.1.2.3", scheme=b"https", cookies=OWN).decode("latin-1")
    assert out.endswith("\r\n\r\n")
    return out[:-4].split("\r\n")


def given_back(*lines: str, keep: bool = True, chunked: bool = False) -> list[str]:
    """The lines that a client gets."""
    head = response_head("\r\n".join(["HTTP/1.1 200 OK", *lines]).encode(), method=b"GET", most_fields=100)
    return response_bytes(head, keep=keep, chunked=chunked, cookies=OWN).decode()[:-4].split("\r\n")


PLAIN = [
    "GET /a HTTP/1.1",
    "Host: a.w.localhost:8080",
    "X-Forwarded-For: 10.1.2.3",
    "X-Forwarded-Host: a.w.localhost:8080",
    "X-Forwarded-Proto: https",
]


@pytest.mark.parametrize(
    "line",
    [
        "Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic YTpi",
        "TE: trailers",
        "Trailer: X-Sum",
        "Upgrade: h2c",
        "Authorization: Bearer lapse_secret",
        "Authorization: Basic YTpi",
        "Forwarded: for=1.2.3.4",
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-Prefix: /admin",
        "X_Forwarded_For: 1.2.3.4",
        "X-Real-IP: 1.2.3.4",
        "X_Real_IP: 1.2.3.4",
        "Proxy: http://evil",
        "Cookie: lapse_session=secret",
        "cOOKIE: lapse_session=secret; lapse_session=other",
    ],
)
def test_what_is_not_for_a_workspace_does_not_reach_it(line: str) -> None:
    assert sent(line) == PLAIN


def test_what_connection_names_is_for_this_hop_only() -> None:
    assert sent("Connection: X-Internal, close", "x-internal: 1") == PLAIN
    assert sent("Connection: x-forwarded-for", "X-Forwarded-For: 1.2.3.4") == PLAIN


def test_everything_else_reaches_it_as_it_came() -> None:
    lines = ["aCCept: */*", "X-Thing:a  b", "Origin: http://a", "Expect: 100-continue", "X-Bytes: \xe9\xff"]
    assert sent(*lines) == [*PLAIN[:2], *lines, *PLAIN[2:]]


def test_a_body_is_announced_by_us() -> None:
    assert sent("Content-Length: 0007", first="POST /a HTTP/1.1")[-1] == "Content-Length: 7"
    assert sent("Content-Length: 0", first="POST /a HTTP/1.1")[-1] == "Content-Length: 0"
    assert sent("Transfer-Encoding: Chunked", first="POST /a HTTP/1.1")[-1] == "Transfer-Encoding: chunked"


def test_an_upgrade_is_asked_for_by_us() -> None:
    lines = sent("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: abc")
    assert lines[-2:] == ["Connection: Upgrade", "Upgrade: websocket"]
    assert "Sec-WebSocket-Key: abc" in lines


@pytest.mark.parametrize(
    ("cookie", "left"),
    [
        (b"theme=dark", b"theme=dark"),
        (b"theme=dark; lapse_session=x; _xsrf=1", b"theme=dark; _xsrf=1"),
        (b"lapse_session=x; theme=dark", b"theme=dark"),
        (b"lapse_session=x", b""),
        (b"lapse_session", b""),
        (b'"lapse_session"=x', b""),
        (b"\tlapse_session =x;a=b", b"a=b"),
        (b"my_lapse_session=x", b"my_lapse_session=x"),
        (b"a=lapse_session", b"a=lapse_session"),
        (b'a="; lapse_session=x; "', b'a="; "'),
    ],
)
def test_of_cookies_only_our_own_stays_here(cookie: bytes, left: bytes) -> None:
    assert without_cookies(cookie, OWN) == left


def test_an_answer_loses_what_was_for_us() -> None:
    lines = ["Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: timeout=5", "X-Thing: a", "Content-Length: 3"]
    assert given_back(*lines) == ["HTTP/1.1 200 OK", "X-Thing: a", "Content-Length: 3"]
    assert given_back("Content-Length: 3", keep=False)[-1] == "Connection: close"
    assert given_back(chunked=True)[-1] == "Transfer-Encoding: chunked"


def test_a_workspace_sets_cookies_for_itself_only() -> None:
    lines = given_back(
        "Set-Cookie: theme=dark; Path=/; Domain=localhost; HttpOnly",
        "Set-Cookie: lapse_session=forged; Path=/",
        "set-cookie: b=1;domain=.w.localhost",
        "Content-Length: 0",
    )
    assert lines[1:-1] == ["Set-Cookie: theme=dark; Path=/; HttpOnly", "Set-Cookie: b=1"]


def test_an_accepted_upgrade_keeps_what_the_peers_agreed_on() -> None:
    lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Accept: x", "Sec-WebSocket-Protocol: chat"]
    data = "\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines]).encode()
    out = upgrade_bytes(response_head(data, method=b"GET", most_fields=100), OWN).decode()
    assert out.split("\r\n") == [
        "HTTP/1.1 101 Switching Protocols",
        "Sec-WebSocket-Accept: x",
        "Sec-WebSocket-Protocol: chat",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "",
        "",
    ]
