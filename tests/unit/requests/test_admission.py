from __future__ import annotations

import json
from typing import Any

import pytest

from lapse.kube.auth.admission import (
    AccessQuestion,
    NotAReviewError,
    Person,
    access_review,
    read_answer,
    read_request,
    response,
)
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import untyped
from lapse.requests.admission import (
    MAX_TARGETS,
    RequestReview,
    decide,
    failure,
    first_look,
    questions,
    review_of,
    unknown_kind,
)

CONFIG_MAP = untyped("v1", "ConfigMap", "configmaps")
DEPLOYMENT = untyped("apps/v1", "Deployment", "deployments")
NODE = untyped("v1", "Node", "nodes", namespaced=False)
KINDS = {(kind.api_version, kind.kind): kind for kind in (CONFIG_MAP, DEPLOYMENT, NODE)}
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
USER = {
    "username": "jane@example.org",
    "uid": "42",
    "groups": ["writers", "system:authenticated"],
    "extra": {"scopes.example.org/some": ["a", "b"], "empty": None},
}


def read_review(body: bytes) -> RequestReview:
    return review_of(read_request(body))


def target(name: str = "web", kind: str = "ConfigMap", api_version: str = "v1") -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "name": name}


def sent(*targets: Any, **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    """What the API server sends about a capture of these, with fields of the request replaced."""
    capture = {"apiVersion": "state-snapshotter.deckhouse.io/v1alpha1", "kind": "ManifestCaptureRequest"}
    fields: dict[str, Any] = {
        "uid": UID,
        "kind": {"group": "state-snapshotter.deckhouse.io", "version": "v1alpha1", "kind": "ManifestCaptureRequest"},
        "resource": {
            "group": "state-snapshotter.deckhouse.io",
            "version": "v1alpha1",
            "resource": "manifestcapturerequests",
        },
        "operation": "CREATE",
        "namespace": "shop",
        "name": "nightly",
        "userInfo": USER,
        "object": {**capture, "metadata": {"name": "nightly"}, "spec": {"targets": list(targets)}},
        "oldObject": None,
        "dryRun": False,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields | request}
    return json.dumps(review).encode()


def question(name: str = "web", namespace: str = "shop") -> AccessQuestion:
    return AccessQuestion("", "v1", "configmaps", namespace, name, "ConfigMap")


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}',
        sent(target()).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
        sent(target()).replace(b"AdmissionReview", b"ConversionReview"),
        sent(target(), uid=""),
        sent(target(), uid=7),
        sent(target(), userInfo=None),
        sent(target(), userInfo={"groups": "writers"}),
        sent(target(), userInfo={"extra": {"a": "b"}}),
        sent(target())[:-1],
    ],
    ids=range(17),
)
def test_what_is_no_review_is_an_error_of_the_caller(body: bytes) -> None:
    with pytest.raises(NotAReviewError, match=r"^The body is not an AdmissionReview of admission\.k8s\.io/v1: "):
        read_review(body)


@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({"operation": "UPDATE"}, "only CREATE is judged"),
        ({"operation": "DELETE"}, "only CREATE is judged"),
        ({"operation": "create"}, "only CREATE is judged"),
        ({"kind": {"group": "", "version": "v1", "kind": "Secret"}}, "only ManifestCaptureRequest of state-snap"),
        (
            {"kind": {"group": "state-snapshotter.deckhouse.io", "version": "v2", "kind": "ManifestCaptureRequest"}},
            "only ManifestCaptureRequest of state-snap",
        ),
        ({"subResource": "status"}, "only ManifestCaptureRequest of state-snap"),
        ({"namespace": ""}, "names no namespace"),
        ({"object": None}, "its object is not a ManifestCaptureRequest"),
        ({"object": {}}, "its object is not a ManifestCaptureRequest"),
        ({"object": {"spec": {"targets": "all"}}}, "its object is not a ManifestCaptureRequest"),
        ({"object": {"spec": {"targets": [{"kind": "Secret", "name": "a"}]}}}, "its object is not a Manifest"),
    ],
)
def test_a_review_of_anything_but_the_creation_of_a_capture_is_denied(
    request_fields: dict[str, Any], problem: str
) -> None:
    review = read_review(sent(target(), **request_fields))
    ruling = first_look(review)

    assert ruling is not None
    assert (ruling.allowed, ruling.failed, ruling.code) == (False, False, 400)
    assert problem in ruling.message
    assert response(UID, ruling)["response"]["uid"] == UID


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([target("a")], [("", "v1", "configmaps", "shop", "a", "ConfigMap")]),
        ([target("a"), target("a")], [("", "v1", "configmaps", "shop", "a", "ConfigMap")]),
        (
            [target("a"), target("b"), target("a", "Deployment", "apps/v1")],
            [
                ("", "v1", "configmaps", "shop", "a", "ConfigMap"),
                ("", "v1", "configmaps", "shop", "b", "ConfigMap"),
                ("apps", "v1", "deployments", "shop", "a", "Deployment"),
            ],
        ),
        ([target("worker-1", "Node")], [("", "v1", "nodes", "", "worker-1", "Node")]),
        ([target("a") | {"namespace": "other"}], [("", "v1", "configmaps", "shop", "a", "ConfigMap")]),
        (
            [target("system:controller:a.b_c")],
            [("", "v1", "configmaps", "shop", "system:controller:a.b_c", "ConfigMap")],
        ),
    ],
    ids=["one", "the same twice", "three", "of the whole cluster", "in the request's namespace", "an odd name"],
)
def test_every_distinct_target_is_one_question(targets: list[dict[str, str]], expected: list[tuple[str, ...]]) -> None:
    review = read_review(sent(*targets))

    assert first_look(review) is None
    assert list(questions(review, KINDS)) == [(*one, "get") for one in expected]


@pytest.mark.parametrize(
    "odd",
    [
        target(""),
        target("."),
        target(".."),
        target("web/status"),
        target("../../kube-system/secrets/token"),
        target("web%2fstatus"),
        target("web\n"),
        target("web", kind="Config/Map"),
        target("web", api_version=""),
        target("web", api_version="../api/v1"),
        target("web", api_version="apps/v1/deployments/web"),
        target("web", api_version="apps/"),
        target("web", api_version="v1?a=b"),
        target("web", api_version="v1%2e"),
    ],
    ids=json.dumps,
)
def test_a_target_that_could_mean_another_address_is_denied_before_anything_is_asked(odd: dict[str, str]) -> None:
    ruling = first_look(read_review(sent(target(), odd)))

    assert ruling is not None
    assert (ruling.allowed, ruling.code) == (False, 403)
    assert "that no object can have" in ruling.message
    assert "\n" not in ruling.message


def test_more_targets_than_can_be_asked_about_are_denied_and_the_same_one_counts_once() -> None:
    most = [target(f"web-{number}") for number in range(MAX_TARGETS)]
    assert first_look(read_review(sent(*most, *most))) is None

    ruling = first_look(read_review(sent(*most, target("one-more"))))
    assert ruling is not None
    assert (ruling.allowed, ruling.code) == (False, 403)
    assert f"{MAX_TARGETS + 1} different targets" in ruling.message


def test_the_person_goes_into_the_question_as_the_api_server_knows_them() -> None:
    review = read_review(sent(target()))
    (one,) = questions(review, KINDS)

    assert access_review(review.person, one) == {
        "metadata": {},
        "spec": {
            "user": "jane@example.org",
            "uid": "42",
            "groups": ["writers", "system:authenticated"],
            "extra": {"scopes.example.org/some": ["a", "b"], "empty": []},
            "resourceAttributes": {
                "verb": "get",
                "group": "",
                "version": "v1",
                "resource": "configmaps",
                "namespace": "shop",
                "name": "web",
            },
        },
    }


def test_what_a_person_does_not_have_is_not_asked_for() -> None:
    assert access_review(Person(username="jane"), question())["spec"].keys() == {"user", "resourceAttributes"}


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"allowed": True}, True),
        ({"allowed": True, "evaluationError": "a role is missing"}, True),
        ({"allowed": False}, False),
        ({"allowed": False, "denied": True}, False),
        ({"allowed": True, "denied": True}, False),
    ],
)
def test_only_a_yes_is_a_yes(status: dict[str, Any], expected: bool) -> None:  # noqa: FBT001 - a column
    assert read_answer({"status": status}) is expected


@pytest.mark.parametrize("body", [{}, {"status": None}, {"status": {}}, {"status": {"allowed": "true"}}])
def test_what_says_neither_yes_nor_no_is_no_answer(body: dict[str, Any]) -> None:
    with pytest.raises(StoreUnavailableError):
        read_answer(body)


# --- rulings ----------------------------------------------------------------------------------------------------------


def test_a_capture_is_allowed_when_every_answer_is_yes() -> None:
    review, asked = read_review(sent(target())), [question("a"), question("b")]
    ruling = decide(review, asked, dict.fromkeys(asked, True))

    assert response(UID, ruling) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True},
    }


def test_a_denial_names_the_person_and_exactly_what_they_may_not_read() -> None:
    review = read_review(sent(target()))
    asked = [
        question("a"),
        question("b"),
        AccessQuestion("apps", "v1", "deployments", "shop", "c", "Deployment"),
        AccessQuestion("", "v1", "nodes", "", "worker-1", "Node"),
    ]
    ruling = decide(review, asked, {one: one.name == "a" for one in asked})

    assert response(UID, ruling)["response"] == {
        "uid": UID,
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "jane@example.org may not get ConfigMap shop/b (v1), Deployment shop/c (apps/v1), "
            "Node worker-1 (v1); a capture may name only what its author may read",
        },
    }


def test_a_long_denial_names_ten_and_counts_the_rest() -> None:
    asked = [question(f"web-{number:02}") for number in range(25)]
    ruling = decide(read_review(sent(target())), asked, dict.fromkeys(asked, False))

    assert "web-09 (v1) and 15 more;" in ruling.message
    assert "web-10" not in ruling.message


@pytest.mark.parametrize("asked", [[], [question("a"), question("b")]], ids=["no question", "one without an answer"])
def test_a_question_that_was_not_answered_is_no_yes(asked: list[AccessQuestion]) -> None:
    ruling = decide(read_review(sent(target())), asked, {question("a"): True})
    assert (ruling.allowed, ruling.failed) == (False, True)


def test_an_unknown_kind_and_a_failure_are_denied_with_their_reason() -> None:
    assert response("7", unknown_kind("example.org/v1", "Gadget"))["response"]["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "the cluster does not know the kind Gadget of example.org/v1, so the right to read it "
        "cannot be checked",
    }
    assert response("7", failure("no connection."))["response"] == {
        "uid": "7",
        "allowed": False,
        "status": {
            "code": 500,
            "reason": "InternalError",
            "message": "the right to read the targets cannot be checked: no connection; try again later",
        },
    }
