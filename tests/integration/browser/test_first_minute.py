"""The first minute of a newcomer, on ``lapse up --demo``: things lapse, one is held, explained, and one is undone.

``LAPSE_SCREENSHOTS=docs/images`` takes the pictures of the documents anew, as CONTRIBUTING.md says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import expect

from tests.example_domain import settings_with_example_domain
from tests.integration.browser.house import House, is_live, said
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.server("chromium", private=True),
    pytest.mark.timeout(300),  # a browser and a process beside it, on a machine that may be busy
]
MOST_BYTES = 150_000
SHOWN = 8
"""Rows of a demo that has begun."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[House]:
    running = start_demo(tmp_path)
    yield running
    running.server.stop()


def start_demo(folder: Path) -> House:
    """Start it as ``make run`` does: with the example of a domain."""
    settings = settings_with_example_domain(folder)
    return House.start(folder, "--demo", settings=settings)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("LAPSE_SCREENSHOTS") or tmp_path)


def shoot(page: Page, target: Path) -> None:
    page.screenshot(path=target, animations="disabled")
    assert target.stat().st_size < MOST_BYTES


def test_a_newcomer_sees_things_lapse_holds_one_asks_why_and_undoes_one(
    demo: House, browser: Browser, pictures: Path
) -> None:
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = demo.visit(context)
        is_live(page)
        rows = page.locator("#soon-rows > tr")
        until(lambda: rows.count() > SHOWN)
        expect(page.locator("#chart canvas")).to_have_count(1)
        shoot(page, pictures / "first-minute-1.png")

        address = rows.filter(has=page.locator(".countdown")).last.locator("a.thing").first.text_content() or ""
        row = rows.filter(has=page.get_by_text(address, exact=True))
        row.get_by_role("button", name=f"Hold {address}").click()
        said(page, f"Held: {address}.")
        expect(row.locator(".badge.held")).to_be_visible()
        row.scroll_into_view_if_needed()
        shoot(page, pictures / "first-minute-2.png")

        row.get_by_role("link", name=f"Why {address}").click()
        expect(page.get_by_role("dialog").get_by_role("heading", name=address)).to_be_visible()
        expect(page.locator("#toasts > *")).to_have_count(0)
        shoot(page, pictures / "first-minute-3.png")
        page.keyboard.press("Escape")

        undo = page.locator(".ended").get_by_role("button", name="Undo").first
        gone = (undo.get_attribute("aria-label") or "").removeprefix("Undo ")
        undo.click()
        said(page, f"Brought back: {gone}")
        shoot(page, pictures / "first-minute-4.png")


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [("dashboard", 1280, 800, "light"), ("dashboard-dark", 1280, 800, "dark"), ("dashboard-phone", 390, 844, "light")],
)
def test_the_dashboard_as_the_documents_show_it(
    tmp_path: Path,
    browser: Browser,
    pictures: Path,
    name: str,
    width: int,
    height: int,
    scheme: Literal["light", "dark"],
) -> None:
    house = start_demo(tmp_path)
    try:
        with browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme) as context:
            page = house.visit(context)
            is_live(page)
            expect(page.locator(".ended li").nth(3)).to_be_visible()
            expect(page.locator("#soon-rows > tr").nth(SHOWN)).to_be_attached()
            expect(page.locator("#chart canvas")).to_have_count(1)
            shoot(page, pictures / f"{name}.png")
    finally:
        house.server.stop()
