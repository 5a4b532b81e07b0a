"""The dashboard without a browser: what its pages tell, whom they let act, and which forms they refuse."""

from __future__ import annotations

import re
from html import unescape
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from fastapi import Request
from msgspec.structs import replace

from lapse.engine.verbs.contract import BudgetRate, DomainForecast, Forecast
from lapse.engine.verbs.operations import OPERATIONS
from lapse.engine.view import Moment
from lapse.keys.errors import BackendUnavailableError
from lapse.web.pages import actions
from lapse.web.pages.assets import assets, url_of
from lapse.web.pages.dashboard import chart_of, chart_rows
from lapse.web.pages.previews import PlanPreviews
from lapse.web.pages.render import NAVIGATION, in_bytes, own_url, supports, times

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API

PAGES = [one.path for one in NAVIGATION]
HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded", **HTML}
LAB = {"name": "lab", "owner": "ann", "command": ["true"], "port": 9000, "start": False}


async def csrf(client: httpx2.AsyncClient, path: str = "/thing/workspace/lab", **headers: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', (await client.get(path, headers=HTML | headers)).text)
    assert found
    return found[1]


async def make_lab(api: API) -> None:
    assert (await api.client.post("/api/v1/workspaces", json=LAB)).status_code == 201


def bearer(api: API, *scopes: str) -> dict[str, str]:
    _, token = api.tokens.create("-".join(scopes).replace(":", "-"), list(scopes))
    return {"Authorization": f"Bearer {token}"}


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_loads_nothing_from_elsewhere_and_has_neither_inline_scripts_nor_styles(
    client: httpx2.AsyncClient, path: str
) -> None:
    page = await client.get(path, headers=HTML)
    assert page.status_code == 200, page.text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', "\n".join(re.findall(r"<(?:link|img|script)[^>]*>", page.text)))
    assert loaded
    assert all(address.startswith("/static/") for address in loaded)
    assert all(not text for _, text in re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.DOTALL))
    assert "style=" not in page.text
    assert not re.search(r"\son\w+=", page.text)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for address in loaded:
        assert (await client.get(unescape(address))).status_code == 200


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_asks_for_its_live_part_alone_and_that_holds_what_the_page_holds(
    client: httpx2.AsyncClient, path: str
) -> None:
    whole = (await client.get(path, headers=HTML)).text
    part = (await client.get(path, headers={"HX-Request": "true"})).text
    assert "<html" in whole
    assert "<html" not in part
    title = re.search(r"<h1[^>]*>(.*?)</h1>", part)
    assert title
    assert title[0] in whole


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_refuses_a_parameter_that_it_does_not_know(client: httpx2.AsyncClient, path: str) -> None:
    page = await client.get(path, params={"wimdow": "day"}, headers=HTML)
    assert page.status_code == 422
    assert "wimdow" in page.text
    assert "<html" in page.text


@pytest.mark.parametrize("path", PAGES)
async def test_who_may_look_sees_the_page_without_actions_that_are_not_theirs(api: API, path: str) -> None:
    await make_lab(api)
    page = await api.stranger.get(path, headers=HTML | bearer(api, "monitor"))
    assert page.status_code == 200
    assert page.text.count("/act/") == page.text.count("/act/log_out")


@pytest.mark.parametrize("path", PAGES)
async def test_who_has_only_things_of_their_own_is_told_on_a_page_that_this_is_not_for_them(
    api: API, path: str
) -> None:
    page = await api.stranger.get(path, headers=HTML | bearer(api, "workspaces:ann"))
    assert page.status_code == 403
    assert "<html" in page.text
    assert "scopes" in page.text


async def test_no_page_shows_the_name_or_the_value_of_a_key(client: httpx2.AsyncClient, api: API) -> None:
    await api.keys.app(4711).put("secret-name", "secret-value", 900)
    pages = {path: (await client.get(path, headers=HTML)).text for path in PAGES}
    assert "4711" in pages["/keys"]
    assert not [path for path, text in pages.items() if "secret-" in text]


async def test_a_store_that_cannot_be_read_is_said_on_the_page_instead_of_breaking_it(
    client: httpx2.AsyncClient, api: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> None:
        raise BackendUnavailableError(backend="file:///keys.db", problem="the disk is gone")

    monkeypatch.setattr(type(api.keys.backend), "counts", unreadable)
    page, status = await client.get("/keys", headers=HTML), await client.get("/api/v1/status")

    assert page.status_code == status.status_code == 200
    assert "the disk is gone" in page.text
    assert status.json()["keys"]["records"] is None


async def test_an_unknown_address_is_a_page_for_people_and_a_problem_document_for_programs(
    client: httpx2.AsyncClient,
) -> None:
    page = await client.get("/thing/workspace/nobody", headers=HTML)
    program = await client.get("/thing/workspace/nobody")
    script = await client.get("/thing/workspace/nobody", headers=HTML | {"HX-Request": "true"})
    api = await client.get("/api/v1/why/workspace/nobody", headers=HTML)
    assert [one.status_code for one in (page, program, script, api)] == [404] * 4
    assert "That is not there" in page.text
    for answer in (program, script, api):
        assert answer.headers["content-type"] == "application/problem+json"


async def test_names_are_escaped_wherever_they_are_shown(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab", "reason": "<script>alert(1)</script>&\"'"}
    assert (await client.post("/act/hold", data=form, headers=FORM)).status_code == 200
    for path in ("/thing/workspace/lab", "/journal", "/"):
        text = (await client.get(path, headers=HTML)).text
        assert "<script>alert" not in text, path


# --- actions ----------------------------------------------------------------------------------------------------------


async def test_a_form_does_what_the_verb_does_and_says_so_on_a_page_or_to_a_script(
    client: httpx2.AsyncClient, api: API
) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab", "reason": "audit", "then": "/workspaces"}
    page = await client.post("/act/hold", data=form, headers=FORM)
    assert page.status_code == 200
    assert "Held: workspace/lab" in page.text
    assert 'href="/workspaces"' in page.text
    assert (await client.get("/api/v1/why/workspace/lab")).json()["hold"]["reason"] == "audit"

    form = {"csrf": form["csrf"], "address": "workspace/lab"}
    script = await client.post("/act/release", data=form, headers=FORM | {"HX-Request": "true"})
    assert (script.status_code, script.content) == (204, b"")
    assert "Released: workspace/lab" in script.headers["hx-trigger"]
    assert (await client.get("/api/v1/why/workspace/lab")).json()["hold"] is None


async def test_a_form_that_asks_first_asks_on_a_page_where_there_are_no_scripts(
    client: httpx2.AsyncClient, api: API
) -> None:
    await make_lab(api)
    thing = (await client.get("/thing/workspace/lab", headers=HTML)).text
    question = re.search(r'name="sure" value="([^"]+)"', thing)
    assert question
    form = {"csrf": await csrf(client), "address": "workspace/lab", "then": "/trash", "sure": unescape(question[1])}
    asked = await client.post("/act/delete", data=form, headers=FORM)
    assert "Delete workspace/lab now?" in asked.text
    assert (await client.get("/api/v1/workspaces/lab")).status_code == 200
    again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text))
    assert again.keys() == {"csrf", "address", "then"}
    assert "Deleted: workspace/lab" in (await client.post("/act/delete", data=again, headers=FORM)).text


async def test_a_script_has_asked_before_it_sends_a_form(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab", "sure": "Delete?"}
    answer = await client.post("/act/delete", data=form, headers=FORM | {"HX-Request": "true"})
    assert "Deleted: workspace/lab" in answer.headers["hx-trigger"]


async def test_what_came_of_many_things_is_told_in_short() -> None:
    told = actions._in_short("Brought back", [f"history/chaos-system/{'a' * 60}-{n}" for n in range(2_000)], ["b", "c"])
    assert told.endswith("and 1,995 more. b; c")
    assert told.count("history/") == 5


async def test_a_header_is_never_longer_than_servers_on_the_way_take(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab", "reason": "ü" * 900}
    answer = await client.post("/act/hold", data=form, headers=FORM | {"HX-Request": "true"})
    assert len(answer.headers.get("hx-trigger", "")) < 4_000


@pytest.mark.parametrize("path", ["/thing/key/7/%2561", "/thing/key/7/a%2Fb", "/thing/key/7/100%2525"])
def test_the_address_of_a_page_is_the_one_that_was_asked_for(path: str) -> None:
    scope = {"type": "http", "path": unquote(path), "raw_path": path.encode(), "query_string": b"at=1d", "headers": []}
    assert own_url(Request(scope)) == f"{path}?at=1d"


@pytest.mark.parametrize(
    ("domain", "verb", "is_supported"),
    [("keys", "hold", False), ("keys", "delete", False), ("keys", "extend", True), ("history", "hold", True)],
)
def test_a_verb_is_offered_where_the_domain_has_it(domain: str, verb: str, *, is_supported: bool) -> None:
    assert supports(domain, verb) is is_supported


async def test_who_may_not_ask_why_is_given_no_links_to_that(api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(api.client), "address": "workspace/lab"}
    await api.client.post("/act/delete", data=form, headers=FORM)
    for scope, is_linked in (("read", True), ("monitor", False)):
        page = (await api.stranger.get("/", headers=HTML | bearer(api, scope))).text
        assert "workspace/lab" in page
        assert ("/thing/" in page) is is_linked


async def test_what_is_frozen_as_a_whole_is_resumed_as_a_whole(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "domain": "all", "reason": "a look"}
    assert "Frozen: everything." in (await client.post("/act/freeze", data=form, headers=FORM)).text
    for path in ("/", "/engine"):
        page = (await client.get(path, headers=HTML)).text
        assert page.count("Everything is frozen") == 1
        assert page.count('action="/act/resume"') == 1
        assert 'name="domain" value="all"' in page
    del form["reason"]
    one = form | {"domain": "workspaces"}
    assert "Everything is frozen: resume everything." in (await client.post("/act/resume", data=one, headers=FORM)).text
    assert "Resumed: everything." in (await client.post("/act/resume", data=form, headers=FORM)).text
    assert "frozen" not in (await client.get("/", headers=HTML)).text


def test_times_in_a_text_are_marked_for_the_reader_and_the_rest_is_escaped() -> None:
    assert times("<b> until 2026-01-31T02:00:00Z, since 2026-01-30T02:00:00.5Z.") == (
        '&lt;b&gt; until <time datetime="2026-01-31T02:00:00Z" data-local>2026-01-31T02:00:00Z</time>,'
        ' since <time datetime="2026-01-30T02:00:00.5Z" data-local>2026-01-30T02:00:00.5Z</time>.'
    )
    assert times("<i>") == "&lt;i&gt;"


def test_a_domain_that_is_not_known_here_offers_nothing() -> None:
    assert not supports("elsewhere", "hold")


async def test_what_was_deleted_on_a_page_is_brought_back_on_a_page(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab"}
    assert "Deleted: workspace/lab" in (await client.post("/act/delete", data=form, headers=FORM)).text
    assert "workspace/lab" in (await client.get("/trash", headers=HTML)).text
    assert 'action="/act/undo"' in (await client.get("/", headers=HTML)).text
    assert "Brought back: workspace/lab" in (await client.post("/act/undo", data=form, headers=FORM)).text
    assert (await client.get("/api/v1/workspaces/lab")).status_code == 200
    told = (await client.get("/", headers=HTML)).text
    assert "workspace/lab" in told
    assert 'action="/act/undo"' not in told


@pytest.mark.parametrize("given", [None, "", "0" * 64, "ü"])
async def test_a_form_without_its_token_is_refused_before_anything_is_done(
    client: httpx2.AsyncClient, api: API, given: str | None
) -> None:
    await make_lab(api)
    form = {"address": "workspace/lab", **({} if given is None else {"csrf": given})}
    answer = await client.post("/act/delete", data=form, headers=FORM)
    assert answer.status_code == 403
    assert (await client.get("/api/v1/workspaces/lab")).status_code == 200


async def test_the_token_of_one_persons_forms_does_not_serve_another(api: API) -> None:
    await make_lab(api)
    other = bearer(api, "admin", "read")
    form = {"csrf": await csrf(api.client), "address": "workspace/lab"}
    assert (await api.stranger.post("/act/delete", data=form, headers=FORM | other)).status_code == 403


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
async def test_an_action_takes_forms_and_the_api_takes_none(client: httpx2.AsyncClient, api: API, kind: str) -> None:
    await make_lab(api)
    token = await csrf(client)
    body = f"csrf={token}&address=workspace%2Flab"
    assert (await client.post("/act/delete", content=body, headers={"Content-Type": kind})).status_code == 415
    api_answer = await client.post("/api/v1/delete", content=body, headers=FORM)
    assert api_answer.status_code == 415
    assert (await client.get("/api/v1/workspaces/lab")).status_code == 200


@pytest.mark.parametrize(
    "body", [b"csrf=%ff&address=x", b"a" * 10, b"&".join(b"f%d=1" % n for n in range(80)), b"\xff\xfe"]
)
async def test_what_is_no_form_is_refused(client: httpx2.AsyncClient, body: bytes) -> None:
    assert (await client.post("/act/hold", content=body, headers=FORM)).status_code in {400, 403}


@pytest.mark.parametrize(
    "then", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
async def test_the_way_back_is_always_one_of_our_own_pages(client: httpx2.AsyncClient, api: API, then: str) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "address": "workspace/lab", "reason": "x", "then": then}
    page = await client.post("/act/hold", data=form, headers=FORM)
    assert page.status_code == 200
    assert '<a class="button primary" href="/">' in page.text


@pytest.mark.parametrize("verb", sorted(actions.ACTS))
async def test_an_action_needs_the_scope_of_its_verb(api: API, verb: str) -> None:
    await make_lab(api)
    looker = bearer(api, "monitor", "holds")
    form = {
        "csrf": await csrf(api.stranger, **looker),
        "address": "workspace/lab", "reason": "x", "time": "1h", "domain": "workspaces", "within": "1h", "id": "0" * 16,
    }  # fmt: skip
    wanted = {"hold": ("address", "reason"), "release": ("address",), "extend": ("address", "time"), "propose": ("id",)}
    given = {name: form[name] for name in ("csrf", *wanted.get(verb, ("address",)))}
    answer = await api.stranger.post(f"/act/{verb}", data=given, headers=FORM | looker)
    if verb in {"hold", "release"}:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code in {403, 404, 422}, answer.text
        assert (await api.client.get("/api/v1/workspaces/lab")).json()["deleted_at"] is None


async def test_there_is_no_action_of_another_name(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client)}
    assert (await client.post("/act/status", data=form, headers=FORM)).status_code == 404
    assert (await client.get("/act/hold", headers=HTML)).status_code == 405


def test_every_verb_that_changes_something_is_an_action() -> None:
    assert {one.verb for one in OPERATIONS if not one.reads} <= set(actions.ACTS)


async def test_a_workspace_is_opened_by_whoever_can_and_by_nobody_else(api: API) -> None:
    await make_lab(api)
    owner, reader = bearer(api, "workspaces:ann", "read"), bearer(api, "read")
    pages = [await api.stranger.get("/workspaces", headers=HTML | one) for one in (owner, reader)]
    assert [page.text.count('action="/act/open"') for page in pages] == [1, 0]
    for one, status in ((owner, 200), (reader, 404)):
        token = await csrf(api.stranger, "/workspaces", **owner) if one is owner else "0"
        answer = await api.stranger.post("/act/open", data={"csrf": token, "name": "lab"}, headers=FORM | one)
        assert answer.status_code == (status if one is owner else 403)
    assert (
        "http://lab.w.localhost:8752/"
        in (await api.client.post("/act/open", data={"csrf": await csrf(api.client), "name": "lab"}, headers=FORM)).text
    )


async def test_the_plan_that_is_kept_is_the_one_that_was_shown(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    shown = (await client.get("/plans", params={"within": "24h"}, headers=HTML)).text
    found = re.search(r'name="id" value="([0-9a-f]{16})"', shown)
    if found is None:  # nothing lapses: there is nothing to keep
        plan = (await client.get("/api/v1/plan")).json()
        assert plan["items"] == []
        return
    kept = await client.post("/act/propose", data={"csrf": await csrf(client), "id": found[1]}, headers=FORM)
    assert found[1] in kept.text


async def test_a_plan_that_was_never_shown_is_not_kept(client: httpx2.AsyncClient, api: API) -> None:
    await make_lab(api)
    form = {"csrf": await csrf(client), "id": "0" * 16}
    answer = await client.post("/act/propose", data=form, headers=FORM)
    assert answer.status_code == 422
    assert "show the plan again" in answer.text


def test_only_the_latest_plans_that_were_shown_are_remembered() -> None:
    previews = PlanPreviews()
    plans: Any = [SimpleNamespace(id=f"{number:016x}") for number in range(100)]
    for plan in plans:
        previews.keep(plan)
    assert previews.find(plans[0].id) is None
    assert previews.find(plans[-1].id) is plans[-1]


async def test_a_wrong_window_of_a_plan_is_told_beside_the_form(client: httpx2.AsyncClient) -> None:
    page = await client.get("/plans", params={"within": "5x"}, headers=HTML)
    assert page.status_code == 200
    assert "is not a duration" in page.text
    assert 'value="5x"' in page.text


async def test_a_person_sees_who_they_are_and_logs_out(api: API) -> None:
    entered = await api.stranger.get("/open", params={"ticket": api.sessions.issue(api.owner_id)}, headers=HTML)
    assert entered.status_code == 303
    page = (await api.stranger.get("/", headers=HTML)).text
    assert "Log out" in page
    form = {"csrf": await csrf(api.stranger, "/")}
    left = await api.stranger.post("/act/log_out", data=form, headers=FORM | {"Origin": "http://localhost:8750"})
    assert (left.status_code, left.headers["location"]) == (303, "/")
    assert (await api.stranger.get("/", headers=HTML)).status_code == 401


async def test_who_may_see_nothing_is_told_who_they_are_and_can_log_out(api: API) -> None:
    page = await api.stranger.get("/", headers=HTML | bearer(api, "keys:7"))
    assert page.status_code == 403
    assert "token keys-7" in page.text
    assert "Log out" in page.text


# --- the picture of time ----------------------------------------------------------------------------------------------


def forecast_of(*counts: list[int]) -> Forecast:
    domains = [
        DomainForecast(name=f"d{number}", overdue=0, held=0, counts=some, budget=None)
        for number, some in enumerate(counts)
    ]
    rate = BudgetRate(limit=120, seconds=3600)
    return Forecast(
        now=Moment(10 * 10**9), until=Moment(130 * 10**9), step_seconds=60, domains=domains, budget=rate, items=[],
        next=None, problems={},
    )  # fmt: skip


def test_a_domain_of_which_nobody_can_tell_does_not_hide_the_others() -> None:
    found = forecast_of([0, 3], [], [1, 0])
    assert [(row.start // 10**9, list(row.counts), row.total) for row in chart_rows(found)] == [
        (10, [0, None, 1], 1),
        (70, [3, None, 0], 3),
    ]
    drawn = chart_of(found)
    assert (drawn["steps"], [one["name"] for one in drawn["series"]]) == (2, ["d0", "d2"])


def test_the_budget_is_drawn_as_what_it_allows_in_one_step() -> None:
    assert chart_of(forecast_of([1, 1]))["budget"] == 2
    assert chart_of(replace(forecast_of([1, 1]), budget=None))["budget"] is None


def test_of_a_domain_that_is_shown_alone_its_own_budget_is_drawn_where_it_is_the_lower() -> None:
    def own(limit: int, shown: Forecast) -> Forecast:
        budget = BudgetRate(limit, 3600)
        return replace(shown, domains=[replace(one, budget=budget) for one in shown.domains])

    assert chart_of(own(60, forecast_of([1, 1])))["budget"] == 1
    assert chart_of(own(6000, forecast_of([1, 1])))["budget"] == 2
    assert chart_of(own(60, forecast_of([1, 1], [1, 0])))["budget"] == 2, "beside others it is no line for the sum"


def test_steps_in_which_nothing_lapses_are_no_rows() -> None:
    assert list(chart_rows(forecast_of([0, 0], [0, 0]))) == []
    assert list(chart_rows(forecast_of())) == []


# --- files ------------------------------------------------------------------------------------------------------------


async def test_a_file_is_kept_by_browsers_under_an_address_that_changes_with_it(client: httpx2.AsyncClient) -> None:
    answer = await client.get(url_of("lapse.css"), headers={"Accept-Encoding": "gzip"})
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == assets()["lapse.css"].content
    plain = await client.get("/static/lapse.css", headers={"Accept-Encoding": "identity"})
    assert plain.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in plain.headers
    again = await client.get("/static/lapse.css", headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/static/", "/static/none.js", "/static/../render.py", "/static/%2e%2e/render.py"])
async def test_nothing_but_the_files_is_served(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


def test_every_file_of_others_has_its_licence_beside_it() -> None:
    vendored = {name.rpartition("/")[2].partition(".")[0].partition("-")[0] for name in assets() if "vendor/" in name}
    assert {f"vendor/{one}.LICENSE" for one in vendored} <= set(assets())


@pytest.mark.parametrize(
    ("size", "text"), [(None, "not known"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_are_printed_for_people(size: int | None, text: str) -> None:
    assert in_bytes(size) == text
