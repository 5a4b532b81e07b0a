"""Asking about a capture's targets, against a server that answers as told: doubt denies, and everything is bounded."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.auth.access import AT_ONCE
from lapse.kube.auth.admission import Person
from lapse.requests import admission
from lapse.requests.admission import RequestJudge, RequestReview
from lapse.requests.api.kinds import ObjectRef
from tests.unit.kube.faulty import FaultyServer, client_of, cuts, keeps_silent, refuses, says

if TYPE_CHECKING:
    from aiohttp import web

    from lapse.kube.auth.admission import Ruling
    from tests.unit.kube.faulty import Answerer

KINDS = says(200, {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]})
YES = says(201, {"metadata": {}, "status": {"allowed": True}})
NO = says(201, {"metadata": {}, "status": {"allowed": False, "reason": "no role says so"}})


def capture_of(*names: str, kind: str = "ConfigMap") -> RequestReview:
    targets = tuple(ObjectRef(api_version="v1", kind=kind, name=name) for name in names)
    return RequestReview(Person(username="jane"), "shop", targets)


async def ruling(
    *script: Answerer, review: RequestReview | None = None, seconds: float = 5
) -> tuple[Ruling, FaultyServer]:
    server = FaultyServer(*script)
    async with client_of(server) as client:
        return await RequestJudge(client).judge_capture(review or capture_of("a"), seconds=seconds), server


async def test_every_target_is_asked_about_once_and_every_yes_together_is_a_yes() -> None:
    found, server = await ruling(KINDS, YES, review=capture_of("a", "b"))

    assert found.allowed
    assert [(method, path) for method, path, _, _ in server.asked] == [
        ("GET", "/api/v1"),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
    ]
    specs = [json.loads(body)["spec"] for *_, body in server.asked[1:]]
    assert sorted(spec["resourceAttributes"]["name"] for spec in specs) == ["a", "b"]


async def test_one_no_denies() -> None:
    found, _ = await ruling(KINDS, YES, NO, YES, review=capture_of("a", "b", "c"))
    assert (found.allowed, found.failed) == (False, False)
    assert found.message.startswith("jane may not get ConfigMap shop/")


async def test_a_kind_that_the_cluster_does_not_know_is_denied_and_nobody_is_asked_about_it() -> None:
    found, server = await ruling(KINDS, review=capture_of("a", kind="Gadget"))
    assert (found.allowed, found.failed) == (False, False)
    assert "does not know the kind Gadget of v1" in found.message
    assert {method for method, *_ in server.asked} == {"GET"}


@pytest.mark.parametrize(
    "answer",
    [
        refuses(500, "InternalError", "broken"),
        refuses(403, "Forbidden", "you may not create subjectaccessreviews"),
        refuses(401, "Unauthorized"),
        refuses(429, "TooManyRequests"),
        refuses(422, "Invalid"),
        refuses(404, "NotFound"),
        says(200, b"not json"),
        says(201, {"metadata": {}}),
        says(201, {"metadata": {}, "status": {}}),
        cuts(),
    ],
    ids=["500", "403", "401", "429", "422", "404", "no JSON", "no status", "neither yes nor no", "cut"],
)
@pytest.mark.parametrize("at", ["the kinds", "the question"])
async def test_what_is_no_answer_denies_and_says_that_nothing_is_known(at: str, answer: Answerer) -> None:
    found, _ = await ruling(*([answer] if at == "the kinds" else [KINDS, answer]))
    assert not found.allowed
    assert found.failed or "does not know the kind" in found.message


async def test_a_failure_among_many_answers_denies_and_ends_the_asking() -> None:
    names = [f"web-{number}" for number in range(200)]
    found, server = await ruling(KINDS, refuses(500, "InternalError", "broken"), review=capture_of(*names))

    assert found.failed
    assert len(server.asked) <= 1 + AT_ONCE


@pytest.mark.parametrize("before", [[], [KINDS]], ids=["the kinds", "the question"])
async def test_a_cluster_that_is_too_slow_denies_in_time(before: list[Answerer]) -> None:
    found, _ = await ruling(*before, keeps_silent(), seconds=0.1)
    assert found.failed
    assert "within 0.1 s" in found.message


async def test_so_many_questions_are_under_way_at_once_and_no_more() -> None:
    under_way, most, all_there = 0, 0, asyncio.Event()

    async def slow_yes(request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most >= AT_ONCE:
            all_there.set()
        await all_there.wait()
        under_way -= 1
        return await YES(request)

    found, server = await ruling(KINDS, slow_yes, review=capture_of(*(f"web-{n}" for n in range(3 * AT_ONCE))))

    assert found.allowed
    assert most == AT_ONCE
    assert len(server.asked) == 1 + 3 * AT_ONCE


async def test_who_was_denied_what_stands_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def __getattr__(self, _level: str) -> Any:  # noqa: ANN401 - a logger's method
            return lambda event, **about: events.append((event, about))

    monkeypatch.setattr(admission, "_log", Log())
    await ruling(KINDS, NO)
    ((event, about),) = events
    assert event == "capture_denied"
    assert (about["user"], about["namespace"]) == ("jane", "shop")
    assert "ConfigMap shop/a (v1)" in about["reason"]
