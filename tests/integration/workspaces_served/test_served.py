"""From the command to the page: workspaces created, opened, used, left and opened again, on one machine."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from lapse.core.clock import SystemClock
from tests.integration.workspaces_served.conftest import free_port
from tests.servers.lapse_server import ENDED_SECONDS, LapseServer, lapse, until

if TYPE_CHECKING:
    from tests.integration.workspaces_served.conftest import Serve, Served

NOTEBOOK = (sys.executable, "-m", "lapse.workspaces.example")


def notebook(served: Served, name: str, *, standby_ttl_seconds: int = 600) -> None:
    """Create the example workspace and wait until it runs."""
    served.create(name, *NOTEBOOK, standby_ttl_seconds=standby_ttl_seconds)
    served.becomes(name, "RUNNING")


def websocket(served: Served, name: str, *, cookie: str | None = None, origin: str | None = None) -> ClientConnection:
    host = f"{name}.w.localhost:{served.proxy_port}"
    return connect(
        f"ws://{host}/socket",
        sock=socket.create_connection(("127.0.0.1", served.proxy_port)),
        additional_headers={} if cookie is None else {"Cookie": cookie},
        origin=Origin(f"http://{host}" if origin is None else origin),
        proxy=None,
        open_timeout=60,
    )


def seconds_pass(seconds: float) -> None:
    end = SystemClock().monotonic_ns() + seconds * 1_000_000_000
    until(lambda: SystemClock().monotonic_ns() > end)


def test_a_workspace_opens_in_a_browser_with_a_ticket_that_works_once(serve: Serve) -> None:
    served = serve()
    served.create("lab")
    served.becomes("lab", "RUNNING")
    path = served.ticket("lab")
    with served.browser("lab") as client, served.browser("lab") as stranger:
        assert stranger.get("/").status_code == 401
        opened = client.get(path)
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        told = client.get("/a%2Fb?c=d", headers={"Cookie": f"{cookie.partition(';')[0]}; theme=dark"})
        assert told.status_code == 200
        assert told.json()["path"] == "/a%2Fb?c=d"
        assert stranger.get(path).status_code == 403
    assert "httponly" in cookie.lower()
    assert "samesite=lax" in cookie.lower()
    assert "domain" not in cookie.lower()


def test_the_house_s_cookie_and_tokens_never_reach_the_program_and_it_cannot_set_them(serve: Serve) -> None:
    served = serve()
    served.create("lab")
    served.becomes("lab", "RUNNING")
    cookie = served.session("lab")
    token = served.make_token("workspaces:ann")
    with served.browser("lab") as client:
        by_cookie = client.get("/", headers={"Cookie": f"{cookie}; theme=dark"})
        by_token = client.get("/", headers={"Authorization": f"Bearer {token}", "Cookie": "theme=dark"})
    for answer in (by_cookie, by_token):
        assert answer.status_code == 200
        assert answer.json()["headers"]["cookie"] == "theme=dark"
        assert "authorization" not in answer.json()["headers"]
        assert answer.headers.get_list("set-cookie") == ["mine=1"]


def test_only_the_owner_gets_in_and_nobody_else_learns_what_there_is(serve: Serve) -> None:
    served = serve()
    for name, owner in (("hers", "ann"), ("his", "bob")):
        served.create(name, owner=owner)
        served.becomes(name, "RUNNING")
    hers = served.session("hers")
    served.token = admin = served.make_token("admin")
    ann = served.make_token("workspaces:ann")
    reader = served.make_token("read")

    def enter(name: str, **headers: str) -> int:
        with served.browser(name) as client:
            return client.get("/", headers=headers).status_code

    assert enter("hers", Cookie=hers) == 200
    assert enter("his", Cookie=hers) == enter("none", Cookie=hers) == 401
    assert enter("hers", Authorization=f"Bearer {ann}") == enter("hers", Authorization=f"Bearer {admin}") == 200
    assert enter("his", Authorization=f"Bearer {ann}") == enter("none", Authorization=f"Bearer {ann}") == 404
    assert enter("hers", Authorization=f"Bearer {reader}") == 404
    assert enter("hers", Authorization="Bearer wrong") == 401
    assert enter("hers", Cookie=hers, **{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}) == 403


def test_a_page_of_one_workspace_reaches_neither_another_nor_the_dashboard(serve: Serve) -> None:
    served = serve()
    for name in ("one", "two"):
        served.create(name)
        served.becomes(name, "RUNNING")
    one, two = served.session("one"), served.session("two")
    origin = f"http://one.w.localhost:{served.proxy_port}"
    with served.browser("two") as client:
        crossed = client.get("/", headers={"Cookie": two, "Origin": origin})
        planted = client.get("/", headers={"Cookie": one})
    with served.api() as api:
        dashboard = api.get("/api/v1/workspaces", headers={"Origin": origin})
    assert (crossed.status_code, planted.status_code, dashboard.status_code) == (403, 401, 403)
    with pytest.raises(InvalidStatus) as refused:
        websocket(served, "two", cookie=two, origin=origin)
    assert refused.value.response.status_code == 403


def test_an_open_websocket_keeps_a_workspace_and_when_it_is_closed_it_goes_to_standby_and_wakes_again(
    serve: Serve,
) -> None:
    served = serve()
    notebook(served, "lab", standby_ttl_seconds=2)
    cookie = served.session("lab")
    with websocket(served, "lab", cookie=cookie):
        seconds_pass(6)
        told = served.show("lab")
        assert (told["observed_status"], told["desired_state"]) == ("RUNNING", "RUNNING"), "somebody is there"
    told = served.becomes("lab", "STANDBY")
    assert told["desired_by"] == "ttl"
    with served.browser("lab") as client:
        waiting = client.get("/", headers={"Cookie": cookie, "Accept": "text/html"})
        assert waiting.status_code == 503
        assert 'http-equiv="refresh"' in waiting.text
        page = until(lambda: _page(client, cookie))
    assert "<html" in page
    assert served.show("lab")["desired_by"] == "access"


def _page(client: httpx2.Client, cookie: str) -> str | None:
    answer = client.get("/", headers={"Cookie": cookie, "Accept": "text/html"})
    return answer.text if answer.status_code == 200 else None


def test_a_websocket_waits_for_a_workspace_that_is_woken_from_the_archive_with_its_data(serve: Serve) -> None:
    served = serve()
    notebook(served, "lab")
    cookie = served.session("lab")
    assert served.ask("POST", "/lab/archive").status_code == 200
    told = served.becomes("lab", "PENDING")
    assert told["archived"]
    with websocket(served, "lab", cookie=cookie):
        assert served.becomes("lab", "RUNNING")["desired_state"] == "RUNNING"


def test_requests_alone_keep_a_workspace_too(serve: Serve) -> None:
    served = serve()
    served.create("lab", standby_ttl_seconds=6)
    served.becomes("lab", "RUNNING")
    cookie = served.session("lab")
    with served.browser("lab") as client:
        for _ in range(10):
            assert client.get("/", headers={"Cookie": cookie}).status_code == 200
            seconds_pass(1)
    served.becomes("lab", "STANDBY")


def test_a_command_that_ends_at_once_is_an_error_that_a_person_clears(serve: Serve) -> None:
    served = serve()
    served.create("bad", sys.executable, "-c", "raise SystemExit(3)")
    told = served.becomes("bad", "ERROR")
    assert told["error_reason"] == "command_exited"
    cookie = served.session("bad")
    with served.browser("bad") as client:
        assert client.get("/", headers={"Cookie": cookie}).status_code == 503
    assert served.ask("POST", "/bad/stop").json()["error_reason"] is None


def test_a_deleted_workspace_is_gone_with_its_session(serve: Serve) -> None:
    served = serve()
    served.create("lab")
    served.becomes("lab", "RUNNING")
    cookie = served.session("lab")
    assert served.ask("DELETE", "/lab").status_code == 202

    def is_gone() -> bool:
        with served.browser("lab") as client:
            return client.get("/", headers={"Cookie": cookie}).status_code == 401

    until(is_gone)
    volumes = served.folder / "workspaces" / "volumes"
    until(lambda: not [one for one in volumes.iterdir() if not one.name.startswith(".")])


def test_the_commands_and_the_server_share_one_store(serve: Serve) -> None:
    served = serve()
    port = str(free_port())
    at = (f"--state-dir={served.folder}",)
    made = lapse(
        *("workspaces", "create", "lab", "--owner=ann", f"--port={port}", *at, "--", *NOTEBOOK), state_dir=served.folder
    )
    assert made.returncode == 0, made.stderr
    served.becomes("lab", "RUNNING")
    opened = lapse("workspaces", "open", "lab", f"--proxy-port={served.proxy_port}", *at, state_dir=served.folder)
    assert opened.returncode == 0, opened.stderr
    with served.browser("lab") as client:
        assert client.get(opened.stdout.strip().partition(f":{served.proxy_port}")[2]).status_code == 303
    assert lapse("workspaces", "stop", "lab", *at, state_dir=served.folder).returncode == 0
    served.becomes("lab", "STANDBY")


def test_a_second_server_on_the_folder_lets_nobody_in_until_the_first_has_gone(serve: Serve) -> None:
    first = serve()
    first.create("lab")
    first.becomes("lab", "RUNNING")
    cookie = first.session("lab")
    second = serve()
    with second.browser("lab") as client:
        assert client.get("/", headers={"Cookie": cookie}).status_code == 503
        assert first.server.stop()[0] == 0
        until(lambda: client.get("/", headers={"Cookie": cookie}).status_code == 200)


def _hear_to_the_end(client: ClientConnection) -> None:
    while True:
        client.recv(timeout=30)


def test_the_end_of_the_server_ends_its_programs_and_its_websockets(serve: Serve) -> None:
    served = serve()
    notebook(served, "lab")
    cookie = served.session("lab")
    port = served.show("lab")["port"]
    with websocket(served, "lab", cookie=cookie) as client:
        code, took = served.server.stop(signal.SIGTERM)
        assert code == 0
        assert took < ENDED_SECONDS
        with pytest.raises(ConnectionClosed):
            _hear_to_the_end(client)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://127.0.0.1:{port}/", trust_env=False)


def test_workspaces_are_not_served_where_other_machines_can_call_unless_somebody_says_so(serve: Serve) -> None:
    served = serve()
    token = served.make_token("admin")
    served.server.stop()
    flags = ["up", f"--state-dir={served.folder}", "--http-port=0", "--probes-port=0", "--proxy-port=0"]
    refused = lapse(*flags, "--proxy-host=0.0.0.0", state_dir=served.folder)
    assert refused.returncode == 1
    assert "set workspaces_beyond_loopback to true" in refused.stderr
    server = LapseServer.start(served.folder, "--http-host=0.0.0.0")
    try:
        assert server.event("workspaces_not_served") is not None
        with httpx2.Client(base_url=server.http, trust_env=False) as client:
            answer = client.get("/api/v1/workspaces", headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "WorkspacesNotServedError")
    finally:
        server.stop()
