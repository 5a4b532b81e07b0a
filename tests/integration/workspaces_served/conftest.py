"""A real ``lapse up`` with real workspaces behind its real proxy: in one process, and on PostgreSQL and Redis.

Starting one takes seconds, so most tests share one of each kind (`shared`), with workspaces of names of their own. Who
ends a server, or needs tokens, has their own (`serve`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.commands import run_here
from tests.conformance.workspaces.worlds import postgres_database
from tests.servers import redis_server
from tests.servers.lapse_server import PLAIN, LapseServer, until
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--proxy-lease=5s", "--idle-timer=1s", "--ttl-manager-interval=500ms")
"""Short enough for a test, as who is there is known after two leases; and a lease that a busy machine can renew."""
ECHO = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        told = {"workspace": "NAME", "path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "mine=1")
        self.send_header("Set-Cookie", "lapse_session=stolen")
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *_): pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass
class Served:
    """A server, and people who use workspaces on it."""

    server: LapseServer
    folder: Path
    token: str | None = None
    flags: tuple[str, ...] = ()
    """For commands that are to use the same stores."""
    proxy_port: int = field(init=False)

    def __post_init__(self) -> None:
        event = self.server.event("listening")
        assert event is not None
        port = urlsplit(str(event["proxy"])).port
        assert port is not None
        self.proxy_port = port

    @contextmanager
    def api(self, token: str | None = None) -> Iterator[httpx2.Client]:
        with self.server.client(token or self.token) as client:
            yield client

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
        with self.api() as client:
            sent = body if method in {"GET", "DELETE"} else body or {}
            return client.request(method, f"/api/v1/workspaces{path}", json=sent, headers=headers)

    def create(
        self, name: str, *command: str, owner: str = "ann", standby_ttl_seconds: int | None = None
    ) -> dict[str, Any]:
        """Create a workspace that tells what it is sent, unless another command is given."""
        port = kept_port()
        run = command or (sys.executable, "-c", ECHO.replace("NAME", name), str(port))
        asked = {"name": name, "owner": owner, "command": list(run), "port": port}
        answer = self.ask("POST", "", {**asked, "standby_ttl_seconds": standby_ttl_seconds})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def ticks(self, count: int) -> None:
        """Let the TTL manager look at everything so many times from now on."""
        series = 'lapse_loop_duration_seconds_count{loop="ttl-manager"}'
        before = self.server.metric(series)
        until(lambda: self.server.metric(series) > before + count)  # the first of them may have begun before

    def show(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = self.ask("GET", f"/{name}").json()
        return told

    def becomes(self, name: str, status: str) -> dict[str, Any]:
        """Wait until a workspace is in a state and nothing is being done about it."""

        def look() -> dict[str, Any] | None:
            told = self.show(name)
            assert told["error_message"] is None or status == "ERROR", told["error_message"]
            return told if (told["observed_status"], told["operation"]) == (status, "NONE") else None

        return until(look)

    @contextmanager
    def browser(self, name: str) -> Iterator[httpx2.Client]:
        """Give a client at a workspace's host that keeps cookies and follows nothing."""
        host = {"Host": f"{name}.w.localhost:{self.proxy_port}"}
        base = f"http://127.0.0.1:{self.proxy_port}"
        with httpx2.Client(base_url=base, headers=host, trust_env=False, verify=PLAIN) as client:
            yield client

    def ticket(self, name: str) -> str:
        """Return the path, with a ticket, that opens a workspace."""
        url = urlsplit(self.ask("POST", f"/{name}/open").json()["url"])
        assert url.netloc == f"{name}.w.localhost:{self.proxy_port}"
        return f"{url.path}?{url.query}"

    def session(self, name: str) -> str:
        """Open a workspace; return the cookie that a browser sends from then on."""
        with self.browser(name) as client:
            answer = client.get(self.ticket(name))
            assert answer.status_code == 303, answer.text
            cookie: str = answer.headers["set-cookie"]
            return cookie.partition(";")[0]

    def make_token(self, *scopes: str) -> str:
        return make_token(self.folder, *scopes)


def make_token(folder: Path, *scopes: str) -> str:
    """Make a token that the server of a state folder takes."""
    given = [word for scope in scopes for word in ("--scope", scope)]
    where = {"XDG_CONFIG_HOME": str(folder)}
    made = run_here("tokens", "create", f"--state-dir={folder}", "--name=t", *given, environment=where)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers on one state folder; all are stopped at the end."""
    running: list[LapseServer] = []

    def one(*flags: str) -> Served:
        running.append(LapseServer.start(tmp_path, *QUICK, *flags))
        return Served(running[-1], tmp_path)

    yield one
    for server in running:
        server.stop()


@contextmanager
def servers_of(request: pytest.FixtureRequest, kind: str) -> Iterator[tuple[str, ...]]:
    """Give the flags with which a server uses nothing but its process, or a database and an activity store."""
    with ExitStack() as stack:
        if kind == "embedded":
            yield ()
            return
        database = stack.enter_context(postgres_database(request.getfixturevalue("shared_postgres")))
        redis = stack.enter_context(redis_server())
        yield f"--database-url={database}", f"--activity-url={redis.url}"


NEEDED = [pytest.mark.server("postgres"), pytest.mark.server("redis", private=True)]


@pytest.fixture(scope="module", params=["embedded", pytest.param("servers", marks=NEEDED)])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that is used by one test after the other."""
    folder = tmp_path_factory.mktemp(request.param)
    with servers_of(request, request.param) as flags:
        server = LapseServer.start(folder, *QUICK, *flags)
        try:
            yield Served(server, folder, flags=flags)
        finally:
            server.stop()
