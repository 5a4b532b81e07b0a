"""No server outlives the run that started it, however that run ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import STARTERS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]

# Starts one server, tells its process and folder, and waits; with `fork`, a forked child holds all pipes open as well.
HARNESS = """
import os, signal, sys
from tests.servers import STARTERS
with STARTERS[sys.argv[1]](lambda line: None) as server:
    held = os.fork() if "fork" in sys.argv else 0
    if "fork" in sys.argv and held == 0:
        signal.alarm(60)
        signal.pause()
    supervisor = server.control.process.supervisor_pid
    print(server.pid, supervisor, held, server.folder, flush=True)
    if "leave" in sys.argv:
        os._exit(3)
    signal.pause()
"""


class Harness:
    """A process that started a server, as a test run does."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HARNESS, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        self.process.stdout.close()
        self.server, self.supervisor, self.fork = (int(word) for word in words[:3])
        self.folder = Path(words[3])

    def everything_is_gone(self) -> bool:
        return not is_alive(self.server) and not is_alive(self.supervisor) and not self.folder.exists()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.timeout(300)  # Cassandra starts in five seconds, or in a minute on cores that others keep busy
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.server(name, private=True), id=name) for name in STARTERS]
)
def test_a_server_goes_away_when_its_run_is_killed(name: str) -> None:
    harness = Harness(name)
    assert is_alive(harness.server)
    harness.process.kill()
    harness.process.wait()
    wait_until(harness.everything_is_gone, what=f"the end of {name}")


@pytest.mark.server("redis", private=True)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(subprocess.Popen.terminate, id="terminated"),
        pytest.param(lambda process: process.send_signal(signal.SIGINT), id="interrupted"),
    ],
)
def test_a_server_goes_away_when_its_run_ends_by(end: Callable[[subprocess.Popen[str]], None]) -> None:
    harness = Harness("redis")
    end(harness.process)
    harness.process.wait()
    wait_until(harness.everything_is_gone)


@pytest.mark.server("redis", private=True)
def test_a_server_goes_away_when_its_run_leaves_without_a_word() -> None:
    harness = Harness("redis", "leave")
    assert harness.process.wait() == 3
    wait_until(harness.everything_is_gone)


@pytest.mark.server("redis", private=True)
def test_a_forked_child_that_lives_on_does_not_keep_the_server() -> None:
    harness = Harness("redis", "fork")
    try:
        harness.process.kill()
        harness.process.wait()
        wait_until(harness.everything_is_gone)
        assert is_alive(harness.fork)
    finally:
        os.kill(harness.fork, signal.SIGKILL)


@pytest.mark.server("redis", private=True)
def test_a_server_goes_away_when_its_supervisor_is_killed() -> None:
    harness = Harness("redis")
    os.kill(harness.supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(harness.server))
    harness.process.kill()
    harness.process.wait()
    shutil.rmtree(harness.folder)  # as `supervise` says: nobody is left to do it


@pytest.mark.server("redis", private=True)
def test_a_paused_server_goes_away_too() -> None:
    harness = Harness("redis")
    os.kill(harness.server, signal.SIGSTOP)
    harness.process.kill()
    harness.process.wait()
    wait_until(harness.everything_is_gone)
