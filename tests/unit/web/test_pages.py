from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.web.pages.workspaces import span

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API


async def test_records_are_counted_at_most_once_a_second(client: httpx2.AsyncClient, api: API) -> None:
    seen = []
    for _ in range(2):
        seen.append((await client.get("/api/v1/status")).json()["keys"]["records"])
        await api.keys.app(7).put("a", "x", 900)
    api.clock.advance(1)
    seen.append((await client.get("/api/v1/status")).json()["keys"]["records"])

    assert seen == [0, 0, 1]


async def test_a_browser_without_a_session_is_told_how_to_get_one_and_nothing_else(api: API) -> None:
    await api.keys.app(4711).put("a", "x", 900)
    page = await api.stranger.get("/", headers={"Accept": "text/html,*/*"})

    assert page.status_code == 401
    assert "www-authenticate" not in page.headers, "a browser would ask for a password"
    assert "lapse open" in page.text
    assert "4711" not in page.text
    assert "memory://" not in page.text


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
    optional.append(schemas["StatusView"]["properties"]["started_at"]["anyOf"])
    time = {"type": "string", "format": "date-time"}
    assert (optional, schemas["StatusView"]["properties"]["now"]) == ([[time, {"type": "null"}]] * 4, time)


async def test_the_openapi_document_describes_bodies_errors_and_tokens(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    put = document["paths"]["/api/v1/apps/{app}/keys/{key}"]["put"]
    write = document["components"]["schemas"]["Write"]

    assert write["properties"]["ttl_seconds"]["maximum"] == 31536000
    assert set(write["required"]) == {"value", "ttl_seconds"}
    assert put["responses"]["412"] == {"$ref": "#/components/responses/412"}
    assert "application/problem+json" in document["components"]["responses"]["412"]["content"]
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
