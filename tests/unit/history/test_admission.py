"""Who may write a policy, against a server that answers as told: only a clear yes about all of it is a yes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.history.api.kinds import Selector
from lapse.history.policy.admission import PolicyJudge, questions
from lapse.history.policy.rbac import impersonation
from lapse.kube.auth.admission import read_request
from lapse.kube.resources import untyped
from tests.unit.kube.faulty import FaultyServer, client_of, cuts, keeps_silent, refuses, says

if TYPE_CHECKING:
    from lapse.kube.auth.admission import Ruling
    from tests.unit.kube.faulty import Answerer

CLAIM = untyped("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME = untyped("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
KINDS = says(
    200,
    {"resources": [{"name": one.plural, "kind": one.kind, "namespaced": one.namespaced} for one in (CLAIM, VOLUME)]},
)
YES = says(201, {"metadata": {}, "status": {"allowed": True}})
NO = says(201, {"metadata": {}, "status": {"allowed": False}})


def policy(kind: str = "PersistentVolumeClaim", *namespaces: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    selector = {"apiVersion": "v1", "kind": kind, "namespaces": list(namespaces)}
    return {
        "apiVersion": "lapse.dev/v1alpha1",
        "kind": "RetentionPolicy",
        "metadata": {"name": "volumes"},
        "spec": {"selector": selector, "maxAge": "1h", "dryRun": False, **spec},
    }


def sent(body: Any, *, old: Any = None, **fields: Any) -> bytes:  # noqa: ANN401 - whatever an API server sends
    request = {
        "uid": "7",
        "kind": {"group": "lapse.dev", "version": "v1alpha1", "kind": "RetentionPolicy"},
        "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": {"username": "jane", "groups": ["tenants"]},
        "object": body,
        "oldObject": old,
        **fields,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


async def ruling(body: bytes, *script: Answerer, seconds: float = 5) -> tuple[Ruling, FaultyServer]:
    server = FaultyServer(*script)
    async with client_of(server) as client:
        judge = PolicyJudge(client, impersonation=impersonation("lapse-system"))
        return await judge.judge(read_request(body), seconds=seconds), server


def asked(server: FaultyServer) -> list[dict[str, Any]]:
    return [json.loads(body)["spec"] for method, _, _, body in server.asked if method == "POST"]


async def test_an_author_who_may_list_and_delete_all_of_it_is_allowed() -> None:
    found, server = await ruling(sent(policy()), KINDS, YES)

    assert found.allowed
    specs = asked(server)
    assert {(one["user"], tuple(one["groups"])) for one in specs} == {("jane", ("tenants",))}
    assert sorted(one["resourceAttributes"]["verb"] for one in specs) == ["delete", "list"]
    assert {one["resourceAttributes"]["namespace"] for one in specs} == {""}


async def test_an_author_without_the_right_to_delete_is_denied_and_told_which_right_is_missing() -> None:
    found, server = await ruling(sent(policy()), KINDS, NO)

    assert (found.code, found.failed) == (403, False)
    assert found.message == (
        "jane may not list persistentvolumeclaims in the whole cluster, delete persistentvolumeclaims in the whole "
        "cluster; a policy may select only what its author may list and delete"
    )
    last = asked(server)[-1]["resourceAttributes"]
    assert (last["verb"], last["resource"]) == ("impersonate", "serviceaccounts")
    assert (last["namespace"], last["name"]) == ("lapse-system", "lapse-retention")


async def test_whoever_may_act_as_the_account_for_policies_anyway_is_allowed() -> None:
    found, _ = await ruling(sent(policy()), KINDS, NO, NO, YES)
    assert found.allowed


def test_every_namespace_that_is_named_is_asked_about_and_a_kind_of_the_cluster_once() -> None:
    found = questions(Selector(api_version="v1", kind=CLAIM.kind, namespaces=("a", "b", "a")), CLAIM)
    assert [(one.verb, one.namespace) for one in found] == [
        ("list", "a"),
        ("delete", "a"),
        ("list", "b"),
        ("delete", "b"),
    ]
    found = questions(Selector(api_version="v1", kind=VOLUME.kind, namespaces=("a",)), VOLUME)
    assert [(one.verb, one.namespace) for one in found] == [("list", ""), ("delete", "")]


async def test_more_namespaces_than_can_be_asked_about_in_time_are_denied() -> None:
    found, server = await ruling(sent(policy("PersistentVolumeClaim", *(f"n-{n}" for n in range(501)))), KINDS, YES)
    assert (found.code, asked(server)) == (403, [])


@pytest.mark.parametrize(
    ("old", "new", "is_asked"),
    [
        (policy(), policy() | {"metadata": {"name": "volumes", "labels": {"a": "b"}}}, False),
        (policy(dryRun=True), policy(), True),
        (policy(maxAge="2h"), policy(), True),
        (policy("PersistentVolumeClaim", "a"), policy("PersistentVolumeClaim", "b"), True),
    ],
    ids=["labels only", "dryRun", "maxAge", "namespaces"],
)
async def test_every_change_of_what_a_policy_says_is_judged(
    old: dict[str, Any],
    new: dict[str, Any],
    is_asked: bool,  # noqa: FBT001 - a column
) -> None:
    found, server = await ruling(sent(new, old=old), KINDS, NO)
    assert (found.allowed, bool(server.asked)) == (not is_asked, is_asked)


@pytest.mark.parametrize(
    "body",
    [
        sent(policy(), operation="DELETE"),
        sent(policy(), subResource="status"),
        sent(policy(), kind={"group": "", "version": "v1", "kind": "ConfigMap"}),
        sent(None),
        sent([]),
        sent({"metadata": {"name": "x"}}),
        sent(policy() | {"spec": {"selector": {"apiVersion": 7, "kind": "x"}}}),
    ],
)
async def test_what_is_no_policy_is_denied_and_nobody_is_asked(body: bytes) -> None:
    found, server = await ruling(body, KINDS, YES)
    assert (found.code, server.asked) == (400, [])


async def test_a_kind_that_the_cluster_does_not_know_is_denied() -> None:
    found, server = await ruling(sent(policy("Gadget")), KINDS, YES)
    assert (found.code, asked(server)) == (403, [])
    assert "does not know the kind Gadget of v1" in found.message


@pytest.mark.parametrize(
    "answer",
    [
        refuses(500, "InternalError", "broken"),
        refuses(403, "Forbidden", "you may not create subjectaccessreviews"),
        says(201, {"metadata": {}}),
        says(201, {"metadata": {}, "status": {}}),
        cuts(),
        keeps_silent(),
    ],
    ids=["500", "403", "no status", "neither yes nor no", "cut", "silence"],
)
async def test_what_is_no_answer_denies(answer: Answerer) -> None:
    found, _ = await ruling(sent(policy()), KINDS, YES, answer, seconds=0.5)
    assert (found.allowed, found.failed) == (False, True)
