"""From the command to the page: workspaces created, opened, used, left and opened again, on one machine."""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from lapse.core.clock import SystemClock
from tests.integration.workspaces_served.conftest import QUICK, Served, make_token
from tests.servers.lapse_server import PLAIN, LapseServer, lapse, until
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.workspaces_served.conftest import Serve

NOTEBOOK = (sys.executable, "-m", "lapse.workspaces.example")


def notebook(served: Served, name: str, *, standby_ttl_seconds: int = 600) -> None:
    """Create the example workspace and wait until it runs."""
    served.create(name, *NOTEBOOK, standby_ttl_seconds=standby_ttl_seconds)
    served.becomes(name, "RUNNING")


def websocket(
    served: Served, name: str, *, cookie: str | None = None, token: str | None = None, origin: str | None = None
) -> ClientConnection:
    host = f"{name}.w.localhost:{served.proxy_port}"
    proof = {"Cookie": cookie} if token is None else {"Authorization": f"Bearer {token}"}
    return connect(
        f"ws://{host}/socket",
        sock=socket.create_connection(("127.0.0.1", served.proxy_port)),
        additional_headers={name: value for name, value in proof.items() if value is not None},
        origin=Origin(f"http://{host}" if origin is None else origin),
        proxy=None,
        open_timeout=60,
    )


def run(client: ClientConnection, code: str) -> None:
    """Let the notebook's first cell run something, and wait for its answer."""
    client.send(json.dumps({"cell": 0, "code": code}))
    while "output" not in json.loads(client.recv(timeout=60)):
        pass


def seconds_pass(seconds: float) -> None:
    end = SystemClock().monotonic_ns() + seconds * 1_000_000_000
    until(lambda: SystemClock().monotonic_ns() > end)


def test_a_workspace_opens_in_a_browser_with_a_ticket_that_works_once(shared: Served) -> None:
    shared.create("paper")
    shared.becomes("paper", "RUNNING")
    path = shared.ticket("paper")
    with shared.browser("paper") as client, shared.browser("paper") as stranger:
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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that asks for tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    server = LapseServer.start(folder, *QUICK)
    try:
        served = Served(server, folder)
        served.token = served.make_token("admin")
        yield served
    finally:
        server.stop()


def test_the_house_s_cookie_and_tokens_never_reach_the_program_and_it_cannot_set_them(guarded: Served) -> None:
    served = guarded
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


def test_only_the_owner_gets_in_and_nobody_else_learns_what_there_is(guarded: Served) -> None:
    served = guarded
    for name, owner in (("hers", "ann"), ("his", "bob")):
        served.create(name, owner=owner)
        served.becomes(name, "RUNNING")
    hers = served.session("hers")
    ann = served.make_token("workspaces:ann")
    reader = served.make_token("read")

    def enter(name: str, **headers: str) -> int:
        with served.browser(name) as client:
            return client.get("/", headers=headers).status_code

    assert enter("hers", Cookie=hers) == 200
    assert enter("his", Cookie=hers) == enter("none", Cookie=hers) == 401
    assert enter("hers", Authorization=f"Bearer {ann}") == enter("hers", Authorization=f"Bearer {served.token}") == 200
    assert enter("his", Authorization=f"Bearer {ann}") == enter("none", Authorization=f"Bearer {ann}") == 404
    assert enter("hers", Authorization=f"Bearer {reader}") == 404
    assert enter("hers", Authorization="Bearer wrong") == 401
    assert enter("hers", Cookie=hers, **{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}) == 403


def test_revoking_a_token_ends_its_sessions_its_tickets_and_its_websockets_in_every_process(guarded: Served) -> None:
    served = guarded
    notebook(served, "shared")
    token = served.make_token("workspaces:ann")
    with served.api(token) as ann:
        links = [urlsplit(ann.post("/api/v1/workspaces/shared/open", json={}).json()["url"]) for _ in range(2)]
    used, unused = [f"{link.path}?{link.query}" for link in links]
    with served.browser("shared") as client:
        cookie = client.get(used).headers["set-cookie"].partition(";")[0]
        with (
            websocket(served, "shared", cookie=cookie) as by_session,
            websocket(served, "shared", token=token) as by_token,
            websocket(served, "shared", cookie=served.session("shared")) as by_another,
        ):
            run(by_another, "1")
            at = f"--state-dir={served.folder}"
            revoked = lapse("tokens", "revoke", token.split("_")[1], at, state_dir=served.folder)
            assert revoked.returncode == 0, revoked.stderr
            for ended in (by_session, by_token):
                with pytest.raises(ConnectionClosed):
                    _hear_to_the_end(ended)
            run(by_another, "2")
        assert client.get("/", headers={"Cookie": cookie}).status_code == 401
        assert client.get(unused).status_code == 403


def test_a_page_of_one_workspace_reaches_neither_another_nor_the_dashboard(shared: Served) -> None:
    for name in ("one", "two"):
        shared.create(name)
        shared.becomes(name, "RUNNING")
    one, two = shared.session("one"), shared.session("two")
    origin = f"http://one.w.localhost:{shared.proxy_port}"
    with shared.browser("two") as client:
        crossed = client.get("/", headers={"Cookie": two, "Origin": origin})
        planted = client.get("/", headers={"Cookie": one})
    with shared.api() as api:
        dashboard = api.get("/api/v1/workspaces", headers={"Origin": origin})
    assert (crossed.status_code, planted.status_code, dashboard.status_code) == (403, 401, 403)
    with pytest.raises(InvalidStatus) as refused:
        websocket(shared, "two", cookie=two, origin=origin)
    assert refused.value.response.status_code == 403


def test_an_open_websocket_keeps_a_workspace_and_when_it_is_closed_it_goes_to_standby_and_wakes_again(
    shared: Served,
) -> None:
    notebook(shared, "chat", standby_ttl_seconds=1)
    cookie = shared.session("chat")
    with websocket(shared, "chat", cookie=cookie) as client:
        seconds_pass(1.1)
        shared.ticks(3)
        told = shared.show("chat")
        assert (told["observed_status"], told["desired_state"]) == ("RUNNING", "RUNNING"), "somebody is there"
        run(client, "x = 6 * 7")
        until(lambda: shared.show("chat")["last_access_at"] > told["last_access_at"])
    told = shared.becomes("chat", "STANDBY")
    assert told["desired_by"] == "ttl"
    with shared.browser("chat") as browser:
        waiting = browser.get("/", headers={"Cookie": cookie, "Accept": "text/html"})
        assert waiting.status_code == 503
        assert 'http-equiv="refresh"' in waiting.text
        page = until(lambda: _page(browser, cookie))
    assert "<html" in page
    assert shared.show("chat")["desired_by"] == "access"


def _page(client: httpx2.Client, cookie: str) -> str | None:
    answer = client.get("/", headers={"Cookie": cookie, "Accept": "text/html"})
    return answer.text if answer.status_code == 200 else None


def test_left_alone_it_goes_to_the_archive_and_a_websocket_waits_until_it_is_woken_with_its_data(
    shared: Served,
) -> None:
    notebook(shared, "attic")
    cookie = shared.session("attic")
    with websocket(shared, "attic", cookie=cookie) as client:
        run(client, "6 * 7")
    ttls = {"standby_ttl_seconds": 1, "archive_ttl_seconds": 1}
    assert shared.ask("PATCH", "/attic", ttls).status_code == 200
    told = shared.becomes("attic", "PENDING")
    assert (told["archived"], told["desired_by"]) == (True, "ttl")
    with websocket(shared, "attic", cookie=cookie) as client:
        cells = json.loads(client.recv(timeout=60))["cells"]
        assert cells[0] == {"code": "6 * 7", "output": "42\n"}
        assert shared.becomes("attic", "RUNNING")["desired_state"] == "RUNNING"


def test_requests_alone_are_accesses_and_without_them_it_goes_to_standby(shared: Served) -> None:
    shared.create("asked", standby_ttl_seconds=600)
    before = shared.becomes("asked", "RUNNING")["last_access_at"]
    cookie = shared.session("asked")
    with shared.browser("asked") as client:

        def asks_later() -> bool:
            """Ask for a page; whether that was noted is seen from the next second on."""
            assert client.get("/", headers={"Cookie": cookie}).status_code == 200
            return bool(shared.show("asked")["last_access_at"] > before)

        until(asks_later)
    assert shared.ask("PATCH", "/asked", {"standby_ttl_seconds": 1}).status_code == 200
    assert shared.becomes("asked", "STANDBY")["desired_by"] == "ttl"


def test_a_command_that_ends_at_once_is_an_error_that_a_person_clears(shared: Served) -> None:
    shared.create("bad", sys.executable, "-c", "raise SystemExit(3)")
    told = shared.becomes("bad", "ERROR")
    assert told["error_reason"] == "command_exited"
    cookie = shared.session("bad")
    with shared.browser("bad") as client:
        assert client.get("/", headers={"Cookie": cookie}).status_code == 503
    assert shared.ask("POST", "/bad/stop").json()["error_reason"] is None


CRASHING = """
import os, socket, threading
threading.Timer(0.5, lambda: (print("out of luck", flush=True), os._exit(7))).start()
with socket.create_server((os.environ["HOST"], int(os.environ["PORT"]))) as server:
    while True:
        server.accept()[0].close()
"""


def test_a_program_that_keeps_ending_is_told_of_and_goes_to_standby_all_the_same(shared: Served) -> None:
    shared.create("loop", sys.executable, "-c", CRASHING, standby_ttl_seconds=600)
    told = until(lambda: told if (told := shared.show("loop"))["restarts"] >= 2 else None)
    assert (told["exit_status"], told["exit_output"], told["error_reason"]) == (7, "out of luck", None)
    why = shared.ask("GET", "/loop/why").json()
    assert "the last time with status 7" in why["trouble"]
    assert why["anchor"]["source"] in {"the last access", "when it became RUNNING"}
    until(lambda: shared.server.metric("lapse_workspace_restarts_total") >= 2)
    assert shared.ask("PATCH", "/loop", {"standby_ttl_seconds": 1}).status_code == 200
    stopped = until(lambda: told if (told := shared.show("loop"))["desired_state"] == "STANDBY" else None)
    assert stopped["desired_by"] == "ttl"
    assert shared.becomes("loop", "STANDBY")["exit_status"] == 7


def test_a_deleted_workspace_is_gone_with_its_session(shared: Served) -> None:
    made = shared.create("gone")
    shared.becomes("gone", "RUNNING")
    cookie = shared.session("gone")
    assert shared.ask("DELETE", "/gone").status_code == 202

    def is_gone() -> bool:
        with shared.browser("gone") as client:
            return client.get("/", headers={"Cookie": cookie}).status_code == 401

    until(is_gone)
    until(lambda: not (shared.folder / "workspaces" / "volumes" / made["id"]).exists())


def test_the_commands_and_the_server_share_one_store(shared: Served) -> None:
    port = str(kept_port())
    at = (f"--state-dir={shared.folder}", *shared.flags[:1])
    made = lapse(
        *("workspaces", "create", "typed", "--owner=ann", f"--port={port}", *at, "--", *NOTEBOOK),
        state_dir=shared.folder,
    )
    assert made.returncode == 0, made.stderr
    shared.becomes("typed", "RUNNING")
    opened = lapse("workspaces", "open", "typed", f"--proxy-port={shared.proxy_port}", *at, state_dir=shared.folder)
    assert opened.returncode == 0, opened.stderr
    with shared.browser("typed") as client:
        assert client.get(opened.stdout.strip().partition(f":{shared.proxy_port}")[2]).status_code == 303
    assert lapse("workspaces", "stop", "typed", *at, state_dir=shared.folder).returncode == 0
    shared.becomes("typed", "STANDBY")


def test_a_second_server_on_the_folder_lets_nobody_in_until_the_first_has_gone(serve: Serve) -> None:
    first = serve()
    first.create("lab")
    first.becomes("lab", "RUNNING")
    cookie = first.session("lab")
    second = serve()
    assert readiness(first) == 200
    assert readiness(second) == 503
    told = until(lambda: second.server.event("not_ready"))
    assert "waits for another lapse up" in told["reason"]
    with second.browser("lab") as client:
        assert client.get("/", headers={"Cookie": cookie}).status_code == 503
        assert first.server.stop()[0] == 0
        until(lambda: client.get("/", headers={"Cookie": cookie}).status_code == 200)
    assert readiness(second) == 200


def readiness(served: Served) -> int:
    return httpx2.get(f"{served.server.probes}/readyz", trust_env=False, verify=PLAIN).status_code


def _hear_to_the_end(client: ClientConnection) -> None:
    while True:
        client.recv(timeout=30)


def test_the_end_of_the_server_ends_its_programs_and_its_websockets(serve: Serve) -> None:
    served = serve()
    notebook(served, "lab")
    cookie = served.session("lab")
    port = served.show("lab")["port"]
    with websocket(served, "lab", cookie=cookie) as client:
        assert served.server.stop(signal.SIGTERM)[0] == 0
        with pytest.raises(ConnectionClosed):
            _hear_to_the_end(client)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://127.0.0.1:{port}/", trust_env=False)


def test_workspaces_are_not_served_where_other_machines_can_call_unless_somebody_says_so(tmp_path: Path) -> None:
    token = make_token(tmp_path, "admin")
    flags = ["up", f"--state-dir={tmp_path}", "--http-port=0", "--probes-port=0", "--proxy-port=0"]
    refused = lapse(*flags, "--proxy-host=0.0.0.0", state_dir=tmp_path)
    assert refused.returncode == 1
    assert "set workspaces_beyond_loopback to true" in refused.stderr
    server = LapseServer.start(tmp_path, "--http-host=0.0.0.0")
    try:
        assert server.event("workspaces_not_served") is not None
        with httpx2.Client(base_url=server.http, trust_env=False) as client:
            answer = client.get("/api/v1/workspaces", headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "WorkspacesNotServedError")
    finally:
        server.stop()
