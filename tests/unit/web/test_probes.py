from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx2
import pytest

from lapse.engine.running.metrics import Metrics
from lapse.keys.errors import BackendUnavailableError
from lapse.web.server.probes import Readiness, create_probes
from lapse.web.server.security import AllowedHosts

if TYPE_CHECKING:
    from collections.abc import Callable


def probes(check: Callable[[], None], *, stopping: bool = False, seconds: float = 5) -> httpx2.AsyncClient:
    app = create_probes(
        readiness=Readiness({"keys": check, "objects": lambda: None}, seconds=seconds),
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
        assert (await client.get("/readyz")).json() == {"status": "ready", "checks": {"keys": "ok", "objects": "ok"}}


async def test_a_store_that_fails_makes_it_not_ready_but_alive_and_only_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with probes(unavailable) as client:
        answers = [await client.get("/readyz") for _ in range(3)]
        assert {answer.status_code for answer in answers} == {503}
        told = {"status": "not ready", "checks": {"keys": "failed", "objects": "ok"}}
        assert [answer.json() for answer in answers] == [told] * 3
        logged = [record.__dict__ for record in caplog.records if record.message == "not_ready"]
        assert [(one["check"], "file:///x" in one["reason"]) for one in logged] == [("keys", True)]
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
    assert answers[0].json()["checks"] == {"keys": "failed", "objects": "failed"}
    assert len(asked) == 1


async def test_a_process_that_stops_is_not_ready() -> None:
    async with probes(lambda: None, stopping=True) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "stopping"})


async def test_a_defect_in_the_check_is_logged_by_its_kind_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("secret")

    async with probes(broken) as client:
        assert (await client.get("/readyz")).json()["checks"]["keys"] == "failed"
    assert [record.__dict__["reason"] for record in caplog.records if record.message == "not_ready"] == ["RuntimeError"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("DELETE", "/healthz", 405)])
async def test_anything_else_is_a_problem(method: str, path: str, status: int) -> None:
    async with probes(lambda: None) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_rebound_name_is_refused_here_too() -> None:
    async with probes(lambda: None) as client:
        assert (await client.get("/metrics", headers={"Host": "evil.example.org:8751"})).status_code == 403
