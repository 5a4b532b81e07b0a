from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.journal.port import Outcome
from lapse.files.ownership import user_name
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.unit.web.conftest import API, JSON
from tests.unit.web.test_keys_api import code

if TYPE_CHECKING:
    import httpx2

VCR = "/api/v1/requests/vcr"
ONE = f"{VCR}/default/nightly"
TARGET = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": "u1"}
BODY: dict[str, Any] = {"metadata": {"name": "nightly"}, "spec": {"mode": "Snapshot", "target": TARGET}}
DIRECTORY = "local.lapse.dev/directory"


async def ask(client: httpx2.AsyncClient, name: str = "nightly", namespace: str = "default") -> httpx2.Response:
    response = await client.post(VCR, json={**BODY, "metadata": {"name": name, "namespace": namespace}})
    assert response.status_code == 201
    return response


async def finish(api: API, *, keeper: str | None = None) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "done"}
    status = {"conditions": [ready], "completionTimestamp": "2023-11-14T22:13:20Z"}
    await api.objects.patch_status(VOLUME_CAPTURE_REQUEST, ObjectKey("default", "nightly"), status)


# --- asking -----------------------------------------------------------------------------------------------------------


async def test_a_request_is_made_and_found_at_the_place_that_the_answer_names(client: httpx2.AsyncClient) -> None:
    made = await ask(client)
    found = await client.get(made.headers["location"])

    assert made.headers["location"] == ONE
    assert found.json() == made.json()
    assert found.headers["etag"] == made.headers["etag"]
    assert found.json()["address"] == "vcr/default/nightly"
    assert found.json()["ready"] is None
    assert found.json()["object"]["spec"] == BODY["spec"]
    assert found.json()["object"]["apiVersion"] == "storage.deckhouse.io/v1alpha1"


async def test_a_finished_request_tells_its_outcome_and_when_it_goes(client: httpx2.AsyncClient, api: API) -> None:
    await ask(client)
    await finish(api)
    told = (await client.get(ONE)).json()

    assert (told["ready"], told["reason"], told["message"]) == (True, "Completed", "done")
    assert told["expires_at"] == "2023-11-14T22:23:20Z"


async def test_in_mode_scanner_a_note_on_the_request_does_not_count(client: httpx2.AsyncClient, api: API) -> None:
    annotated = {"name": "nightly", "annotations": {"storage.deckhouse.io/ttl": "99h"}}
    await client.post(VCR, json={**BODY, "metadata": annotated})
    await finish(api)

    assert (await client.get(ONE)).json()["expires_at"] == "2023-11-14T22:23:20Z"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({**BODY, "metadata": {"name": "X"}}, "InvalidError"),
        ({**BODY, "metadata": {"name": "x" * 254}}, "InvalidError"),
        ({**BODY, "metadata": {"name": "x", "namespace": "a.b"}}, "InvalidError"),
        ({**BODY, "spec": {}}, "InvalidError"),
        ({**BODY, "spec": {"mode": "Snap", "target": TARGET}}, "InvalidError"),
        ({**BODY, "spec": {"mode": "Snapshot"}}, "InvalidError"),
        ({**BODY, "kind": "ConfigMap"}, "InvalidError"),
        ({**BODY, "apiVersion": "v1"}, "InvalidError"),
        ({**BODY, "metadata": {"name": "x", "annotations": {"a": "x" * 300_000}}}, "InvalidError"),
        ({**BODY, "status": {}}, "InvalidRequestError"),
        ({**BODY, "metadata": {"name": "x", "finalizers": ["a"]}}, "InvalidRequestError"),
        ({"spec": {}}, "InvalidRequestError"),
        ([], "InvalidRequestError"),
    ],
)
async def test_what_is_no_request_is_refused_and_nothing_is_made(
    body: object, expected: str, client: httpx2.AsyncClient
) -> None:
    assert code(await client.post(VCR, json=body)) == (422, expected)
    assert (await client.get(VCR)).json() == {"items": [], "next": None}


async def test_a_name_is_taken_once(client: httpx2.AsyncClient) -> None:
    await ask(client)

    assert code(await client.post(VCR, json=BODY)) == (409, "AlreadyExistsError")


async def test_a_claim_is_made_for_a_directory(client: httpx2.AsyncClient, api: API) -> None:
    body = {"metadata": {"name": "data", "annotations": {DIRECTORY: "/srv/data"}}}
    made = await client.post("/api/v1/claims", json=body)
    claim = await api.objects.get(PERSISTENT_VOLUME_CLAIM, ObjectKey("default", "data"))

    assert made.status_code == 201
    assert made.json()["uid"] == claim.metadata.uid
    assert claim.metadata.annotations == {DIRECTORY: "/srv/data"}
    assert (await client.get("/api/v1/claims/default/data")).status_code == 200
    assert (await client.delete("/api/v1/claims/default/data")).status_code == 204


@pytest.mark.parametrize("kind", ["frob", "keeper", "vsc", "VCR", "pvc"])
async def test_what_is_no_request_kind_is_answered_with_those_that_are(kind: str, client: httpx2.AsyncClient) -> None:
    response = await client.get(f"/api/v1/requests/{kind}")

    assert code(response) == (422, "InvalidRequestError")
    assert response.json()["errors"] == [{"where": "path.kind", "problem": "Input should be 'vcr', 'vrr' or 'mcr'"}]


# --- lists ------------------------------------------------------------------------------------------------------------


async def test_a_list_comes_in_pages_that_show_one_moment(client: httpx2.AsyncClient) -> None:
    for name in "abc":
        await ask(client, name)
    first = (await client.get(VCR, params={"limit": 2})).json()
    await ask(client, "bb")
    second = (await client.get(VCR, params={"limit": 2, "after": first["next"]})).json()

    assert [one["name"] for one in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None


async def test_a_list_may_be_of_one_namespace(client: httpx2.AsyncClient) -> None:
    await ask(client, "a", "default")
    await ask(client, "b", "other")

    assert [one["name"] for one in (await client.get(VCR)).json()["items"]] == ["a", "b"]
    assert [one["name"] for one in (await client.get(f"{VCR}?namespace=other")).json()["items"]] == ["b"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=0", "InvalidRequestError"),
        ("limit=1001", "InvalidRequestError"),
        ("limit=x", "InvalidRequestError"),
        ("after=nonsense", "InvalidError"),
        ("namespce=default", "UnknownParameterError"),
    ],
)
async def test_a_question_that_cannot_be_meant_is_refused(
    query: str, expected: str, client: httpx2.AsyncClient
) -> None:
    assert code(await client.get(f"{VCR}?{query}")) == (422, expected)


async def test_keepers_and_artifacts_can_be_read_and_not_written(client: httpx2.AsyncClient, api: API) -> None:
    keeper = await api.objects.create(OBJECT_KEEPER, {"metadata": {"name": "k"}, "spec": {"mode": "TTL", "ttl": "1h"}})
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": "ObjectKeeper", "name": "k", "uid": keeper.metadata.uid,
             "controller": True}  # fmt: skip
    metadata = {"name": "s", "ownerReferences": [owner]}
    await api.objects.create(VOLUME_SNAPSHOT_CONTENT, {"metadata": metadata, "spec": {}})
    artifact = (await client.get("/api/v1/artifacts/vsc/s")).json()

    assert [one["address"] for one in (await client.get("/api/v1/keepers")).json()["items"]] == ["keeper/k"]
    assert (await client.get("/api/v1/keepers/k")).json()["object"]["spec"] == {"mode": "TTL", "ttl": "1h"}
    assert (artifact["keeper"], artifact["expires"]) == ("keeper/k", "with its keeper")
    assert len((await client.get("/api/v1/artifacts/vsc")).json()["items"]) == 1
    for method, url in [("POST", "/api/v1/keepers"), ("DELETE", "/api/v1/keepers/k"),
                        ("DELETE", "/api/v1/artifacts/vsc/s"), ("POST", "/api/v1/artifacts/vsc")]:  # fmt: skip
        assert code(await client.request(method, url, json={})) == (405, "MethodNotAllowedError")


@pytest.mark.parametrize(
    "url",
    [ONE, "/api/v1/claims/default/x", "/api/v1/keepers/x", "/api/v1/artifacts/mcp/x",
     "/api/v1/checkpoints/x/manifests"],
)  # fmt: skip
async def test_what_is_not_there_is_answered_with_404(url: str, client: httpx2.AsyncClient) -> None:
    assert code(await client.get(url)) == (404, "NotFoundError")


# --- deleting ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_deleted_and_that_is_journalled(client: httpx2.AsyncClient, api: API) -> None:
    uid = (await ask(client)).json()["uid"]
    assert (await client.delete(ONE)).status_code == 204
    (row,) = await api.journal.entries()

    assert code(await client.get(ONE)) == (404, "NotFoundError")
    assert code(await client.delete(ONE)) == (404, "NotFoundError")
    assert (row.address, row.uid, row.actor) == ("vcr/default/nightly", uid, f"user {user_name()}")


async def test_the_metrics_of_the_process_count_what_people_delete(client: httpx2.AsyncClient, api: API) -> None:
    series = 'lapse_deletions_total{domain="requests",reason="deleted_by_person"}'
    assert f"{series} 0.0" in api.metrics.exposition().decode()
    await ask(client)
    assert (await client.delete(ONE)).status_code == 204

    told = api.metrics.exposition().decode()
    assert f"{series} 1.0" in told
    assert 'lapse_expiry_lag_seconds_count{domain="requests"} 0.0' in told, "it was not due, so it was not late"


async def test_a_deletion_may_name_the_version_that_it_means(client: httpx2.AsyncClient, api: API) -> None:
    tag = (await ask(client)).headers["etag"]
    await finish(api)
    old = await client.delete(ONE, headers={"If-Match": tag})
    now = (await client.get(ONE)).headers["etag"]

    assert code(old) == (412, "VersionChangedError")
    assert code(await client.delete(ONE, headers={"If-None-Match": "*"})) == (400, "ContradictoryConditionsError")
    assert (await client.delete(ONE, headers={"If-Match": now})).status_code == 204


async def test_what_is_held_is_not_deleted(client: httpx2.AsyncClient, api: API) -> None:
    metadata = {"name": "nightly", "annotations": {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}}
    await client.post(VCR, json={**BODY, "metadata": metadata})
    response = await client.delete(ONE)

    assert code(response) == (409, "HeldError")
    assert "audit" in response.json()["detail"]
    assert (await client.get(ONE)).json()["held"] is True
    assert [row.outcome for row in await api.journal.entries()] == [Outcome.HELD]


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "reads", "writes"), [("admin", 200, 201), ("read", 200, 403), ("keys:7", 403, 403)])
async def test_admin_writes_read_reads_and_a_scope_of_keys_does_neither(
    scope: str, reads: int, writes: int, client: httpx2.AsyncClient, api: API
) -> None:
    _, token = api.tokens.create("t", [scope])
    headers = {"Authorization": f"Bearer {token}"}

    assert (await client.get(VCR, headers=headers)).status_code == reads
    assert (await client.get("/api/v1/keepers", headers=headers)).status_code == reads
    assert (await client.post(VCR, json=BODY, headers=headers)).status_code == writes
    deleted = await client.delete(ONE, headers=headers)
    assert deleted.status_code == (204 if scope == "admin" else 403)
    assert [row.actor for row in await api.journal.entries()] == (["token t"] if scope == "admin" else [])


async def test_without_a_token_nothing_is_told(stranger: httpx2.AsyncClient) -> None:
    assert code(await stranger.get(VCR)) == (401, "TokenMissingError")
    assert code(await stranger.post(VCR, content="{}", headers=JSON)) == (401, "TokenMissingError")


async def test_a_body_that_is_not_declared_as_json_is_refused(client: httpx2.AsyncClient) -> None:
    response = await client.post(VCR, content="{}", headers={"Content-Type": "text/plain"})

    assert code(response) == (415, "NotJSONError")


# --- description ------------------------------------------------------------------------------------------------------


async def test_the_openapi_document_describes_every_route_with_its_form(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    create = document["paths"]["/api/v1/requests/{kind}"]["post"]
    remove = document["paths"]["/api/v1/requests/{kind}/{namespace}/{name}"]["delete"]
    listing = document["paths"]["/api/v1/requests/{kind}"]["get"]

    assert create["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/NewObject")
    assert create["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/ObjectDetails")
    assert [one["name"] for one in listing["parameters"]] == ["kind", "namespace", "limit", "after"]
    assert "If-Match" in [one["name"] for one in remove["parameters"]]
    assert "204" in remove["responses"]
    assert "apiVersion" in document["components"]["schemas"]["NewObject"]["properties"]


async def test_what_is_answered_has_exactly_the_described_fields(client: httpx2.AsyncClient) -> None:
    told = (await ask(client)).json()
    document = (await client.get("/api/v1/openapi.json")).json()

    assert set(told) == set(document["components"]["schemas"]["ObjectDetails"]["properties"])


async def test_the_status_says_that_a_process_without_leadership_does_not_lead(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/v1/status")).json()["leader"] is False
