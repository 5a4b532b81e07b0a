"""What a person sees and does on the dashboard, in a real browser: things lapse, are held, explained and brought back.

Everything is seen from outside: pages, and what commands of another process say of the same things.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.integration.browser.house import KEY_APP, VALUE, House, complaints, is_live, log_in, row_of, said
from tests.servers.lapse_server import LapseServer, until
from tests.servers.ports import kept_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

pytestmark = [
    pytest.mark.server("chromium", private=True),
    pytest.mark.timeout(300),  # a browser and a process beside it, on a machine that may be busy
]
ROOT = Path(__file__).parents[3]
PATHS = ("/", "/requests", "/workspaces", "/history", "/keys", "/plans", "/trash", "/journal", "/engine")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    running = House.start(tmp_path_factory.mktemp("house"))
    yield running
    running.server.stop()


@pytest.fixture
def person(browser: Browser) -> Iterator[BrowserContext]:
    """A browser window, in which no script may fail, and nothing may break the content security policy."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as window:
        window.set_default_timeout(60_000)
        complained = complaints(window)
        yield window
        assert complained == []


# --- what lapses next -------------------------------------------------------------------------------------------------


def test_what_another_process_does_is_seen_without_a_reload(house: House, person: BrowserContext) -> None:
    page = house.visit(person)
    is_live(page)
    page.evaluate("() => { window.loadedOnce = true; }")

    address = house.record("live")
    expect(row_of(page, address)).to_contain_text("in 59m")
    house.cli("hold", address, "--reason=audit")
    expect(row_of(page, address).locator(".badge.held")).to_have_attribute("title", re.compile("^audit"))
    house.cli("release", address)
    expect(row_of(page, address).locator(".badge.held")).to_have_count(0)
    assert page.evaluate("() => window.loadedOnce") is True


def test_a_page_that_has_missed_nothing_draws_its_picture_and_is_not_asked_for_again(
    house: House, person: BrowserContext
) -> None:
    house.record("missed-nothing")
    page = house.visit(person)
    is_live(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(10):  # something of the server's own may have happened just then
        asked.clear()
        page.reload(wait_until="load")
        is_live(page)
        page.wait_for_timeout(1000)
        expect(page.locator("#chart canvas")).to_have_count(1)
        if asked.count(page.url) == 1:
            return
    pytest.fail("every visit asked for the page twice")


def test_a_countdown_counts_down(house: House, person: BrowserContext) -> None:
    address = house.record("countdown")
    page = house.visit(person)
    shown = row_of(page, address).locator(".countdown")
    expect(shown).to_have_text(re.compile(r"^in 59m\d+s$"))
    before = shown.text_content()
    expect(shown).not_to_have_text(before or "")


def test_one_click_holds_releases_and_extends(house: House, person: BrowserContext) -> None:
    address = house.record("clicks")
    page = house.visit(person)
    is_live(page)
    row = row_of(page, address)

    row.get_by_role("button", name=f"Hold {address}", exact=True).click()
    said(page, f"Held: {address}.")
    expect(row.locator(".badge.held")).to_have_text("held")
    assert house.why(address)["hold"]["reason"] == "held on the dashboard"

    release = row.get_by_role("button", name=f"Release {address}", exact=True)
    expect(release).to_have_text("Release")  # it has the focus still, from the click that held
    release.click()
    said(page, f"Released: {address}.")
    expect(row.locator(".countdown")).to_be_visible()
    assert house.why(address)["hold"] is None

    page.get_by_role("link", name="Day").click()
    row_of(page, address).get_by_role("button", name=f"+1 h {address}", exact=True).click()
    said(page, f"Extended: {address} until")
    expect(row_of(page, address)).to_contain_text("in 1h59m")
    assert house.why(address)["extended_until"] is not None


def test_why_opens_a_panel_that_escape_closes_and_focus_returns(house: House, person: BrowserContext) -> None:
    address = house.record("why")
    page = house.visit(person)
    is_live(page)
    button = row_of(page, address).get_by_role("link", name=f"Why {address}", exact=True)
    button.click()
    panel = page.get_by_role("dialog")
    expect(panel.get_by_role("heading", name=address)).to_be_visible()
    expect(panel).to_contain_text("Kept: its time is not over")
    expect(panel).to_contain_text("delete what is older than 1h")
    panel.get_by_label("Reason").fill("for the audit")
    house.record("meanwhile")  # what is typed stays while the page behind is brought up to date
    expect(page.locator("#soon-rows")).to_contain_text("meanwhile")
    expect(panel.get_by_label("Reason")).to_have_value("for the audit")
    panel.get_by_role("button", name="Hold", exact=True).click()
    expect(panel.get_by_role("button", name="Release")).to_be_visible()
    assert house.why(address)["hold"]["reason"] == "for the audit"

    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(button).to_be_focused()
    assert page.url == f"{house.server.http}/"


def test_a_double_click_gives_one_hour_and_not_two(house: House, person: BrowserContext) -> None:
    address = house.record("double")
    page = house.visit(person, "/?window=day")
    is_live(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "/act/" in request.url else None)
    row_of(page, address).get_by_role("button", name=f"+1 h {address}", exact=True).dblclick()
    expect(row_of(page, address)).to_contain_text("in 1h59m")
    page.wait_for_timeout(500)
    assert len(sent) == 1


def test_what_is_said_while_a_panel_is_open_is_seen_and_the_panel_keeps_the_focus(
    house: House, browser: Browser
) -> None:
    address = house.record("said")
    with browser.new_context(viewport={"width": 390, "height": 800}) as phone:
        page = house.visit(phone)
        is_live(page)
        row_of(page, address).get_by_role("link", name=f"Why {address}", exact=True).click()
        panel = page.get_by_role("dialog")
        panel.get_by_label("More time").fill("xyz")
        panel.get_by_role("button", name="Extend").click()
        said(page, "'xyz' is not a time")
        assert page.evaluate(ON_TOP)
        panel.get_by_label("Reason").fill("a look")
        panel.get_by_label("Until").focus()
        panel.get_by_role("button", name="Hold", exact=True).click()
        expect(panel.get_by_role("button", name="Release")).to_be_focused()


ON_TOP = """() => {
  const box = document.querySelector(".toast").getBoundingClientRect();
  const seen = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return seen.classList.contains("toast");
}"""


def test_an_open_panel_shows_what_becomes_of_its_thing(house: House, person: BrowserContext) -> None:
    address = house.record("panel-lives")
    page = house.visit(person)
    is_live(page)
    row_of(page, address).get_by_role("link", name=f"Why {address}", exact=True).click()
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("Kept: its time is not over")
    panel.get_by_label("Reason").fill("typed")
    panel.get_by_label("Until").focus()
    house.cli("extend", address, "2h")
    expect(panel).to_contain_text("Extended until")
    expect(panel.get_by_label("Reason")).to_have_value("typed")
    house.cli("delete", address, "--yes")
    expect(panel).to_contain_text("Gone")


def test_the_chart_of_a_day_has_hours_and_tells_figures_where_the_pointer_is(
    house: House, person: BrowserContext
) -> None:
    house.record("hovered")
    page = house.visit(person, "/?window=day")
    expect(page.locator("#chart canvas")).to_have_count(1)
    assert page.evaluate(SHIFTED) < 0.1  # above that, people notice that a page jumps
    box = page.locator("#chart").bounding_box()
    assert box
    page.mouse.move(box["x"] + 90, box["y"] + box["height"] / 2)
    legend = page.locator("#chart .u-legend")
    expect(legend).to_be_visible()
    at = legend.bounding_box()
    assert at
    assert box["y"] <= at["y"] < box["y"] + box["height"]
    assert page.evaluate("() => document.querySelector('#chart').textContent.includes('history')")


SHIFTED = """() => new Promise(found => {
  let sum = 0;
  new PerformanceObserver(list => { for (const one of list.getEntries()) sum += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  setTimeout(() => found(sum), 500);
})"""


def test_the_page_of_an_odd_name_stays_the_page_of_that_name(house: House, person: BrowserContext) -> None:
    for name in ("a", "%2561"):
        house.insert_key(name)
    page = house.visit(person, f"/thing/key/{KEY_APP}/%2561")
    is_live(page)
    house.record("something-else")
    house.insert_key("another")
    page.wait_for_timeout(2500)
    expect(page.get_by_role("heading", level=1)).to_have_text(f"key/{KEY_APP}/%2561")
    assert page.locator('article input[name="address"]').evaluate_all("all => all.map(one => one.value)") == [
        f"key/{KEY_APP}/%2561"
    ]
    expect(page.get_by_role("button", name="Extend")).to_be_visible()
    expect(page.get_by_role("button", name="Hold", exact=True)).to_have_count(0)  # keys cannot be held
    expect(page.get_by_role("button", name="Delete now")).to_have_count(0)


def test_a_clock_that_was_set_while_the_page_is_open_is_noticed(house: House, person: BrowserContext) -> None:
    address = house.record("skewed")
    page = house.visit(person)
    is_live(page)
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3600e3; }")
    house.cli("hold", address, "--reason=a look")
    house.cli("release", address)
    expect(row_of(page, address).locator(".countdown")).to_contain_text(re.compile(r"^in 5\dm"))


def test_what_lapsed_just_now_is_brought_back_by_one_click(house: House, person: BrowserContext) -> None:
    address = house.record("undone")
    page = house.visit(person)
    is_live(page)
    row_of(page, address).get_by_role("link", name=f"Why {address}", exact=True).click()
    panel, asked = page.get_by_role("dialog"), answer_dialogs(page)
    panel.get_by_role("button", name="Delete now").click()
    expect(panel.get_by_role("button", name="Undo: bring it back")).to_be_visible()
    assert asked == [f"Delete {address} now?"]
    panel.get_by_role("button", name="Close").click()
    expect(row_of(page, address)).to_have_count(0)

    page.get_by_role("button", name=f"Undo {address}", exact=True).click()
    said(page, f"Brought back: {address}")
    expect(row_of(page, address)).to_be_visible()
    assert house.why(address)["verdict"] == "keep"


def test_rows_are_filtered_by_words_by_domain_and_by_window(house: House, person: BrowserContext) -> None:
    wheat, chaff = house.record("wheat"), house.record("chaff")
    house.insert_key("alpha")
    page = house.visit(person)
    is_live(page)
    page.get_by_label("Filter these rows").fill("over wheat")
    expect(row_of(page, wheat)).to_be_visible()
    expect(row_of(page, chaff)).to_be_hidden()
    later = house.record("later-chaff")  # a live update keeps the filter
    expect(row_of(page, later)).to_have_count(1)
    expect(row_of(page, later)).to_be_hidden()
    page.get_by_label("Filter these rows").fill("")
    expect(row_of(page, chaff)).to_be_visible()

    domains = page.get_by_role("list", name="Domains")
    domains.get_by_role("link", name="keys").click()
    expect(page.get_by_text("Only keys lapse in the coming hour")).to_be_visible()
    expect(domains.get_by_role("link", name="keys")).to_have_attribute("aria-current", "true")
    domains.get_by_role("link", name="all domains").click()
    expect(row_of(page, wheat)).to_be_visible()

    for name, title in (("Minutes", "coming ten minutes"), ("Week", "coming week"), ("Hour", "coming hour")):
        page.get_by_role("navigation", name="Window").get_by_role("link", name=name).click()
        expect(page.locator(".picture .big")).to_contain_text(title)
        expect(page.locator("#chart canvas")).to_have_count(1)
    expect(row_of(page, wheat)).to_be_visible()


def answer_dialogs(page: Page, answers: list[bool] | None = None) -> list[str]:
    """Answer what the page asks to be confirmed, with yes unless told otherwise; return the questions."""
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if answers is None or answers.pop(0):
            dialog.accept()
        else:
            dialog.dismiss()

    page.on("dialog", answer)
    return asked


# --- plans, engine, trash, journal ------------------------------------------------------------------------------------


def test_a_plan_is_kept_approved_by_another_person_carried_out_and_undone(
    tmp_path: Path, person: BrowserContext, browser: Browser
) -> None:
    by_plan = {"LAPSE_ACT_BY_PLAN": "history", "LAPSE_HISTORY_RETENTION_LIMIT": "1"}
    house = House.start(tmp_path, settings=by_plan)
    try:
        older, _ = house.record("planned", start="2026-01-30T02:00:00Z"), house.record("planned")
        page = house.visit(person, "/plans")
        answer_dialogs(page)
        id = keep_plan(page, older)  # noqa: A001 - as the page calls it
        with browser.new_context() as other:
            approve(other.new_page(), house, id)
        expect(page.get_by_text("Approved by")).to_be_visible()

        page.get_by_role("button", name="Carry out what is due").click()
        said(page, f"Plan {id}: 1 ended")
        assert house.why(older)["verdict"] == "gone"
        page.get_by_role("button", name="Undo all of it").click()
        said(page, f"Brought back: {older}")
        assert house.why(older)["verdict"] != "gone"
    finally:
        house.server.stop()


def keep_plan(page: Page, address: str) -> str:
    """Make a plan of what is due in history, keep it, and go to its page; return its id."""
    page.get_by_label("Within").fill("0s")
    page.get_by_label("Domain").select_option("history")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("region", name="Items of the plan")).to_contain_text(address)
    page.get_by_role("button", name="Keep this plan").click()
    said(page, "Kept: plan ")
    made = page.locator("section", has=page.locator("#kept")).get_by_role("link").first
    id = (made.text_content() or "").strip()  # noqa: A001 - as the page calls it
    made.click()
    expect(page.get_by_role("heading", name=f"Plan {id}")).to_be_visible()
    expect(page.get_by_text("Nobody has approved it")).to_be_visible()
    return id


def approve(page: Page, house: House, id: str) -> None:  # noqa: A002 - as the page calls it
    """Approve a plan as somebody else, who may do nothing more."""
    page.goto(f"{house.server.http}/plans/{id}")
    log_in(page, house.token("bob", "approve", "read"))
    expect(page.get_by_role("heading", name=f"Plan {id}")).to_be_visible()
    expect(page.get_by_role("button", name="Carry out what is due")).to_have_count(0)
    answer_dialogs(page)
    page.get_by_role("button", name="Approve").click()
    said(page, f"Approved: plan {id}.")


def test_a_domain_is_frozen_and_resumed_on_the_page_of_the_engine(house: House, person: BrowserContext) -> None:
    page = house.visit(person, "/engine")
    is_live(page)
    row = page.get_by_role("region", name="Domains").get_by_role("row").filter(has_text="history")
    row.get_by_role("button", name="Freeze history").click()
    said(page, "Frozen: history.")
    expect(row).to_contain_text("frozen")
    page.get_by_role("link", name="Next").first.click()
    expect(page.locator(".banner.bad")).to_contain_text("history is frozen")
    page.get_by_role("button", name="Resume history").click()
    said(page, "Resumed: history.")
    expect(page.locator(".banner.bad")).to_have_count(0)


def test_the_trash_shows_bytes_brings_back_and_removes_after_a_question(house: House, person: BrowserContext) -> None:
    back, gone = house.record("back"), house.record("gone")
    for one in (back, gone):
        house.cli("delete", one, "--yes")
    page = house.visit(person, "/trash")
    is_live(page)
    rows = page.get_by_role("region", name="Things in the trash").get_by_role("row")
    expect(rows.filter(has_text=back)).to_contain_text(re.compile(r"\d B"))
    expect(rows.filter(has_text=back)).to_contain_text("created again, under a new uid")
    page.get_by_role("button", name=f"Undo {back}", exact=True).click()
    said(page, f"Brought back: {back}")
    expect(rows.filter(has_text=back)).to_have_count(0)

    answers = [False, True]
    asked = answer_dialogs(page, answers)
    for _ in range(2):
        page.get_by_role("button", name=f"Remove {gone}", exact=True).click()
    assert asked == 2 * [f"Remove {gone} for good? It cannot be brought back then."]
    said(page, f"Removed for good: {gone}.")
    expect(rows.filter(has_text=gone)).to_have_count(0)


ROWS = 100


def test_the_journal_is_searched_and_paged(house: House, person: BrowserContext) -> None:
    address, other = house.record("searched"), house.record("not-searched")
    with house.server.client() as client:
        for number in range(ROWS // 2 + 1):
            client.post("/api/v1/hold", json={"address": address, "reason": f"number {number}"}).raise_for_status()
            client.post("/api/v1/release", json={"address": address}).raise_for_status()
        client.post("/api/v1/hold", json={"address": other, "reason": "x"}).raise_for_status()
    page = house.visit(person, "/journal")
    expect(page.get_by_role("region", name="Rows of the journal")).to_contain_text(other)
    page.get_by_label("Address").fill(address)
    page.get_by_role("button", name="Search").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(ROWS)
    expect(rows.filter(has_text=other)).to_have_count(0)
    expect(page.get_by_label("Address")).to_have_value(address)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    expect(rows.last).to_contain_text("number 0")
    page.get_by_label("Since").fill("nonsense")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".trouble")).to_contain_text("nonsense")


# --- pages of the domains ---------------------------------------------------------------------------------------------


def test_a_request_is_drawn_with_its_keeper_and_its_artifact(
    house: House, person: BrowserContext, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "greeting.txt").write_text("hello")
    house.cli("requests", "capture", "monday", f"--directory={tmp_path / 'notes'}", "--wait")
    page = house.visit(person, "/requests")
    chain = page.locator(".chain")
    expect(chain.locator(".node .kind")).to_have_text(["request", "keeper", "artifact"])
    expect(chain.locator(".node").nth(0)).to_contain_text("vcr/default/monday")
    expect(chain.locator(".node").nth(0)).to_contain_text(re.compile(r"goes in \dm"))
    left = [box["x"] for box in (one.bounding_box() for one in chain.locator(".node").all()) if box is not None]
    assert left == sorted(left)
    house.cli("hold", "vcr/default/monday", "--reason=keep")
    expect(chain.locator(".node").nth(0)).to_contain_text("held")
    chain.get_by_role("link", name="vcr/default/monday", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("heading", name="vcr/default/monday")).to_be_visible()


def test_history_is_shown_by_experiment(house: House, person: BrowserContext) -> None:
    good, bad = house.record("by-experiment"), house.record("by-experiment", "failure", start="2026-01-30T02:00:00Z")
    page = house.visit(person, "/history")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="shop/by-experiment", exact=True))
    expect(row).to_contain_text("1 failure")
    expect(row).to_contain_text("1 success")
    row.get_by_role("link").click()
    records = page.get_by_role("region", name="shop/by-experiment")
    for one in (good, bad):
        expect(records.get_by_role("link", name=one, exact=True)).to_be_visible()
    house.cli("hold", bad, "--reason=look")
    expect(records.get_by_role("row").filter(has_text=bad)).to_contain_text("held")


def test_a_workspace_is_opened_in_a_tab_of_its_own(house: House, person: BrowserContext) -> None:
    create_workspace(house, "notebook")
    page = house.visit(person, "/workspaces")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="notebook"))
    expect(row).to_contain_text("running")
    with page.expect_popup() as opened:
        row.get_by_role("button", name="Open notebook").click()
    expect(opened.value.get_by_role("status")).to_have_text("connected")
    assert opened.value.url == f"http://notebook.w.localhost:{house.server.proxy_port}/"
    assert page.url == f"{house.server.http}/workspaces"


def create_workspace(house: House, name: str) -> None:
    run = [sys.executable, "-m", "lapse.workspaces.example"]
    asked = {"name": name, "owner": "ann", "command": run, "port": kept_port()}
    with house.server.client() as client:
        assert client.post("/api/v1/workspaces", json=asked).status_code == 201


def test_keys_are_counted_and_never_named(house: House, person: BrowserContext) -> None:
    house.insert_key("hidden-name")
    page = house.visit(person, "/keys")
    row = page.get_by_role("region", name="Records by application").get_by_role("row").filter(has_text=str(KEY_APP))
    expect(row).to_contain_text(re.compile(r"in (2\d|30)m"))
    for path in PATHS:
        page.goto(house.server.http + path)
        for secret in ("hidden-name", VALUE):
            assert secret not in page.content()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Lapse with a domain of another distribution: the example of the documents, installed into a folder."""
    folder = tmp_path_factory.mktemp("scratch")
    packages, files, state = folder / "packages", folder / "files", folder / "state"
    for one in (files, state):
        one.mkdir()
    install = [str(ROOT / "tools" / "uv"), "pip", "install", "--quiet", "--no-deps", f"--target={packages}"]
    subprocess.run([*install, "--python", sys.executable, str(ROOT / "examples" / "domain")], check=True, timeout=200)
    (files / "draft.txt").write_text("draft")
    (folder / "lapse.toml").write_text(f"[domains.scratch]\nmax_age = '30m'\nfolder = '{files}'\ninterval = '1s'\n")
    given = {"PYTHONPATH": str(packages), "LAPSE_CONFIG": str(folder / "lapse.toml")}
    running = House.start(state, settings=given)
    yield running
    running.server.stop()


def test_a_domain_of_another_distribution_is_shown_like_any(scratch: House, person: BrowserContext) -> None:
    page = scratch.visit(person)
    expect(page.get_by_role("list", name="Domains").get_by_role("link", name="scratch 1")).to_be_visible()
    row = page.locator("#soon-rows > tr").filter(has_text="draft.txt")
    expect(row).to_contain_text("in 29m")
    row.get_by_role("link", name=re.compile("^Why")).click()
    expect(page.get_by_role("dialog")).to_contain_text("Kept")
    page.goto(f"{scratch.server.http}/engine")
    expect(page.get_by_role("region", name="Domains").get_by_role("row").filter(has_text="scratch")).to_be_visible()


# --- demo -------------------------------------------------------------------------------------------------------------


def test_the_demo_is_marked_and_one_click_removes_it(tmp_path: Path, person: BrowserContext) -> None:
    house = House.start(tmp_path, "--demo")
    try:
        own = house.record("own")
        page = house.visit(person)
        is_live(page)
        expect(page.get_by_role("complementary", name="Demo")).to_contain_text("This is a demo.")
        expect(page.locator(".picture .big")).to_contain_text("coming ten minutes")
        expect(page.locator("#soon-rows > tr").first).to_contain_text("demo")
        page.get_by_role("button", name="Remove the demo").click()
        said(page, "The demo is removed.")
        expect(page.get_by_role("complementary", name="Demo")).to_have_count(0)
        page.get_by_role("link", name="Hour").click()
        expect(row_of(page, own)).to_be_visible()
        expect(page.locator("#soon-rows > tr").filter(has_text="demo-")).to_have_count(0)
    finally:
        house.server.stop()


# --- keyboard, narrow screens, no scripts -----------------------------------------------------------------------------


def focused(page: Page) -> str:
    name: str = page.evaluate(
        "() => { const one = document.activeElement; return one.getAttribute('aria-label') || one.textContent.trim(); }"
    )
    return name


def test_everything_is_done_by_keyboard(house: House, person: BrowserContext) -> None:
    address = house.record("keyboard")
    page = house.visit(person)
    is_live(page)
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"

    passed = [tab(page) for _ in range(4)]
    assert passed == ["Minutes", "Hour", "Day", "Week"]
    while focused(page) != f"Hold {address}":
        tab(page)
    page.keyboard.press("Enter")
    said(page, f"Held: {address}.")
    expect(row_of(page, address).get_by_role("button", name=f"Release {address}")).to_be_visible()
    for _ in range(300):  # and on, to the end of the page and out of it: nothing keeps the focus
        if tab(page) == "OpenAPI":
            break
    assert focused(page) == "OpenAPI"
    tab(page)
    assert focused(page) != "OpenAPI"


def tab(page: Page) -> str:
    page.keyboard.press("Tab")
    return focused(page)


WIDER = "() => document.documentElement.scrollWidth - innerWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_phone_and_every_page_is_reached(
    house: House, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    address = house.record("narrow")
    with browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme) as context:
        page = house.visit(context)
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(18, 21, 26)" if scheme == "dark" else "rgb(246, 245, 242)")
        for path in (*PATHS, f"/thing/{address}", "/plans?within=2h", "/history?experiment=shop/narrow"):
            page.goto(house.server.http + path)
            assert page.evaluate(WIDER) <= 0, path
        for link in page.get_by_role("navigation", name="Pages").get_by_role("link").all():
            box = link.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


def test_pages_are_useful_without_scripts(house: House, browser: Browser) -> None:
    address = house.record("scriptless")
    with browser.new_context(java_script_enabled=False) as context:
        page = house.visit(context)
        until(lambda: page.reload() and row_of(page, address).count())
        expect(page.locator("#link-state")).to_contain_text("Not live")
        expect(page.get_by_role("region", name="Counts by time").get_by_role("row").nth(1)).to_be_visible()
        page.get_by_role("button", name=f"Hold {address}", exact=True).click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()
        expect(page.get_by_text(f"Held: {address}.")).to_be_visible()
        page.get_by_role("link", name="Go back").click()
        until(lambda: page.reload() and row_of(page, address).locator(".badge.held").count())
        page.get_by_role("link", name=f"Why {address}", exact=True).click()
        expect(page.get_by_role("heading", name=address)).to_be_visible()
        page.get_by_role("button", name="Release").click()
        page.get_by_role("link", name="Go back").click()
        assert page.url.endswith(address)
        for path in PATHS:
            page.goto(house.server.http + path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()


# --- honest states ----------------------------------------------------------------------------------------------------


def test_an_empty_store_says_so_and_what_to_do(tmp_path: Path, person: BrowserContext) -> None:
    house = House.start(tmp_path)
    try:
        page = house.visit(person)
        words = {
            "/": "Nothing lapses in the coming hour.",
            "/requests": "There are no requests.",
            "/workspaces": "There are no workspaces.",
            "/history": "There are no records.",
            "/keys": "No keys are stored",
            "/plans": "No plan is kept.",
            "/trash": "The trash is empty.",
        }
        for path, text in words.items():
            page.goto(house.server.http + path)
            expect(page.locator(".empty").filter(has_text=text)).to_be_visible()
        page.goto(f"{house.server.http}/journal?domain=history")
        expect(page.get_by_text("No rows like this.")).to_be_visible()
    finally:
        house.server.stop()


def test_a_page_says_that_the_server_is_gone_and_is_live_again_when_it_is_back(
    tmp_path: Path, context: BrowserContext
) -> None:
    house = House.start(tmp_path)
    address = house.record("stale")
    page = house.visit(context)
    is_live(page)
    page.evaluate("() => { window.loadedOnce = true; }")
    port = urlsplit(house.server.http).port
    house.server.stop()
    expect(page.locator("#link-state")).to_contain_text("No answer since")
    expect(page.locator("#live")).to_have_css("opacity", re.compile(r"^0\.\d+"))
    expect(row_of(page, address)).to_be_visible()
    row_of(page, address).get_by_role("button", name=f"Hold {address}", exact=True).click()
    said(page, "Whether this was done is not known")

    arguments = ("up", f"--state-dir={tmp_path}", f"--http-port={port}", "--proxy-port=0")
    again = LapseServer.spawn(tmp_path, *arguments, settings={"LAPSE_HISTORY_TTL": "1h"})
    again.state_dir = tmp_path
    try:
        is_live(page)
        later = House(again).record("later")
        expect(row_of(page, later)).to_be_visible()
        assert page.evaluate("() => window.loadedOnce") is True
        expect(page.locator("#live")).to_have_css("opacity", "1")
    finally:
        again.stop()


def test_a_wrong_address_is_a_page_that_says_so(house: House, person: BrowserContext) -> None:
    page = house.visit(person)
    for path, status in (("/nothing/here", 404), ("/?colour=red", 422), ("/plans/unknown", 404)):
        answer = page.goto(house.server.http + path)
        assert answer is not None
        assert (path, answer.status) == (path, status)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("link", name="What lapses next")).to_be_visible()


def test_who_may_only_look_is_offered_nothing_else(house: House, browser: Browser) -> None:
    address = house.record("looked-at")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(house.server.http)
        log_in(page, house.token("eve", "read"))
        expect(row_of(page, address)).to_be_visible()
        expect(row_of(page, address).get_by_role("button")).to_have_count(0)
        for path in ("/engine", "/trash", f"/thing/{address}"):
            page.goto(house.server.http + path)
            expect(page.locator("form[method=post]:not(.me)")).to_have_count(0)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(house.server.http)
        log_in(page, house.token("app", "keys:7"))
        expect(page.get_by_role("heading", name="That is not allowed")).to_be_visible()
