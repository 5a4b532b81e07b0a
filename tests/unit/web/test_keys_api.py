from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.unit.web.conftest import API, JSON

if TYPE_CHECKING:
    import httpx2

ONE = "/api/v1/apps/7/keys/alpha:ABC123"
INSERT = {"If-None-Match": "*"}


def code(response: httpx2.Response) -> tuple[int, str]:
    """Return status and code of a problem document, which must be a complete one."""
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == response.status_code
    assert problem["instance"] == response.headers["x-request-id"]
    assert problem["title"]
    assert problem["detail"]
    return response.status_code, problem["code"]


async def put(client: httpx2.AsyncClient, key: str, value: str, ttl_seconds: int = 900) -> None:
    body = {"value": value, "ttl_seconds": ttl_seconds}
    response = await client.put(f"/api/v1/apps/7/keys/{quote(key, safe='')}", json=body)
    assert response.status_code == 200


async def value_of(client: httpx2.AsyncClient, url: str = ONE) -> str | None:
    response = await client.get(url)
    return response.json()["value"] if response.status_code == 200 else None


# --- the operations --------------------------------------------------------------------------------------------------


async def test_an_insert_creates_a_key_once_and_then_fails_its_precondition(client: httpx2.AsyncClient) -> None:
    first = await client.put(ONE, json={"value": "device:1", "ttl_seconds": 900}, headers=INSERT)
    second = await client.put(ONE, json={"value": "device:2", "ttl_seconds": 900}, headers=INSERT)

    assert first.status_code == 201
    assert code(second) == (412, "PreconditionFailedError")
    assert await value_of(client) == "device:1"


async def test_a_key_is_answered_with_value_expiry_and_tag_and_never_cached(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1", 900)
    response = await client.get(ONE)

    assert response.json() == {
        "address": "key/7/alpha:ABC123",
        "key": "alpha:ABC123",
        "value": "device:1",
        "expires_at": "2023-11-14T22:28:20Z",
        "ttl_seconds": 900.0,
    }
    assert response.headers["etag"].startswith('"')
    assert response.headers["cache-control"] == "no-store"


async def test_a_key_is_gone_at_the_instant_of_its_expiry(client: httpx2.AsyncClient, api: API) -> None:
    await put(client, "alpha:ABC123", "device:1", 1)
    api.clock.advance(ns=999_999_999)
    assert await value_of(client) == "device:1"

    api.clock.advance(ns=1)
    assert code(await client.get(ONE)) == (404, "KeyAbsentError")


async def test_a_put_without_condition_overwrites(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")
    await put(client, "alpha:ABC123", "device:2")

    assert await value_of(client) == "device:2"


async def test_a_swap_by_value_succeeds_once_and_restarts_the_ttl(client: httpx2.AsyncClient, api: API) -> None:
    await put(client, "alpha:ABC123", "device:1", 10)
    api.clock.advance(9)
    swap = {"value": "device:2", "ttl_seconds": 10, "expected": "device:1"}

    assert (await client.put(ONE, json=swap)).status_code == 200
    assert code(await client.put(ONE, json=swap)) == (412, "PreconditionFailedError")
    api.clock.advance(9)
    assert await value_of(client) == "device:2"


async def test_a_swap_by_tag_succeeds_while_the_tag_is_the_current_one(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")
    old = (await client.get(ONE)).headers["etag"]
    body = {"value": "device:2", "ttl_seconds": 900}
    swapped = await client.put(ONE, json=body, headers={"If-Match": old})

    assert swapped.status_code == 200
    assert swapped.headers["etag"] == (await client.get(ONE)).headers["etag"] != old
    assert code(await client.put(ONE, json=body, headers={"If-Match": old})) == (412, "PreconditionFailedError")


@pytest.mark.parametrize("tag", ["*", '"something"'])
async def test_a_swap_by_tag_of_an_absent_key_fails_and_writes_nothing(client: httpx2.AsyncClient, tag: str) -> None:
    response = await client.put(ONE, json={"value": "x", "ttl_seconds": 900}, headers={"If-Match": tag})

    assert code(response) == (412, "PreconditionFailedError")
    assert await value_of(client) is None


async def test_a_touch_restarts_the_ttl_and_leaves_value_and_tag(client: httpx2.AsyncClient, api: API) -> None:
    await put(client, "alpha:ABC123", "device:1", 10)
    before = (await client.get(ONE)).headers["etag"]
    api.clock.advance(9)

    assert (await client.patch(ONE, json={"ttl_seconds": 10})).status_code == 200
    api.clock.advance(9)
    assert (await client.get(ONE)).headers["etag"] == before


async def test_a_touch_of_an_expired_key_does_not_revive_it(client: httpx2.AsyncClient, api: API) -> None:
    await put(client, "alpha:ABC123", "device:1", 10)
    api.clock.advance(10)

    assert code(await client.patch(ONE, json={"ttl_seconds": 10})) == (404, "KeyAbsentError")
    assert await value_of(client) is None


async def test_a_delete_removes_and_says_when_there_was_nothing(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")

    assert (await client.delete(ONE)).status_code == 204
    assert code(await client.delete(ONE)) == (404, "KeyAbsentError")


async def test_a_conditional_delete_leaves_what_does_not_match(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")
    wrong = await client.request("DELETE", ONE, json={"expected": "device:2"})
    wrong_tag = await client.delete(ONE, headers={"If-Match": '"other"'})

    assert code(wrong) == code(wrong_tag) == (412, "PreconditionFailedError")
    assert await value_of(client) == "device:1"
    assert (await client.request("DELETE", ONE, json={"expected": "device:1"})).status_code == 204
    assert await value_of(client) is None


async def test_a_delete_by_the_current_tag_removes(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")
    tag = (await client.get(ONE)).headers["etag"]

    assert (await client.delete(ONE, headers={"If-Match": tag})).status_code == 204


async def test_a_misspelt_parameter_of_a_scan_is_refused(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/api/v1/apps/7/keys", params={"prefx": "b/"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "UnknownParameterError"
    assert "after, limit, prefix" in answer.json()["detail"]


async def test_scan_answers_pages_in_byte_order_until_there_is_no_next(client: httpx2.AsyncClient) -> None:
    names = ["b/2", "a", "b/1", "b/é", "c", "b/3"]
    for name in names:
        await put(client, name, f"value of {name}")
    seen, after = [], ""
    while True:
        page = (await client.get("/api/v1/apps/7/keys", params={"prefix": "b/", "limit": 2, "after": after})).json()
        seen += [item["key"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]

    assert seen == ["b/1", "b/2", "b/3", "b/é"]


async def test_insert_many_answers_per_item_and_get_many_returns_the_live_ones(client: httpx2.AsyncClient) -> None:
    await put(client, "there", "old")
    items = [{"key": name, "value": "new", "ttl_seconds": 5} for name in ("there", "fresh")]
    inserted = await client.post("/api/v1/apps/7/keys", json={"items": items})
    found = await client.post("/api/v1/apps/7/keys:get-many", json={"keys": ["there", "fresh", "absent"]})

    assert inserted.json() == {"inserted": [False, True]}
    assert found.json() == {"values": {"there": "old", "fresh": "new"}}


async def test_applications_do_not_see_each_other(client: httpx2.AsyncClient) -> None:
    await put(client, "alpha:ABC123", "device:1")

    assert code(await client.get("/api/v1/apps/8/keys/alpha:ABC123")) == (404, "KeyAbsentError")


# --- keys in addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "a/b",
        "/",
        "//a//",
        "a?b#c",
        "a b+c",
        "%2F",
        "100%",
        "nul\0in",
        "\n",
        "ends\n",
        "é",
        "e\u0301",
        "🦊",
        "a\\b",
        "x" * 1024,
    ],
)
async def test_any_key_comes_back_exactly_as_it_was_sent(client: httpx2.AsyncClient, key: str) -> None:
    await put(client, key, "device:1")
    answer = await client.get(f"/api/v1/apps/7/keys/{quote(key, safe='')}")
    scanned = await client.get("/api/v1/apps/7/keys")

    assert answer.json()["key"] == key
    assert [item["key"] for item in scanned.json()["items"]] == [key]


async def test_keys_that_differ_only_in_normalisation_are_different(client: httpx2.AsyncClient) -> None:
    await put(client, "é", "composed")

    assert await value_of(client, "/api/v1/apps/7/keys/" + quote("e\u0301")) is None


@pytest.mark.parametrize("raw", ["%FF", "a%C3", "%ED%A0%80"])
async def test_a_key_that_is_no_utf8_is_refused_and_never_replaced(client: httpx2.AsyncClient, raw: str) -> None:
    response = await client.put(f"/api/v1/apps/7/keys/{raw}", json={"value": "x", "ttl_seconds": 9})

    assert code(response) == (422, "KeyInvalidUTF8Error")
    assert code(await client.get(f"/api/v1/apps/7/keys?prefix={raw}")) == (422, "KeyInvalidUTF8Error")


async def test_an_address_whose_own_slashes_are_encoded_names_nothing(client: httpx2.AsyncClient) -> None:
    await put(client, "a", "device:1")

    assert code(await client.get("/api/v1/apps%2F7/keys/x/keys/a")) == (404, "NoSuchRouteError")


@pytest.mark.parametrize("app", ["-1", "4294967296", "07", "x", "1e3", "٧", "9" * 5000])
async def test_an_application_id_has_one_spelling_and_32_bits(client: httpx2.AsyncClient, app: str) -> None:
    assert code(await client.get(f"/api/v1/apps/{quote(app)}/keys")) == (422, "InvalidAppIdError")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", ["true", "900.0", '"900"', "null", "0", "-1", "31536001", "[]", "NaN", "1e2"])
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_ttl_that_is_no_whole_number_in_range_is_refused(
    client: httpx2.AsyncClient, ttl: str, method: str
) -> None:
    value = '"value": "x", ' if method == "PUT" else ""
    response = await client.request(method, ONE, content=f'{{{value}"ttl_seconds": {ttl}}}', headers=JSON)

    assert code(response) == (422, "InvalidTTLError")
    assert await value_of(client) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            '{"value": "\\ud800", "ttl_seconds": 9}', "ValueInvalidUTF8Error", id="lone surrogate in the value"
        ),
        pytest.param('{"value": 5, "ttl_seconds": 9}', "KeyTypeError", id="value is a number"),
        pytest.param('{"value": null, "ttl_seconds": 9}', "KeyTypeError", id="value is null"),
        pytest.param('{"value": "x", "ttl_seconds": 9, "expected": null}', "KeyTypeError", id="expected is null"),
        pytest.param('{"value": "x", "ttl_seconds": 9, "expected": "\\udfff"}', "ValueInvalidUTF8Error", id="expected"),
        pytest.param('{"value": "x"}', "InvalidRequestError", id="no ttl"),
        pytest.param('{"value": "x", "ttl_seconds": 9, "ttl": 9}', "InvalidRequestError", id="unknown field"),
        pytest.param('{"value": "x", "ttl_seconds": 9, "\\ud800": 9}', "InvalidRequestError", id="odd unknown field"),
        pytest.param("[]", "InvalidRequestError", id="a list"),
        pytest.param("", "InvalidRequestError", id="nothing"),
        pytest.param("{", "InvalidRequestError", id="no JSON"),
    ],
)
async def test_a_body_that_breaks_a_rule_is_refused_before_anything_is_written(
    client: httpx2.AsyncClient, body: str, expected: str
) -> None:
    response = await client.put(ONE, content=body, headers=JSON)

    assert code(response) == (422, expected)
    assert await value_of(client) is None


@pytest.mark.parametrize("unit", ["x", "é", "🦊"])
async def test_values_are_limited_in_bytes_not_in_characters(client: httpx2.AsyncClient, unit: str) -> None:
    largest = unit * (65536 // len(unit.encode()))
    await put(client, "alpha:ABC123", largest)

    assert await value_of(client) == largest
    response = await client.put(ONE, json={"value": largest + "x", "ttl_seconds": 9})
    assert code(response) == (422, "ValueTooLongError")


async def test_two_values_of_maximal_size_in_their_longest_spelling_fit_into_one_swap(
    client: httpx2.AsyncClient,
) -> None:
    await put(client, "alpha:ABC123", "\0" * 65536)
    body = json.dumps({"expected": "\0" * 65536, "value": "\1" * 65536, "ttl_seconds": 9})

    assert (await client.put(ONE, content=body, headers=JSON)).status_code == 200
    assert await value_of(client) == "\1" * 65536


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", "KeyEmptyError"), ("x" * 1025, "KeyTooLongError"), ("é" * 513, "KeyTooLongError")],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_a_key_that_breaks_a_rule_is_refused_by_every_operation(
    client: httpx2.AsyncClient, method: str, key: str, expected: str
) -> None:
    body = {"PUT": {"value": "x", "ttl_seconds": 9}, "PATCH": {"ttl_seconds": 9}}.get(method)
    response = await client.request(method, f"/api/v1/apps/7/keys/{quote(key)}", json=body)

    assert code(response) == (422, expected)


@pytest.mark.parametrize("keys", ['["\\ud800"]', "[5]", "[[]]", "[{}]", '[""]'])
async def test_get_many_refuses_what_is_no_key(client: httpx2.AsyncClient, keys: str) -> None:
    response = await client.post("/api/v1/apps/7/keys:get-many", content=f'{{"keys": {keys}}}', headers=JSON)

    assert response.status_code == 422
    assert code(response)[1] in {"KeyInvalidUTF8Error", "KeyTypeError", "KeyEmptyError"}


async def test_one_wrong_item_of_many_keeps_all_from_being_written(client: httpx2.AsyncClient) -> None:
    items = [{"key": "good", "value": "x", "ttl_seconds": 9}, {"key": "bad", "value": "x", "ttl_seconds": 0}]

    assert code(await client.post("/api/v1/apps/7/keys", json={"items": items})) == (422, "InvalidTTLError")
    assert (await client.get("/api/v1/apps/7/keys")).json() == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("headers", "extra"),
    [
        ({"If-Match": '"a"', "If-None-Match": "*"}, {}),
        ({"If-Match": '"a"'}, {"expected": "x"}),
        ({"If-None-Match": "*"}, {"expected": "x"}),
        ({"If-None-Match": '"a"'}, {}),
        ({"If-Match": "unquoted"}, {}),
    ],
)
async def test_conditions_that_contradict_each_other_or_make_no_sense_are_refused(
    client: httpx2.AsyncClient, headers: dict[str, str], extra: dict[str, str]
) -> None:
    response = await client.put(ONE, json={"value": "x", "ttl_seconds": 9} | extra, headers=headers)

    assert code(response) == (400, "ContradictoryConditionsError")


async def test_no_answer_repeats_a_value_that_was_refused(client: httpx2.AsyncClient) -> None:
    response = await client.put(ONE, json={"value": ["hunter2"], "ttl_seconds": "hunter2", "hunter": "hunter2"})

    assert response.status_code == 422
    assert "hunter2" not in response.text


# --- failures --------------------------------------------------------------------------------------------------------


async def test_a_store_that_cannot_be_used_is_a_503_and_is_counted(client: httpx2.AsyncClient, api: API) -> None:
    await api.keys.close()

    assert code(await client.get(ONE)) == (503, "BackendClosedError")
    assert b'lapse_errors_total{domain="keys",kind="request"} 1.0' in api.metrics.exposition()


async def test_a_defect_is_a_500_without_details_and_with_an_id_that_the_log_has(
    client: httpx2.AsyncClient, api: API, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(api.keys, "app", broken)
    response = await client.get(ONE)

    assert code(response) == (500, "InternalError")
    assert "secret" not in response.text
    assert [getattr(record, "request", None) for record in caplog.records if record.levelname == "ERROR"] == [
        response.headers["x-request-id"]
    ]


async def test_an_unknown_address_and_an_unknown_method_are_problems_too(client: httpx2.AsyncClient) -> None:
    assert code(await client.get("/api/v2/nothing")) == (404, "NoSuchRouteError")
    wrong = await client.put("/api/v1/status", json={})
    assert code(wrong) == (405, "MethodNotAllowedError")
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS"
