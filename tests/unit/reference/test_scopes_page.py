"""Routes by scopes: what each scope is let in to, asked of the real guard with a real token, is what the page says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lapse.engine.verbs.operations import API, OPERATIONS
from lapse.web.auth.scopes import PLAIN
from lapse.web.pages.actions import PREFIX
from tests.markdown import table
from tests.unit.reference.test_http_page import PAGE, routes
from tests.unit.web.conftest import api, clock, objects, workspaces  # noqa: F401 - fixtures

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web import conftest

EVENTS = f"{API}/events"
PUBLIC = {("POST", f"{API}/session"), ("DELETE", f"{API}/session"), ("GET", "/open")}
FORMS = {one for one in routes(pages=True) if one[1].startswith(PREFIX)}
"""What they ask for is a verb, and who may is looked at where that is carried out: see test_dashboard.py."""
ALL = sorted({*routes(), *routes(pages=True)} - PUBLIC - FORMS)
FILLED = {
    "{app}": "7",
    "{key}": "a",
    "{kind}": "vcr",
    "{namespace}": "default",
    "{name}": "x",
    "{lease}": "x",
}
THING = ("GET", "/thing/{address}")
THINGS = {THING, *((one.method, f"{API}{one.path}") for one in OPERATIONS if one.of_thing)}
SCOPES = [*PLAIN, "keys:7", "keys:8", "workspaces:ann"]


def told() -> dict[str, set[tuple[str, str]]]:
    """Return what the page says that each scope may."""
    rows = {row["scope"].strip("`"): row["may"] for row in table(PAGE, "scope", "may", "and sees")}
    named = {
        scope: {(method, path) for method, path in re.findall(r"`(GET|POST|DELETE) (\S+?)`", may)}
        for scope, may in rows.items()
    }
    assert rows["admin"] == "everything"
    assert rows["read"] == "every `GET`"
    may = {"admin": set(ALL), "read": {one for one in ALL if one[0] == "GET"}}
    for scope in PLAIN:
        may.setdefault(scope, named[scope] | named["monitor"])
    may["keys:7"] = {one for one in ALL if "/apps/" in one[1]} | THINGS
    may["keys:8"] = set()
    may["workspaces:ann"] = {one for one in ALL if one[1].startswith(f"{API}/workspaces")}
    return may


def thing_for(scope: str) -> str:
    """Return what verbs are asked about: a key, but by those who may do something with all things other than keys."""
    return "workspace/x" if scope in {"operate", "approve", "holds", "legal"} else "key/7/a"


async def answer(client: httpx2.AsyncClient, method: str, path: str, *, token: str, scope: str) -> int:
    for place, value in {**FILLED, "{address}": thing_for(scope)}.items():
        path = path.replace(place, value)
    if "/artifacts/" in path:
        path = path.replace("/vcr", "/vsc")
    if path == EVENTS:
        path += "?after=nowhere"  # a stream has no end; who is let in is told that there is no such place
    headers = {"Authorization": f"Bearer {token}"}
    body = None if method in {"GET", "HEAD"} else asked_of(path, scope)
    return (await client.request(method, path, headers=headers, json=body)).status_code


def asked_of(path: str, scope: str) -> dict[str, object]:
    """Return a body that asks for something: what a verb needs to know; nothing elsewhere."""
    verb = next((one for one in OPERATIONS if f"{API}{one.path}" == path), None)
    if verb is None:
        return {}
    given = {"address": thing_for(scope), "reason": "x", "time": "1h", "legal": scope == "legal"}
    return {name: value for name, value in given.items() if name in verb.asked.__struct_fields__}


@pytest.mark.parametrize("scope", SCOPES)
async def test_each_scope_is_let_in_to_exactly_what_the_page_says(api: conftest.API, scope: str) -> None:  # noqa: F811
    _, token = api.tokens.create("t", [scope])
    let_in = {one for one in ALL if await answer(api.stranger, *one, token=token, scope=scope) != 403}

    assert let_in == told()[scope]


@pytest.mark.parametrize("scope", ["monitor", "keys:7", "workspaces:ann"])
async def test_head_lets_in_whom_get_lets_in(api: conftest.API, scope: str) -> None:  # noqa: F811
    _, token = api.tokens.create("t", [scope])
    let_in = {
        ("GET", path)
        for method, path in ALL
        if method == "GET" and await answer(api.stranger, "HEAD", path, token=token, scope=scope) != 403
    }

    assert let_in == {one for one in told()[scope] if one[0] == "GET"}


async def test_without_a_token_nobody_is_let_in_to_anything(api: conftest.API) -> None:  # noqa: F811
    let_in = [one for one in ALL if await answer(api.stranger, *one, token="none", scope="none") not in {401, 429}]

    assert let_in == []


@pytest.mark.parametrize("scope", SCOPES)
async def test_the_openapi_document_names_the_scopes_that_are_let_in(api: conftest.API, scope: str) -> None:  # noqa: F811
    document = (await api.client.get(f"{API}/openapi.json")).json()
    word = {"keys:7": "keys:APP", "workspaces:ann": "workspaces:OWNER"}.get(scope, scope)
    named = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if word in operation["x-scopes"]
    }
    may = {one for one in told()[scope] if one in set(routes())}

    # Verbs about one thing let in whoever has the workspaces of an owner, and refuse what is not theirs.
    assert named - (THINGS if word == "workspaces:OWNER" else set()) == may


@pytest.mark.parametrize("scope", ["monitor", "operate", "approve", "holds", "legal"])
async def test_whoever_monitors_sees_no_value_of_anybody(api: conftest.API, scope: str) -> None:  # noqa: F811
    await api.keys.app(7).put("hunter2-key", "hunter2", 900)
    asked = {"name": "lab", "owner": "ann", "command": ["serve", "--password=hunter2"], "port": 9000, "start": False}
    assert (await api.client.post(f"{API}/workspaces", json=asked)).status_code == 201
    claim = {"metadata": {"name": "data", "annotations": {"local.lapse.dev/directory": "/hunter2"}}}
    assert (await api.client.post(f"{API}/claims", json=claim)).status_code == 201
    _, token = api.tokens.create("t", [scope])
    headers = {"Authorization": f"Bearer {token}"}
    paths = [path for method, path in sorted(told()[scope]) if method == "GET" and path != EVENTS]
    filled = [path.replace("{kind}", "vcr").replace("{address}", "workspace/lab") for path in paths]
    pages = [await api.stranger.get(path, headers=headers) for path in filled]
    pages.append(await api.stranger.post(f"{API}/workspaces/lab/hold", json={"reason": "x"}, headers=headers))
    pages.append(await api.stranger.post(f"{API}/workspaces/lab/stop", json={}, headers=headers))

    assert "lab" in pages[paths.index(f"{API}/workspaces")].text
    assert "data" in pages[paths.index(f"{API}/claims")].text
    assert [page.url for page in pages if "hunter2" in page.text] == []
