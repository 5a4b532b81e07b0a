"""The verbs as a person runs them against a running `lapse up`: with a token that was kept, and with the owner's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.servers.lapse_server import lapse

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.up.conftest import Start


def test_a_person_logs_in_and_works_on_a_server(start: Start, tmp_path: Path) -> None:
    server, folder = start(), f"--state-dir={tmp_path}"
    made = lapse("tokens", "create", "--name=ann", "--scope=operate", "--scope=holds", folder, state_dir=tmp_path)
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "token").write_text(made.stdout)
    at = f"--server={server.http}"

    ran = [
        lapse("login", server.http, f"--token-file={home / 'token'}", state_dir=home),
        lapse("plan", at, "-o", "json", state_dir=home),
        lapse("freeze", "history", at, "--reason=look", state_dir=home),
        lapse("hold", "workspace/nobodys", at, "--reason=x", state_dir=home),
        lapse("delete", "workspace/nobodys", at, "--yes", state_dir=home),
    ]
    assert [one.returncode for one in ran] == [0, 0, 0, 1, 1], [one.stderr for one in ran]
    assert json.loads(ran[1].stdout)["author"] == "token ann"
    assert "There is no workspace/nobodys." in ran[3].stderr
    assert "it needs one of the scopes admin" in ran[4].stderr
    assert made.stdout.strip() not in "".join(one.stdout + one.stderr for one in ran)


def test_the_owner_needs_no_log_in_on_the_same_machine(start: Start, tmp_path: Path) -> None:
    server = start()
    home = tmp_path / "elsewhere"
    home.mkdir()
    at = (f"--server={server.http}", f"--state-dir={tmp_path}")
    unknown = lapse("plan", *at, state_dir=home)
    (home / "lapse.toml").write_text(f"[http]\nport = {server.http.rpartition(':')[2]}\n")
    found = lapse("plan", *at, "-o", "json", state_dir=home)

    assert unknown.returncode == 64
    assert "There is no token for" in unknown.stderr
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["author"].startswith("user ")


def test_the_owner_needs_no_settings_of_the_server_on_the_same_machine(start: Start, tmp_path: Path) -> None:
    server = start()
    at = f"--server={server.http}"
    found = lapse("plan", at, "-o", "json", state_dir=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["author"].startswith("user ")

    server.stop()
    assert list((tmp_path / "lapse" / "running").iterdir()) == []
    gone = lapse("plan", at, state_dir=tmp_path)
    assert gone.returncode == 1
    assert "no program listens there" in gone.stderr
