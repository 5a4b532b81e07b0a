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


def test_a_port_is_changed_under_a_running_program_and_nothing_is_lost(house: Served) -> None:
    made = house.create("moves", sys.executable, "-c", BY_ENVIRONMENT)
    house.becomes("moves", "RUNNING")
    cookie = house.session("moves")
    note = house.folder / "workspaces" / "volumes" / made["id"] / "note"
    note.write_text("kept")
    first, second = kept_port(), kept_port()
    changed = house.ask("PATCH", "/moves", {"port": first}).json()
    before = page(house, "moves", cookie)
    where = (f"--state-dir={house.folder}", *(one for one in house.flags if one.startswith("--database-url")))
    done = run_here("workspaces", "set", "moves", f"--port={second}", "--restart", "-o", "json", *where)
    told = json.loads(done.stdout)

    assert (changed["port"], changed["next_port"], before) == (made["port"], first, 200)
    assert told["error_message"] is None
    assert (done.returncode, told["port"], told["next_port"], told["observed_status"]) == (0, second, None, "RUNNING")
    assert page(house, "moves", cookie) == 200
    assert note.read_text() == "kept"


def test_a_probe_that_fails_keeps_the_workspace_and_is_told(house: Served) -> None:
    house.create("mute", sys.executable, "-c", BY_ENVIRONMENT, standby_ttl_seconds=1)
    house.becomes("mute", "RUNNING")
    house.ask("PATCH", "/mute", {"probe": "/no-such-answer"})
    told = until(lambda: found if (found := house.show("mute"))["probe_error"] else None)
    house.ticks(6)
    why = house.ask("GET", "/mute/why").json()
    kept = house.show("mute")
    up = house.server.metric('lapse_signal_up{source="probe"}')
    house.ask("PATCH", "/mute", {"probe": ""})

    assert "has_activity" in told["probe_error"]
    assert (why["verdict"], why["reason"]) == ("unknown", "probe_failed")
    assert "/no-such-answer fails: the answer has neither" in why["probe"]
    assert (kept["observed_status"], kept["desired_state"], up) == ("RUNNING", "RUNNING", 0.0)
    assert house.becomes("mute", "STANDBY")["desired_by"] == "ttl"
