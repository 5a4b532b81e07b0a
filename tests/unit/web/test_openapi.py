"""The OpenAPI document: complete for every operation, the same each time, and true in its examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.verbs.operations import API as PREFIX
from lapse.engine.verbs.operations import OPERATIONS
from lapse.engine.view import decode, encode
from lapse.web.api import forms
from lapse.web.api.openapi import TAGS, examples, resolve
from lapse.web.app import operations as routed
from lapse.web.app import scopes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.unit.web.conftest import API


@pytest.fixture
async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/v1/openapi.json")).json()
    return found


def described(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


async def test_every_operation_is_described_whole(document: dict[str, Any]) -> None:
    names = [one["operationId"] for _, one in described(document)]
    tags = [one["name"] for one in document["tags"]]

    assert document["openapi"].startswith("3.1")
    assert len(names) == len(set(names))
    assert tags == list(TAGS)
    for place, one in described(document):
        assert one["summary"], place
        assert one["description"], place
        assert set(one["tags"]) <= set(tags), place
        assert all("description" in resolve(document, told) for told in one["responses"].values()), place
        assert all(parameter.get("schema") for parameter in one.get("parameters", [])), place


async def test_every_operation_names_its_scopes_and_those_without_any_are_of_sessions(document: dict[str, Any]) -> None:
    open_to_all = {one["operationId"] for _, one in described(document) if not one["security"]}

    assert open_to_all == {"session.begin", "session.end"}
    for _, one in described(document):
        told = [scope for way in one["security"] for scopes in way.values() for scope in scopes]
        assert sorted({*told}) == sorted({*one["x-scopes"]})


async def test_every_problem_is_one_schema_under_its_own_status(document: dict[str, Any]) -> None:
    for place, one in described(document):
        problems = {status: told for status, told in one["responses"].items() if int(status) >= 400}
        assert problems.keys() >= {"400", "401", "403", "408", "413", "422", "429", "431", "500", "503", "504"}, place
        assert ("415" in problems) == (not place.startswith("GET ")), place
        for status, told in problems.items():
            content = resolve(document, told)["content"]
            assert content == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
            assert told == {"$ref": f"#/components/responses/{status}"}


async def test_every_body_and_every_answer_has_an_example(document: dict[str, Any]) -> None:
    missing = []
    for place, one in described(document):
        bodies = [one["requestBody"]] if "requestBody" in one else []
        answers = [told for status, told in one["responses"].items() if int(status) < 400 and "content" in told]
        missing += [place for part in bodies + answers if "example" not in next(iter(part["content"].values()))]

    assert missing == []
    assert examples().keys() <= {one["operationId"] for _, one in described(document)}


async def test_an_example_of_an_answer_is_a_view_of_its_kind(document: dict[str, Any]) -> None:
    for place, one in described(document):
        for status, told in one["responses"].items():
            if int(status) >= 400 or "content" not in told:
                continue
            if "application/json" not in told["content"]:
                continue  # a stream has no view
            content = told["content"]["application/json"]
            view = forms._answers[content["schema"]["$ref"].rpartition("/")[2]]
            shown: Any = decode(json.dumps(content["example"]).encode(), view)
            assert json.loads(encode(shown)).keys() == content["example"].keys(), place


def test_an_example_of_a_body_is_one_that_its_operation_takes() -> None:
    verbs = {one.verb: one for one in OPERATIONS}
    for _, route, _ in routed():
        asked = examples().get(route.operation_id or "", {}).get("asked")
        if asked is None:
            continue
        if route.operation_id in verbs:
            verbs[route.operation_id].read(in_path=None, query=[], body=json.dumps(asked).encode())
        else:
            assert route.body_field is not None, route.path
            assert route.body_field.validate(asked, {}, loc=("body",))[1] in (None, []), route.path


async def test_the_document_is_the_same_however_often_it_is_made(api: API, document: dict[str, Any]) -> None:
    again = (await api.client.get("/api/v1/openapi.json")).json()
    assert json.dumps(again) == json.dumps(document)
    assert list(document["components"]["schemas"]) == sorted(document["components"]["schemas"])


async def test_the_docs_page_shows_scopes_names_and_examples(client: httpx2.AsyncClient) -> None:
    page = (await client.get("/api/v1/docs")).text

    assert "In the client <code>workspaces.create</code>" in page
    assert "<code>keys:APP</code>" in page
    assert "Everybody may, without a token." in page
    assert "&#34;device:XYZ789&#34;" in page


# --- methods, parameters and conditions -------------------------------------------------------------------------------


async def test_head_answers_as_get_does_without_a_body(client: httpx2.AsyncClient, api: API) -> None:
    await api.keys.app(7).put("a", "secret", 900)
    for path in ("/", "/api/v1/status", "/api/v1/apps/7/keys/a", "/static/lapse.css", "/api/v1/openapi.json"):
        got, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers.keys() == got.headers.keys()
    assert (await client.head("/api/v1/apps/7/keys/none")).status_code == 404
    _, token = api.tokens.create("t", ["monitor"])
    seen = await api.stranger.head("/api/v1/apps/7/keys/a", headers={"Authorization": f"Bearer {token}"})
    assert seen.status_code == 403
    assert (await api.stranger.head("/api/v1/status")).status_code == 401


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/v1/status", "GET, HEAD, OPTIONS"),
        ("/api/v1/apps/7/keys/a", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/api/v1/workspaces", "GET, HEAD, OPTIONS, POST"),
    ],
)
async def test_options_and_a_wrong_method_tell_all_methods_of_an_address(
    client: httpx2.AsyncClient, path: str, methods: str
) -> None:
    asked = await client.options(path)
    assert (asked.status_code, asked.headers["allow"], asked.content) == (204, methods, b"")
    assert "access-control-allow-origin" not in asked.headers
    wrong = await client.request("PUT" if "PUT" not in methods else "POST", path, json={})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, methods)
    assert wrong.headers["content-type"] == "application/problem+json"


async def test_no_operation_takes_a_parameter_that_it_does_not_know(client: httpx2.AsyncClient) -> None:
    filled = {"{app}": "7", "{kind}": "vcr", "{address}": "workspace/x"}
    let_in = []
    for prefix, route, method in routed():
        if not route.include_in_schema:
            continue
        path = f"{prefix}{route.path_format}"
        for place, value in filled.items():
            path = path.replace(place, value)
        path = path.replace("artifacts/vcr", "artifacts/vsc")
        answer = await client.request(method, f"{path}?limt=1", json=None if method == "GET" else {})
        if (answer.status_code, answer.json()["code"]) != (422, "UnknownParameterError"):
            let_in.append((method, path, answer.status_code))
    assert let_in == []


async def test_a_condition_that_an_operation_does_not_take_is_refused_and_not_left_out(
    client: httpx2.AsyncClient,
) -> None:
    asked = {"address": "workspace/x", "reason": "x"}
    for header in ("If-Match", "If-None-Match"):
        answer = await client.post("/api/v1/hold", json=asked, headers={header: "*"})
        assert (answer.status_code, answer.json()["code"]) == (400, "ContradictoryConditionsError")
    assert (await client.get("/api/v1/status", headers={"If-None-Match": "*"})).status_code == 200


def test_the_scopes_of_a_route_are_those_of_the_one_rule() -> None:
    told = {(method, route.operation_id): scopes_of(route, method) for _, route, method in routed()}

    assert told["POST", "apply"] == ["admin", "operate"]
    assert told["GET", "keys.show"] == ["admin", "read", "keys:APP"]
    assert told["POST", "workspaces.start"] == ["admin", "operate", "workspaces:OWNER"]
    assert told["POST", "session.begin"] is None
    assert PREFIX == "/api/v1"
