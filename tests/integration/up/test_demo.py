"""A real ``lapse up --demo``, as a newcomer starts it: things lapse within a minute, one is kept, one comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.example_domain import settings_with_example_domain
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(400)]
MINUTE = 60.0


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    return settings_with_example_domain(tmp_path)


@pytest.fixture
def server(tmp_path: Path, installed: dict[str, str]) -> Iterator[LapseServer]:
    (tmp_path / "state").mkdir()
    running = LapseServer.start(tmp_path / "state", "--demo", settings=installed)
    yield running
    running.stop()


def ask(server: LapseServer, method: str, path: str, **body: Any) -> Any:  # noqa: ANN401 - any answer
    with server.client() as client:
        answer = client.request(method, f"/api/v1{path}", json=body if method == "POST" else None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(server: LapseServer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask(server, "GET", "/journal?outcome=ended&limit=1000")["items"]
    return [one for one in rows if one["actor"] in {"lapse", "lapse demo", "keys-sweep"}]


def test_things_lapse_within_a_minute_one_is_kept_one_comes_back_and_stop_leaves_nothing(server: LapseServer) -> None:
    until(lambda: len(ask(server, "GET", "/demo")["things"].get("scratch", [])) >= 6)
    things = ask(server, "GET", "/demo")["things"]
    kept = things["scratch"][0]
    ask(server, "POST", "/hold", address=kept, reason="to see it stay")

    wanted = {"keys", "history", "scratch", "requests"}
    until(lambda: wanted <= {one["domain"] for one in ended(server)}, seconds=MINUTE)
    until(lambda: "workspaces" in {one["domain"] for one in ended(server)}, seconds=2 * MINUTE)
    status = ask(server, "GET", "/status")
    assert [one["name"] for one in status["domains"] if one["frozen"]] == []
    assert status["waiting"] == []

    # The last good record of the experiment that fails stays; a record that went comes back.
    records = ask(server, "GET", "/demo")["things"]["history"]
    good = next(one for one in things["history"] if one.endswith("nightly-backup-0004"))
    assert good in records
    gone = next(one["address"] for one in ended(server) if one["domain"] == "history")
    ask(server, "POST", "/undo", address=gone)
    assert gone in ask(server, "GET", "/demo")["things"]["history"]
    assert ask(server, "GET", f"/why/{gone}")["hold"] is not None
    assert kept in ask(server, "GET", "/demo")["things"]["scratch"], "what is held stays"

    assert server.state_dir is not None
    said = lapse("demo", "stop", f"--server={server.http}", state_dir=server.state_dir)
    assert (said.returncode, said.stdout) == (0, "The demo is stopped, and nothing of it is left.\n"), said.stderr
    until(lambda: ask(server, "GET", "/trash")["items"] == [])
    for path in ("/requests/vcr", "/claims", "/keepers", "/artifacts/vsc", "/artifacts/pv", "/history", "/workspaces"):
        assert ask(server, "GET", path)["items"] == [], path
    assert [one["name"] for one in ask(server, "GET", "/retention")["items"]] == ["history"]
    assert ask(server, "GET", "/status")["keys"]["records"] == 0
    assert [*(server.state_dir / "scratch").iterdir()] == []
    assert not (server.state_dir / "demo").exists()


def test_the_demo_of_a_folder_is_stopped_by_a_command_and_not_started_again(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    first = LapseServer.start(folder, "--demo", settings=installed)
    until(lambda: "workspaces" in ask(first, "GET", "/demo")["things"])
    assert "demo-notebook" in lapse("demo", "status", f"--state-dir={folder}", state_dir=folder).stdout
    first.stop()

    lapse("demo", "stop", f"--state-dir={folder}", state_dir=folder)
    again = LapseServer.start(folder, "--demo", settings=installed)
    try:
        until(lambda: not any(ask(again, "GET", "/demo")["things"].values()))
        assert not ask(again, "GET", "/demo")["running"]
        assert ask(again, "POST", "/demo/start")["running"]
        until(lambda: ask(again, "GET", "/demo")["keys"])
    finally:
        again.stop()
