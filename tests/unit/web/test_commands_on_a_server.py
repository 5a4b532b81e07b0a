"""Commands with ``--server``: the same words, documents and exit codes as on a store of this machine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from lapse.client.transport import ServerAnswer, ServerTransport
from lapse.core.clock import SystemClock
from lapse.workspaces.model import Ms, ObservedStatus, WorkspaceId
from tests.commands import Result, run_here

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.unit.web.conftest import API

Run = Callable[..., Coroutine[Any, Any, Result]]
SERVER = "http://localhost:8750"
SECRET = "s3cr3t"
ABSENT = "lapse: There is no workspace lab. List those that are there, or create it first.\n"
SERVE = ("--port", "9000", "--", "serve")


@pytest.fixture
async def run(api: API, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a function that runs a command of a person elsewhere, who has a token for everything or for ``scopes``."""
    loop = asyncio.get_running_loop()

    async def call(
        self: ServerTransport,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ServerAnswer:
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        request = api.stranger.request(method, target, content=body, headers=sent)
        response = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, loop))
        return ServerAnswer(response.status_code, response.content)

    async def command(*arguments: str, stdin: str = "", scopes: tuple[str, ...] = ("admin",)) -> Result:
        _, token = api.tokens.create("ann", list(scopes))
        environment = {
            "LAPSE_TOKEN": token,
            "LAPSE_SERVER": SERVER,
            "XDG_CONFIG_HOME": str(tmp_path / "home"),
            "XDG_STATE_HOME": str(tmp_path / "home"),
        }
        return await asyncio.to_thread(run_here, *arguments, stdin=stdin, environment=environment)

    monkeypatch.setattr(ServerTransport, "call", call)
    monkeypatch.chdir(tmp_path)
    return command


def said(result: Result) -> tuple[int, str, str]:
    return result.returncode, result.stdout, result.stderr


def document(result: Result) -> Any:  # noqa: ANN401 - whatever it prints
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_keys_on_a_server_are_as_in_a_store(run: Run, api: API) -> None:
    app, ttl = ("--app", "7"), ("--ttl", "15m")

    assert said(await run("keys", "insert", "a/b", "-", *app, *ttl, stdin=f"{SECRET}\n")) == (
        0,
        "Inserted: key/7/a%2Fb.\n",
        "",
    )
    assert await api.keys.app(7).ttl_get("a/b") == SECRET
    assert said(await run("keys", "insert", "a/b", "x", *app, *ttl)) == (
        1,
        "",
        "a live key is already there; nothing was changed\n",
    )
    assert said(await run("keys", "get", "key/7/a%2Fb")) == (0, f"{SECRET}\n", "")
    shown = await run("keys", "show", "a/b", *app, "-o", "json")
    assert document(shown).keys() == {"address", "key", "expires_at", "ttl_seconds"}
    assert SECRET not in (await run("keys", "list", *app)).stdout
    assert SECRET in (await run("keys", "list", *app, "--show-values")).stdout
    assert said(await run("keys", "swap", "a/b", SECRET, "new", *app, *ttl))[:2] == (0, "Swapped: key/7/a%2Fb.\n")
    assert said(await run("keys", "touch", "a/b", *app, *ttl))[:2] == (0, "Touched: key/7/a%2Fb.\n")
    assert (await run("keys", "delete", "a/b", *app, "--if-value", SECRET)).returncode == 1
    assert said(await run("keys", "delete", "a/b", *app)) == (0, "Deleted: key/7/a%2Fb.\n", "")
    absent = await run("keys", "show", "a/b", *app)
    assert said(absent) == (1, "", "no live key\n")
    assert said(await run("keys", "put", "k", "v", *app, *ttl)) == (0, "Put: key/7/k.\n", "")


async def test_keys_of_a_server_are_listed_in_pages(run: Run, api: API) -> None:
    await api.keys.app(7).insert_many([(f"k{number}", "v", 60) for number in range(5)])

    first = document(await run("keys", "list", "--app", "7", "--limit", "2", "-o", "json"))
    rest = document(await run("keys", "list", "--app", "7", "--after", first["next"], "-o", "json"))
    exact = document(await run("keys", "list", "--app", "7", "--limit", "5", "-o", "json"))

    assert [one["key"] for one in first["items"] + rest["items"]] == [f"k{number}" for number in range(5)]
    assert rest["next"] is exact["next"] is None
    assert len(document(await run("keys", "list", "--app", "7", "--limit", "0", "-o", "json"))["items"]) == 5


async def test_a_flag_for_this_machine_wins_over_the_server_of_the_environment(run: Run, tmp_path: Path) -> None:
    put = await run("keys", "put", "k", "here", "--app", "7", "--ttl", "1h", "--state-dir", str(tmp_path / "own"))
    other = await run("keys", "get", "k", "--app", "7")
    url = (tmp_path / "own" / "keys.db").as_uri()

    assert put.returncode == 0
    assert said(other) == (1, "", "no live key\n")
    assert (await run("keys", "get", "k", "--app", "7", "--url", url)).stdout == "here\n"


async def test_what_the_token_does_not_allow_is_refused(run: Run) -> None:
    refused = await run("keys", "get", SECRET, "--app", "7", scopes=("keys:8",))

    assert refused.returncode == 1
    assert "it needs one of the scopes" in refused.stderr
    assert SECRET not in refused.stderr


async def test_wrong_input_is_a_usage_error_on_a_server_too(run: Run) -> None:
    assert (await run("keys", "put", "", "v", "--app", "7", "--ttl", "1h")).returncode == 64
    assert (await run("keys", "put", "k", "v" * 65537, "--app", "7", "--ttl", "1h")).returncode == 64
    assert (await run("workspaces", "create", "Lab", "--owner", "ann", *SERVE)).returncode == 64
    unowned = await run("workspaces", "create", "lab", *SERVE)
    assert said(unowned)[0] == 64
    assert "Name one: --owner NAME" in unowned.stderr


# --- workspaces -------------------------------------------------------------------------------------------------------


async def test_workspaces_on_a_server_are_as_in_a_store(run: Run) -> None:
    made = await run("workspaces", "create", "lab", "--owner", "ann", "--no-start", *SERVE)
    assert said(made) == (0, "Created: workspace/lab. It starts when it is opened.\n", "")
    shown = document(await run("workspaces", "show", "workspace/lab", "-o", "json"))
    assert (shown["owner"], shown["command"], shown["desired_state"]) == ("ann", ["serve"], "PENDING")
    assert document(await run("workspaces", "list", "-o", "json")) == {"items": [shown], "next": None}
    assert "lab" in (await run("workspaces", "list")).stdout
    assert "http://lab.w.localhost:8752/" in (await run("workspaces", "open", "lab")).stdout
    changed = await run("workspaces", "set", "lab", "--standby-ttl", "1h")
    assert changed.stdout.startswith("Changed: workspace/lab. It is stopped after 1h idle")
    started = await run("workspaces", "start", "lab")
    assert said(started) == (0, "Changed: workspace/lab. RUNNING is wanted; it is PENDING.\n", "")
    deleted = await run("workspaces", "delete", "lab", "--yes")
    until = "lapse up puts its data into the trash, where it stays until 2023-11-21T22:13:20Z."
    assert said(deleted) == (0, f"Deleted: workspace/lab. {until}\n", "")
    gone = await run("workspaces", "show", "lab")
    assert said(gone) == (1, "", ABSENT)


async def test_documents_have_the_same_fields_on_a_server_and_in_a_folder(run: Run, tmp_path: Path) -> None:
    folder = ("--state-dir", str(tmp_path / "own"))
    there = document(await run("workspaces", "create", "lab", "--owner", "ann", "-o", "json", *SERVE))
    here = document(await run("workspaces", "create", "lab", "--owner", "ann", "-o", "json", *folder, *SERVE))

    assert list(there) == list(here)
    opened = [document(await run("workspaces", "open", "lab", "-o", "json", *place)) for place in ((), folder)]
    assert list(opened[0]) == list(opened[1]) == ["url", "expires_at"]


async def test_the_status_has_the_same_fields_over_http_on_a_server_and_in_a_folder(
    run: Run, api: API, tmp_path: Path
) -> None:
    await api.keys.app(7).insert_many([("a", "v", 60), ("b", "v", 60)])
    asked = document(await run("status", "-o", "json"))
    here = document(await run("status", "-o", "json", "--state-dir", str(tmp_path / "own")))

    assert asked["keys"]["largest"] == [{"app": 7, "records": 2}]
    assert asked["keys"] == (await api.client.get("/api/v1/status")).json()["keys"]
    assert here.keys() == asked.keys()
    assert here["keys"] is None, "its stores were read"


async def test_a_workspace_of_a_server_is_waited_for(run: Run, api: API) -> None:
    made = document(await run("workspaces", "create", "lab", "--owner", "ann", "-o", "json", "--no-start", *SERVE))
    waiting = asyncio.create_task(run("workspaces", "start", "lab", "--wait", "--timeout", "30s"))
    while (await api.workspaces.get(WorkspaceId(made["id"]))).desired_state.value != "RUNNING":
        await SystemClock().sleep(0.01)
    now = Ms(api.clock.wall_ns() // 1_000_000)
    await api.workspaces.observe({WorkspaceId(made["id"]): ObservedStatus.RUNNING}, now=now)

    assert said(await waiting) == (0, "Started: workspace/lab. It is RUNNING.\n", "")


async def test_who_waits_too_long_for_a_server_is_told_so(run: Run) -> None:
    await run("workspaces", "create", "lab", "--owner", "ann", "--no-start", *SERVE)
    late = await run("workspaces", "start", "lab", "--wait", "--timeout", "10ms")

    assert late.returncode == 1
    assert "workspace/lab is PENDING and not RUNNING after 10ms. It goes on by itself" in late.stderr


async def test_the_log_of_a_workspace_of_a_server_is_read_as_one_of_this_machine(run: Run, tmp_path: Path) -> None:
    made = document(await run("workspaces", "create", "lab", "--owner", "ann", "--no-start", "-o", "json", *SERVE))
    (tmp_path / f"{made['id']}.log").write_text("one\ntwo\n")

    assert said(await run("workspaces", "logs", "lab", "--tail", "1")) == (0, "two\n", "")
    page = document(await run("workspaces", "logs", "lab", "--after", "4", "-o", "json"))
    assert page == {"text": "two\n", "next": 8, "more": False}


async def test_what_a_server_cannot_tell_is_refused_before_anything_is_done(run: Run) -> None:
    await run("workspaces", "create", "lab", "--owner", "ann", "--no-start", *SERVE)

    refused = await run("workspaces", "delete", "lab", "--wait", "--yes")
    assert refused.returncode == 64
    assert "--wait cannot be given with --server" in refused.stderr
    assert (await run("workspaces", "list", "--server", SERVER, "--database-url", "postgres://x")).returncode == 64
    assert (await run("workspaces", "show", "lab")).returncode == 0


async def test_workspaces_of_others_are_not_there(run: Run) -> None:
    await run("workspaces", "create", "lab", "--owner", "ann", "--no-start", *SERVE)

    for command in ("show", "start", "stop", "archive", "delete", "open"):
        result = await run("workspaces", command, "lab", scopes=("workspaces:bob",))
        assert said(result) == (1, "", ABSENT), command


# --- a server that is not there ---------------------------------------------------------------------------------------

NOUNS = (
    ["plan"],
    ["forecast"],
    ["why", "workspace/lab"],
    ["delete", "workspace/lab", "--yes"],
    ["status"],
    ["journal"],
    ["trash", "list"],
    ["freeze", "all"],
    ["keys", "list", "--app", "7"],
    ["requests", "list"],
    ["requests", "schedule", "list"],
    ["requests", "delete", "vcr/default/a", "--yes"],
    ["history", "list"],
    ["retention", "list"],
    ["workspaces", "list"],
    ["workspaces", "delete", "lab", "--yes"],
)


@pytest.mark.parametrize("line", NOUNS, ids=" ".join)
@pytest.mark.parametrize("token", ["", "lapse_0a1b2c_hunter2"], ids=["without", "with"])
def test_where_no_server_listens_every_command_says_so_in_one_line(
    line: list[str], token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lapse.client.transport.backoff", lambda *_, **__: 0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
    environment = {"LAPSE_TOKEN": token, "LAPSE_SERVER": "", "XDG_CONFIG_HOME": str(tmp_path)}
    refused = run_here(*line, "--server", server, environment=environment)

    told = "cannot be reached: no program listens there. See whether it runs, and whether the address is right."
    assert said(refused) == (1, "", f"lapse: {server} {told}\n")
