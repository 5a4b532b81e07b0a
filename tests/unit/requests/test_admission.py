from __future__ import annotations

import json
from typing import Any

import pytest

from lapse.kube.auth.admission import (
    AccessQuestion,
    NotAReviewError,
    Person,
    Ruling,
    access_review,
    decide,
    failure,
    read_answer,
    read_request,
    response,
    unknown_kind,
)
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import untyped
from lapse.requests.admission import MAX_TARGETS, Demand, demand_of, questions
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT

CONFIG_MAP = untyped("v1", "ConfigMap", "configmaps")
DEPLOYMENT = untyped("apps/v1", "Deployment", "deployments")
NODE = untyped("v1", "Node", "nodes", namespaced=False)
UPSTREAM = (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT)
KINDS = {(kind.api_version, kind.kind): kind for kind in (CONFIG_MAP, DEPLOYMENT, NODE, *UPSTREAM)}
BECAUSE = "a capture may name only what its author may read"
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
USER = {
    "username": "jane@example.org",
    "uid": "42",
    "groups": ["writers", "system:authenticated"],
    "extra": {"scopes.example.org/some": ["a", "b"], "empty": None},
}


def demand_in(body: bytes) -> Demand:
    found = demand_of(read_request(body))
    assert isinstance(found, Demand)
    return found


def refusal_of(body: bytes) -> Ruling:
    found = demand_of(read_request(body))
    assert isinstance(found, Ruling)
    assert not found.allowed
    assert not found.failed
    return found


def target(name: str = "web", kind: str = "ConfigMap", api_version: str = "v1") -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "name": name}


def claim(name: str = "data") -> dict[str, str]:
    return target(name, "PersistentVolumeClaim") | {"uid": "1"}


def snapshot(name: str = "snap-1") -> dict[str, str]:
    return target(name, "VolumeSnapshotContent", "snapshot.storage.k8s.io/v1")


def sent(*targets: Any, **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    """What the API server sends about a manifest capture of these, with fields of the request replaced."""
    kind = {"group": "state-snapshotter.deckhouse.io", "version": "v1alpha1", "kind": "ManifestCaptureRequest"}
    return _sent(kind, {"targets": list(targets)}, **request)


def sent_capture(target: Any, mode: Any = "Snapshot", **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    """The same about the capture of a volume."""
    kind = {"group": "storage.deckhouse.io", "version": "v1alpha1", "kind": "VolumeCaptureRequest"}
    return _sent(kind, {"mode": mode, "target": target}, **request)


def sent_restore(source: Any, **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    """The same about a restore."""
    kind = {"group": "storage.deckhouse.io", "version": "v1alpha1", "kind": "VolumeRestoreRequest"}
    return _sent(kind, {"sourceRef": source, "pvcTemplate": {"metadata": {"name": "restored"}}}, **request)


def _sent(kind: dict[str, str], spec: dict[str, Any], **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    api_version = f"{kind['group']}/{kind['version']}"
    fields: dict[str, Any] = {
        "uid": UID,
        "kind": kind,
        "resource": {"group": kind["group"], "version": kind["version"], "resource": f"{kind['kind'].lower()}s"},
        "operation": "CREATE",
        "namespace": "shop",
        "name": "nightly",
        "userInfo": USER,
        "object": {"apiVersion": api_version, "kind": kind["kind"], "metadata": {"generateName": "n-"}, "spec": spec},
        "oldObject": None,
        "dryRun": False,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields | request}
    return json.dumps(review).encode()


def sent_schedule(template: dict[str, Any], **request: Any) -> bytes:  # noqa: ANN401 - any JSON
    """The same about a schedule."""
    kind = {"group": "lapse.dev", "version": "v1alpha1", "kind": "CaptureSchedule"}
    return _sent(kind, {"schedule": "0 3 * * *", "template": template, "keep": {"last": 1}}, **request)


def question(name: str = "web", namespace: str = "shop") -> AccessQuestion:
    return AccessQuestion("get", "", "v1", "configmaps", namespace, name)


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
        read_request(body)


@pytest.mark.parametrize(
    "valid", [sent(target()), sent_capture(claim()), sent_restore(snapshot())], ids=["mcr", "vcr", "vrr"]
)
@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({"operation": "UPDATE"}, "only CREATE of"),
        ({"operation": "DELETE"}, "only CREATE of"),
        ({"operation": "create"}, "only CREATE of"),
        ({"kind": {"group": "", "version": "v1", "kind": "Secret"}}, "only ManifestCaptureRequest of state-snap"),
        (
            {"kind": {"group": "state-snapshotter.deckhouse.io", "version": "v2", "kind": "ManifestCaptureRequest"}},
            "only ManifestCaptureRequest of state-snap",
        ),
        (
            {
                "kind": {
                    "group": "state-snapshotter.deckhouse.io",
                    "version": "v1alpha1",
                    "kind": "VolumeRestoreRequest",
                }
            },
            "CaptureSchedule of lapse.dev/v1alpha1 are judged here",
        ),
        ({"subResource": "status"}, "are judged here; correct the rules"),
        ({"namespace": ""}, "names no namespace"),
        ({"object": None}, "its object is not a "),
        ({"object": []}, "its object is not a "),
        ({"object": {}}, "its object is not a "),
        ({"object": {"spec": None}}, "its object is not a "),
        ({"object": {"spec": {}}}, "its object is not a "),
    ],
)
def test_a_review_of_anything_but_the_creation_of_a_request_is_denied(
    valid: bytes, request_fields: dict[str, Any], problem: str
) -> None:
    review = json.loads(valid)
    review["request"] |= request_fields
    ruling = refusal_of(json.dumps(review).encode())

    assert ruling.code == 400
    assert problem in ruling.message
    assert response(UID, ruling)["response"]["uid"] == UID


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (sent(object={"spec": {"targets": "all"}}), "ManifestCaptureRequest"),
        (sent({"kind": "Secret", "name": "a"}), "ManifestCaptureRequest"),
        (sent_capture("data"), "VolumeCaptureRequest"),
        (sent_capture(None), "VolumeCaptureRequest"),
        (sent_capture(claim() | {"name": 7}), "VolumeCaptureRequest"),
        (sent_capture(claim(), mode=None), "VolumeCaptureRequest"),
        (sent_capture(claim(), object={"spec": {"target": claim()}}), "VolumeCaptureRequest"),
        (sent_restore(None), "VolumeRestoreRequest"),
        (sent_restore({"name": "snap-1"}), "VolumeRestoreRequest"),
    ],
    ids=range(9),
)
def test_a_spec_that_cannot_be_read_is_denied(body: bytes, kind: str) -> None:
    ruling = refusal_of(body)
    assert ruling.code == 400
    assert f"its object is not a {kind}: " in ruling.message


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([target("a")], ["get configmaps/a in shop"]),
        ([target("a"), target("a")], ["get configmaps/a in shop"]),
        (
            [target("a"), target("b"), target("a", "Deployment", "apps/v1")],
            ["get configmaps/a in shop", "get configmaps/b in shop", "get deployments.apps/a in shop"],
        ),
        ([target("worker-1", "Node")], ["get nodes/worker-1 in the whole cluster"]),
        ([target("a") | {"namespace": "other"}], ["get configmaps/a in shop"]),
        ([target("system:controller:a.b_c")], ["get configmaps/system:controller:a.b_c in shop"]),
    ],
    ids=["one", "the same twice", "three", "of the whole cluster", "in the request's namespace", "an odd name"],
)
def test_every_distinct_target_is_one_question(targets: list[dict[str, str]], expected: list[str]) -> None:
    assert [str(one) for one in questions(demand_in(sent(*targets)), KINDS)] == expected


@pytest.mark.parametrize(
    ("body", "expected", "because"),
    [
        (
            sent_capture(claim(), "Snapshot"),
            ("get", "", "v1", "persistentvolumeclaims", "shop", "data"),
            "a capture may name only what its author may read",
        ),
        (
            sent_capture(claim(), "Detach"),
            ("delete", "", "v1", "persistentvolumeclaims", "shop", "data"),
            "a Detach deletes the claim, so its author must be allowed to",
        ),
        (
            sent_capture(claim() | {"namespace": "other"}, "Detach"),
            ("delete", "", "v1", "persistentvolumeclaims", "shop", "data"),
            "a Detach deletes the claim, so its author must be allowed to",
        ),
        (
            sent_restore(snapshot()),
            ("get", "snapshot.storage.k8s.io", "v1", "volumesnapshotcontents", "", "snap-1"),
            "a restore may name only a source that its author may read",
        ),
        (
            sent_restore(target("pv-1", "PersistentVolume")),
            ("get", "", "v1", "persistentvolumes", "", "pv-1"),
            "a restore may name only a source that its author may read",
        ),
    ],
    ids=["snapshot", "detach", "detach in the request's namespace", "restore of a snapshot", "restore of a volume"],
)
def test_a_request_about_a_volume_is_one_question(body: bytes, expected: tuple[str, ...], because: str) -> None:
    demand = demand_in(body)
    assert list(questions(demand, KINDS)) == [expected]
    assert demand.because == because


VOLUME = {"volumeCapture": {"mode": "Snapshot", "target": claim()}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_schedule_takes_what_its_requests_take_when_it_is_made_and_when_it_is_changed(operation: str) -> None:
    demand = demand_in(sent_schedule(VOLUME, operation=operation, oldObject={"spec": {"schedule": "0 4 * * *"}}))
    assert list(questions(demand, KINDS)) == [("get", "", "v1", "persistentvolumeclaims", "shop", "data")]
    targets = {"manifestCapture": {"targets": [target("web"), target("api")]}}
    demand = demand_in(sent_schedule(targets, operation=operation, oldObject={"spec": {}}))
    assert [asked.name for asked in questions(demand, KINDS)] == ["web", "api"]


def test_a_change_of_a_schedule_that_is_none_of_its_spec_is_not_judged() -> None:
    body = json.loads(sent_schedule(VOLUME, operation="UPDATE"))
    body["request"]["oldObject"] = body["request"]["object"]
    assert demand_of(read_request(json.dumps(body).encode())) == Ruling()


@pytest.mark.parametrize("template", [{}, {**VOLUME, "manifestCapture": {"targets": [target()]}}])
def test_a_template_that_captures_nothing_or_too_much_is_denied(template: dict[str, Any]) -> None:
    ruling = demand_of(read_request(sent_schedule(template)))
    assert isinstance(ruling, Ruling)
    assert not ruling.allowed
    assert "exactly one of volumeCapture and manifestCapture" in ruling.message


def test_the_deletion_of_a_schedule_is_not_ours_to_judge() -> None:
    ruling = demand_of(read_request(sent_schedule(VOLUME, operation="DELETE")))
    assert isinstance(ruling, Ruling)
    assert "only CREATE and UPDATE of CaptureSchedule is judged here" in ruling.message


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (sent_capture(claim(), "Clone"), "there is no mode 'Clone': expected Snapshot or Detach"),
        (sent_capture(claim(), "detach"), "there is no mode 'detach'"),
        (sent_capture(claim(), ""), "there is no mode ''"),
        (sent_capture(claim(), "x" * 1000), f"there is no mode '{'x' * 63}'"),
        (
            sent_capture(target("web", "Pod")),
            "'Pod web (v1)' is of the wrong kind: expected a PersistentVolumeClaim of v1",
        ),
        (sent_capture(target("web", "PersistentVolumeClaim", "v2")), "is of the wrong kind"),
        (sent_capture(claim(""), "Detach"), "has a name that no object can have"),
        (
            sent_capture(claim("../../shop2/persistentvolumeclaims/data"), "Detach"),
            "has a name that no object can have",
        ),
        (
            sent_restore(target("web", "Secret")),
            (
                "'Secret web (v1)' is of the wrong kind: expected a VolumeSnapshotContent of "
                "snapshot.storage.k8s.io/v1 or a PersistentVolume of v1"
            ),
        ),
        (sent_restore(target("a", "VolumeSnapshot", "snapshot.storage.k8s.io/v1")), "is of the wrong kind"),
        (sent_restore(target("a", "VolumeSnapshotContent", "snapshot.storage.k8s.io/v1beta1")), "is of the wrong kind"),
        (sent_restore(snapshot("a/status")), "has a name that no object can have"),
        (sent_restore(target("..", "PersistentVolume")), "has a name that no object can have"),
    ],
    ids=range(13),
)
def test_a_request_about_what_is_no_volume_is_denied_before_anything_is_asked(body: bytes, problem: str) -> None:
    ruling = refusal_of(body)
    assert ruling.code == 403
    assert problem in ruling.message


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
    ruling = refusal_of(sent(target(), odd))

    assert ruling.code == 403
    assert "that no object can have" in ruling.message
    assert "\n" not in ruling.message


def test_more_targets_than_can_be_asked_about_are_denied_and_the_same_one_counts_once() -> None:
    most = [target(f"web-{number}") for number in range(MAX_TARGETS)]
    assert len(demand_in(sent(*most, *most)).needs) == MAX_TARGETS

    ruling = refusal_of(sent(*most, target("one-more")))
    assert ruling.code == 403
    assert f"{MAX_TARGETS + 1} different targets" in ruling.message


def test_the_person_goes_into_the_question_as_the_api_server_knows_them() -> None:
    (one,) = questions(demand_in(sent(target())), KINDS)

    assert access_review(read_request(sent(target())).user_info, one) == {
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


def test_a_request_is_allowed_when_every_answer_is_yes() -> None:
    asked = [question("a"), question("b")]
    ruling = decide(Person(username="jane"), asked, dict.fromkeys(asked, True), because=BECAUSE)

    assert response(UID, ruling) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True},
    }


def test_a_denial_names_the_person_and_exactly_the_rights_that_are_missing() -> None:
    asked = [
        question("a"),
        question("b"),
        AccessQuestion("get", "apps", "v1", "deployments", "shop", "c"),
        AccessQuestion("get", "", "v1", "nodes", name="worker-1"),
    ]
    answers = {one: one.name == "a" for one in asked}
    ruling = decide(Person(username="jane@example.org"), asked, answers, because=BECAUSE)

    assert response(UID, ruling)["response"] == {
        "uid": UID,
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "jane@example.org may not get configmaps/b in shop, get deployments.apps/c in shop, "
            "get nodes/worker-1 in the whole cluster; a capture may name only what its author may read",
        },
    }


def test_a_long_denial_names_ten_and_counts_the_rest() -> None:
    asked = [question(f"web-{number:02}") for number in range(25)]
    ruling = decide(Person(), asked, dict.fromkeys(asked, False), because=BECAUSE)

    assert ruling.message.startswith("the caller may not get configmaps/web-00 in shop, ")
    assert "web-09 in shop and 15 more;" in ruling.message
    assert "web-10" not in ruling.message


@pytest.mark.parametrize("asked", [[], [question("a"), question("b")]], ids=["no question", "one without an answer"])
def test_a_question_that_was_not_answered_is_no_yes(asked: list[AccessQuestion]) -> None:
    ruling = decide(Person(), asked, {question("a"): True}, because=BECAUSE)
    assert (ruling.allowed, ruling.failed) == (False, True)


def test_an_unknown_kind_and_a_failure_are_denied_with_their_reason() -> None:
    assert response("7", unknown_kind("example.org/v1", "Gadget"))["response"]["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "the cluster does not know the kind Gadget of example.org/v1, so the rights of the "
        "author cannot be checked",
    }
    assert response("7", failure("no connection."))["response"] == {
        "uid": "7",
        "allowed": False,
        "status": {
            "code": 500,
            "reason": "InternalError",
            "message": "the rights of the author cannot be checked: no connection; try again later",
        },
    }
