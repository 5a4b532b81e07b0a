"""What people set about a workspace that runs: its port and its probe, through the real server and its proxy."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from tests.commands import run_here
from tests.integration.workspaces_served.conftest import ECHO
from tests.servers.lapse_server import until
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from tests.integration.workspaces_served.conftest import Served

BY_ENVIRONMENT = ECHO.replace("sys.argv[1]", "os.environ['PORT']")


def page(served: Served, name: str, cookie: str) -> int:
    with served.browser(name) as client:
        return client.get("/", headers={"Cookie": cookie}).status_code


def test_a_port_is_changed_under_a_running_program_and_nothing_is_lost(shared: Served) -> None:
    made = shared.create("moves", sys.executable, "-c", BY_ENVIRONMENT)
    shared.becomes("moves", "RUNNING")
    cookie = shared.session("moves")
    note = shared.folder / "workspaces" / "volumes" / made["id"] / "note"
    note.write_text("kept")
    first, second = kept_port(), kept_port()
    changed = shared.ask("PATCH", "/moves", {"port": first}).json()
    before = page(shared, "moves", cookie)
    where = (f"--state-dir={shared.folder}", *(one for one in shared.flags if one.startswith("--database-url")))
    done = run_here("workspaces", "set", "moves", f"--port={second}", "--restart", "-o", "json", *where)
    told = json.loads(done.stdout)

    assert (changed["port"], changed["next_port"], before) == (made["port"], first, 200)
    assert told["error_message"] is None
    assert (done.returncode, told["port"], told["next_port"], told["observed_status"]) == (0, second, None, "RUNNING")
    assert page(shared, "moves", cookie) == 200
    assert note.read_text() == "kept"


def test_a_probe_that_fails_keeps_the_workspace_and_is_told(shared: Served) -> None:
    shared.create("mute", sys.executable, "-c", BY_ENVIRONMENT, standby_ttl_seconds=1)
    shared.becomes("mute", "RUNNING")
    shared.ask("PATCH", "/mute", {"probe": "/no-such-answer"})
    told = until(lambda: found if (found := shared.show("mute"))["probe_error"] else None)
    shared.ticks(6)
    why = shared.ask("GET", "/mute/why").json()
    kept = shared.show("mute")
    up = shared.server.metric('lapse_signal_up{source="probe"}')
    shared.ask("PATCH", "/mute", {"probe": ""})

    assert "has_activity" in told["probe_error"]
    assert (why["verdict"], why["reason"]) == ("unknown", "probe_failed")
    assert "/no-such-answer fails: the answer has neither" in why["facts"]["probe"]
    assert (kept["observed_status"], kept["desired_state"], up) == ("RUNNING", "RUNNING", 0.0)
    assert shared.becomes("mute", "STANDBY")["desired_by"] == "ttl"
