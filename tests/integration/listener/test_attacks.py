"""The whole API on a real ``lapse up``, under requests that attackers send, byte by byte on real sockets.

What a browser can be made to send by a page of somebody else, what a program can send that means harm, and what both
get: a refusal, as a problem document with the headers of every answer, and nothing is done.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest

from lapse.web.server.security import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADER_LINES
from tests.servers.lapse_server import PLAIN, LapseServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
NOT_OURS = "http://evil.example.org"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LapseServer]:
    running = LapseServer.start(tmp_path_factory.mktemp("attacked"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def cookie(server: LapseServer) -> str:
    """Log a browser in."""
    asked = {"token": server.owner_token}
    answer = httpx2.post(f"{server.http}/api/v1/session", json=asked, headers={"Origin": server.http}, verify=PLAIN)
    assert answer.status_code == 204
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    return answer.headers["set-cookie"].partition(";")[0]


def send(server: LapseServer, data: bytes) -> bytes:
    """Send bytes, and return everything that comes until the connection is closed."""
    place = urlsplit(server.http)
    with socket.create_connection((place.hostname, place.port), timeout=30) as one:
        with suppress(OSError):  # refused before all of it was taken
            one.sendall(data)
        pieces = []
        with suppress(ConnectionResetError):  # closed with something unread: the rest of a body that is too large
            while piece := one.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


def read(data: bytes) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(first.split()[1]), headers, body)


def request(server: LapseServer, method: str, target: str, *lines: str, body: bytes = b"") -> bytes:
    own = [] if any(line.lower().startswith("host:") for line in lines) else [f"Host: {urlsplit(server.http).netloc}"]
    size = [f"Content-Length: {len(body)}"] if body else []
    head = [f"{method} {target} HTTP/1.1", *own, "Connection: close", *lines, *size]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def bearer(server: LapseServer) -> str:
    return f"Authorization: Bearer {server.owner_token}"


def assert_safe(reply: Reply) -> None:
    """What every answer has, whoever gives it."""
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    is_file = "vary" in reply.headers and "etag" in reply.headers
    assert reply.headers["cache-control"] == ("no-cache" if is_file else "no-store")
    assert reply.headers["referrer-policy"] in {"no-referrer", "same-origin"}  # the second on pages with forms
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in reply.headers
    assert "server" not in reply.headers


FREEZE = b'{"domain": "history", "reason": "csrf"}'


def is_frozen(server: LapseServer) -> bool:
    with server.client() as client:
        domains = client.get("/api/v1/status").json()["domains"]
    return any(one["frozen"] for one in domains)


# --- pages of others in a browser that is logged in -------------------------------------------------------------------


@pytest.mark.parametrize("origin", [None, NOT_OURS, "null", "http://localhost:1", "https://localhost.evil.example.org"])
@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
)
def test_a_page_of_another_origin_changes_nothing_with_the_cookie_of_a_session(
    server: LapseServer, cookie: str, origin: str | None, kind: str
) -> None:
    lines = [f"Cookie: {cookie}", f"Content-Type: {kind}", *([] if origin is None else [f"Origin: {origin}"])]
    reply = read(send(server, request(server, "POST", "/api/v1/freeze", *lines, body=FREEZE)))

    assert (reply.status, reply.code) == (403, "OriginNotAllowedError")
    assert_safe(reply)
    assert not is_frozen(server)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "", "text/json"]
)
def test_a_form_changes_nothing_even_from_our_own_origin(server: LapseServer, cookie: str, kind: str) -> None:
    lines = [f"Cookie: {cookie}", f"Origin: {server.http}", f"Content-Type: {kind}"]
    reply = read(send(server, request(server, "POST", "/api/v1/freeze", *lines, body=FREEZE)))

    assert (reply.status, reply.code) == (415, "NotJSONError")
    assert not is_frozen(server)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8750", "127.0.0.1.evil.example.org", "", "a b"])
def test_a_name_that_was_pointed_here_is_refused_with_a_token_and_with_a_session(
    server: LapseServer, cookie: str, method: str, host: str
) -> None:
    for proof in (bearer(server), f"Cookie: {cookie}"):
        lines = [f"Host: {host}", proof, "Content-Type: application/json"]
        reply = read(send(server, request(server, method, "/api/v1/freeze", *lines, body=FREEZE)))
        assert reply.status in {400, 403}
        assert reply.code in {"HostNotAllowedError", "MalformedRequestError"}
        assert_safe(reply)


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https"])
def test_a_target_with_scheme_and_host_is_served_under_the_name_in_the_target(server: LapseServer, scheme: str) -> None:
    place = urlsplit(server.http).netloc
    for host in (place, "evil.example.org"):
        target = f"{scheme}://{place}/api/v1/journal?limit=1"
        reply = read(send(server, request(server, "GET", target, f"Host: {host}", bearer(server))))
        assert reply.status == 200
        assert len(json.loads(reply.body)["items"]) == 1
        assert_safe(reply)
    for path in ("", "/api/v1/%6aournal"):
        reply = read(send(server, request(server, "GET", f"{scheme}://{place}{path}", bearer(server))))
        assert reply.status == 200
    assert read(send(server, request(server, "GET", f"{scheme}://{place}/api/v1/journal"))).code == "TokenMissingError"


@pytest.mark.parametrize("name", ["evil.example.org", "127.0.0.1.evil.example.org", "", "ann@{}", "{}:1", "{}@evil"])
def test_a_target_with_another_name_is_refused_whatever_the_host_header_says(server: LapseServer, name: str) -> None:
    target = f"http://{name.format(urlsplit(server.http).netloc)}/api/v1/freeze"
    lines = [bearer(server), "Content-Type: application/json"]
    reply = read(send(server, request(server, "POST", target, *lines, body=FREEZE)))
    assert (reply.status, reply.code) == (403, "HostNotAllowedError")
    assert_safe(reply)
    assert not is_frozen(server)


def test_a_foreign_page_may_not_ask_first_what_it_may_send(server: LapseServer) -> None:
    asked = [f"Origin: {NOT_OURS}", "Access-Control-Request-Method: POST"]
    reply = read(send(server, request(server, "OPTIONS", "/api/v1/freeze", *asked)))

    assert (reply.status, reply.code) == (403, "OriginNotAllowedError")
    assert_safe(reply)


@pytest.mark.parametrize("path", ["/", "/api/v1/status", "/api/v1/events?after=nowhere"])
@pytest.mark.parametrize("origin", [NOT_OURS, None])
def test_there_is_no_websocket_for_any_page(server: LapseServer, cookie: str, path: str, origin: str | None) -> None:
    lines = ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    lines += [f"Cookie: {cookie}", *([] if origin is None else [f"Origin: {origin}"])]
    data = request(server, "GET", path, *lines).replace(b"Connection: close", b"Connection: Upgrade, close")
    reply = read(send(server, data))

    assert reply.status != 101
    assert origin is None or reply.status == 403


@pytest.mark.parametrize(
    ("path", "accept", "status"),
    [
        ("/", "text/html", 401),
        ("/open?ticket=no", "text/html", 401),
        ("/no", "text/html", 401),
        ("/static/lapse.css", "*/*", 200),
        ("/static/../pages.py", "*/*", 404),
        ("/api/v1/status", "application/json", 401),
    ],
)
def test_pages_of_errors_and_of_the_log_in_are_not_framed_sniffed_or_kept(
    server: LapseServer, path: str, accept: str, status: int
) -> None:
    reply = read(send(server, request(server, "GET", path, f"Accept: {accept}")))

    assert reply.status == status
    assert_safe(reply)
    assert "script-src 'unsafe" not in reply.headers["content-security-policy"]


# --- requests of odd forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "get"])
def test_a_method_that_no_address_has_is_refused(server: LapseServer, method: str) -> None:
    reply = read(send(server, request(server, method, "/api/v1/status", bearer(server), "X-Secret: hunter2")))

    assert (reply.status, reply.code) == (405, "MethodNotAllowedError")
    assert b"hunter2" not in reply.body
    assert_safe(reply)


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/api/v1/status", "status", "*", "/api/v1/%2e%2e/status", "//status"]
)
def test_a_target_of_another_form_is_no_operation(server: LapseServer, target: str) -> None:
    reply = read(send(server, request(server, "GET", target, bearer(server))))

    assert (reply.status, reply.code) == (404, "NoSuchRouteError")
    assert_safe(reply)


@pytest.mark.parametrize("sent", ["announced", "in chunks", "announced, and not sent"])
def test_a_body_above_the_limit_is_refused(server: LapseServer, sent: str) -> None:
    lines = [bearer(server), "Content-Type: application/json"]
    if sent == "announced":
        data = request(server, "POST", "/api/v1/freeze", *lines, body=b" " * (MAX_BODY_BYTES + 1))
    elif sent == "in chunks":
        chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
        head = request(server, "POST", "/api/v1/freeze", *lines, "Transfer-Encoding: chunked")
        data = head + chunk * (MAX_BODY_BYTES // 65536 + 1) + b"0\r\n\r\n"
    else:
        data = request(server, "POST", "/api/v1/freeze", *lines, "Content-Length: 99999999999999999999")
    reply = read(send(server, data))

    assert (reply.status, reply.code) == (413, "BodyTooLargeError")
    assert_safe(reply)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"X-{number}: a" for number in range(MAX_HEADER_LINES + 1)], id="many lines"),
        pytest.param([f"X-Long: {'a' * MAX_HEAD_BYTES}"], id="one long line"),
        pytest.param([f"X-{number}: {'a' * 8000}" for number in range(40)], id="many long lines"),
    ],
)
def test_a_head_above_the_limit_is_refused(server: LapseServer, lines: list[str]) -> None:
    reply = read(send(server, request(server, "GET", "/api/v1/status", bearer(server), *lines)))

    assert (reply.status, reply.code) == (431, "HeadTooLargeError")
    assert reply.headers["content-type"] == "application/problem+json"
    assert_safe(reply)


def test_a_long_address_counts_as_a_part_of_the_head(server: LapseServer) -> None:
    reply = read(send(server, request(server, "GET", f"/api/v1/status?{'a' * MAX_HEAD_BYTES}", bearer(server))))

    assert (reply.status, reply.code) == (431, "HeadTooLargeError")
    assert_safe(reply)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"nothing of HTTP\r\n\r\n", id="no HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", id="a null"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\nX : c\r\n\r\n", id="a space before the colon"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", id="two lengths"
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
    ],
)
def test_what_is_no_http_is_a_problem_document_too(server: LapseServer, data: bytes) -> None:
    reply = read(send(server, data))

    assert reply.status in {400, 403}
    assert reply.code in {"MalformedRequestError", "HostNotAllowedError"}
    assert reply.headers["content-type"] == "application/problem+json"
    assert_safe(reply)


def test_a_body_with_two_lengths_is_one_request_and_never_two(server: LapseServer) -> None:
    inside = request(server, "POST", "/api/v1/freeze", bearer(server), "Content-Type: application/json", body=FREEZE)
    lines = [bearer(server), "Content-Type: application/json", "Transfer-Encoding: chunked", "Content-Length: 4"]
    answers = send(server, request(server, "POST", "/api/v1/hold", *lines) + b"0\r\n\r\n" + inside)

    assert answers.count(b"HTTP/1.1 ") == 1
    reply = read(answers)
    assert (reply.status, reply.code, reply.headers["connection"]) == (400, "TwoLengthsError", "close")
    assert not is_frozen(server)


def test_requests_sent_ahead_are_answered_each_by_its_own_token(server: LapseServer) -> None:
    good = request(server, "GET", "/api/v1/status", bearer(server)).replace(b"Connection: close\r\n", b"")
    bad = request(server, "GET", "/api/v1/status", "Authorization: Bearer none").replace(b"Connection: close\r\n", b"")
    answers = send(server, good + bad + good.replace(b"Host:", b"Connection: close\r\nHost:"))
    statuses = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]

    assert statuses == [200, 401, 200]


# --- what we repeat ---------------------------------------------------------------------------------------------------

LINE_END = "a\r\nSet-Cookie: stolen=1"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/workspaces", {"name": LINE_END, "owner": "a", "command": ["a"], "port": 1, "start": False}),
        ("POST", "/api/v1/claims", {"metadata": {"name": LINE_END}}),
        ("POST", "/api/v1/schedules", {"metadata": {"name": LINE_END, "namespace": LINE_END}, "spec": {}}),
        ("POST", "/api/v1/history", {"metadata": {"name": LINE_END}, "spec": {}}),
        ("POST", "/api/v1/hold", {"address": f"workspace/{LINE_END}", "reason": LINE_END}),
        ("PUT", "/api/v1/apps/7/keys/a%0D%0ASet-Cookie:%20stolen=1", {"value": LINE_END, "ttl_seconds": 9}),
        ("GET", "/api/v1/workspaces/a%0D%0ASet-Cookie:%20stolen=1", None),
        ("GET", "/api/v1/journal?a%0D%0ASet-Cookie:%20stolen=1", None),
        ("GET", "/api/v1/why/workspace/a%0D%0ASet-Cookie:%20stolen=1", None),
        ("GET", "/%0D%0ASet-Cookie:%20stolen=1", None),
    ],
)
def test_no_line_end_of_a_caller_begins_a_header_of_ours(
    server: LapseServer, method: str, path: str, body: dict[str, object] | None
) -> None:
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [bearer(server), *([] if body is None else ["Content-Type: application/json"])]
    reply = read(send(server, request(server, method, path, *lines, body=sent)))

    assert reply.status < 500
    assert "set-cookie" not in reply.headers
    assert_safe(reply)
