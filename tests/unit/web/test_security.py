from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lapse.web.api.errors import HostNotAllowedError, NotJSONError, OriginNotAllowedError
from lapse.web.server.security import (
    MAX_BODY_BYTES,
    AllowedHosts,
    Guard,
    Head,
    check_host,
    check_json,
    check_origin,
    is_loopback,
)
from tests.unit.web.conftest import JSON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2
    from starlette.types import Message, Receive, Scope, Send

HOSTS = AllowedHosts("127.0.0.1", 8750, ["lapse.example.org", "proxy.example.org:8443", "[2001:db8::1]"])


def head(method: str = "GET", server: tuple[str, int] = ("127.0.0.1", 8750), **headers: str | tuple[str, ...]) -> Head:
    lines = {name.replace("_", "-"): (value,) if isinstance(value, str) else value for name, value in headers.items()}
    return Head(method, lines, server)


# --- TLS --------------------------------------------------------------------------------------------------------------


def over_tls(**headers: str) -> Head:
    return replace(head(server=("192.0.2.7", 443), **headers), tls=True)


@pytest.mark.parametrize("host", ["192.0.2.7", "192.0.2.7:443", "lapse.example.org"])
def test_a_host_without_a_port_means_the_usual_one(host: str) -> None:
    check_host(over_tls(host=host), HOSTS)
    with pytest.raises(HostNotAllowedError):
        check_host(replace(over_tls(host="192.0.2.7"), tls=False), HOSTS)


def test_over_tls_a_page_that_came_without_it_is_of_another_origin() -> None:
    check_origin(over_tls(host="lapse.example.org", origin="https://lapse.example.org"), HOSTS)
    with pytest.raises(OriginNotAllowedError):
        check_origin(over_tls(host="lapse.example.org", origin="http://lapse.example.org"), HOSTS)


@pytest.mark.parametrize(
    ("scheme", "host", "header"),
    [
        ("https", "lapse.example.org", b"max-age=86400"),
        ("https", "lapse.example.org:8750", b"max-age=86400"),
        ("https", "localhost:8750", None),
        ("https", "127.0.0.1:8750", None),
        ("https", "[::1]:8750", None),
        ("http", "lapse.example.org", None),
    ],
)
async def test_browsers_are_told_to_come_with_tls_only_but_never_for_this_machine(
    scheme: str, host: str, header: bytes | None
) -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "scheme": scheme, "headers": [(b"host", host.encode())]}
    await Guard(app, hosts=HOSTS, admit=None)(scope, receive, send)

    assert dict(sent[0]["headers"]).get(b"strict-transport-security") == header


# --- Host ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8750",
        "LOCALHOST:8750",
        "127.0.0.1:8750",
        "[::1]:8750",
        "lapse.example.org",
        "lapse.example.org:8750",
        "proxy.example.org:8443",
        "[2001:db8::1]",
        "[2001:db8::1]:8750",
    ],
)
def test_a_name_that_this_server_goes_by_is_let_in(host: str) -> None:
    check_host(head(host=host), HOSTS)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org:8750",
        "localhost.evil.example.org:8750",
        "localhost:8751",
        "localhost",
        "127.0.0.1",
        "lapse.example.org:1",
        "proxy.example.org",
        "evil@localhost:8750",
        "localhost:8750, evil.example.org",
        "",
    ],
)
def test_any_other_name_is_refused_because_it_may_have_been_pointed_here(host: str) -> None:
    with pytest.raises(HostNotAllowedError):
        check_host(head(host=host), HOSTS)


@pytest.mark.parametrize("lines", [(), ("localhost:8750", "localhost:8750")])
def test_a_request_without_exactly_one_host_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(HostNotAllowedError):
        check_host(head(host=lines), HOSTS)


def test_the_address_at_which_a_connection_arrived_is_a_name_of_this_server() -> None:
    everywhere = AllowedHosts("0.0.0.0", 8750)  # noqa: S104 - not bound
    check_host(head(host="192.0.2.7:8750", server=("192.0.2.7", 8750)), everywhere)
    check_host(head(host="[2001:db8::2]:8750", server=("2001:db8::2", 8750)), everywhere)
    with pytest.raises(HostNotAllowedError):
        check_host(head(host="192.0.2.8:8750", server=("192.0.2.7", 8750)), everywhere)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *[("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)],
        *[("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("example.org", False)],  # noqa: S104 - not bound
    ],
)
def test_loopback_is_told_from_everything_else(address: str, expected: bool) -> None:  # noqa: FBT001 - a table
    assert is_loopback(address) is expected


# --- Origin ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["http://localhost:8750", "https://lapse.example.org", "https://proxy.example.org:8443"]
)
def test_pages_of_this_server_may_call_it(origin: str) -> None:
    check_origin(head(host="localhost:8750", origin=origin), HOSTS)


def test_a_program_sends_no_origin_and_may_call() -> None:
    check_origin(head(host="localhost:8750"), HOSTS)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example.org",
        "http://localhost:3000",
        "null",
        "",
        "file://",
        "http://localhost:8750@evil.example.org",
        "http://localhost:8750/path",
        "chrome-extension://localhost:8750",
    ],
)
def test_pages_of_another_origin_are_refused(origin: str) -> None:
    with pytest.raises(OriginNotAllowedError):
        check_origin(head(host="localhost:8750", origin=origin), HOSTS)


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE", "PROPFIND"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_a_change_that_is_not_json_is_refused(method: str, kind: str | None) -> None:
    with pytest.raises(NotJSONError):
        check_json(head(method, content_length="5", content_type=() if kind is None else kind))


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_a_change_in_json_is_let_through(kind: str) -> None:
    check_json(head("PUT", content_type=kind, content_length="5"))


def test_a_delete_without_a_body_needs_no_type() -> None:
    check_json(head("DELETE"))
    check_json(head("DELETE", content_length="0"))
    with pytest.raises(NotJSONError):
        check_json(head("DELETE", transfer_encoding="chunked"))


# --- the guard -------------------------------------------------------------------------------------------------------

BAD_HEADERS = [
    pytest.param({"Host": "evil.example.org:8750"}, "HostNotAllowedError", id="rebound name"),
    pytest.param({"Origin": "http://evil.example.org"}, "OriginNotAllowedError", id="foreign page"),
]


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/status", "/api/v1/docs", "/api/v1/apps/7/keys", "/static/lapse.css", "/no"]
)
@pytest.mark.parametrize(("headers", "expected"), BAD_HEADERS)
async def test_the_guard_stands_in_front_of_every_address(
    client: httpx2.AsyncClient, path: str, headers: dict[str, str], expected: str
) -> None:
    response = await client.get(path, headers=headers)

    assert (response.status_code, response.json()["code"]) == (403, expected)


async def test_every_answer_forbids_framing_sniffing_and_keeping(client: httpx2.AsyncClient) -> None:
    for path in ("/", "/api/v1/status", "/no", "/api/v1/apps/7/keys/absent"):
        response = await client.get(path)
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in response.headers


async def test_a_body_above_the_limit_is_refused_whether_announced_or_not(client: httpx2.AsyncClient) -> None:
    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b" " * 65536

    url = "/api/v1/apps/7/keys/a"
    announced = await client.put(url, content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
    chunked = await client.put(url, content=unannounced(), headers=JSON)

    for response in (announced, chunked):
        assert (response.status_code, response.json()["code"]) == (413, "BodyTooLargeError")


async def test_a_request_that_is_cut_off_while_it_works_is_told_that_its_outcome_is_unknown() -> None:
    sent: list[Message] = []
    entered = asyncio.Event()

    async def working(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost:8750"), (b"content-type", b"application/json")]
    scope: Scope = {"type": "http", "method": "PUT", "headers": headers, "server": ("127.0.0.1", 8750)}
    task = asyncio.create_task(Guard(working, hosts=HOSTS, admit=None)(scope, receive, send))
    await entered.wait()
    task.cancel()
    await task

    assert sent[0]["status"] == 504
    assert json.loads(sent[1]["body"])["code"] == "CutOffError"


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND"])
@pytest.mark.parametrize("path", ["/", "/api/v1/status"])
async def test_a_method_that_no_route_has_is_not_allowed_whatever_else_is_wrong(
    client: httpx2.AsyncClient, method: str, path: str
) -> None:
    for headers in ({}, {"Host": "evil.example.org"}, {"Content-Type": "text/plain"}):
        answer = await client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (405, "MethodNotAllowedError")
