"""What a person sees of workspaces in a real browser: the start page, one that wakes, and the walls between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import expect

from tests.integration.browser.conftest import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

    from tests.integration.browser.conftest import Camera

pytestmark = [
    pytest.mark.server("chromium", private=True),
    pytest.mark.timeout(400),  # a browser and three processes beside it, on a machine that may be busy
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site.start(tmp_path)
    yield running
    running.server.stop()


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for tests that stop nothing of what is there."""
    running = Site.start(tmp_path_factory.mktemp("site"))
    yield running
    running.server.stop()


def complaints(context: BrowserContext) -> list[str]:
    """Collect errors of scripts and what breaks the content security policy; answers that are errors are no fault."""
    found: list[str] = []

    def listen(said: ConsoleMessage) -> None:
        if said.type == "error" and not said.text.startswith("Failed to load resource"):
            found.append(said.text)

    context.on("console", listen)
    context.on("weberror", lambda error: found.append(str(error.error)))
    return found


def state_of(page: Page, name: str, state: str) -> None:
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))
    expect(row).to_contain_text(state)


def to_workspaces(page: Page, site: Site) -> None:
    """Log in, and go to the page of workspaces."""
    page.goto(site.link)
    page.goto(f"{site.server.http}/workspaces")


def press_open(page: Page, name: str) -> Page:
    with page.expect_popup() as opened:
        page.get_by_role("button", name=f"Open {name}", exact=True).click()
    return opened.value


def run_cell(page: Page, code: str, output: str) -> None:
    expect(page.get_by_role("status")).to_have_text("connected")
    cell = page.get_by_label("Cell 1", exact=True)
    cell.fill(code)
    cell.press("Control+Enter")
    expect(page.locator("pre").first).to_have_text(output)


def test_the_example_is_opened_used_left_and_goes_to_standby_and_wakes_when_it_is_opened_again(
    site: Site, context: BrowserContext, camera: Camera
) -> None:
    complained = complaints(context)
    dashboard = context.new_page()
    to_workspaces(dashboard, site)
    state_of(dashboard, "example", "running")

    notebook = press_open(dashboard, "example")
    run_cell(notebook, "print(6 * 7)", "42\n")
    assert notebook.url == site.url("example")
    state_of(dashboard, "example", "1 connection")
    dashboard.evaluate("() => scrollTo(0, 0)")
    section = dashboard.get_by_role("region", name="Workspaces", exact=True).bounding_box()
    assert section is not None
    camera.shoot_for_docs(dashboard, "dashboard", top=section["y"] - 12, height=section["height"] + 24)
    camera.shoot(dashboard, "dashboard", whole=True)
    camera.shoot_for_docs(notebook, "example", height=340)
    assert complained == []

    notebook.close()
    site.set_standby_ttl("example", 1)
    state_of(dashboard, "example", "in standby")
    camera.shoot(dashboard, "in-standby")
    site.set_standby_ttl("example", 600)  # a second would be over before a page that waits looks again

    again = context.new_page()
    answer = again.goto(site.url("example"))
    assert answer is not None
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    camera.shoot_for_docs(again, "waiting", top=200, height=240)
    run_cell(again, "6 * 8", "48\n")
    state_of(dashboard, "example", "running")


def test_a_link_opens_the_dashboard_once_and_a_token_does_so_as_well(
    shared_site: Site, browser: Browser, camera: Camera
) -> None:
    site, link = shared_site, shared_site.link
    with browser.new_context() as first, browser.new_context() as second:
        ours, theirs = first.new_page(), second.new_page()
        ours.goto(link)
        expect(ours.get_by_role("heading", name="What lapses next")).to_be_visible()
        assert "ticket" not in ours.url
        theirs.goto(link)
        expect(theirs.get_by_text("This link was used already")).to_be_visible()
        camera.shoot(theirs, "log-in")
        theirs.get_by_label("Token").fill("lapse_no_token")
        theirs.get_by_role("button", name="Log in").click()
        expect(theirs.get_by_role("alert")).to_contain_text("unknown or revoked")
        theirs.get_by_label("Token").fill(site.server.owner_token)
        theirs.get_by_role("button", name="Log in").click()
        expect(theirs.get_by_role("heading", name="What lapses next")).to_be_visible()


def test_a_page_of_one_workspace_reads_neither_another_nor_the_start_page_and_changes_nothing(
    shared_site: Site, context: BrowserContext
) -> None:
    site = shared_site
    site.create("other")
    site.becomes("other", "RUNNING")
    page, other = context.new_page(), context.new_page()
    for tab, name in ((page, "example"), (other, "other")):
        tab.goto(site.ticket(name))
        expect(tab.get_by_role("status")).to_have_text("connected")
    targets = [site.url("other"), f"{site.server.http}/", f"{site.server.http}/api/v1/workspaces"]
    for target in targets:
        with_answer, without = page.evaluate(READ, target)
        assert with_answer == "TypeError"
        assert without in {"opaque", "TypeError"}
    assert page.evaluate(CONNECT, f"ws://other.w.localhost:{site.port}/socket") == "refused"
    assert page.evaluate("() => [document.cookie, window.opener]") == ["", None]

    before = site.show("other")
    for verb in ("stop", "archive", "open"):
        page.evaluate(POST, f"{site.server.http}/api/v1/workspaces/other/{verb}")
    assert site.show("other")["version"] == before["version"]
    # Last: the page in the frame is the other's own, and its websocket is an access like any.
    assert page.evaluate(FRAME, site.url("other")) == "SecurityError"
    expect(other.get_by_role("status")).to_have_text("connected")


READ = """async url => {
  const ask = mode => fetch(url, { mode, credentials: "include" }).then(answer => answer.type, error => error.name);
  return [await ask("cors"), await ask("no-cors")];
}"""
CONNECT = """url => new Promise(done => {
  const socket = new WebSocket(url);
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""
FRAME = """url => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { done(frame.contentWindow.document.body.textContent); } catch (error) { done(error.name); }
  };
  frame.src = url;
  document.body.append(frame);
})"""
POST = """url => Promise.allSettled([
  fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body: "{}" }),
  fetch(url, { method: "POST", credentials: "include", body: "{}", headers: { "Content-Type": "application/json" } }),
]).then(() => null)"""


def test_a_page_that_is_open_does_not_wake_a_workspace_that_was_stopped_until_it_is_asked_to(
    shared_site: Site, context: BrowserContext
) -> None:
    shared_site.create("mine")
    shared_site.becomes("mine", "RUNNING")
    page = context.new_page()
    page.goto(shared_site.ticket("mine"))
    expect(page.get_by_role("status")).to_have_text("connected")

    with shared_site.server.client() as client:
        assert client.post("/api/v1/workspaces/mine/stop", json={}).status_code == 200
    expect(page.get_by_role("status")).to_have_text("the workspace was stopped")
    shared_site.becomes("mine", "STANDBY")
    stopped = shared_site.show("mine")["version"]
    page.wait_for_timeout(3000)  # longer than a page waits before it connects again
    assert shared_site.show("mine")["version"] == stopped

    page.get_by_role("button", name="Start the workspace again").click()
    expect(page.get_by_role("status")).to_have_text("connected")


def test_what_is_wrong_with_a_workspace_is_said_and_so_is_why_one_is_refused(
    shared_site: Site, context: BrowserContext, camera: Camera
) -> None:
    site = shared_site
    site.create("broken", command=["/nothing/here"])
    dashboard = context.new_page()
    to_workspaces(dashboard, site)
    state_of(dashboard, "broken", "error")
    expect(dashboard.get_by_text("lapse workspaces start broken")).to_be_visible()
    camera.shoot(dashboard, "error", whole=True)

    failed = press_open(dashboard, "broken")
    expect(failed.get_by_role("status")).to_contain_text("has failed")
    camera.shoot(failed, "failed")
    with context.browser.new_context() as strange:  # type: ignore[union-attr]  # ours is not a persistent one
        stranger = strange.new_page()
        stranger.goto(site.url("example"))
        expect(stranger.get_by_role("status")).to_contain_text("Only its owner can open this workspace")
        camera.shoot(stranger, "stranger")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_window(
    shared_site: Site, browser: Browser, camera: Camera, width: int, scheme: Literal["light", "dark"]
) -> None:
    with browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme) as context:
        page = context.new_page()
        for name, url in (("start", shared_site.link), ("example", shared_site.ticket("example"))):
            page.goto(url)
            expect(page.get_by_text("connected" if name == "example" else "Workspaces").first).to_be_visible()
            camera.shoot(page, f"{name}-{width}-{scheme}", whole=True)
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


COVERED = """() => {
    const cells = [...document.querySelectorAll("#live tbody tr > :not(.acts)")];
    const buttons = [...document.querySelectorAll("#live button")].map(one => one.getBoundingClientRect());
    return cells.map(cell => cell.getBoundingClientRect()).filter(cell => buttons.some(button =>
        button.left < cell.right && cell.left < button.right && button.top < cell.bottom && cell.top < button.bottom
    )).length;
}"""


@pytest.mark.parametrize("width", [320, 400, 640, 1280])
def test_the_open_button_covers_no_cell(shared_site: Site, browser: Browser, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 700}) as context:
        page = context.new_page()
        to_workspaces(page, shared_site)
        state_of(page, "example", "running")
        assert page.get_by_role("button", name="Open example", exact=True).count() == 1
        assert page.evaluate(COVERED) == 0
