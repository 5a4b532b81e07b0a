"""Asking about what requests name, against a server that answers as told: doubt denies, and everything is bounded."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.auth.access import AT_ONCE
from lapse.kube.auth.admission import read_request
from lapse.requests import admission
from lapse.requests.admission import RequestJudge
from tests.unit.kube.faulty import FaultyServer, client_of, cuts, keeps_silent, refuses, says
from tests.unit.requests.test_admission import claim, sent, sent_capture, sent_restore, snapshot, target

if TYPE_CHECKING:
    from aiohttp import web

    from lapse.kube.auth.admission import Ruling
    from tests.unit.kube.faulty import Answerer

RESOURCES = [
    {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
    {"name": "persistentvolumeclaims", "kind": "PersistentVolumeClaim", "namespaced": True},
    {"name": "persistentvolumes", "kind": "PersistentVolume", "namespaced": False},
]
KINDS = says(200, {"resources": RESOURCES})
CONTENTS = says(
    200, {"resources": [{"name": "volumesnapshotcontents", "kind": "VolumeSnapshotContent", "namespaced": False}]}
)
YES = says(201, {"metadata": {}, "status": {"allowed": True}})
NO = says(201, {"metadata": {}, "status": {"allowed": False, "reason": "no role says so"}})


def capture_of(*names: str, kind: str = "ConfigMap") -> bytes:
    return sent(*(target(name, kind) for name in names), userInfo={"username": "jane"})


async def ruling(*script: Answerer, review: bytes | None = None, seconds: float = 5) -> tuple[Ruling, FaultyServer]:
    server, request = FaultyServer(*script), read_request(review or capture_of("a"))
    async with client_of(server) as client:
        return await RequestJudge(client).judge(request, seconds=seconds), server


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
    assert found.message.startswith("jane may not get configmaps/")


ANN = {"username": "ann"}
VOLUMES = [
    (
        sent_capture(claim(), "Detach", userInfo=ANN),
        [KINDS],
        (
            "ann may not delete persistentvolumeclaims/data in shop; a Detach deletes the claim, so its author must be "
            "allowed to"
        ),
    ),
    (
        sent_capture(claim(), userInfo=ANN),
        [KINDS],
        "ann may not get persistentvolumeclaims/data in shop; a capture may name only what its author may read",
    ),
    (
        sent_restore(snapshot(), userInfo=ANN),
        [CONTENTS],
        (
            "ann may not get volumesnapshotcontents.snapshot.storage.k8s.io/snap-1 in the whole cluster; a restore may "
            "name only a source that its author may read"
        ),
    ),
    (
        sent_restore(target("pv-1", "PersistentVolume"), userInfo=ANN),
        [KINDS],
        (
            "ann may not get persistentvolumes/pv-1 in the whole cluster; a restore may name only a source that its "
            "author may read"
        ),
    ),
]


@pytest.mark.parametrize(
    ("review", "kinds", "message"), VOLUMES, ids=["detach", "snapshot", "restore of a snapshot", "restore of a volume"]
)
async def test_a_request_about_a_volume_is_ruled_by_one_answer(
    review: bytes, kinds: list[Answerer], message: str
) -> None:
    found, server = await ruling(*kinds, YES, review=review)
    assert found.allowed
    assert [method for method, *_ in server.asked] == ["GET", "POST"]

    found, _ = await ruling(*kinds, NO, review=review)
    assert (found.code, found.message) == (403, message)

    found, _ = await ruling(*kinds, refuses(500, "InternalError", "broken"), review=review)
    assert found.failed
    found, _ = await ruling(*kinds, keeps_silent(), review=review, seconds=0.1)
    assert found.failed


async def test_a_cluster_without_snapshots_restores_none() -> None:
    found, server = await ruling(refuses(404, "NotFound"), review=sent_restore(snapshot()))
    assert (found.allowed, found.failed) == (False, False)
    assert "does not know the kind VolumeSnapshotContent of snapshot.storage.k8s.io/v1" in found.message
    assert {method for method, *_ in server.asked} == {"GET"}


async def test_what_is_refused_without_a_question_asks_none() -> None:
    for review in (
        sent_capture(claim(), "Clone"),
        sent_capture(claim("..")),
        sent_restore(target()),
        sent(object=None),
    ):
        found, server = await ruling(YES, review=review)
        assert (found.allowed, server.asked) == (False, [])


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
    assert event == "request_denied"
    assert (about["user"], about["kind"], about["namespace"]) == ("jane", "ManifestCaptureRequest", "shop")
    assert "get configmaps/a in shop" in about["reason"]
