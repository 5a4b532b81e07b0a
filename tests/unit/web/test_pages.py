from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lapse.keys.errors import BackendUnavailableError
from lapse.web.pages.workspaces import span

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API


async def test_the_start_page_says_what_runs_where_things_are_and_what_to_try(client: httpx2.AsyncClient) -> None:
    page = (await client.get("/")).text

    assert "memory://" in page
    assert "keys-sweep" in page
    assert "No keys are stored" in page
    assert "http://localhost:8751/metrics" in page
    assert "lapse tokens owner --header | curl -H @- -i -X PUT http://localhost:8750/api/v1/apps/7/keys/" in page


async def test_the_start_page_shows_counts_and_never_the_name_or_value_of_a_key(
    client: httpx2.AsyncClient, api: API
) -> None:
    await api.keys.app(4711).put("secret-name", "secret-value", 900)
    answers = [(await client.get(path)).text for path in ("/", "/api/v1/status")]

    for text in answers:
        assert "4711" in text
        assert "secret" not in text


async def test_a_store_that_cannot_be_read_is_said_on_the_page_instead_of_breaking_it(
    client: httpx2.AsyncClient, api: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> None:
        raise BackendUnavailableError(backend="file:///keys.db", problem="the disk is gone")

    monkeypatch.setattr(type(api.keys.backend), "counts", unreadable)
    page, status = await client.get("/"), await client.get("/api/v1/status")

    assert page.status_code == status.status_code == 200
    assert "The store cannot be read." in page.text
    assert status.json()["keys"]["records"] is None
    assert "the disk is gone" in status.json()["keys"]["problem"]


async def test_records_are_counted_at_most_once_a_second(client: httpx2.AsyncClient, api: API) -> None:
    seen = []
    for _ in range(2):
        seen.append((await client.get("/api/v1/status")).json()["keys"]["records"])
        await api.keys.app(7).put("a", "x", 900)
    api.clock.advance(1)
    seen.append((await client.get("/api/v1/status")).json()["keys"]["records"])

    assert seen == [0, 0, 1]


@pytest.mark.parametrize(("path", "scripts"), [("/", ["/static/start.js"]), ("/api/v1/docs", [])])
async def test_pages_load_nothing_from_elsewhere_and_run_no_script_but_a_file_of_ours(
    client: httpx2.AsyncClient, path: str, scripts: list[str]
) -> None:
    response = await client.get(path)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', "\n".join(re.findall(r"<(?:link|img|script)[^>]*>", response.text)))
    assert loaded
    assert all(address.startswith("/static/") for address in loaded)
    assert re.findall(r"<script([^>]*)>(.*?)</script>", response.text, re.DOTALL) == [
        (f' type="module" src="{script}"', "") for script in scripts
    ]
    assert "style=" not in response.text
    assert not re.search(r"\son\w+=", response.text)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert ("script-src 'self'" in policy) is bool(scripts)
    for address in loaded:
        assert (await client.get(address)).status_code == 200


async def test_a_browser_without_a_session_is_told_how_to_get_one_and_nothing_else(api: API) -> None:
    await api.keys.app(4711).put("a", "x", 900)
    page = await api.stranger.get("/", headers={"Accept": "text/html,*/*"})

    assert page.status_code == 401
    assert "www-authenticate" not in page.headers, "a browser would ask for a password"
    assert "lapse open" in page.text
    assert "4711" not in page.text
    assert "memory://" not in page.text


@pytest.mark.parametrize("scopes", [["admin"], ["workspaces:ann", "read"]])
async def test_every_workspace_that_the_caller_can_open_has_a_button_whatever_tokens_there_are(
    api: API, scopes: list[str]
) -> None:
    asked = {"name": "lab", "owner": "ann", "command": ["true"], "port": 9000, "start": False}
    assert (await api.client.post("/api/v1/workspaces", json=asked)).status_code == 201
    _, token = api.tokens.create("t", scopes)
    _, reader = api.tokens.create("r", ["read"])
    owner, other = await api.client.get("/"), await api.stranger.get("/", headers={"Authorization": f"Bearer {token}"})
    without = await api.stranger.get("/", headers={"Authorization": f"Bearer {reader}"})

    assert [answer.text.count('data-open="lab"') for answer in (owner, other, without)] == [1, 1, 0]
    assert "lapse workspaces open NAME" in without.text


async def test_the_docs_page_lists_every_operation_of_the_openapi_document(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    page = (await client.get("/api/v1/docs")).text

    assert document["openapi"].startswith("3.1")
    assert document["paths"]
    for path, methods in document["paths"].items():
        assert path in page
        for operation in methods.values():
            assert operation["summary"] in page


async def test_times_of_the_status_are_described_as_such(client: httpx2.AsyncClient) -> None:
    schemas = (await client.get("/api/v1/openapi.json")).json()["components"]["schemas"]
    optional = [
        schemas["LoopView"]["properties"][name]["anyOf"] for name in ("last_run_at", "last_success_at", "next_run_at")
    ]
    optional.append(schemas["Status"]["properties"]["started_at"]["anyOf"])
    time = {"type": "string", "format": "date-time"}
    assert (optional, schemas["Status"]["properties"]["now"]) == ([[time, {"type": "null"}]] * 4, time)


async def test_the_openapi_document_describes_bodies_errors_and_tokens(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    put = document["paths"]["/api/v1/apps/{app}/keys/{key}"]["put"]
    write = document["components"]["schemas"]["Write"]

    assert write["properties"]["ttl_seconds"]["maximum"] == 31536000
    assert set(write["required"]) == {"value", "ttl_seconds"}
    assert "application/problem+json" in put["responses"]["4XX"]["content"]
    assert "422" not in put["responses"]
    assert {"app", "key", "If-Match", "If-None-Match"} == {one["name"] for one in put["parameters"]}
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 ms"),
        (0.2244, "224 ms"),
        (2.46, "2.5 s"),
        (45.9, "45s"),
        (200, "3m20s"),
        (3900, "1h5m"),
        (1047600, "12d3h"),
    ],
)
def test_lengths_of_time_are_printed_for_people_who_glance(seconds: float, text: str) -> None:
    assert span(seconds) == text
