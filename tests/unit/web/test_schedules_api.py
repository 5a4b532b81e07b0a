from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.journal.port import Outcome
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import CAPTURE_SCHEDULE
from tests.unit.web.test_keys_api import code

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API

PLACE = "/api/v1/schedules"
ONE = f"{PLACE}/default/nightly"
KEY = ObjectKey("default", "nightly")
TARGET = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data"}
SPEC: dict[str, Any] = {
    "schedule": "0 3 * * *",
    "template": {"volumeCapture": {"mode": "Snapshot", "target": TARGET}},
    "keep": {"daily": 7},
}
BODY: dict[str, Any] = {"metadata": {"name": "nightly"}, "spec": SPEC}


async def make(client: httpx2.AsyncClient, name: str = "nightly", namespace: str = "default") -> httpx2.Response:
    response = await client.post(PLACE, json={**BODY, "metadata": {"name": name, "namespace": namespace}})
    assert response.status_code == 201
    return response


async def change(client: httpx2.AsyncClient, **spec: object) -> httpx2.Response:
    return await client.patch(ONE, json={"spec": spec})


async def test_a_schedule_is_made_and_found_at_the_place_that_the_answer_names(client: httpx2.AsyncClient) -> None:
    made = await make(client)
    found = await client.get(made.headers["location"])

    assert made.headers["location"] == ONE
    assert found.json() == made.json()
    assert found.headers["etag"] == made.headers["etag"]
    assert (found.json()["address"], found.json()["captures"]) == ("csched/default/nightly", "pvc/data")
    assert len(found.json()["next_runs_at"]) == 3
    assert found.json()["runs"] == []
    assert found.json()["object"]["spec"]["keep"]["daily"] == 7


async def test_a_list_may_be_of_one_namespace_and_comes_in_pages(client: httpx2.AsyncClient) -> None:
    for name, namespace in [("a", "default"), ("b", "default"), ("c", "shop")]:
        await make(client, name, namespace)
    first = (await client.get(PLACE, params={"limit": 2})).json()
    second = (await client.get(PLACE, params={"limit": 2, "after": first["next"]})).json()

    assert [one["name"] for one in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None
    assert [one["name"] for one in (await client.get(f"{PLACE}?namespace=shop")).json()["items"]] == ["c"]
    assert code(await client.get(f"{PLACE}?namespce=shop")) == (422, "UnknownParameterError")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {**SPEC, "schedule": "99 3 * * *"},
        {**SPEC, "schedule": 7},
        {**SPEC, "timeZone": "Mars/Olympus"},
        {**SPEC, "keep": {}},
        {**SPEC, "template": {}},
    ],
)
async def test_what_is_no_schedule_is_refused_and_nothing_is_made(
    spec: dict[str, Any], client: httpx2.AsyncClient
) -> None:
    assert code(await client.post(PLACE, json={**BODY, "spec": spec})) == (422, "InvalidError")
    assert (await client.get(PLACE)).json() == {"items": [], "next": None}


async def test_a_schedule_is_suspended_resumed_and_changed_by_what_is_sent_alone(
    client: httpx2.AsyncClient, api: API
) -> None:
    await make(client)
    suspended = (await change(client, suspend=True)).json()
    assert (suspended["suspended"], suspended["next_runs_at"], suspended["no_run"]) == (True, [], "it is suspended")
    assert (await change(client, suspend=False)).json()["suspended"] is False

    changed = (await change(client, keep={"weekly": 4}, timeZone="Europe/Berlin")).json()
    assert (changed["keep"], changed["time_zone"]) == ({"daily": 7, "weekly": 4}, "Europe/Berlin")
    assert (await api.objects.get(CAPTURE_SCHEDULE, KEY)).spec.schedule == "0 3 * * *"


@pytest.mark.parametrize(
    "spec", [{"schedule": "soon"}, {"timeZone": "Mars/Olympus"}, {"keep": {"daily": 0}}, {"template": None}]
)
async def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
    spec: dict[str, Any], client: httpx2.AsyncClient
) -> None:
    before = (await make(client)).json()

    assert code(await client.patch(ONE, json={"spec": spec})) == (422, "InvalidError")
    assert (await client.get(ONE)).json() == before


async def test_a_change_and_a_deletion_may_name_the_version_that_they_mean(client: httpx2.AsyncClient) -> None:
    old = (await make(client)).headers["etag"]
    now = (await change(client, suspend=True)).headers["etag"]
    late = await client.patch(ONE, json={"spec": {"suspend": False}}, headers={"If-Match": old})

    assert code(late) == (412, "VersionChangedError")
    assert (await client.get(ONE)).json()["suspended"] is True
    assert code(await client.delete(ONE, headers={"If-Match": old})) == (412, "VersionChangedError")
    assert (await client.delete(ONE, headers={"If-Match": now})).status_code == 204
    assert code(await client.get(ONE)) == (404, "NotFoundError")


async def test_a_deletion_is_journalled_and_one_that_is_held_refused(client: httpx2.AsyncClient, api: API) -> None:
    hold = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}
    await client.post(PLACE, json={**BODY, "metadata": {"name": "nightly", "annotations": hold}})
    await make(client, "other")

    assert code(await client.delete(ONE)) == (409, "HeldError")
    assert (await client.delete(f"{PLACE}/default/other")).status_code == 204
    rows = {(row.address, row.domain, row.outcome) for row in await api.journal.entries()}
    assert ("csched/default/nightly", "schedules", Outcome.HELD) in rows
    assert ("csched/default/other", "schedules", Outcome.ENDED) in rows


async def test_a_change_is_tried_again_while_others_write_the_status(
    client: httpx2.AsyncClient, api: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client)
    patch, left = api.objects.patch, [1, 2]

    async def disturbed(kind: Any, key: ObjectKey, changes: Any, **of: Any) -> Any:  # noqa: ANN401 - as the store has it
        if left:
            await api.objects.patch_status(kind, key, {"active": left.pop()})
        return await patch(kind, key, changes, **of)

    monkeypatch.setattr(api.objects, "patch", disturbed)
    assert (await change(client, suspend=True)).json()["suspended"] is True


async def test_the_openapi_document_describes_the_routes(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/api/v1/openapi.json")).json()
    one = document["paths"]["/api/v1/schedules/{namespace}/{name}"]
    told = (await make(client)).json()

    assert set(one) == {"get", "patch", "delete"}
    assert "If-Match" in [each["name"] for each in one["patch"]["parameters"]]
    assert set(told) == set(document["components"]["schemas"]["ScheduleDetails"]["properties"])
