"""A real ``lapse up`` with things in it whose TTLs are known, and the words in which tests speak of its dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from playwright.sync_api import expect

from tests.commands import run_here
from tests.servers.lapse_server import NO_SETTINGS, LapseServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

KEY_APP = 4711
VALUE = "hidden-value"
"""Of every key."""


@dataclass(frozen=True)
class House:
    """A server with its dashboard. Records lapse in an hour, finished requests in ten minutes."""

    server: LapseServer

    @classmethod
    def start(cls, folder: Path, *flags: str, settings: Mapping[str, str] = NO_SETTINGS) -> House:
        return cls(LapseServer.start(folder, *flags, settings={"LAPSE_HISTORY_TTL": "1h", **settings}))

    def cli(self, *arguments: str) -> str:
        """Run a command beside the server, on its folder."""
        done = run_here(*arguments, f"--state-dir={self.server.state_dir}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def record(self, experiment: str, status: str = "success", start: str = "2026-01-31T02:00:00Z") -> str:
        """Write a record, which lapses in an hour; return its address."""
        when = (f"--start={start}", "--end=2026-01-31T02:04:00Z")
        told = self.cli("history", "record", f"--experiment=shop/{experiment}", f"--status={status}", *when)
        return told.removeprefix("Recorded: ").split()[0].rstrip(".")

    def insert_key(self, name: str) -> None:
        """Insert a key, which lapses in half an hour."""
        body = {"value": VALUE, "ttl_seconds": 1800}
        with self.server.client() as client:
            answer = client.put(f"/api/v1/apps/{KEY_APP}/keys/{name}", json=body, headers={"If-None-Match": "*"})
        assert answer.is_success, answer.text

    def token(self, name: str, *scopes: str) -> str:
        """Make a token for another person."""
        told = self.cli("tokens", "create", f"--name={name}", *(f"--scope={one}" for one in scopes))
        return next(word for word in told.split() if word.startswith("lapse_"))

    def why(self, address: str) -> dict[str, Any]:
        with self.server.client() as client:
            told: dict[str, Any] = client.get(f"/api/v1/why/{quote(address)}").json()
        return told

    @property
    def link(self) -> str:
        """A link to the dashboard, as a person gets it on the command line."""
        return self.cli("open", f"--http-port={urlsplit(self.server.http).port}").strip()

    def visit(self, context: BrowserContext, path: str = "/") -> Page:
        """Give a page of somebody who has followed the link."""
        page = context.new_page()
        page.goto(self.link)
        if path != "/":
            page.goto(self.server.http + path)
        return page


def complaints(context: BrowserContext) -> list[str]:
    """Collect errors of scripts and what breaks the content security policy; answers that are errors are no fault."""
    found: list[str] = []

    def listen(said: ConsoleMessage) -> None:
        if said.type == "error" and not said.text.startswith("Failed to load resource"):
            found.append(said.text)

    context.on("console", listen)
    context.on("weberror", lambda error: found.append(str(error.error)))
    return found


def is_live(page: Page) -> None:
    """Wait until the page is told of changes."""
    expect(page.locator("#link-state")).to_have_text("Live")


def row_of(page: Page, address: str) -> Locator:
    """Return the row of a thing in the table of what lapses next."""
    return page.locator("#soon-rows > tr").filter(has=page.get_by_text(address, exact=True))


def said(page: Page, text: str) -> None:
    """Wait until the page says this of what was done."""
    expect(page.locator("#toasts")).to_contain_text(text)


def log_in(page: Page, token: str) -> None:
    """Exchange a token for a session, on the log-in page."""
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
