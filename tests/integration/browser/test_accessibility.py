"""Accessibility of every page, judged by axe-core in a real browser: nothing serious, and nothing critical.

axe-core is vendored in ``vendor/``, for tests only. Its text is evaluated in the page, by the browser's own protocol: a
script tag would break the content security policy, which stays on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from playwright.sync_api import expect

from tests.integration.browser.house import House, is_live, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.server("chromium", private=True),
    pytest.mark.timeout(300),  # a browser and a process beside it, on a machine that may be busy
]
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
PATHS = ("/", "/requests", "/workspaces", "/history", "/keys", "/plans", "/trash", "/journal", "/engine")
RUN = "() => axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations)"
SERIOUS = {"serious", "critical"}


def findings(page: Page) -> list[str]:
    """Return what is serious or critical on a page, with the first elements that it was found on."""
    page.evaluate(AXE)
    violations: list[dict[str, Any]] = page.evaluate(RUN)
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary']} (of {len(one['nodes'])})"
        for one in violations
        if one["impact"] in SERIOUS
    ]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    running = House.start(tmp_path_factory.mktemp("empty"))
    yield running
    running.server.stop()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Something of everything, held, ended and frozen."""
    folder = tmp_path_factory.mktemp("full")
    running = House.start(folder)
    (folder / "notes").mkdir()
    (folder / "notes" / "greeting.txt").write_text("hello")
    running.cli("requests", "capture", "monday", f"--directory={folder / 'notes'}", "--wait")
    running.record("kept")
    running.cli("hold", running.record("held"), "--reason=audit")
    running.cli("delete", running.record("ended", "failure"), "--yes")
    running.insert_key("alpha")
    running.cli("plan", "--propose", "--within=2h")
    running.cli("freeze", "retention", "--reason=a look")
    yield running
    running.server.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("content", ["empty", "full"])
def test_no_page_has_a_serious_finding(
    request: pytest.FixtureRequest, browser: Browser, content: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    house: House = request.getfixturevalue(content)
    with browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme) as context:
        page = house.visit(context)
        found: dict[str, list[str]] = {}
        for path in (*PATHS, "/history?experiment=shop/kept", "/plans?within=2h", "/api/v1/docs", "/nothing/here"):
            page.goto(house.server.http + path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            found[path] = findings(page)
        assert {path: some for path, some in found.items() if some} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neither_the_panel_nor_the_log_in_page_has_a_serious_finding(
    full: House, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    with browser.new_context(color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(full.server.http)
        assert findings(page) == []
        page = full.visit(context)
        is_live(page)
        row_of(page, full.record("kept")).get_by_role("link", name="Why").click()
        expect(page.get_by_role("dialog").get_by_role("heading", level=1)).to_be_visible()
        assert findings(page) == []


def test_what_is_wrong_is_found(browser: Browser) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.set_content("<html lang='en'><title>x</title><main><h1>x</h1><button></button></main>")
        assert [one.partition(":")[0] for one in findings(page)] == ["button-name"]
