"""A real ``lapse up`` process on ports of its own, with a state folder of its own."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
COMMAND = [sys.executable, "-m", "lapse"]
NO_SETTINGS: Mapping[str, str] = {}
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: without it each of them reads all certificates of the system, which takes longer than a
call, and a test that asks again and again until something is so keeps a core busy with that."""
ENDED_SECONDS = 25
"""A process that is told to end gives itself nine seconds, and its exit code says whether they were enough. How much
later that is seen is up to the machine."""


def clean_environment(state_dir: Path) -> dict[str, str]:
    """Return an environment without settings, in which nothing of this user's is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAPSE_")}
    return kept | {"XDG_STATE_HOME": str(state_dir), "XDG_CONFIG_HOME": str(state_dir), "PYTHONUNBUFFERED": "1"}


def lapse(*arguments: str, state_dir: Path) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=clean_environment(state_dir),
        cwd=state_dir,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def until(condition: Callable[[], T | None], *, seconds: float = 60) -> T:
    """Ask again and again until there is an answer, ever more rarely: asking takes time, too."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(pause)
        pause = min(1.2 * pause, 0.2)
    raise TimeoutError(f"still not so after {seconds} s")


class LapseServer:
    """A running process. Its log is read as it comes, so that it never waits for a full pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.state_dir: Path | None = None
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        state_dir: Path,
        *flags: str,
        command: Sequence[str] = COMMAND,
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> Self:
        """Start it, with ``settings`` in its environment, and wait until it says where it listens."""
        arguments = ["up", f"--state-dir={state_dir}", "--http-port=0", "--proxy-port=0", *flags]
        server = cls.spawn(state_dir, *arguments, command=command, settings=settings)
        server.state_dir = state_dir
        return server

    @property
    def owner_token(self) -> str:
        """The token of the user who started it."""
        assert self.state_dir is not None
        return (self.state_dir / "owner-token").read_text().strip()

    @classmethod
    def spawn(
        cls,
        folder: Path,
        *arguments: str,
        command: Sequence[str] = COMMAND,
        settings: Mapping[str, str] = NO_SETTINGS,
    ) -> Self:
        """Start any command that stays, in ``folder``, and wait until it says where it listens."""
        process = subprocess.Popen(
            [*command, *arguments, "--probes-port=0", "--log-format=json"],
            env={**clean_environment(folder), **settings},
            cwd=folder,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        server = cls(process)
        until(lambda: process.poll() is not None or server.event("listening"))
        if process.poll() is not None:
            server.stop()
            raise RuntimeError("".join(server.log))
        return server

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.log.extend(stream)

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the first log event of this name."""
        events = (json.loads(line) for line in list(self.log) if line.startswith("{"))
        return next((event for event in events if event["event"] == name), None)

    @property
    def http(self) -> str:
        """Where the API is."""
        event = self.event("listening")
        assert event is not None
        return str(event["http"])

    @property
    def probes(self) -> str:
        """Where the probes are."""
        event = self.event("listening")
        assert event is not None
        return str(event["probes"])

    @property
    def proxy_port(self) -> int:
        """Where workspaces are."""
        event = self.event("listening")
        assert event is not None
        port = urlsplit(str(event["proxy"])).port
        assert port is not None
        return port

    @contextmanager
    def client(self, token: str | None = None) -> Iterator[httpx2.Client]:
        """Give a client of the API with a token: the owner's, unless another is given, or an empty one for none."""
        given = self.owner_token if token is None else token
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        with httpx2.Client(base_url=self.http, headers=headers, trust_env=False, verify=PLAIN) as client:
            yield client

    def metric(self, series: str) -> float:
        """Return the value of one series."""
        text = httpx2.get(f"{self.probes}/metrics", trust_env=False, verify=PLAIN).text
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series + " "))

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; return the exit code and how long it took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        took = time.monotonic() - started
        self._reader.join(10)
        return code, took
