from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx2
import pytest

from lapse.engine.metrics import Metrics
from lapse.keys.errors import BackendUnavailableError
from lapse.web.probes import Readiness, create_probes
from lapse.web.security import AllowedHosts

if TYPE_CHECKING:
    from collections.abc import Callable


def probes(check: Callable[[], None], *, stopping: bool = False, seconds: float = 5) -> httpx2.AsyncClient:
    app = create_probes(
        readiness=Readiness(check, seconds=seconds),
        stopping=lambda: stopping,
        metrics=Metrics("test"),
        hosts=AllowedHosts("127.0.0.1", 8751),
    )
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost:8751")


def unavailable() -> None:
    raise BackendUnavailableError(backend="file:///x", problem="the disk is gone")


async def test_a_process_that_works_is_alive_and_ready() -> None:
    async with probes(lambda: None) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_a_store_that_fails_makes_it_not_ready_with_the_reason_but_alive() -> None:
    async with probes(unavailable) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "the disk is gone" in answer.json()["reason"]
        assert (await client.get("/healthz")).status_code == 200


async def test_a_store_that_hangs_is_asked_once_and_answered_for_in_time() -> None:
    release, asked = threading.Event(), []

    def hang() -> None:
        asked.append(1)
        release.wait(30)

    async with probes(hang, seconds=0.01) as client:
        answers = [await client.get("/readyz") for _ in range(20)]
        release.set()

    assert {answer.status_code for answer in answers} == {503}
    assert "did not answer" in answers[0].json()["reason"]
    assert len(asked) == 1


async def test_a_process_that_stops_is_not_ready() -> None:
    async with probes(lambda: None, stopping=True) as client:
        assert (await client.get("/readyz")).json()["reason"] == "the process is stopping"


async def test_a_defect_in_the_check_is_named_by_its_kind_only() -> None:
    def broken() -> None:
        raise RuntimeError("secret")

    async with probes(broken) as client:
        assert (await client.get("/readyz")).json()["reason"] == "a store failed with RuntimeError"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("DELETE", "/healthz", 405)])
async def test_anything_else_is_a_problem(method: str, path: str, status: int) -> None:
    async with probes(lambda: None) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_rebound_name_is_refused_here_too() -> None:
    async with probes(lambda: None) as client:
        assert (await client.get("/metrics", headers={"Host": "evil.example.org:8751"})).status_code == 403
