"""Which requests are counted, under which labels, and until when their time is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lapse.core.clock import VirtualClock
from lapse.engine.running.metrics import OTHER, UNMATCHED, Metrics
from lapse.web.server.measurement import MeasuredApp
from tests.unit.engine.harness import series

if TYPE_CHECKING:
    import httpx2
    from starlette.types import Message, Receive, Scope, Send

    from tests.unit.web.conftest import API

KEY = "/api/v1/apps/{app}/keys/{key}"


def counted(metrics: Metrics, method: str, route: str, status: str) -> float:
    return series(metrics)[f'lapse_http_requests_total{{method="{method}",route="{route}",status="{status}"}}']


def changed(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return by how much each series of requests has grown."""
    grown = {
        name: value - before[name] for name, value in after.items() if name.startswith("lapse_http_requests_total")
    }
    return {name: value for name, value in grown.items() if value}


async def test_a_request_is_counted_by_the_template_of_its_route_and_never_by_its_path(api: API) -> None:
    await api.client.put("/api/v1/apps/7/keys/secret%2Fkey", json={"value": "x", "ttl_seconds": 900})
    await api.client.get("/api/v1/apps/7/keys/secret%2Fkey")
    await api.client.get("/api/v1/apps/8/keys/other")

    assert counted(api.metrics, "PUT", KEY, "2xx") == 1
    assert counted(api.metrics, "GET", KEY, "2xx") == 1
    assert counted(api.metrics, "GET", KEY, "4xx") == 1
    assert series(api.metrics)[f'lapse_http_request_duration_seconds_count{{method="GET",route="{KEY}"}}'] == 2
    assert "secret" not in api.metrics.exposition().decode()


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/", "/", "2xx"),
        ("GET", "/static/lapse.css", "/static", "2xx"),
        ("GET", "/static/none.css", "/static", "4xx"),
        ("GET", "/api/v1/status", "/api/v1/status", "2xx"),
        ("DELETE", "/api/v1/status", UNMATCHED, "4xx"),
        ("GET", "/api/v1/none", UNMATCHED, "4xx"),
        ("BREW", "/", UNMATCHED, "4xx"),
    ],
)
async def test_each_request_is_counted_once(api: API, method: str, path: str, route: str, status: str) -> None:
    before = series(api.metrics)
    await api.client.request(method, path)

    label = OTHER if method == "BREW" else method
    expected = f'lapse_http_requests_total{{method="{label}",route="{route}",status="{status}"}}'
    assert changed(before, series(api.metrics)) == {expected: 1}


async def test_who_is_refused_before_any_route_is_counted_without_one(api: API, stranger: httpx2.AsyncClient) -> None:
    before = series(api.metrics)
    await stranger.get("/api/v1/status")

    expected = f'lapse_http_requests_total{{method="GET",route="{UNMATCHED}",status="4xx"}}'
    assert changed(before, series(api.metrics)) == {expected: 1}


async def test_a_thousand_odd_paths_and_methods_add_no_series(api: API, stranger: httpx2.AsyncClient) -> None:
    before = series(api.metrics).keys()
    for number in range(500):
        await api.client.get(f"/odd/{number}")
        await stranger.request(f"ODD{number}", f"/api/v1/apps/{number}/keys/{number}")

    assert series(api.metrics).keys() == before
    assert counted(api.metrics, "GET", UNMATCHED, "4xx") == 500
    assert counted(api.metrics, OTHER, UNMATCHED, "4xx") == 500


# --- time -------------------------------------------------------------------------------------------------------------


async def ask(app: MeasuredApp) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        return

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)


async def test_the_time_ends_with_the_head_of_the_answer() -> None:
    clock, metrics = VirtualClock(), Metrics("test")

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = route
        clock.advance(0.3)
        await send({"type": "http.response.start", "status": 200})
        clock.advance(3_600)
        await send({"type": "http.response.body"})

    route = Route("/slow", PlainTextResponse, methods=["GET"])
    await ask(MeasuredApp(slow, metrics, routes=[("", [route])], clock=clock))

    assert series(metrics)['lapse_http_request_duration_seconds_sum{method="GET",route="/slow"}'] == pytest.approx(0.3)


async def test_a_request_whose_client_is_gone_is_not_counted() -> None:
    metrics = Metrics("test")

    async def unheard(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    before = series(metrics)
    await ask(MeasuredApp(unheard, metrics, routes=[]))

    assert not changed(before | dict.fromkeys(series(metrics), 0.0), series(metrics))
