"""``lapse up`` on a pseudo terminal: what a person sees, and what a program gets instead."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from tests.servers.lapse_server import COMMAND, ENDED_SECONDS, LapseServer, clean_environment, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
RECORD = ("--experiment", "shop/kill-pods", "--status", "success", "--start", "2026-01-31T02:00:00Z")


class TerminalServer:
    """A ``lapse up`` whose stderr is a terminal."""

    def __init__(self, folder: Path, *, columns: int = 120, **settings: str) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        ports = ("--http-port=0", "--probes-port=0", "--proxy-port=0")
        environment = {**clean_environment(folder), "TERM": "xterm", **settings}
        environment = {name: value for name, value in environment.items() if name != "NO_COLOR" or value}
        self.process = subprocess.Popen(
            [*COMMAND, "up", f"--state-dir={folder}", *ports],
            env=environment,
            cwd=folder,
            stderr=inside,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(inside)
        self._text = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._screen, 4096):
                self._text += part
        except OSError:  # the other side is gone
            return

    @property
    def shown(self) -> str:
        return self._text.decode()

    @property
    def lines(self) -> list[str]:
        return [ESCAPES.sub("", line) for line in self.shown.splitlines()]

    def line(self, pattern: str) -> str:
        """Wait for a line that has this in it."""
        return until(lambda: next((one for one in self.lines if re.search(pattern, one)), None))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(ENDED_SECONDS)
        self._reader.join(10)
        return code


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[TerminalServer]:
    server = TerminalServer(tmp_path, NO_COLOR="")
    yield server
    server.stop()
    os.close(server._screen)


def test_every_act_is_one_line_whoever_did_it_and_the_end_is_told_in_words(
    terminal: TerminalServer, tmp_path: Path
) -> None:
    terminal.line(r"^\d\d:\d\d:\d\d  listening +http://127\.0\.0\.1:\d+  probes http")
    recorded = lapse("history", "record", *RECORD, f"--state-dir={tmp_path}", state_dir=tmp_path)
    found = re.search(r"history/\S+\d", recorded.stdout)
    assert found is not None, recorded.stderr
    address, where = found[0].rstrip("."), f"--state-dir={tmp_path}"
    for command in (
        ("hold", address, "--reason", "an audit"),
        ("release", address),
        ("delete", address, "--yes"),
        ("undo", address),
    ):
        done = lapse(*command, where, state_dir=tmp_path)
        assert done.returncode == 0, done.stderr

    name = re.escape(address)
    terminal.line(rf"^\d\d:\d\d:\d\d  held +{name}  an audit \(by user \S+\)$")
    terminal.line(rf"  released +{name}")
    terminal.line(rf"  deleted +{name}  by user \S+$")
    terminal.line(rf"  undone +{name}")
    assert terminal.stop() == 0
    assert len([one for one in terminal.lines if re.search(rf" deleted +{name}|lapsed +{name}", one)]) == 1
    assert "\x1b[1mdeleted\x1b[0m" in terminal.shown
    words = [one.split()[1] for one in terminal.lines if re.match(r"\d\d:\d\d:\d\d ", one)]
    assert words[-3:] == ["stopping", "released", "stopped"]
    assert not [one for one in terminal.lines if one.startswith("{")]


def test_what_is_piped_is_json_as_before(tmp_path: Path) -> None:
    server = LapseServer.start(tmp_path)
    try:
        recorded = lapse("history", "record", *RECORD, f"--state-dir={tmp_path}", state_dir=tmp_path)
        address = recorded.stdout.split()[1].rstrip(".")
        with server.client() as client:
            answer = client.request("POST", "/api/v1/delete", json={"address": address})
            assert answer.status_code == 200, answer.text
        told = until(lambda: server.event("lapsed"))
        assert {key: told[key] for key in ("event", "logger", "level", "domain", "address", "reason")} == {
            "event": "lapsed",
            "logger": "lapse.engine.executor",
            "level": "info",
            "domain": "history",
            "address": address,
            "reason": "deleted_by_person",
        }
        assert server.event("journal") is None
    finally:
        server.stop()
