"""The verbs over HTTP: forms of requests, who may ask what, and whose things they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.verbs.operations import API, OPERATIONS
from lapse.files.ownership import user_name
from lapse.web.server.security import MAX_BODY_BYTES, MAX_LARGE_BODY_BYTES
from lapse.workspaces.model import WorkspaceId

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web import conftest

LAB, HERS = "workspace/lab", "workspace/hers"


async def make(api: conftest.API, name: str, owner: str, port: int) -> None:
    asked = {"name": name, "owner": owner, "command": ["serve", "--password=hunter2"], "port": port, "start": False}
    assert (await api.client.post(f"{API}/workspaces", json=asked)).status_code == 201


@pytest.fixture
async def shop(api: conftest.API) -> conftest.API:
    """Two workspaces of two owners."""
    await make(api, "lab", "ann", 9001)
    await make(api, "hers", "eve", 9002)
    return api


async def ask(
    api: conftest.API, scopes: list[str], method: str, path: str, body: dict[str, Any] | None = None, *, name: str = "t"
) -> httpx2.Response:
    _, token = api.tokens.create(name, scopes)
    headers = {"Authorization": f"Bearer {token}"}
    return await api.stranger.request(method, f"{API}{path}", headers=headers, json=body)


# --- forms ------------------------------------------------------------------------------------------------------------


async def test_a_hold_is_placed_and_told_in_the_name_of_the_token(shop: conftest.API) -> None:
    held = await ask(shop, ["admin"], "POST", "/hold", {"address": LAB, "reason": "audit"}, name="ann")
    assert held.status_code == 200
    why = await shop.client.get(f"{API}/why/{LAB}")
    told = {"reason": "audit", "until": None, "legal": False, "by": "token ann", "hash": why.json()["hold"]["hash"]}
    assert held.json()["hold"] == why.json()["hold"] == told
    assert (why.json()["verdict"], why.json()["reason"]) == ("keep", "held")


async def test_the_owners_token_is_the_user_of_the_machine(shop: conftest.API) -> None:
    held = await shop.client.post(f"{API}/hold", json={"address": LAB, "reason": "audit"})
    assert held.json()["hold"]["by"] == f"user {user_name()}"


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/hold", {"address": LAB, "reason": "x", "untill": "7d"}, "body"),
        ("/hold", {"address": LAB}, "body"),
        ("/hold", {"address": LAB, "reason": 7}, "body.reason"),
        ("/hold", [], "body"),
        ("/apply", {"plan": {"form": 1}}, "body.plan"),
        ("/apply", {"plan": {"form": 1, "until": {}}}, "body.plan.until"),
        ("/approve", {"plan": {"form": 1, "created_at": []}}, "body.plan.created_at"),
        ("/approve", {"plan": {"form": 1, "expires_at": None}}, "body.plan.expires_at"),
        ("/freeze", {}, "body"),
    ],
)
async def test_a_body_of_another_form_is_refused_with_the_place(
    api: conftest.API,
    path: str,
    body: object,
    where: str,
) -> None:
    refused = await api.client.post(f"{API}{path}", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRequestError")
    assert [one["where"] for one in refused.json()["errors"]] == [where]


@pytest.mark.parametrize(
    "query", ["/plan?domains=keys", "/journal?adress=x", "/trash?limit=1&x=2", f"/why/{LAB}?when=2h"]
)
async def test_a_parameter_that_nobody_knows_is_refused(api: conftest.API, query: str) -> None:
    refused = await api.client.get(f"{API}{query}")
    assert (refused.status_code, refused.json()["code"]) == (422, "UnknownParameterError")


@pytest.mark.parametrize("query", ["/journal?limit=0", "/journal?limit=1001", "/trash?limit=many"])
async def test_a_parameter_of_another_form_is_refused_with_its_name(api: conftest.API, query: str) -> None:
    refused = await api.client.get(f"{API}{query}")
    assert [one["where"] for one in refused.json()["errors"]] == ["query.limit"]


async def test_a_plan_may_be_larger_than_any_other_body(api: conftest.API) -> None:
    filler = "x" * MAX_BODY_BYTES
    too_large = await api.client.post(f"{API}/hold", json={"address": LAB, "reason": filler})
    assert (too_large.status_code, too_large.json()["code"]) == (413, "BodyTooLargeError")
    for path in ("/apply", "/plans"):
        read = await api.client.post(f"{API}{path}", json={"plan": {"form": 1, "id": filler}})
        assert read.json()["code"] == "InvalidRequestError"
    announced = {"Content-Length": str(MAX_LARGE_BODY_BYTES + 1), "Content-Type": "application/json"}
    refused = await api.client.post(f"{API}/apply", content=b"{}", headers=announced)
    assert refused.json()["code"] == "BodyTooLargeError"


async def test_the_openapi_document_has_every_verb_with_its_request_and_answer(api: conftest.API) -> None:
    document = (await api.client.get(f"{API}/openapi.json")).json()
    for one in OPERATIONS:
        told = document["paths"][f"{API}{one.path}"][one.method.lower()]
        assert told["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        if one.reads:
            named = {field["name"] for field in told.get("parameters", ()) if field["in"] == "query"}
            assert named == set(one.query)
        else:
            schema = told["requestBody"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{one.asked.__name__}"}
            assert document["components"]["schemas"][one.asked.__name__]["additionalProperties"] is False


# --- who may what -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "legal", "status"),
    [
        ("holds", False, 200), ("holds", True, 403), ("legal", True, 200), ("legal", False, 403),
        ("admin", True, 200), ("operate", False, 403), ("read", False, 403), ("monitor", False, 403),
    ],
)  # fmt: skip
async def test_a_legal_hold_has_a_scope_of_its_own(shop: conftest.API, scope: str, legal: bool, status: int) -> None:  # noqa: FBT001
    asked = {"address": LAB, "reason": "x", "legal": legal}
    assert (await ask(shop, [scope], "POST", "/hold", asked)).status_code == status


@pytest.mark.parametrize(
    ("scopes", "may"),
    [
        (["holds"], False), (["holds", "read"], False), (["holds", "legal", "operate"], False),
        (["holds", "keys:8"], False), (["keys:7"], True), (["admin"], True),
    ],
)  # fmt: skip
async def test_the_keys_of_an_application_are_extended_by_who_has_them(
    api: conftest.API,
    scopes: list[str],
    may: bool,  # noqa: FBT001
) -> None:
    await api.client.put(f"{API}/apps/7/keys/pin", json={"value": "1234", "ttl_seconds": 60})
    for name in ("pin", "none"):
        told = (await ask(api, scopes, "POST", "/extend", {"address": f"key/7/{name}", "time": "1h"})).json()
        assert (told["code"] != "ScopeMissingError") is may
        assert may or told["detail"].count("admin, keys:7") == 1


async def test_who_may_release_holds_cannot_release_a_legal_one(shop: conftest.API) -> None:
    asked = {"address": LAB, "reason": "case 7", "legal": True}
    assert (await ask(shop, ["legal"], "POST", "/hold", asked, name="ann")).status_code == 200

    refused = await ask(shop, ["holds"], "POST", "/release", {"address": LAB}, name="ben")
    assert (refused.status_code, refused.json()["code"]) == (422, "LegalReleaseError")
    refused = await ask(shop, ["holds"], "POST", "/release", {"address": LAB, "legal": True}, name="ben")
    assert (refused.status_code, refused.json()["code"]) == (403, "ScopeMissingError")
    refused = await ask(shop, ["holds"], "POST", "/workspaces/lab/release", {}, name="ben")
    assert (refused.status_code, refused.json()["code"]) == (422, "LegalReleaseError")
    assert (await shop.client.get(f"{API}/why/{LAB}")).json()["hold"]["legal"]


async def test_two_tokens_of_one_name_are_one_person(shop: conftest.API) -> None:
    asked = {"address": LAB, "reason": "case 7", "legal": True}
    assert (await ask(shop, ["legal"], "POST", "/hold", asked, name="ann")).status_code == 200
    released = {"address": LAB, "legal": True}

    refused = await ask(shop, ["admin"], "POST", "/release", released, name="ann")
    assert (refused.status_code, refused.json()["code"]) == (403, "SecondPersonError")
    assert (await ask(shop, ["legal"], "POST", "/release", released, name="ben")).status_code == 200


OWN = [
    ("GET", "/why/{}", None),
    ("POST", "/hold", {"address": "{}", "reason": "mine"}),
    ("POST", "/release", {"address": "{}"}),
    ("POST", "/delete", {"address": "{}"}),
]


@pytest.mark.parametrize(("method", "path", "body"), OWN)
async def test_an_owner_steers_their_own_workspaces_and_sees_no_others(
    shop: conftest.API, method: str, path: str, body: dict[str, str] | None
) -> None:
    def about(address: str) -> tuple[str, dict[str, str] | None]:
        return path.format(address), None if body is None else {key: one.format(address) for key, one in body.items()}

    assert (await ask(shop, ["workspaces:ann"], method, *about(LAB))).status_code == 200
    hidden = await ask(shop, ["workspaces:ann"], method, *about(HERS))
    absent = await ask(shop, ["workspaces:ann"], method, *about("workspace/nobodys"))
    assert (hidden.status_code, hidden.json()["code"]) == (404, "UnknownWorkspaceError")
    assert (absent.status_code, absent.json()["code"]) == (404, "UnknownWorkspaceError")
    refused = await ask(shop, ["workspaces:ann"], method, *about("vcr/default/x"))
    assert (refused.status_code, refused.json()["code"]) == (403, "ScopeMissingError")
    refused = await ask(shop, ["keys:7"], method, *about(LAB))
    assert refused.status_code == 403


async def test_an_owner_places_no_legal_holds_and_plans_nothing(shop: conftest.API) -> None:
    asked = {"address": LAB, "reason": "x", "legal": True}
    assert (await ask(shop, ["workspaces:ann"], "POST", "/hold", asked)).status_code == 403
    for method, path in (
        ("GET", "/plan"),
        ("GET", "/forecast"),
        ("GET", "/journal"),
        ("POST", "/freeze"),
        ("POST", "/trash/empty"),
    ):
        refused = await ask(shop, ["workspaces:ann", "keys:7"], method, path, None if method == "GET" else {})
        assert refused.status_code == 403, path
    assert (await ask(shop, ["workspaces:ann"], "POST", "/undo", {"plan": "x"})).status_code == 403


async def test_a_plan_is_proposed_approved_and_carried_out_by_tokens_of_two_persons(shop: conftest.API) -> None:
    plan = (await ask(shop, ["operate"], "GET", "/plan?within=1h", name="ann")).json()
    for scopes, name, code in (
        (["monitor"], "ann", "ScopeMissingError"),
        (["read", "holds"], "ann", "ScopeMissingError"),
        (["operate"], "ben", "NotAuthorError"),
    ):
        refused = await ask(shop, scopes, "POST", "/plans", {"plan": plan}, name=name)
        assert (refused.status_code, refused.json()["code"]) == (403, code)
    tampered = await ask(shop, ["operate"], "POST", "/plans", {"plan": {**plan, "author": "token ben"}}, name="ben")
    assert (tampered.status_code, tampered.json()["code"]) == (422, "PlanSignatureError")
    kept = await ask(shop, ["operate"], "POST", "/plans", {"plan": plan}, name="ann")
    assert (kept.status_code, kept.json()["author"]) == (200, "token ann")

    for scope in ("monitor", "read", "operate", "approve", "holds", "legal"):
        assert len((await ask(shop, [scope], "GET", "/plans")).json()["items"]) == 1
        assert (await ask(shop, [scope], "GET", f"/plans/{plan['id']}")).json() == plan
    own = await ask(shop, ["approve"], "POST", "/approve", {"plan": plan}, name="ann")
    assert (own.status_code, own.json()["code"]) == (403, "OwnPlanError")
    assert (await ask(shop, ["approve"], "POST", "/approve", {"plan": plan}, name="ben")).status_code == 200
    assert (await ask(shop, ["operate"], "POST", "/apply", {"plan": plan}, name="ann")).status_code == 200
    (told,) = (await ask(shop, ["monitor"], "GET", "/plans")).json()["items"]
    assert (told["approved_by"], told["applied_by"]) == ("token ben", "token ann")
    assert (await ask(shop, ["workspaces:ann"], "GET", "/plans")).status_code == 403
    missing = await ask(shop, ["read"], "GET", "/plans/0123456789abcdef")
    assert (missing.status_code, missing.json()["code"]) == (404, "NotProposedError")


async def test_who_has_an_applications_keys_asks_about_no_others(api: conftest.API) -> None:
    assert (await ask(api, ["keys:7"], "GET", "/why/key/8/pin")).status_code == 403
    assert (await ask(api, ["keys:7"], "GET", "/why/key/7/pin")).json()["code"] != "ScopeMissingError"


async def test_who_sees_no_values_gets_rows_without_details(shop: conftest.API) -> None:
    await shop.client.post(f"{API}/hold", json={"address": LAB, "reason": "hunter2"})
    for scope, shown in (("monitor", False), ("holds", False), ("read", True), ("admin", True)):
        rows = (await ask(shop, [scope], "GET", "/journal")).json()["items"]
        assert [one["reason"] for one in rows][:1] == ["hold_placed"]
        assert ("hunter2" in str(rows)) is shown
        assert rows[0].get("details_hidden", False) is not shown
        assert (rows[0]["details"] is not None) is shown


async def test_a_search_of_the_journal_finds_addresses_and_tells_nothing_of_hidden_details(shop: conftest.API) -> None:
    await shop.client.post(f"{API}/hold", json={"address": LAB, "reason": "hunter2"})
    for scope in ("monitor", "read"):
        found = (await ask(shop, [scope], "GET", "/journal?search=space/la")).json()["items"]
        assert {one["address"] for one in found} == {LAB}
        for text in ("hunter2", "reason", "ann", "%25", "_", "*", "LAB"):
            assert (await ask(shop, [scope], "GET", f"/journal?search={text}")).json()["items"] == [], text
    hidden = (await ask(shop, ["monitor"], "GET", "/journal?search=lab")).json()["items"]
    assert {one["details"] for one in hidden} == {None}
    assert (await ask(shop, ["keys:7"], "GET", "/journal?search=lab")).status_code == 403


@pytest.mark.parametrize("text", ["", "x" * 201, "%00", "a%0Ab"])
async def test_a_text_that_cannot_be_searched_for_is_refused(api: conftest.API, text: str) -> None:
    refused = await api.client.get(f"{API}/journal?search={text}")
    assert (refused.status_code, refused.json()["code"]) == (422, "SearchTextError")
    assert "1 to 200 printable characters" in refused.json()["detail"]


@pytest.mark.parametrize("scope", ["operate", "approve", "holds", "legal"])
async def test_who_decides_about_things_may_ask_why_and_sees_no_values(shop: conftest.API, scope: str) -> None:
    await shop.client.post(f"{API}/hold", json={"address": LAB, "reason": "audit", "until": "7d"})
    why = await ask(shop, [scope], "GET", f"/why/{LAB}")
    whole = await ask(shop, ["read"], "GET", f"/why/{LAB}")

    assert (why.status_code, why.json()["reason"], why.json()["hold"]) == (200, "held", whole.json()["hold"])
    assert {(one["details"], one["details_hidden"]) for one in why.json()["journal"]} == {(None, True)}
    assert whole.json()["journal"][0]["details"] is not None
    assert (await ask(shop, [scope], "GET", "/status")).status_code == 200
    assert (await ask(shop, [scope], "GET", "/plan")).status_code == 200
    assert (await ask(shop, [scope], "GET", "/why/key/7/pin")).status_code == 403


async def test_who_only_looks_does_not_ask_why(shop: conftest.API) -> None:
    assert (await ask(shop, ["monitor"], "GET", f"/why/{LAB}")).status_code == 403


@pytest.mark.parametrize("verb", ["/hold", "/release"])
async def test_placing_and_releasing_need_the_same_scopes_and_say_so(shop: conftest.API, verb: str) -> None:
    plain = {"address": LAB} | ({"reason": "x"} if verb == "/hold" else {})
    legal = plain | {"legal": True}

    async def refused(scope: str, asked: dict[str, Any]) -> str:
        answered = await ask(shop, [scope], "POST", verb, asked)
        assert answered.status_code == 403
        return str(answered.json()["detail"]).partition("one of the scopes ")[2]

    assert await refused("monitor", plain) == "admin, holds, or legal for a legal hold."
    assert await refused("legal", plain) == "admin, holds."
    assert await refused("holds", legal) == "admin, legal."


async def test_the_old_addresses_of_workspaces_say_that_they_are(shop: conftest.API) -> None:
    calls = [
        await shop.client.get(f"{API}/workspaces/lab/why"),
        await shop.client.post(f"{API}/workspaces/lab/hold", json={"reason": "x"}),
        await shop.client.post(f"{API}/workspaces/lab/release", json={}),
    ]
    assert [(one.status_code, one.headers["Deprecation"]) for one in calls] == [(200, "@1794873600")] * 3
    assert [one.json().get("held") for one in calls] == [None, True, False]
    assert "Deprecation" not in (await shop.client.get(f"{API}/workspaces/lab")).headers


# --- what is gone -----------------------------------------------------------------------------------------------------


async def delete(api: conftest.API, address: str) -> str:
    done = await api.client.post(f"{API}/delete", json={"address": address})
    assert done.status_code == 200
    uid: str = done.json()["uid"]
    return uid


async def test_an_owner_asks_about_and_brings_back_what_was_deleted_of_theirs(shop: conftest.API) -> None:
    uid = await delete(shop, LAB)
    why = await ask(shop, ["workspaces:ann"], "GET", f"/why/{LAB}")
    assert (why.status_code, why.json()["verdict"], why.json()["uid"]) == (200, "gone", uid)
    assert why.json()["undo"].startswith(f"lapse undo {LAB}, until ")
    back = await ask(shop, ["workspaces:ann"], "POST", "/undo", {"address": LAB})
    assert [one["uid"] for one in back.json()["items"]] == [uid]


async def test_what_was_deleted_of_somebody_else_is_not_there_for_an_owner(shop: conftest.API) -> None:
    uid = await delete(shop, LAB)
    for method, path, body in (
        ("GET", f"/why/{LAB}", None),
        ("GET", f"/why/{LAB}?uid={uid}", None),
        ("POST", "/undo", {"address": LAB}),
        ("POST", "/undo", {"address": LAB, "uid": uid}),
    ):
        refused = await ask(shop, ["workspaces:eve"], method, path, body)
        assert (refused.status_code, refused.json()["code"]) == (404, "UnknownWorkspaceError")
    assert (await shop.workspaces.get(WorkspaceId(uid))).deleted_at is not None


async def test_of_two_owners_of_one_name_each_sees_only_their_own(shop: conftest.API) -> None:
    anns = await delete(shop, LAB)
    await make(shop, "lab", "eve", 9003)
    eves = await delete(shop, LAB)
    await make(shop, "lab", "bob", 9004)

    for owner, own, other in (("ann", anns, eves), ("eve", eves, anns)):
        why = await ask(shop, [f"workspaces:{owner}"], "GET", f"/why/{LAB}")
        assert why.json()["uid"] == own
        assert {row["uid"] for row in why.json()["journal"]} == {own}
        refused = await ask(shop, [f"workspaces:{owner}"], "GET", f"/why/{LAB}?uid={other}")
        assert refused.status_code == 404
    alive = await ask(shop, ["workspaces:bob"], "GET", f"/why/{LAB}")
    assert alive.json()["verdict"] == "keep"
    assert (await ask(shop, ["workspaces:bob"], "GET", f"/why/{LAB}?uid={anns}")).status_code == 404
    taken = await ask(shop, ["workspaces:ann"], "POST", "/undo", {"address": LAB})
    assert (taken.status_code, taken.json()["code"]) == (409, "PlaceTakenError")


async def test_what_is_asked_of_one_workspace_is_not_done_to_another_of_its_name(shop: conftest.API) -> None:
    was = await delete(shop, LAB)
    await make(shop, "lab", "ann", 9003)
    own: list[tuple[str, dict[str, str]]] = [
        ("/hold", {"reason": "x"}),
        ("/release", {}),
        ("/extend", {"time": "2h"}),
        ("/delete", {}),
    ]
    for path, more in own:
        refused = await ask(shop, ["workspaces:ann"], "POST", path, {"address": LAB, "uid": was, **more})
        assert (refused.status_code, refused.json()["code"]) == (412, "AnotherThingError")
        assert was in refused.json()["detail"]
        others = await ask(shop, ["workspaces:eve"], "POST", path, {"address": LAB, "uid": was, **more})
        assert (others.status_code, others.json()["code"]) == (404, "UnknownWorkspaceError")
    why = (await shop.client.get(f"{API}/why/{LAB}")).json()
    assert (why["verdict"], why["hold"], why["extended_until"]) == ("keep", None, None)

    done = await ask(shop, ["workspaces:ann"], "POST", "/delete", {"address": LAB, "uid": why["uid"]})
    assert (done.status_code, done.json()["uid"]) == (200, why["uid"])


async def test_a_hold_that_was_not_seen_is_told_to_who_may_release_it_and_to_nobody_else(shop: conftest.API) -> None:
    held = await ask(shop, ["holds"], "POST", "/hold", {"address": LAB, "reason": "audit"}, name="ann")
    for scopes, status in (
        (["holds"], 412),
        (["workspaces:ann"], 412),
        (["workspaces:eve"], 404),
        (["monitor"], 403),
        (["read"], 403),
    ):
        refused = await ask(shop, scopes, "POST", "/release", {"address": LAB, "hash": "of-another"})
        assert refused.status_code == status
        assert ("audit" in refused.text) is (held.json()["hold"]["hash"] in refused.text) is (status == 412)
    assert (await shop.client.get(f"{API}/why/{LAB}")).json()["verdict"] == "keep"


async def test_an_owner_asks_about_theirs_also_after_it_has_left_the_trash(shop: conftest.API) -> None:
    await delete(shop, LAB)
    await shop.client.post(f"{API}/trash/empty", json={})

    why = await ask(shop, ["workspaces:ann"], "GET", f"/why/{LAB}")
    assert (why.status_code, why.json()["verdict"]) == (200, "gone")
    assert (await ask(shop, ["workspaces:eve"], "GET", f"/why/{LAB}")).status_code == 404
    assert (await ask(shop, ["workspaces:ann"], "POST", "/undo", {"address": LAB})).status_code == 404
