"""The real process, over real sockets."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpx2
import pytest

from tests.servers.lapse_server import COMMAND, ENDED_SECONDS, LapseServer, clean_environment, lapse, until

if TYPE_CHECKING:
    from pathlib import Path

Start = Callable[..., LapseServer]
ONE = "/api/v1/apps/7/keys/alpha:ABC123"


def create_token(state_dir: Path, *scopes: str) -> tuple[str, str]:
    flags = [f"--scope={scope}" for scope in scopes]
    made = lapse(
        "tokens", "create", f"--state-dir={state_dir}", "--name=test", *flags, "-o", "json", state_dir=state_dir
    )
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    return document["id"], document["token"]


# --- the first use ---------------------------------------------------------------------------------------------------


def test_the_first_example_of_the_docs_works_over_http(shared: LapseServer) -> None:
    with shared.client() as client:
        inserted = client.put(ONE, json={"value": "device:1", "ttl_seconds": 900}, headers={"If-None-Match": "*"})
        again = client.put(ONE, json={"value": "device:2", "ttl_seconds": 900}, headers={"If-None-Match": "*"})
        read = client.get(ONE)
        by_tag = client.put(
            ONE, json={"value": "device:2", "ttl_seconds": 900}, headers={"If-Match": read.headers["etag"]}
        )
        swapped = client.put(ONE, json={"value": "device:3", "ttl_seconds": 900, "expected": "device:2"})
        deleted = client.request("DELETE", ONE, json={"expected": "device:3"})
        gone = client.get(ONE)

    statuses = [answer.status_code for answer in (inserted, again, read, by_tag, swapped, deleted, gone)]
    assert statuses == [201, 412, 200, 200, 200, 204, 404]
    assert read.json()["value"] == "device:1"


@pytest.mark.parametrize("key", ["a/b", "nul\0in", "🦊", "line\nend", "%2F", "ends\n"])
def test_odd_keys_come_back_exactly_through_a_real_server(shared: LapseServer, key: str) -> None:
    url = f"/api/v1/apps/9/keys/{quote(key, safe='')}"
    with shared.client() as client:
        client.put(url, json={"value": "x", "ttl_seconds": 900})
        assert client.get(url).json()["key"] == key


def test_keys_survive_a_restart_in_the_embedded_store(start: Start) -> None:
    first = start()
    with first.client() as client:
        client.put(ONE, json={"value": "device:1", "ttl_seconds": 900})
        tag = client.get(ONE).headers["etag"]
    assert first.stop()[0] == 0

    with start().client() as client:
        assert client.get(ONE).json()["value"] == "device:1"
        assert client.get(ONE).headers["etag"] == tag


def test_the_dashboard_is_served(shared: LapseServer) -> None:
    with shared.client() as client:
        start, engine = client.get("/"), client.get("/engine")

    assert (start.status_code, engine.status_code) == (200, 200)
    assert "What lapses next" in start.text
    assert "keys-sweep" in engine.text
    assert f"{shared.probes}/metrics" in engine.text


# --- who may call ----------------------------------------------------------------------------------------------------


def test_a_browser_that_was_sent_here_by_somebody_else_is_refused(shared: LapseServer) -> None:
    port = urlsplit(shared.http).port
    body = {"value": "x", "ttl_seconds": 900}
    with shared.client() as client:
        rebound = client.get("/", headers={"Host": f"evil.example.org:{port}"})
        foreign = client.put(ONE, json=body, headers={"Origin": "http://evil.example.org"})
        form = client.put(ONE, content=json.dumps(body), headers={"Content-Type": "text/plain"})
        untouched = client.get(ONE)

    assert [rebound.status_code, foreign.status_code, form.status_code, untouched.status_code] == [403, 403, 415, 404]


def test_another_user_of_the_machine_is_told_nothing_and_changes_nothing(shared: LapseServer) -> None:
    asked = {"name": "evil", "owner": "mallory", "command": ["/bin/sh", "-c", "id"], "port": 9999}
    with shared.client("") as stranger, shared.client() as owner:
        answers = [
            stranger.get("/"),
            stranger.get("/api/v1/status"),
            stranger.post("/api/v1/workspaces", json=asked),
            stranger.put(ONE, json={"value": "x", "ttl_seconds": 900}),
        ]
        made = owner.get("/api/v1/workspaces/evil")

    assert [answer.status_code for answer in answers] == [401] * 4
    assert made.status_code == 404
    assert shared.state_dir is not None
    assert (shared.state_dir / "owner-token").stat().st_mode & 0o777 == 0o600


def test_the_link_that_lapse_open_prints_lets_a_browser_in_once(shared: LapseServer) -> None:
    assert shared.state_dir is not None
    port = urlsplit(shared.http).port
    printed = lapse("open", f"--state-dir={shared.state_dir}", f"--http-port={port}", state_dir=shared.state_dir)
    with shared.client("") as browser, shared.client("") as thief:
        first = browser.get(printed.stdout.strip())
        page = browser.get("/", headers={"Accept": "text/html"})
        second = thief.get(printed.stdout.strip())

    assert printed.returncode == 0, printed.stderr
    assert (first.status_code, page.status_code, second.status_code) == (303, 200, 401)
    assert "What lapses next" in page.text


def test_on_a_terminal_the_link_stands_in_the_first_lines_and_never_in_a_log(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    flags = ["--http-port=0", "--probes-port=0", "--proxy-port=0", "--log-format=json", f"--state-dir={tmp_path}"]
    process = subprocess.Popen([*COMMAND, "up", *flags], stderr=theirs, env=clean_environment(tmp_path), cwd=tmp_path)
    os.close(theirs)
    try:
        said = b""
        while b"listening" not in said:
            said += os.read(ours, 4096)
        link = re.search(rb"http://127\.0\.0\.1:\d+/open\?ticket=[\w-]{43}", said)
        assert link is not None, said
        with httpx2.Client(trust_env=False) as browser:
            assert browser.get(link[0].decode()).status_code == 303
            assert browser.get(link[0].decode().partition("open")[0]).status_code == 200
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)


def test_a_log_that_is_a_file_says_what_prints_a_link_and_has_none(tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "log"
    flags = ["--http-port=0", "--probes-port=0", "--proxy-port=0", f"--state-dir={state}"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "up", *flags], stdout=file, stderr=file, env=clean_environment(tmp_path), cwd=tmp_path
        )
    try:
        until(lambda: b"link_not_logged" in log.read_bytes())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        (listening,) = [one for one in lines if one["event"] == "listening"]
        (told,) = [one for one in lines if one["event"] == "link_not_logged"]
        assert told["run"] == f"lapse open --state-dir {state} --http-port {urlsplit(listening['http']).port}"
        assert "ticket" not in log.read_text()
        printed = lapse(*shlex.split(told["run"])[1:], state_dir=state)
        assert printed.stdout.startswith(listening["http"]), printed.stderr
    finally:
        process.terminate()
        process.wait(30)


def test_tokens_made_and_revoked_while_it_runs_count_from_the_next_request_on(start: Start, tmp_path: Path) -> None:
    server = start("--keys-url=memory://")
    token_id, token = create_token(tmp_path, "keys:7")
    with server.client() as owner:
        assert owner.get("/api/v1/status").status_code == 200, "another token takes nothing from the owner"
    with server.client(token) as holder:
        assert holder.put(ONE, json={"value": "x", "ttl_seconds": 900}).status_code == 200
        assert holder.get("/api/v1/apps/8/keys").status_code == 403
        revoked = lapse("tokens", "revoke", token_id, f"--state-dir={tmp_path}", state_dir=tmp_path)
        assert revoked.returncode == 0, revoked.stderr
        assert holder.get(ONE).status_code == 401
    with server.client("lapse_0_wrong") as stranger:
        assert stranger.get(ONE).status_code == 401


def test_an_address_for_other_machines_is_refused_until_a_person_has_a_token(start: Start, tmp_path: Path) -> None:
    start().stop()  # leaves the owner's token, which is nobody's name
    flags = ["up", f"--state-dir={tmp_path}", "--http-host=0.0.0.0", "--http-port=0", "--probes-port=0"]
    refused = lapse(*flags, "--keys-url=memory://", state_dir=tmp_path)

    assert refused.returncode == 1
    assert "lapse tokens create --name NAME --scope admin" in refused.stderr
    assert "Traceback" not in refused.stderr

    _, token = create_token(tmp_path, "admin")
    with start("--http-host=0.0.0.0", "--keys-url=memory://").client(token) as client:
        assert client.get("/api/v1/status").status_code == 200
        assert client.get("/api/v1/status", headers={"Authorization": ""}).status_code == 401


# --- starting and stopping -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(start: Start, number: int) -> None:
    server = start()
    code, seconds = server.stop(number)

    assert code == 0
    assert seconds < ENDED_SECONDS
    assert server.event("stopped")
    assert "Traceback" not in "".join(server.log)


def test_clients_that_never_finish_do_not_keep_it(start: Start) -> None:
    server = start()
    address = (urlsplit(server.http).hostname, urlsplit(server.http).port)
    head = f"PUT {ONE} HTTP/1.1\r\nHost: 127.0.0.1:{address[1]}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {server.owner_token}\r\n"
    with (
        server.client() as idle,
        socket.create_connection(address) as half_head,
        socket.create_connection(address) as half_body,
    ):
        idle.get("/api/v1/status")
        half_head.sendall(head.encode())
        half_body.sendall(f'{head}Content-Length: 50\r\n\r\n{{"value": '.encode())
        # The server has taken both when it answers somebody who came later.
        idle.get("/api/v1/status")
        code, seconds = server.stop()
        half_body.settimeout(5)
        answer = half_body.recv(65536)

    assert code == 0
    assert seconds < ENDED_SECONDS
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in "".join(server.log)


@pytest.mark.slow
def test_a_store_that_hangs_while_it_is_closed_does_not_keep_it_either(tmp_path: Path) -> None:
    # Nothing real hangs on demand, so the close of this process is replaced by one that never returns.
    hanging = (
        "import asyncio, sys; from lapse.keys.aio import AsyncKeys; from lapse.cli import main\n"
        "async def close(_): await asyncio.Event().wait()\n"
        "AsyncKeys.close = close\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    server = LapseServer.start(tmp_path, "--keys-url=memory://", command=[sys.executable, "-c", hanging])
    code, seconds = server.stop()

    assert code == 1
    assert seconds < ENDED_SECONDS


@pytest.mark.parametrize("which", ["http", "probes"])
def test_a_port_that_is_taken_is_one_clear_message(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"http": "0", "probes": "0"} | {which: str(port)}
        flags = [f"--{name}-port={number}" for name, number in ports.items()]
        result = lapse("up", f"--state-dir={tmp_path}", "--keys-url=memory://", *flags, state_dir=tmp_path)

    assert result.returncode == 1
    assert f"127.0.0.1:{port}: the port is taken by another process" in result.stderr
    assert f"{which}_port (or --{which}-port)" in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_settings_are_all_listed_and_nothing_starts(tmp_path: Path) -> None:
    result = lapse("up", "--http-port=x", "--keys-sweep-interval=10", "--keys-url=foo://", state_dir=tmp_path)

    assert result.returncode == 64
    assert all(key in result.stderr for key in ("--http-port", "--keys-sweep-interval", "--keys-url"))
    assert "Traceback" not in result.stderr


def test_a_store_that_cannot_be_opened_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_text("this is no database, whatever its name says. " * 50)
    flags = ["--http-port=0", "--probes-port=0", "--proxy-port=0", f"--state-dir={tmp_path}"]
    result = lapse("up", *flags, state_dir=tmp_path)

    assert result.returncode == 1
    assert "keys.db" in result.stderr
    assert "Traceback" not in result.stderr


# --- probes and metrics ----------------------------------------------------------------------------------------------

DELETIONS = 'lapse_deletions_total{domain="keys",reason="ttl_expired"}'


@pytest.mark.parametrize("url", ["--keys-url=memory://", None])
def test_metrics_start_at_zero_and_count_keys_that_expired(start: Start, url: str | None) -> None:
    server = start("--keys-sweep-interval=50ms", *([url] if url else []))
    before = server.metric(DELETIONS)
    items = [{"key": str(number), "value": "x", "ttl_seconds": 1} for number in range(3)]
    with server.client() as client:
        client.post("/api/v1/apps/7/keys", json={"items": items})
        client.put(ONE, json={"value": "x", "ttl_seconds": 900})
        until(lambda: server.metric(DELETIONS) == 3)
        status = client.get("/api/v1/status").json()

    assert before == 0
    assert status["keys"]["largest"] == [{"app": 7, "records": 1}]
    assert server.metric('lapse_expiry_lag_seconds_count{domain="keys"}') >= 1
    assert server.metric('lapse_errors_total{domain="keys",kind="tick"}') == 0
    assert server.metric('lapse_loop_last_success_timestamp_seconds{loop="keys-sweep"}') > 1.7e9


def test_the_probes_answer_on_a_listener_of_their_own(shared: LapseServer) -> None:
    answers = [httpx2.get(shared.probes + path, trust_env=False).status_code for path in ("/healthz", "/readyz")]
    with shared.client() as client:
        not_here = client.get("/metrics").status_code

    assert answers == [200, 200]
    assert not_here == 404


def test_no_key_value_or_token_reaches_the_log(start: Start, tmp_path: Path) -> None:
    _, token = create_token(tmp_path, "admin")
    server = start("--log-level=debug", "--keys-url=memory://")
    with server.client(token) as client:
        client.put("/api/v1/apps/7/keys/secret-key", json={"value": "secret-value", "ttl_seconds": 900})
        client.put("/api/v1/apps/7/keys/secret-key", json={"value": ["secret-value"], "ttl_seconds": 0})
        client.get("/api/v1/apps/7/keys?prefix=secret-key")
    server.stop()
    log = "".join(server.log)

    assert '"event": "request"' in log
    assert "secret-" not in log
    assert token not in log


# --- two of them -----------------------------------------------------------------------------------------------------


def test_two_servers_on_one_store_agree(start: Start) -> None:
    one, other = start(), start()
    with one.client() as left, other.client() as right:
        inserted = [
            client.put(ONE, json={"value": "x", "ttl_seconds": 900}, headers={"If-None-Match": "*"}).status_code
            for client in (left, right)
        ]
        tag = left.get(ONE).headers["etag"]
        swapped = right.put(ONE, json={"value": "y", "ttl_seconds": 900}, headers={"If-Match": tag})
        seen = left.get(ONE).json()["value"]

    assert inserted == [201, 412]
    assert swapped.status_code == 200
    assert seen == "y"


def test_two_sweeping_servers_count_every_expired_key_once(start: Start) -> None:
    servers = [start("--keys-sweep-interval=50ms") for _ in range(2)]
    items = [{"key": str(number), "value": "x", "ttl_seconds": 1} for number in range(500)]
    with servers[0].client() as client:
        client.post("/api/v1/apps/7/keys", json={"items": items})
        until(lambda: client.get("/api/v1/status").json()["keys"]["records"] == 0)

    until(lambda: sum(server.metric(DELETIONS) for server in servers) >= 500)
    assert sum(server.metric(DELETIONS) for server in servers) == 500
