"""The page about PostgreSQL and Redis, to the letter: its console blocks run in order, on real servers.

What stays (``lapse up``, ``lapse proxy``, ``lapse ttl-manager``) is started beside the commands, on free ports; the
ports that the page names become those.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from lapse.core.identity import secret_bytes
from tests.acceptance.test_docs import FENCE, SETTINGS_FILE, free_port, shown_as, steps
from tests.servers import Server, redis_server
from tests.servers.lapse_server import LapseServer, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

# The page has ten commands and three processes, and the machine may be busy.
pytestmark = [pytest.mark.server("redis", private=True), pytest.mark.timeout(400)]
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "workspaces-on-postgresql-and-redis.md"
BLOCKS = [(match["language"], match["body"]) for match in FENCE.finditer(PAGE.read_text())]
STAYS = re.compile(r"lapse (up|proxy|ttl-manager)\b(.*)")
PORT = re.compile(r"--(proxy|probes)-port (\d+)")


@pytest.fixture
def database(shared_postgres: Server) -> Iterator[str]:
    """A database without any table."""
    name = f"page_{secret_bytes(5).hex()}"
    with psycopg.connect(shared_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{shared_postgres.url.rpartition('/')[0]}/{name}"
    with psycopg.connect(shared_postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Sitting:
    """Somebody who does what the page says, in a folder of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.ports = {"8888": free_port()}
        self._env = clean_environment(folder)
        self._env["PATH"] = f"{Path(sys.executable).parent}:{self._env['PATH']}"

    def start(self, noun: str, flags: str) -> None:
        """Start what stays, wherever there is room, and remember where that is."""
        others = shlex.split(PORT.sub("", flags))
        free = ["--http-port=0"] if noun == "up" else []
        free += [] if noun == "ttl-manager" else ["--proxy-port=0"]
        server = LapseServer.spawn(self.folder, noun, *free, *others)
        self._stack.callback(server.stop)
        for which, port in PORT.findall(flags):
            self.ports[port] = server.proxy_port if which == "proxy" else int(server.probes.rpartition(":")[2])
        if noun == "up":
            self._env["LAPSE_PROXY_PORT"] = str(server.proxy_port)
            self.ports["8750"] = int(server.http.rpartition(":")[2])
            self.ports["8751"] = int(server.probes.rpartition(":")[2])

    def type(self, command: str) -> str:
        """Run a command to its end."""
        named = re.compile(rf"\b(?:{'|'.join(self.ports)})\b")
        done = subprocess.run(
            ["bash", "-c", named.sub(lambda match: str(self.ports[match[0]]), command)],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=110,
        )
        return done.stdout if done.stdout.endswith("\n") or not done.stdout else f"{done.stdout}\n"


def settings(database: str, redis: Server, folder: Path) -> str:
    """Return the page's own file, for the servers that there are."""
    (file,) = [body for language, body in BLOCKS if language == "toml" and body.startswith(SETTINGS_FILE)]
    file = re.sub(r"postgresql://[^\"]+", database, file).replace("/var/lib/app", str(folder))
    return file.replace("redis://redis.example.org:6379", redis.url.rpartition("/")[0])


def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path, database: str) -> None:
    with redis_server() as redis, ExitStack() as stack:
        (tmp_path / "lapse").mkdir()  # where commands look without being told
        (tmp_path / "lapse" / "lapse.toml").write_text(settings(database, redis, tmp_path))
        sitting = Sitting(tmp_path, stack)
        for command, expected in (step for language, body in BLOCKS if language == "console" for step in steps(body)):
            stays = STAYS.fullmatch(command)
            if stays is not None:
                sitting.start(stays[1], stays[2])
            else:
                printed = sitting.type(command)
                assert shown_as(expected).fullmatch(printed), f"$ {command}\n{printed}"
