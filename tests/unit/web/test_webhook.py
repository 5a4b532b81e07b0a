"""The webhook's HTTP side, without sockets: what is a review is answered with one, all else with a problem."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx2
import pytest

from lapse.engine.running.metrics import Metrics
from lapse.kube.auth.admission import Ruling, failure
from lapse.web.api.webhook import MAX_BODY_BYTES, create_webhook, time_to_answer
from lapse.web.api.webhook import REQUESTS as PATH
from tests.unit.requests.test_admission import sent, target

if TYPE_CHECKING:
    from lapse.kube.auth.admission import AdmissionRequest

JSON = {"Content-Type": "application/json"}


class Always:
    """A judge who says the same to all, and remembers how long each may take."""

    domain = "requests"

    def __init__(self, ruling: Ruling | Exception) -> None:
        self.ruling = ruling
        self.seconds: list[float] = []

    async def judge(self, request: AdmissionRequest, *, seconds: float) -> Ruling:
        self.seconds.append(seconds)
        if isinstance(self.ruling, Exception):
            raise self.ruling
        return self.ruling


async def post(
    judge: Always, body: bytes, *, path: str = PATH, headers: dict[str, str] | None = None, method: str = "POST"
) -> httpx2.Response:
    app = create_webhook({PATH: judge}, Metrics("0"))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="https://lapse-webhook.lapse-system.svc") as client:
        return await client.request(method, path, content=body, headers=JSON if headers is None else headers)


@pytest.mark.parametrize(
    ("ruling", "allowed", "code"),
    [(Ruling(), True, None), (Ruling(403, "no"), False, 403), (failure("broken"), False, 500)],
    ids=["yes", "no", "failure"],
)
async def test_a_review_is_answered_with_one(ruling: Ruling, allowed: bool, code: int | None) -> None:  # noqa: FBT001 - a column
    answer = await post(Always(ruling), sent(target()))

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()["response"]
    assert (found["allowed"], found.get("status", {}).get("code")) == (allowed, code)
    assert found["uid"] == json.loads(sent(target()))["request"]["uid"]


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "code"),
    [
        (b"garbage", PATH, JSON, 400, "BadReviewError"),
        (b"", PATH, JSON, 400, "BadReviewError"),
        (b"\xff", PATH, JSON, 400, "BadReviewError"),
        (sent(target()), "/", JSON, 404, "NoSuchRouteError"),
        (sent(target()), f"{PATH}/", JSON, 404, "NoSuchRouteError"),
        (sent(target()), PATH, {"Content-Type": "text/plain"}, 415, "NotJSONError"),
        (b" " * (MAX_BODY_BYTES + 1), PATH, JSON, 413, "BodyTooLargeError"),
    ],
)
async def test_anything_else_is_a_problem_and_nobody_is_asked(
    body: bytes, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    judge = Always(Ruling())
    answer = await post(judge, body, path=path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert judge.seconds == []


async def test_another_method_is_refused() -> None:
    answer = await post(Always(Ruling()), b"", method="GET")
    assert (answer.status_code, answer.json()["code"]) == (405, "MethodNotAllowedError")


async def test_a_defect_is_no_yes_and_shows_no_traceback() -> None:
    answer = await post(Always(ZeroDivisionError("secret")), sent(target()))
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [("10s", 9), ("30s", 29), ("1s", 0.5), ("1m0s", 29), ("never", 29), (None, 9), ("soon", 9), ("0s", 9), ("-5s", 9)],
)
async def test_the_answer_is_there_before_the_api_server_stops_waiting(waits: str | None, seconds: float) -> None:
    judge = Always(Ruling())
    await post(judge, sent(target()), path=PATH if waits is None else f"{PATH}?timeout={waits}")
    assert judge.seconds == [seconds]
    assert time_to_answer(waits) == seconds
