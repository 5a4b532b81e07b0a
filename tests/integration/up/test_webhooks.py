"""A real ``lapse up`` tells the receiver of `examples/webhook` what lapses: signed, once, and after a SIGKILL again."""

from __future__ import annotations

import base64
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[3] / "examples" / "webhook" / "receiver.py"
KEY = b"a key of thirty-two bytes, truly"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """The example, as a process."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    def start(self) -> None:
        environment = os.environ | {"WEBHOOK_SECRET": SECRET}
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLE, str(self.port)], env=environment, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        until(self.listens)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.strip())
        process.stdout.close()

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


def settings(receiver: Receiver) -> dict[str, str]:
    webhook = {"name": "ops", "url": receiver.url, "secret_env": "OPS_SECRET"}
    return {
        "LAPSE_EXPIRY_WARNING": "10s",
        "LAPSE_WEBHOOKS": json.dumps([webhook]),
        "OPS_SECRET": SECRET,
        "REQUEST_TTL": "8s",
    }


def run(folder: Path, *arguments: str) -> None:
    done = lapse(*arguments, f"--state-dir={folder}", state_dir=folder)
    assert done.returncode == 0, done.stderr


def test_what_lapses_is_told_also_after_a_kill_and_while_the_receiver_was_away(
    tmp_path: Path, receiver: Receiver
) -> None:
    (tmp_path / "data").mkdir()
    server = LapseServer.start(tmp_path, settings=settings(receiver))
    try:
        until(lambda: server.metric('lapse_loop_duration_seconds_count{loop="webhook-ops"}') >= 1)
        run(tmp_path, "freeze", "workspaces", "--reason", "nobody listens yet")
        until(
            lambda: server.metric('lapse_webhook_deliveries_total{result="failed",store="folder",webhook="ops"}') >= 1
        )
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        receiver.start()
        server = LapseServer.start(tmp_path, settings=settings(receiver))
        until(lambda: receiver.lines == ["dev.lapse.frozen - by_person"])
        run(tmp_path, "requests", "capture", "c1", "--directory", str(tmp_path / "data"), "--wait")
        ended = "dev.lapse.ended vcr/default/c1 ttl_expired"
        until(lambda: ended in receiver.lines)
        expiring = "dev.lapse.expiring vcr/default/c1 not_yet"
        assert receiver.lines.index(expiring) < receiver.lines.index(ended)
        run(tmp_path, "resume", "workspaces")
        until(lambda: "dev.lapse.resumed - by_person" in receiver.lines)
    finally:
        server.stop()
    assert len(receiver.lines) == len(set(receiver.lines))
    log = "\n".join(server.log)
    assert receiver.url not in log
    assert SECRET not in log


def post(receiver: Receiver, *, event: str = "e1", late: int = 0, key: bytes = KEY, cut: bool = False) -> int:
    body = json.dumps({"type": "dev.lapse.ended", "subject": event, "data": {"reason": "r"}}).encode()
    timestamp = SystemClock.wall_ns() // 1_000_000_000 - late
    signed = base64.b64encode(hmac.digest(key, f"{event}.{timestamp}.".encode() + body, "sha256")).decode()
    headers = {"webhook-id": event, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,AAAA v1,{signed}"}
    request = urllib.request.Request(receiver.url, data=body[1:] if cut else body, headers=headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_example_takes_what_is_genuine_once_and_nothing_else(receiver: Receiver) -> None:
    receiver.start()

    assert [post(receiver), post(receiver), post(receiver, event="e2")] == [204, 204, 204]
    assert post(receiver, event="e3", late=400) == 401
    assert post(receiver, event="e4", late=-400) == 401
    assert post(receiver, event="e5", key=b"another key, which nobody knows.") == 401
    assert post(receiver, event="e6", cut=True) == 401
    until(lambda: receiver.lines == ["dev.lapse.ended e1 r", "dev.lapse.ended e2 r"])


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"domains": ["requets"]}, "The webhook ops asks for the domain requets, which does not exist. Expected keys,"),
        ({"secret_env": "NOT_SET"}, "The secret of the webhook ops cannot be used: NOT_SET is not set."),
    ],
)
def test_config_check_finds_what_lapse_up_would_refuse(
    tmp_path: Path, receiver: Receiver, changes: dict[str, object], problem: str
) -> None:
    webhook = {"name": "ops", "url": receiver.url, "secret_env": "OPS_SECRET"} | changes
    for command in (["config", "check"], ["up", "--http-port=0", "--probes-port=0", "--proxy-port=0"]):
        done = lapse(*command, "--webhooks", json.dumps([webhook]), state_dir=tmp_path)
        assert done.returncode == 64
        assert problem in done.stderr
        assert receiver.url not in done.stderr
