"""The example of a domain, installed beside Lapse into a fresh environment, as its reader would do it.

Nothing of Lapse knows the domain. Everything is seen from outside: files, commands, metrics, and the journal.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from lapse.engine.journal.sqlite import SQLiteJournal
from tests.servers.lapse_server import LapseServer, clean_environment, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "domain"
YEAR = 365 * 86_400
ENDED = 'lapse_deletions_total{domain="scratch",reason="ttl_expired"}'
FROZEN = 'lapse_frozen{domain="scratch"}'
TICKED = 'lapse_loop_last_success_timestamp_seconds{loop="scratch"}'
# A process whose wall clock can be set, by a file.
SETTABLE = """
import sys, time
from pathlib import Path

ahead, real = Path(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + int(ahead.read_text()) * 10**9

from lapse.cli import main

sys.exit(main())
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install this checkout, with what the lock says, and the example into an environment of their own."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    found = folder / "bin" / "python"
    uv = str(ROOT / "tools" / "uv")
    only_lapse = ("sync", "--quiet", "--project", str(ROOT), "--frozen", "--no-dev", "--python", sys.executable)
    example = ("pip", "install", "--quiet", "--no-deps", "--python", str(found), str(EXAMPLE))
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder), "UV_PYTHON_DOWNLOADS": "never"}
    for arguments in (only_lapse, example):
        # What other tests have fetched is enough, if there were any.
        done = _run([uv, *arguments, "--offline"], environment)
        if done.returncode != 0:
            done = _run([uv, *arguments], environment)
        assert done.returncode == 0, done.stderr
    return found


class Scratch:
    """A scratch folder, and Lapse with the example on it."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self.state = python, folder / "state"
        self.files, self._ahead, self._settings = folder / "files", folder / "ahead", folder / "lapse.toml"
        for one in (self.state, self.files):
            one.mkdir()
        self.set_clock(0)
        self.running: list[LapseServer] = []

    def configure(self, *first: str, **keys: str) -> None:
        """Write the settings; ``first`` are lines before all sections."""
        lines = [f"{key} = {value}" for key, value in {"folder": f"'{self.files}'", "interval": "'1s'", **keys}.items()]
        # What was there before the domain was first swept stays for so long.
        first_pass = "retention_interval = '1s'"
        self._settings.write_text("\n".join([first_pass, *first, "[domains.scratch]", "max_age = '1h'", *lines, ""]))

    def write(self, *names: str, old: bool = True) -> None:
        for name in names:
            path = self.files / name
            path.write_text(name)
            seconds = time.time() - (7200 if old else 0)  # noqa: TID251 - files have the machine's own time
            os.utime(path, (seconds, seconds))

    def left(self) -> set[str]:
        return {path.name for path in self.files.iterdir()}

    def set_clock(self, ahead: int) -> None:
        fresh = self._ahead.with_suffix(".new")
        fresh.write_text(str(ahead))
        fresh.rename(self._ahead)

    def up(self) -> LapseServer:
        command = [str(self._python), "-c", SETTABLE, str(self._ahead)]
        server = LapseServer.start(self.state, command=command, settings={"LAPSE_CONFIG": str(self._settings)})
        self.running.append(server)
        return server

    def say(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(self._python), "-m", "lapse", *arguments, f"--state-dir={self.state}"],
            env={**clean_environment(self.state), "LAPSE_CONFIG": str(self._settings)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def rows(self) -> list[tuple[str, str, str]]:
        """Return what the journal says of the domain, oldest first: address, outcome, reason."""

        async def read() -> list[tuple[str, str, str]]:
            store = open_store(self.state, clock=SystemClock())
            try:
                found = await SQLiteJournal(store.database).entries(limit=1_000)
            finally:
                await store.close()
            return [(row.address, row.outcome.value, row.reason) for row in reversed(found) if row.domain == "scratch"]

        return asyncio.run(read())


@pytest.fixture
def scratch(python: Path, tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch(python, tmp_path)
    yield made
    for server in made.running:
        server.stop()


def ticks(server: LapseServer) -> None:
    """Wait until the loop has looked twice more."""
    seen: set[float] = set()

    def looked() -> bool:
        seen.add(server.metric(TICKED))
        return len(seen) > 2

    until(looked)


def test_nobody_is_told_that_a_file_could_come_back(scratch: Scratch) -> None:
    scratch.configure()
    scratch.write("late")
    assert re.search(r"^scratch/late +delete .* no *$", scratch.say("plan", "--domain", "scratch"), re.MULTILINE)
    assert "Deleted: scratch/late." in scratch.say("delete", "scratch/late", "--yes")
    told = scratch.say("why", "scratch/late")
    assert re.search(r"^undo +no: its domain has no trash$", told, re.MULTILINE)
    assert "scratch/late does not come back: its domain has no trash." in scratch.say("undo", "scratch/late", code=64)


def test_the_engine_does_everything_for_a_domain_that_it_does_not_know(scratch: Scratch) -> None:
    scratch.configure(deletion_budget="'3/1h'")
    scratch.write("a-held", "b1", "b2", "b3", "b4", "b5")
    scratch.write("young", old=False)
    scratch.write("undated")
    os.utime(scratch.files / "undated", (0, 0))
    assert "Held: scratch/a-held" in scratch.say("hold", "scratch/a-held", "--reason", "audit")

    server = scratch.up()
    until(lambda: server.metric(FROZEN) == 1)
    assert len(scratch.left()) == 5, "the budget is three"
    assert {"a-held", "undated", "young"} < scratch.left()
    assert server.metric(ENDED) == 3
    rows = scratch.rows()
    gone = {f"scratch/{name}" for name in ("b1", "b2", "b3", "b4", "b5") if name not in scratch.left()}
    assert {row[0] for row in rows if row[1:] == ("intent", "ttl_expired")} == gone
    assert {row[0] for row in rows if row[1:] == ("ended", "ttl_expired")} == gone
    assert ("scratch/a-held", "held", "held") in rows
    assert ("", "frozen", "budget_spent") in rows

    assert "Resumed: scratch" in scratch.say("resume", "scratch")
    until(lambda: scratch.left() == {"a-held", "undated", "young"})
    assert "Frozen: scratch" in scratch.say("freeze", "scratch", "--reason", "look")
    until(lambda: server.metric(FROZEN) == 1)
    scratch.write("late")
    ticks(server)
    assert "late" in scratch.left()
    told = scratch.say("why", "scratch/late")
    assert re.search(r"^verdict +due: its time is over$", told, re.MULTILINE)
    assert re.search(r"^frozen +since 20\S+Z by .+: look$", told, re.MULTILINE)
    scratch.say("resume", "scratch")
    until(lambda: "late" not in scratch.left())
    told = scratch.say("why", "scratch/a-held")
    assert [word for word in ("keep", "held", "audit") if word not in told] == []
    assert "gone" in scratch.say("why", "scratch/late")
    assert "Released" in scratch.say("release", "scratch/a-held")
    until(lambda: scratch.left() == {"undated", "young"})

    scratch.set_clock(YEAR)
    until(lambda: server.metric(FROZEN) == 1)
    ticks(server)
    assert scratch.left() == {"undated", "young"}
    assert ("scratch/undated", "noted", "missing_anchor") in scratch.rows()
    assert ("", "frozen", "clock_jumped") in scratch.rows()


def test_a_dry_run_tells_what_would_end_and_ends_nothing(scratch: Scratch) -> None:
    scratch.configure("dry_run_domains = ['scratch']")
    scratch.write("old")
    server = scratch.up()
    until(lambda: ("scratch/old", "would_end", "ttl_expired") in scratch.rows())
    ticks(server)
    assert scratch.left() == {"old"}
    assert server.metric(ENDED) == 0


def test_webhooks_are_told_before_a_thing_of_it_lapses(scratch: Scratch) -> None:
    secret = scratch.state.parent / "secret"
    secret.write_text("whsec_YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcywgdHJ1bHk=")
    secret.chmod(0o600)
    webhook = f"webhooks = [{{name = 'nobody', url = 'http://127.0.0.1:9/', secret_file = '{secret}'}}]"
    scratch.configure("expiry_warning = '1h'", webhook)
    scratch.write("soon", old=False)
    seconds = time.time() - 2400  # noqa: TID251 - files have the machine's own time
    os.utime(scratch.files / "soon", (seconds, seconds))
    scratch.up()
    until(lambda: ("scratch/soon", "expiring", "not_yet") in scratch.rows())
    assert "scratch/soon" in scratch.say("status")
    assert scratch.left() == {"soon"}


def test_what_is_wrong_with_its_settings_is_said_in_one_line(scratch: Scratch) -> None:
    scratch.configure(max_size="'1GB'")
    said = scratch.say("config", "check", code=64)
    assert "domains.scratch" in said
    assert "it has no key max_size" in said
