"""A real ``lapse up`` with an example workspace in front of a real browser."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.commands import run_here
from tests.servers.chromium import chromium
from tests.servers.lapse_server import LapseServer, until
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, FloatRect, Page

QUICK = {
    "DEFAULT_STANDBY_TTL": "600",  # until a test wants it shorter: nothing may go while a slow machine gets there
    "IDLE_TIMER_SECONDS": "1",
    "LAPSE_TTL_MANAGER_INTERVAL": "500ms",
    "LAPSE_PROXY_LEASE": "5s",  # long enough for a process that is not let run for a while, on a busy machine
}
PATIENCE = 60_000.0
expect.set_options(timeout=PATIENCE)
WIDTH = 960


@dataclass(frozen=True)
class Site:
    """What `lapse up` serves: the start page, and workspaces behind their proxy, of which one is there."""

    server: LapseServer
    port: int

    @classmethod
    def start(cls, folder: Path) -> Site:
        server = LapseServer.start(folder, settings=QUICK)
        event = server.event("listening")
        assert event is not None
        site = cls(server, urlsplit(str(event["proxy"])).port or 0)
        site.create("example")
        return site

    def url(self, name: str) -> str:
        return f"http://{name}.w.localhost:{self.port}/"

    def create(self, name: str, **more: object) -> None:
        run = [sys.executable, "-m", "lapse.workspaces.example"]
        asked = {"name": name, "owner": "ann", "command": run, "port": kept_port(), **more}
        with self.server.client() as client:
            assert client.post("/api/v1/workspaces", json=asked).status_code == 201

    def show(self, name: str) -> dict[str, Any]:
        with self.server.client() as client:
            told: dict[str, Any] = client.get(f"/api/v1/workspaces/{name}").json()
        return told

    def becomes(self, name: str, status: str) -> None:
        def is_there() -> bool:
            told = self.show(name)
            return (told["observed_status"], told["operation"]) == (status, "NONE")

        until(is_there)

    def set_standby_ttl(self, name: str, seconds: int) -> None:
        with self.server.client() as client:
            changed = client.patch(f"/api/v1/workspaces/{name}", json={"standby_ttl_seconds": seconds})
        assert changed.status_code == 200

    @property
    def link(self) -> str:
        """A link to the start page, as a person gets it on the command line."""
        at = urlsplit(self.server.http).port
        return run_here("open", f"--state-dir={self.server.state_dir}", f"--http-port={at}").stdout.strip()

    def ticket(self, name: str) -> str:
        with self.server.client() as client:
            return str(client.post(f"/api/v1/workspaces/{name}/open", json={}).json()["url"])


@pytest.fixture(
    scope="module"
)  # while it is open, this thread has a running event loop: no other file could use its own
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser window of somebody who has never been here."""
    with browser.new_context(viewport={"width": WIDTH, "height": 640}) as window:
        window.set_default_timeout(PATIENCE)
        yield window


@dataclass(frozen=True)
class Camera:
    """Takes pictures of pages: for whoever looks at a failure, and for the documents.

    `LAPSE_SCREENSHOTS=docs/images python -m pytest tests/integration/browser` makes those of the documents anew.
    """

    folder: Path

    def shoot(self, page: Page, name: str, *, whole: bool = False) -> None:
        page.screenshot(path=self.folder / f"{name}.png", full_page=whole, animations="disabled")

    def shoot_for_docs(self, page: Page, name: str, *, top: float = 0, height: float) -> None:
        """Take a strip of a page, as wide as the window."""
        target = Path(os.environ.get("LAPSE_SCREENSHOTS") or self.folder) / f"workspaces-{name}.png"
        strip: FloatRect = {"x": 0, "y": top, "width": WIDTH, "height": height}
        page.screenshot(path=target, clip=strip, full_page=True, animations="disabled")


@pytest.fixture
def camera(tmp_path: Path) -> Camera:
    return Camera(tmp_path)
