from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.app.record import ProcessRecord
from lapse.core.clock import UnixNs
from lapse.core.timestamps import to_timestamp
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.freeze import Freeze, FreezeReason, freeze_row
from lapse.engine.safety.holds import HOLD
from lapse.engine.view import to_json
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, RETENTION_POLICY
from lapse.history.policy.default_policy import HistoryLimits
from lapse.history.view import about_records, look
from lapse.kube.resources import ObjectKey
from tests.past import policy
from tests.policies import MemoryNotes, PolicyGate
from tests.unit.web.test_keys_api import code

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API

HISTORY = "/api/v1/history"
RETENTION = "/api/v1/retention"
DAY = 86_400
GROUP = ["metadata.labels['lapse.dev/experiment-name']"]


def spec(
    experiment: str = "kill", *, namespace: str = "shop", status: str = "success", start: str = "2023-11-14T22:13:20Z"
) -> dict[str, Any]:
    return {
        "experimentRef": {"name": experiment, "namespace": namespace, "uid": f"u-{experiment}"},
        "execution": {"startTime": start, "status": status},
    }


async def run(api: API, *, days: float = 0, **how: str) -> str:
    """Let a run end and be recorded, and then some time go by; return the record's name."""
    start = to_timestamp(api.clock.wall_ns())
    response = await api.client.post(HISTORY, json={"spec": spec(start=start, **how)})
    assert response.status_code == 201
    api.clock.advance(days * DAY)
    name: str = response.json()["name"]
    return name


async def names(api: API, query: str = "") -> list[str]:
    return [one["name"] for one in (await api.client.get(f"{HISTORY}{query}")).json()["items"]]


# --- records ----------------------------------------------------------------------------------------------------------


async def test_a_run_is_recorded_once_and_found_at_the_place_that_the_answer_names(client: httpx2.AsyncClient) -> None:
    made = await client.post(HISTORY, json={"spec": spec()})
    again = await client.post(HISTORY, json={"spec": spec()})
    found = await client.get(made.headers["location"])

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == {**again.json(), "new": True}
    assert again.json()["new"] is False
    assert made.headers["location"] == f"{HISTORY}/chaos-system/{made.json()['name']}"
    assert found.headers["etag"] == made.headers["etag"] == again.headers["etag"]
    assert found.json()["object"]["spec"] == spec()
    assert found.json()["experiment"] == "shop/kill"
    assert found.json()["expires_at"] == made.json()["expires_at"] == "2023-12-14T22:13:20Z"


async def test_a_name_labels_and_a_hold_in_the_document_are_kept(api: API) -> None:
    metadata = {"name": "mine", "labels": {"team": "shop"}, "annotations": {HOLD: "true"}}
    made = await api.client.post(HISTORY, json={"metadata": metadata, "spec": spec()})
    assert (made.status_code, made.json()["name"], made.json()["held"]) == (201, "mine", True)
    found = await api.client.get(made.headers["location"])
    assert found.json()["object"]["metadata"]["labels"]["team"] == "shop"

    api.clock.advance(1000 * DAY)
    await api.client.post(f"{HISTORY}/prune", json={})
    assert await names(api) == ["mine"]
    other = spec(start="2023-11-15T00:00:00Z")
    assert (await api.client.post(HISTORY, json={"metadata": {"name": "mine"}, "spec": other})).status_code == 409


async def test_a_whole_document_is_recorded_too(client: httpx2.AsyncClient) -> None:
    made = (await client.post(HISTORY, json={"spec": spec()})).json()
    document = (await client.get(f"{HISTORY}/chaos-system/{made['name']}")).json()["object"]

    assert (await client.post(HISTORY, json=document)).status_code == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "InvalidRequestError"),
        ([], "InvalidRequestError"),
        ({"spec": spec(), "status": {}}, "InvalidRequestError"),
        ({"spec": {}}, "DocumentError"),
        ({"spec": spec(status="fine")}, "DocumentError"),
        ({"spec": spec(start="yesterday")}, "DocumentError"),
        ({"spec": {**spec(), "massage": "x"}}, "DocumentError"),
        ({"spec": spec(), "kind": "ConfigMap"}, "DocumentError"),
        ({"spec": spec(), "apiVersion": "v1"}, "DocumentError"),
        ({"spec": spec(), "metadata": {"namespace": "shop"}}, "InvalidError"),
        ({"spec": spec(), "metadata": {"labels": {"a": 1}}}, "DocumentError"),
        ({"spec": spec(), "metadata": {"uid": 7, "generation": "x"}}, "DocumentError"),
    ],
    ids=str,
)
async def test_what_is_no_run_is_refused_and_nothing_is_written(body: object, expected: str, api: API) -> None:
    assert code(await api.client.post(HISTORY, json=body)) == (422, expected)
    assert await names(api) == []


async def test_records_are_listed_in_pages_and_by_experiment_and_status(api: API) -> None:
    first = await run(api, days=1)
    second = await run(api, days=1, status="failure")
    other = await run(api, experiment="net", namespace="bank")
    page = (await api.client.get(HISTORY, params={"limit": 2})).json()
    rest = (await api.client.get(HISTORY, params={"limit": 2, "after": page["next"]})).json()

    assert [one["name"] for one in page["items"] + rest["items"]] == [first, second, other]
    assert rest["next"] is None
    assert await names(api, "?experiment=shop/kill") == [first, second]
    assert await names(api, "?experiment_namespace=bank") == [other]
    assert await names(api, "?namespace=chaos-system") == [first, second, other]
    assert await names(api, "?namespace=bank") == []
    assert await names(api, "?status=failure") == [second]
    assert await names(api, "?experiment=bank/net&status=failure") == []


@pytest.mark.parametrize(
    "query", ["experiment=kill", "experiment=a/b/c", "status=fine", "limit=0", "limit=1001", "frob=1"]
)
async def test_a_question_that_cannot_be_meant_is_refused(query: str, client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"{HISTORY}?{query}")).status_code == 422


async def test_one_record_tells_what_every_policy_says_about_it(api: API) -> None:
    name = await run(api, days=40)
    keep = {"count": 1, "where": {"fieldPath": "metadata.labels['lapse.dev/status']", "in": ["success"]}}
    await api.objects.create(RETENTION_POLICY, policy("protects", keepLast=keep))
    told = (await api.client.get(f"{HISTORY}/chaos-system/{name}")).json()

    assert told["verdict"] == "keep"
    by = {one["policy"]: one for one in told["retention"]}
    assert by["history"]["verdict"] == "due"
    assert by["history"]["says"].startswith("goes: it is older than maxAge 30d since 2023-12-14T22:13:20Z")


async def test_what_is_held_says_so(api: API) -> None:
    name = await run(api, days=40)
    changes = {"metadata": {"annotations": {HOLD: "true"}}}
    await api.objects.patch(CHAOS_EXPERIMENT_HISTORY, ObjectKey("chaos-system", name), changes)

    assert (await api.client.get(HISTORY)).json()["items"][0]["held"] is True
    assert (await api.client.get(f"{HISTORY}/chaos-system/{name}")).json()["reason"] == "held"


async def test_a_record_that_is_not_there_is_a_problem(client: httpx2.AsyncClient) -> None:
    assert code(await client.get(f"{HISTORY}/chaos-system/nobody")) == (404, "NotFoundError")


async def written_by_another(api: API, experiment: str) -> None:
    """Make a record without our labels."""
    body = {"metadata": {"name": f"{experiment}-foreign", "namespace": "chaos-system"}, "spec": spec(experiment)}
    await api.objects.create(CHAOS_EXPERIMENT_HISTORY, body)


@pytest.mark.parametrize(("experiments", "size"), [(3, 5), (12, 40)])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"retention_limit": 1},
        {"retention_limit": 2, "keep_last_success": 1},
        {"ttl": "24h", "keep_last_success": 2},
        {"ttl": "0", "retention_limit": 0},
    ],
    ids=str,
)
async def test_a_page_says_of_each_record_what_is_said_where_all_are_read(
    limits: dict[str, Any], experiments: int, size: int, api: API
) -> None:
    for number in range(experiments):
        await run(api, experiment=f"e{number}", status="success" if number % 2 else "failure", days=0.4)
        for status in ("failure", "success"):
            await run(api, experiment=f"e{number}", status=status, days=0.3)
    await written_by_another(api, "other")
    await written_by_another(api, "another")
    held = (await names(api))[1]
    annotations = {"metadata": {"annotations": {HOLD: "true"}}}
    await api.objects.patch(CHAOS_EXPERIMENT_HISTORY, ObjectKey("chaos-system", held), annotations)
    keep = {"count": 1, "where": {"fieldPath": "metadata.labels['lapse.dev/status']", "in": ["failure"]}}
    await api.objects.create(RETENTION_POLICY, policy("protects", keepLast=keep, groupBy=GROUP))
    now = UnixNs(api.clock.wall_ns())
    policies = about_records(await api.retention.load(HistoryLimits.read(**limits)))
    all_of_them = await look(api.objects, policies, namespace=None, now=now)
    told, after = [], None
    while True:
        page = (
            await api.client.get(HISTORY, params={**limits, "limit": size} | ({"after": after} if after else {}))
        ).json()
        told += page["items"]
        after = page["next"]
        if after is None:
            break

    assert told == to_json(sorted((one.view(now) for one in all_of_them), key=lambda one: one.name))
    assert len(told) == 3 * experiments + 2


async def test_a_list_says_of_one_too_many_that_it_goes_with_the_next_pass(api: API) -> None:
    first = await run(api, days=1)
    second = await run(api, days=1)
    page = (await api.client.get(HISTORY, params={"retention_limit": 1, "limit": 1})).json()

    (told,) = page["items"]
    assert (told["name"], told["verdict"], told["reason"]) == (first, "due", "retention_limit")
    assert (told["expires"], told["expires_at"]) == ("with the next pass", "2023-11-15T22:13:20Z")
    (told,) = (await api.client.get(HISTORY, params={"limit": 1, "after": page["next"]})).json()["items"]
    assert (told["name"], told["verdict"], told["reason"], told["expires"]) == (second, "keep", "not_yet", None)


# --- passes -----------------------------------------------------------------------------------------------------------


async def test_a_dry_prune_and_a_real_one_name_the_same_records(api: API) -> None:
    old, young = await run(api, days=31), await run(api, days=1)
    dry = (await api.client.post(f"{HISTORY}/prune", json={"dryRun": True})).json()
    assert await names(api) == [old, young]
    real = (await api.client.post(f"{HISTORY}/prune", json={})).json()

    assert [one["name"] for one in dry["items"]] == [one["name"] for one in real["items"]] == [old]
    assert (dry["items"][0]["outcome"], real["items"][0]["outcome"]) == ("would_end", "ended")
    assert real["items"][0]["reason"] == "ttl_expired"
    assert real["policies"][0]["deleted"] == {"ttl_expired": 1}
    assert await names(api) == [young]


async def test_limits_of_a_prune_take_the_place_of_those_of_the_history_this_time(api: API) -> None:
    first = await run(api, days=1)
    middle, last = await run(api, days=1), await run(api, days=1)
    dry = (await api.client.post(f"{HISTORY}/prune", json={"dryRun": True, "retention_limit": 1})).json()
    assert {one["name"]: one["reason"] for one in dry["items"]} == dict.fromkeys([first, middle], "retention_limit")
    kept = (await api.client.post(f"{HISTORY}/prune", json={"retention_limit": 1, "keep_last_success": 3})).json()
    assert kept["items"] == []
    real = (await api.client.post(f"{HISTORY}/prune", json={"ttl": "60h", "retention_limit": 0})).json()
    assert [(one["name"], one["reason"], one["outcome"]) for one in real["items"]] == [(first, "ttl_expired", "ended")]
    assert (await api.client.post(f"{HISTORY}/prune", json={})).json()["items"] == []
    assert await names(api) == [middle, last]
    assert (await api.client.get(RETENTION)).json()["items"] == [], "nothing of it is stored"


@pytest.mark.parametrize(
    ("limits", "expected", "says"),
    [
        ({"ttl": "30m"}, "HistorySettingError", "ttl cannot be 30m: it is shorter than an hour"),
        ({"ttl": "-1h"}, "HistorySettingError", "it is below zero"),
        ({"ttl": "2"}, "HistorySettingError", "ttl cannot be '2'"),
        ({"ttl": "10minutes"}, "HistorySettingError", "Expected 0 to keep records of any age, or 1h or more"),
        ({"ttl": 7200}, "InvalidRequestError", ""),
        ({"retention_limit": -1}, "HistorySettingError", "retention_limit cannot be -1: it is below zero"),
        ({"retention_limit": True}, "InvalidRequestError", ""),
        ({"keep_last_success": -1}, "HistorySettingError", "keep_last_success cannot be -1"),
        ({"history_ttl": "2h"}, "InvalidRequestError", ""),
    ],
    ids=str,
)
async def test_limits_that_cannot_be_meant_end_nothing(
    limits: dict[str, Any], expected: str, says: str, api: API
) -> None:
    await run(api, days=31)
    answer = await api.client.post(f"{HISTORY}/prune", json=limits)

    assert code(answer) == (422, expected)
    assert says in answer.json()["detail"]
    assert len(await names(api)) == 1
    if expected == "HistorySettingError":
        assert code(await api.client.get(HISTORY, params=limits)) == (422, expected)


async def test_what_would_be_by_other_limits_is_told_of_one_record(api: API) -> None:
    name = await run(api, days=2)
    place = f"{HISTORY}/chaos-system/{name}"

    assert (await api.client.get(place)).json()["verdict"] == "keep"
    assert (await api.client.get(place, params={"ttl": "24h"})).json()["reason"] == "ttl_expired"


async def test_a_prune_over_http_is_in_the_name_of_who_asked_for_it(api: API) -> None:
    await run(api, days=31)
    _, token = api.tokens.create("ann", ["operate"])
    asked = await api.stranger.post(
        f"{HISTORY}/prune", json={"ttl": "2h"}, headers={"Authorization": f"Bearer {token}"}
    )
    assert asked.json()["items"][0]["outcome"] == "ended"
    assert [row.actor for row in await api.journal.entries(domain="history")] == ["token ann"]


@pytest.mark.parametrize("path", [f"{HISTORY}/prune", f"{RETENTION}/history/run"])
async def test_where_nobody_chose_a_ttl_the_first_real_pass_has_to_be_confirmed(path: str, api: API) -> None:
    notes, journal = MemoryNotes(), api.retention._journal
    api.retention._history_ttl_is_default = True
    api.retention._gate = PolicyGate(notes, journal=journal, clock=api.clock, metrics=Metrics("test"))
    await run(api, days=31)
    refused = await api.client.post(path, json={})
    assert code(refused) == (409, "ConfirmationNeededError")
    assert "1 would go: send confirm as true" in refused.json()["detail"]
    assert len(await names(api)) == 1
    assert (await api.client.post(path, json={"confirm": True})).json()["items"][0]["outcome"] == "ended"
    await run(api, days=31)
    assert (await api.client.post(path, json={})).json()["items"][0]["outcome"] == "ended", "it has acted before"


@pytest.mark.parametrize("body", [{}, {"ttl": "2h"}], ids=str)
async def test_nothing_goes_while_history_is_frozen(body: dict[str, str], api: API) -> None:
    await run(api, days=31)
    now = UnixNs(api.clock.wall_ns())
    frozen = Freeze(now, "wait", "somebody")
    row = freeze_row("history", frozen, reason=FreezeReason.BY_PERSON, now=now)
    await ProcessRecord.in_folder(api.objects).safety.freeze("history", frozen, row)
    told = (await api.client.post(f"{HISTORY}/prune", json=body)).json()

    assert told["items"][0]["outcome"] == "refused"
    assert (told["policies"][0]["ready"], told["policies"][0]["reason"]) == (False, "Frozen")
    assert len(await names(api)) == 1


async def test_a_stored_policy_passes_when_it_is_asked_to(api: API) -> None:
    name = await run(api, days=10)
    await api.objects.create(RETENTION_POLICY, policy("week", maxAge="7d", dryRun=False))
    await api.objects.create(RETENTION_POLICY, policy("dry", maxAge="7d"))
    dry = (await api.client.post(f"{RETENTION}/dry/run", json={})).json()
    assert await names(api) == [name]
    real = (await api.client.post(f"{RETENTION}/week/run", json={"dryRun": False})).json()

    assert dry["policies"][0]["dry_run"] is True
    assert [one["outcome"] for one in dry["items"] + real["items"]] == ["would_end", "ended"]
    assert await names(api) == []
    shown = await api.client.get(f"{RETENTION}/week")
    assert (shown.json()["ready"], shown.json()["deleted"]) == (True, {"ttl_expired": 1})
    assert shown.headers["etag"]


async def test_a_policy_that_is_not_there_is_a_problem(client: httpx2.AsyncClient) -> None:
    assert code(await client.get(f"{RETENTION}/nobody")) == (404, "NotFoundError")
    assert code(await client.post(f"{RETENTION}/nobody/run", json={})) == (404, "NotFoundError")


@pytest.mark.parametrize("body", [{"dryrun": True}, {"dryRun": "perhaps"}, []], ids=str)
@pytest.mark.parametrize("path", [f"{HISTORY}/prune", f"{RETENTION}/history/run"])
async def test_an_order_that_cannot_be_meant_ends_nothing(path: str, body: object, api: API) -> None:
    await run(api, days=31)

    assert code(await api.client.post(path, json=body)) == (422, "InvalidRequestError")
    assert len(await names(api)) == 1


# --- policies ---------------------------------------------------------------------------------------------------------


async def test_policies_are_listed_in_pages_also_those_that_cannot_be_used(api: API) -> None:
    for name in ("a", "b", "c"):
        await api.objects.create(
            RETENTION_POLICY, policy(name, maxAge="9d", ageFrom="x..y" if name == "b" else "spec.x")
        )
    page = (await api.client.get(RETENTION, params={"limit": 2})).json()
    rest = (await api.client.get(RETENTION, params={"limit": 2, "after": page["next"]})).json()

    assert [one["name"] for one in page["items"] + rest["items"]] == ["a", "b", "c"]
    assert (page["items"][0]["ready"], page["items"][0]["dry_run"]) == (None, True)
    assert code(await api.client.get(f"{RETENTION}?namespace=x")) == (422, "UnknownParameterError")


async def test_policies_are_linted_without_being_stored(client: httpx2.AsyncClient) -> None:
    sent = [policy("one", maxAge="9d"), policy("two", maxAge="soon"), {}]
    told = (await client.post(f"{RETENTION}/lint", json={"policies": sent})).json()

    assert told["policies"] == 3
    assert {(one["policy"], one["severity"]) for one in told["findings"]} == {
        ("one", "note"),
        ("two", "error"),
        ("without a name", "error"),
    }
    assert (await client.get(RETENTION)).json()["items"] == []
    assert code(await client.post(f"{RETENTION}/lint", json={"policies": [1]})) == (422, "InvalidRequestError")
    assert code(await client.post(f"{RETENTION}/lint", json={"policies": [{}] * 201})) == (422, "InvalidRequestError")


# --- who may ----------------------------------------------------------------------------------------------------------


async def test_who_may_read_may_not_end_or_write(api: API) -> None:
    await run(api, days=31)
    _, token = api.tokens.create("reader", ["read"])
    bearer = {"Authorization": f"Bearer {token}"}

    assert (await api.client.get(HISTORY, headers=bearer)).status_code == 200
    assert (await api.client.get(RETENTION, headers=bearer)).status_code == 200
    for path, body in (("/history", {"spec": spec()}), ("/history/prune", {}), ("/retention/history/run", {})):
        answer = await api.client.post(f"/api/v1{path}", json=body, headers=bearer)
        assert code(answer) == (403, "ScopeMissingError")
