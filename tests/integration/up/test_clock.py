"""A real ``lapse up`` whose clock is a year ahead, from the start or suddenly: nothing ends, and it says so."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.up.test_gate import finished_requests, left_and_told
from tests.past import left, record
from tests.servers.lapse_server import LapseServer, lapse, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.up.conftest import Start

YEAR = 365 * 86_400
FLAGS = ("--request-ttl=1h", "--history-ttl=24h", "--retention-interval=1h")
DOMAINS = ("requests", "keepers", "schedules", "history", "retention", "workspaces")
_WITH_A_CLOCK_THAT_CAN_BE_SET = """
import sys, time
from pathlib import Path

ahead, real = Path(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + int(ahead.read_text()) * 10**9

from lapse.cli import main

sys.exit(main())
"""


class Clock:
    """The wall clock of one process."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ahead"
        self.command = [sys.executable, "-c", _WITH_A_CLOCK_THAT_CAN_BE_SET, str(self._file)]
        self.set(0)

    def set(self, ahead: int) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(ahead))
        fresh.rename(self._file)


@pytest.fixture
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Start]:
    """Start servers with that clock on one state folder; all are stopped at the end."""
    running: list[LapseServer] = []

    def one(*flags: str) -> LapseServer:
        running.append(LapseServer.start(tmp_path, *flags, command=clock.command))
        return running[-1]

    yield one
    for server in running:
        server.stop()


def frozen(server: LapseServer) -> list[str]:
    return [domain for domain in DOMAINS if server.metric(f'lapse_frozen{{domain="{domain}"}}') == 1]


@pytest.mark.timeout(240)  # after a person resumes, a loop that knew of nothing due looks within a minute
@pytest.mark.parametrize("when", ["while it runs", "before the start"])
def test_a_clock_that_is_a_year_ahead_ends_nothing_until_a_person_resumes(
    start: Start, clock: Clock, tmp_path: Path, when: str
) -> None:
    finished_requests(tmp_path, 3)
    record(tmp_path)
    server = start(*FLAGS)
    until(lambda: server.event("policy_passed"))
    if when == "before the start":
        server.stop()
    clock.set(YEAR)
    server = server if when == "while it runs" else start(*FLAGS)

    until(lambda: frozen(server) == list(DOMAINS))
    assert server.event("domain_frozen") is not None
    requests, told = left_and_told(tmp_path)
    assert (requests, len(left(tmp_path))) == (3, 1)
    assert sorted((row.domain, row.reason) for row in told) == sorted((one, "clock_jumped") for one in DOMAINS)

    assert lapse("resume", "all", f"--state-dir={tmp_path}", state_dir=tmp_path).returncode == 0
    until(lambda: left_and_told(tmp_path)[0] == 0, seconds=150)  # the sweep looks once a minute where nothing was due
    until(lambda: frozen(server) == [])
