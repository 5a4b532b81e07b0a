"""A real browser, Chromium, without a screen: driven by Playwright, with nothing of this user's and no word to anybody.

    with chromium() as browser, browser.new_context() as context: ...

Names below `localhost` mean this machine to it, without any resolver. There is no sandbox, which a run as root or in a
container could not have: it is for pages of our own only.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.servers.programs import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a browser. Raises `ServerMissingError`."""
    program = find("chromium")
    with sync_playwright() as playwright:
        env: dict[str, str | float | bool] = {**os.environ, **program.env}
        browser = playwright.chromium.launch(executable_path=program.path, args=QUIET, env=env, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()
