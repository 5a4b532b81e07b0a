from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lapse.app.record import ProcessRecord
from lapse.app.workspaces import ticket_records
from lapse.core.clock import UnixNs
from lapse.core.timestamps import from_timestamp
from lapse.engine.journal.port import AUDIT
from lapse.engine.safety.freeze import Freeze, FreezeReason, freeze_row
from lapse.files.ownership import user_name
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.model import Ms, NewWorkspace, ObservedStatus, Operation, OpId, WorkspaceId
from lapse.workspaces.tickets import Tickets
from tests.unit.web.conftest import JSON
from tests.unit.web.test_keys_api import code

if TYPE_CHECKING:
    import httpx2

    from tests.unit.web.conftest import API

NS = 1_000_000_000
PLACE = "/api/v1/workspaces"
PORTS = {name: 9001 + number for number, name in enumerate(("a", "b", "c", "d", "e", "his", "other"))}


def asked(name: str = "lab", **more: object) -> dict[str, Any]:
    port = PORTS.get(name, 9000)
    return {"name": name, "command": ["python", "-m", "http.server"], "port": port, "owner": "ann", **more}


def bearer(api: API, *scopes: str) -> dict[str, str]:
    _, token = api.tokens.create("t", list(scopes))
    return {"Authorization": f"Bearer {token}"}


def now(api: API) -> Ms:
    return Ms(api.clock.wall_ns() // 1_000_000)


async def create(api: API, name: str = "lab", **more: object) -> dict[str, Any]:
    response = await api.client.post(PLACE, json=asked(name, **more))
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


async def observe(api: API, workspace: str, status: ObservedStatus) -> None:
    await api.workspaces.observe({WorkspaceId(workspace): status}, now=now(api))


async def begin(api: API, workspace: str, operation: Operation) -> None:
    assert await api.workspaces.claim(WorkspaceId(workspace), operation, OpId("op"), now=now(api))


# --- create and look --------------------------------------------------------------------------------------------------


async def test_a_workspace_is_created_and_found_at_the_place_that_the_answer_names(client: httpx2.AsyncClient) -> None:
    made = await client.post(PLACE, json=asked())
    found = await client.get(made.headers["location"])

    assert made.status_code == 201
    assert made.headers["location"] == f"{PLACE}/lab"
    assert found.json() == made.json()
    assert found.headers["etag"] == made.headers["etag"]
    told = found.json()
    assert told["address"] == "workspace/lab"
    assert (told["owner"], told["command"], told["port"]) == ("ann", ["python", "-m", "http.server"], 9000)
    assert (told["desired_state"], told["desired_by"], told["observed_status"]) == ("RUNNING", "user", "PENDING")
    assert (told["standby_ttl_seconds"], told["archive_ttl_seconds"]) == (600, 86_400), "the first is the settings'"
    assert told["url"] == "http://lab.w.localhost:8752/"
    assert told["created_at"] == told["last_access_at"] == "2023-11-14T22:13:20Z"


async def test_a_workspace_may_be_created_without_being_started(api: API) -> None:
    assert (await create(api, start=False))["desired_state"] == "PENDING"


async def test_a_second_one_of_the_same_name_is_refused(api: API) -> None:
    await create(api)
    assert code(await api.client.post(PLACE, json=asked(owner="bob"))) == (409, "WorkspaceExistsError")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"name": "../etc"}, "InvalidWorkspaceError"),
        ({"name": "Lab"}, "InvalidWorkspaceError"),
        ({"name": ""}, "InvalidWorkspaceError"),
        ({"name": "a.b"}, "InvalidWorkspaceError"),
        ({"port": 0}, "InvalidWorkspaceError"),
        ({"port": 65_536}, "InvalidWorkspaceError"),
        ({"port": "9000"}, "InvalidRequestError"),
        ({"command": []}, "InvalidWorkspaceError"),
        ({"command": ["a\0b"]}, "InvalidWorkspaceError"),
        ({"command": "python"}, "InvalidRequestError"),
        ({"owner": "a\nb"}, "InvalidWorkspaceError"),
        ({"standby_ttl_seconds": 0}, "InvalidWorkspaceError"),
        ({"archive_ttl_seconds": 100 * 365 * 86_400}, "InvalidWorkspaceError"),
        ({"archive_ttl_seconds": 1.5}, "InvalidRequestError"),
        ({"start": 1}, "InvalidRequestError"),
        ({"desired_state": "RUNNING"}, "InvalidRequestError"),
    ],
)
async def test_what_cannot_be_a_workspace_is_refused(api: API, wrong: dict[str, Any], expected: str) -> None:
    assert code(await api.client.post(PLACE, json={**asked(), **wrong})) == (422, expected)
    assert (await api.client.get(PLACE)).json() == {"items": [], "next": None}


async def test_lists_come_in_pages_by_name(api: API) -> None:
    for name in ("c", "a", "d", "b"):
        await create(api, name, owner="bob" if name == "d" else "ann")
    first = (await api.client.get(f"{PLACE}?limit=3")).json()
    second = (await api.client.get(f"{PLACE}?limit=3&after={first['next']}")).json()
    anns = (await api.client.get(f"{PLACE}?owner=ann&limit=3")).json()

    assert [one["name"] for one in first["items"]] == ["a", "b", "c"]
    assert ([one["name"] for one in second["items"]], second["next"]) == (["d"], None)
    assert ([one["name"] for one in anns["items"]], anns["next"]) == (["a", "b", "c"], None)


async def test_a_page_of_a_thousand_is_the_largest(api: API) -> None:
    for number in range(1_001):
        now = Ms(api.clock.wall_ns() // 1_000_000)
        await api.workspaces.create(NewWorkspace(name=f"w{number:04}", owner="ann", command=("x",), port=9), now=now)
    page = (await api.client.get(f"{PLACE}?limit=1000")).json()

    assert (len(page["items"]), page["next"]) == (1_000, "w0999")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "owners=ann"])
async def test_a_list_refuses_what_it_does_not_know(client: httpx2.AsyncClient, query: str) -> None:
    assert (await client.get(f"{PLACE}?{query}")).status_code == 422


@pytest.mark.parametrize("name", ["none", "%2e%2e%2fetc", "A", "a" * 64])
async def test_one_that_is_not_there_is_told_so(client: httpx2.AsyncClient, name: str) -> None:
    assert code(await client.get(f"{PLACE}/{name}"))[0] == 404


# --- wanting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "verb", "wanted"),
    [
        (ObservedStatus.STANDBY, "start", "RUNNING"),
        (ObservedStatus.PENDING, "start", "RUNNING"),
        (ObservedStatus.RUNNING, "stop", "STANDBY"),
        (ObservedStatus.PENDING, "stop", "PENDING"),
        (ObservedStatus.RUNNING, "archive", "PENDING"),
        (ObservedStatus.STANDBY, "archive", "PENDING"),
    ],
)
async def test_a_verb_wants_a_state(api: API, status: ObservedStatus, verb: str, wanted: str) -> None:
    made = await create(api)
    await observe(api, made["id"], status)
    answer = await api.client.post(f"{PLACE}/lab/{verb}", headers=JSON)

    assert answer.status_code == 200
    assert (answer.json()["desired_state"], answer.json()["desired_by"]) == (wanted, "user")
    assert answer.json()["version"] == 2


async def test_starting_what_runs_still_wins_against_a_standby_that_was_decided_before(api: API) -> None:
    made = await create(api)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    decided_on = (await api.workspaces.get(WorkspaceId(made["id"]))).candidate
    await api.client.post(f"{PLACE}/lab/start", json={})

    assert not await api.workspaces.to_standby([decided_on], now=now(api))


@pytest.mark.parametrize("verb", ["start", "stop", "archive"])
async def test_a_verb_clears_an_error(api: API, verb: str) -> None:
    made = await create(api)
    await begin(api, made["id"], Operation.PROVISIONING)
    one = WorkspaceId(made["id"])
    await api.workspaces.fail(one, OpId("op"), reason="StartFailed", message="it ended at once", now=now(api))
    failed = (await api.client.get(f"{PLACE}/lab")).json()
    answer = (await api.client.post(f"{PLACE}/lab/{verb}", json={})).json()

    assert (failed["observed_status"], failed["error_message"]) == ("ERROR", "it ended at once")
    assert answer["error_reason"] is None


@pytest.mark.parametrize("scope", ["monitor", "operate", "approve", "holds", "legal"])
async def test_who_may_see_lists_sees_nothing_that_a_program_or_its_owner_wrote(api: API, scope: str) -> None:
    made = await create(api, command=["serve", "--password", "s3cret"], probe="/busy?key=s3cret")
    one = WorkspaceId(made["id"])
    await observe(api, one, ObservedStatus.RUNNING)
    assert await api.workspaces.note_exit(one, status=1, output="token=s3cret", at=now(api), steady=False)
    await begin(api, one, Operation.PROVISIONING)
    await api.workspaces.note_operation(one, OpId("op"), "It said s3cret.")
    shown = [await api.client.get(PLACE, headers=bearer(api, scope))]
    await api.workspaces.fail(one, OpId("op"), reason="StartFailed", message="token=s3cret", now=now(api))
    shown += [await api.client.get(path, headers=bearer(api, scope)) for path in (PLACE, "/workspaces")]
    if scope == "holds":
        shown.append(await api.client.post(f"{PLACE}/lab/hold", json={"reason": "r"}, headers=bearer(api, scope)))

    assert [answer.status_code for answer in shown] == [200] * len(shown)
    assert not any("s3cret" in answer.text for answer in shown)
    (listed,) = shown[1].json()["items"]
    assert (listed["command"], listed["error_reason"], listed["error_message"]) == (None, "StartFailed", None)
    assert "It has failed (StartFailed)." in shown[2].text
    for path in (PLACE, "/workspaces"):
        assert "s3cret" in (await api.client.get(path, headers=bearer(api, "read"))).text


@pytest.mark.parametrize("verb", ["start", "stop", "archive", None])
async def test_during_an_operation_a_change_is_refused(api: API, verb: str | None) -> None:
    made = await create(api)
    await begin(api, made["id"], Operation.PROVISIONING)
    if verb is None:
        answer = await api.client.delete(f"{PLACE}/lab")
    else:
        answer = await api.client.post(f"{PLACE}/lab/{verb}", json={})

    assert code(answer) == (409, "OperationUnderWayError")
    assert (await api.client.get(f"{PLACE}/lab")).json()["version"] == 1


async def test_ttls_may_change_one_by_one_and_during_an_operation(api: API) -> None:
    made = await create(api)
    await begin(api, made["id"], Operation.PROVISIONING)
    one = await api.client.patch(f"{PLACE}/lab", json={"standby_ttl_seconds": 5})
    both = await api.client.patch(f"{PLACE}/lab", json={"standby_ttl_seconds": 6, "archive_ttl_seconds": 7})

    assert [one.json()[key] for key in ("standby_ttl_seconds", "archive_ttl_seconds")] == [5, 86_400]
    assert [both.json()[key] for key in ("standby_ttl_seconds", "archive_ttl_seconds")] == [6, 7]


async def test_command_port_owner_and_probe_change_and_the_data_is_the_same(api: API) -> None:
    made = await create(api)
    changes = {"command": ["./serve"], "port": 9005, "owner": "bob", "probe": "/alive"}
    changed = (await api.client.patch(f"{PLACE}/lab", json=changes)).json()

    assert changes.items() <= changed.items()
    assert (changed["id"], changed["version"], changed["archive_ttl_seconds"]) == (made["id"], 2, 86_400)
    assert (await api.client.patch(f"{PLACE}/lab", json={"probe": ""})).json()["probe"] is None


async def test_the_port_of_a_running_program_counts_from_its_next_start(api: API) -> None:
    made = await create(api)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    changed = (await api.client.patch(f"{PLACE}/lab", json={"port": 9005})).json()
    await observe(api, made["id"], ObservedStatus.STANDBY)
    stopped = (await api.client.get(f"{PLACE}/lab")).json()

    assert (changed["port"], changed["next_port"]) == (9000, 9005)
    assert (stopped["port"], stopped["next_port"]) == (9005, None)


async def test_a_change_is_for_the_version_that_was_seen(api: API) -> None:
    await create(api)
    seen = (await api.client.get(f"{PLACE}/lab")).headers["etag"]
    first = await api.client.patch(f"{PLACE}/lab", json={"owner": "bob"}, headers={"If-Match": seen})
    second = await api.client.patch(f"{PLACE}/lab", json={"owner": "eve"}, headers={"If-Match": seen})

    assert first.status_code == 200
    assert code(second) == (412, "VersionChangedError")
    assert (await api.client.get(f"{PLACE}/lab")).json()["owner"] == "bob"


async def test_command_and_port_wait_for_an_operation(api: API) -> None:
    made = await create(api)
    await begin(api, made["id"], Operation.PROVISIONING)

    for changes in ({"port": 9005}, {"command": ["x"]}):
        assert code(await api.client.patch(f"{PLACE}/lab", json=changes)) == (409, "OperationUnderWayError")


async def test_an_owner_gives_a_workspace_to_nobody_else(api: API) -> None:
    await create(api)
    answer = await api.client.patch(f"{PLACE}/lab", json={"owner": "bob"}, headers=bearer(api, "workspaces:ann"))

    assert code(answer) == (403, "NotYourWorkspacesError")
    assert (await api.client.get(f"{PLACE}/lab", headers=bearer(api, "admin"))).json()["owner"] == "ann"


async def test_a_taken_port_is_refused_and_strangers_do_not_learn_whose(api: API) -> None:
    await create(api)
    seen = await api.client.post(PLACE, json=asked("a", port=9000))
    stranger = await api.client.post(
        PLACE, json=asked("b", port=9000, owner="bob"), headers=bearer(api, "workspaces:bob")
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listens = await api.client.post(PLACE, json=asked("c", port=port), headers=bearer(api, "admin"))

    assert code(seen) == code(stranger) == code(listens) == (409, "PortInUseError")
    assert "workspace/lab has it" in seen.json()["detail"]
    assert "another workspace has it" in stranger.json()["detail"]
    assert f"127.0.0.1:{port}" in listens.json()["detail"]


@pytest.mark.parametrize("body", [{}, {"standby_ttl_seconds": None}])
async def test_a_change_that_names_nothing_changes_nothing(api: API, body: dict[str, None]) -> None:
    await create(api)
    before = (await api.client.get(f"{PLACE}/lab")).json()
    answer = await api.client.patch(f"{PLACE}/lab", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "NothingToChangeError")
    assert (await api.client.get(f"{PLACE}/lab")).json() == before


@pytest.mark.parametrize("seconds", [0, -1, 10 * 365 * 86_400 + 1])
async def test_a_ttl_that_nobody_can_mean_is_refused(api: API, seconds: int) -> None:
    await create(api)
    answer = await api.client.patch(f"{PLACE}/lab", json={"archive_ttl_seconds": seconds})

    assert code(answer) == (422, "InvalidWorkspaceError")
    assert "10 years" in answer.json()["detail"]


async def test_one_that_is_held_is_not_deleted(api: API) -> None:
    await create(api)
    await api.client.post(f"{PLACE}/lab/hold", json={"reason": "audit"})
    answer = await api.client.delete(f"{PLACE}/lab")
    assert code(answer) == (409, "HeldError")
    assert "(audit)" in answer.text
    assert (await api.client.get(f"{PLACE}/lab")).status_code == 200


async def test_the_audit_tells_who_created_and_opened_a_workspace_without_its_command(api: API) -> None:
    await create(api)
    await api.client.post(f"{PLACE}/lab/open", json={})
    opened, created = await api.journal.entries(domain=AUDIT)

    assert [(row.reason, row.address, row.actor) for row in (created, opened)] == [
        ("workspace_created", "workspace/lab", f"user {user_name()}"),
        ("workspace_opened", "workspace/lab", f"user {user_name()}"),
    ]
    assert created.uid == (await api.workspaces.by_name("lab")).id
    assert created.details == {"domain": "workspaces", "owner": (await api.workspaces.by_name("lab")).owner}


async def test_a_workspace_is_created_also_when_the_journal_cannot_be_told_and_that_is_counted(
    api: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(api.journal, "append", full)
    await create(api)

    assert 'lapse_errors_total{domain="workspaces",kind="journal"} 1.0' in api.metrics.exposition().decode()


async def test_the_journal_tells_that_one_was_deleted(api: API) -> None:
    await create(api)
    await api.client.delete(f"{PLACE}/lab")
    rows = await api.journal.entries(address="workspace/lab")
    assert [(row.outcome, row.reason, row.actor) for row in rows] == [
        ("ended", "deleted_by_person", f"user {user_name()}"),
        ("intent", "deleted_by_person", f"user {user_name()}"),
        ("done", "workspace_created", f"user {user_name()}"),
    ]


async def test_the_metrics_of_the_process_count_what_people_delete(api: API) -> None:
    series = 'lapse_deletions_total{domain="workspaces",reason="deleted_by_person"}'
    assert f"{series} 0.0" in api.metrics.exposition().decode()
    await create(api)
    await api.client.delete(f"{PLACE}/lab")
    assert f"{series} 1.0" in api.metrics.exposition().decode()


async def test_a_deleted_one_is_gone_and_its_name_is_free(api: API) -> None:
    made = await create(api)
    answer = await api.client.delete(f"{PLACE}/lab")

    assert answer.status_code == 202
    assert answer.json()["deleted_at"] is not None
    assert code(await api.client.get(f"{PLACE}/lab")) == (404, "UnknownWorkspaceError")
    assert (await create(api))["id"] != made["id"]


# --- as it was seen ---------------------------------------------------------------------------------------------------

CHANGES = [
    ("PATCH", "", {"standby_ttl_seconds": 9}),
    *(("POST", f"/{verb}", {}) for verb in ("start", "stop", "archive")),
]


async def change(api: API, how: tuple[str, str, Any], headers: dict[str, str]) -> httpx2.Response:
    method, below, body = how
    return await api.client.request(method, f"{PLACE}/lab{below}", json=body, headers=headers)


@pytest.mark.parametrize("how", CHANGES)
async def test_a_change_with_if_match_is_made_once(api: API, how: tuple[str, str, Any]) -> None:
    await create(api)
    tag = (await api.client.get(f"{PLACE}/lab")).headers["etag"]
    first, second = [await change(api, how, {"If-Match": tag}) for _ in range(2)]

    assert first.status_code == 200
    assert first.headers["etag"] != tag
    assert code(second) == (412, "VersionChangedError")
    assert (await change(api, how, {"If-Match": "*"})).status_code == 200
    assert code(await change(api, how, {"If-None-Match": "*"})) == (400, "ContradictoryConditionsError")


async def test_a_tag_of_one_that_was_deleted_does_not_fit_the_next_of_its_name(api: API) -> None:
    await create(api)
    tag = (await api.client.get(f"{PLACE}/lab")).headers["etag"]
    await api.client.delete(f"{PLACE}/lab", headers={"If-Match": tag})
    await create(api)

    assert code(await api.client.delete(f"{PLACE}/lab", headers={"If-Match": tag})) == (412, "VersionChangedError")


async def test_what_is_observed_does_not_change_the_tag(api: API) -> None:
    made = await create(api)
    before = (await api.client.get(f"{PLACE}/lab")).headers["etag"]
    await observe(api, made["id"], ObservedStatus.RUNNING)
    after = await api.client.get(f"{PLACE}/lab")

    assert after.json()["observed_status"] == "RUNNING"
    assert after.headers["etag"] == before


async def test_a_running_one_tells_when_it_goes_to_standby(api: API) -> None:
    made = await create(api)
    api.clock.advance(100)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    told = (await api.client.get(f"{PLACE}/lab")).json()

    assert (told["next"], told["next_at"]) == ("standby", "2023-11-14T22:25:00Z")


# --- whose ------------------------------------------------------------------------------------------------------------


async def test_an_owner_sees_and_changes_only_their_own(api: API) -> None:
    await create(api, "hers", owner="ann")
    await create(api, "his", owner="bob")
    ann = bearer(api, "workspaces:ann")
    listed = await api.client.get(PLACE, headers=ann)
    asked_for = await api.client.get(f"{PLACE}?owner=bob", headers=ann)

    assert [one["name"] for one in listed.json()["items"]] == ["hers"]
    assert asked_for.json()["items"] == []
    for method, below in [("GET", ""), ("DELETE", ""), ("PATCH", ""), *(("POST", f"/{v}") for v in ("start", "open"))]:
        body: Any = None if method in {"GET", "DELETE"} else {}
        his = await api.client.request(method, f"{PLACE}/his{below}", json=body, headers=ann)
        none = await api.client.request(method, f"{PLACE}/none{below}", json=body, headers=ann)
        assert code(his) == code(none) == (404, "UnknownWorkspaceError")
        assert his.json()["detail"].replace("his", "none") == none.json()["detail"]
    assert (await api.client.post(f"{PLACE}/hers/stop", json={}, headers=ann)).status_code == 200


async def test_an_owner_creates_for_nobody_else_and_need_not_say_who(api: API) -> None:
    ann = bearer(api, "workspaces:ann")
    made = await api.client.post(PLACE, json={**asked(), "owner": None}, headers=ann)
    other = await api.client.post(PLACE, json=asked("other", owner="bob"), headers=ann)

    assert made.json()["owner"] == "ann"
    assert code(other) == (403, "NotYourWorkspacesError")


async def test_a_token_for_two_owners_pages_through_both(api: API) -> None:
    for name, owner in (("a", "ann"), ("b", "bob"), ("c", "ann"), ("d", "eve"), ("e", "bob")):
        await create(api, name, owner=owner)
    both = bearer(api, "workspaces:ann", "workspaces:bob")
    first = (await api.client.get(f"{PLACE}?limit=2", headers=both)).json()
    second = (await api.client.get(f"{PLACE}?limit=2&after={first['next']}", headers=both)).json()

    assert [one["name"] for one in first["items"] + second["items"]] == ["a", "b", "c", "e"]
    assert second["next"] is None
    assert code(await api.client.post(PLACE, json={**asked(), "owner": None}, headers=both))[1] == "OwnerMissingError"


async def test_a_reader_looks_at_all_and_changes_none(api: API) -> None:
    await create(api, "hers", owner="ann")
    reader = bearer(api, "read")

    assert len((await api.client.get(PLACE, headers=reader)).json()["items"]) == 1
    for below in ("/start", "/open"):
        answer = await api.client.post(f"{PLACE}/hers{below}", json={}, headers=reader)
        assert code(answer) == (403, "ScopeMissingError")
        assert "workspaces:OWNER" in answer.json()["detail"]


@pytest.mark.parametrize("scope", ["keys:7", "workspaces:ann"])
async def test_a_scope_of_one_domain_opens_no_other(api: API, scope: str) -> None:
    await create(api)
    headers = bearer(api, scope)
    elsewhere = PLACE if scope == "keys:7" else "/api/v1/history"

    assert code(await api.client.get(elsewhere, headers=headers)) == (403, "ScopeMissingError")


# --- open -------------------------------------------------------------------------------------------------------------


async def test_an_opened_workspace_has_an_address_with_a_ticket_that_works_once_and_there_only(api: API) -> None:
    lab, other = await create(api), await create(api, "other")
    answer = await api.client.post(f"{PLACE}/lab/open", json={})
    url = urlsplit(answer.json()["url"])
    [ticket] = parse_qs(url.query)["ticket"]
    tickets = Tickets(ticket_records(api.keys, clock=api.clock))

    assert answer.status_code == 201
    assert answer.json()["expires_at"] == "2023-11-14T22:14:20Z"
    assert (url.netloc, url.path) == ("lab.w.localhost:8752", "/.lapse/open")
    assert not await tickets.redeem(ticket, WorkspaceId(other["id"]))
    assert await tickets.redeem(ticket, WorkspaceId(lab["id"]))
    assert not await tickets.redeem(ticket, WorkspaceId(lab["id"]))


async def test_a_ticket_is_good_for_a_minute(api: API) -> None:
    lab = await create(api)
    url = (await api.client.post(f"{PLACE}/lab/open", json={})).json()["url"]
    api.clock.advance(60)

    assert not await Tickets(ticket_records(api.keys, clock=api.clock)).redeem(url[-43:], WorkspaceId(lab["id"]))


async def test_the_store_holds_no_ticket_as_it_is(api: API) -> None:
    await create(api)
    url = (await api.client.post(f"{PLACE}/lab/open", json={})).json()["url"]
    held = await ticket_records(api.keys, clock=api.clock).scan()

    assert len(held) == 1
    assert url[-43:] not in held[0].key + held[0].value


async def test_a_change_must_be_json_and_say_nothing_unknown(api: API) -> None:
    await create(api)

    assert code(await api.client.post(f"{PLACE}/lab/start"))[0] == 415
    assert code(await api.client.post(f"{PLACE}/lab/start", json={"x": 1}))[0] == 422


# --- hold, release and why --------------------------------------------------------------------------------------------


async def test_a_hold_is_made_shown_and_released(api: API) -> None:
    made = await create(api)
    held = await api.client.post(f"{PLACE}/lab/hold", json={"reason": "demo", "until": "7d"})
    found = (await api.client.get(f"{PLACE}/lab")).json()
    released = await api.client.post(f"{PLACE}/lab/release", json={})

    assert (held.status_code, released.status_code) == (200, 200)
    assert (found["held"], found["hold_reason"], found["hold_until"]) == (True, "demo", "2023-11-21T22:13:20Z")
    assert held.json() == found
    assert held.headers["etag"] != f'"{made["id"]}-{made["version"]}"'
    assert released.json()["held"] is False


async def test_a_hold_is_made_also_while_an_operation_is_under_way(api: API) -> None:
    made = await create(api)
    await begin(api, made["id"], Operation.PROVISIONING)

    assert (await api.client.post(f"{PLACE}/lab/hold", json={"reason": "demo"})).status_code == 200


async def test_a_release_of_what_nobody_holds_changes_nothing(api: API) -> None:
    made = await create(api)
    released = await api.client.post(f"{PLACE}/lab/release", json={})

    assert released.status_code == 200
    assert released.json()["version"] == made["version"]


async def test_a_hold_may_be_for_one_version_only(api: API) -> None:
    await create(api)
    wrong = {"If-Match": '"something-else"'}

    assert code(await api.client.post(f"{PLACE}/lab/hold", json={"reason": "x"}, headers=wrong)) == (
        412,
        "VersionChangedError",
    )
    assert (await api.client.get(f"{PLACE}/lab")).json()["held"] is False


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "InvalidRequestError"),
        ({"reason": ""}, "ReasonError"),
        ({"reason": "a\nb"}, "ReasonError"),
        ({"reason": "x", "until": "soon"}, "MomentError"),
        ({"reason": "x", "until": "2020-01-01T00:00:00Z"}, "MomentOverError"),
        ({"reason": "x", "until": 5}, "InvalidRequestError"),
        ({"reason": "x", "for": "5m"}, "InvalidRequestError"),
    ],
)
async def test_what_is_no_hold_is_refused(api: API, body: dict[str, Any], expected: str) -> None:
    await create(api)

    assert code(await api.client.post(f"{PLACE}/lab/hold", json=body)) == (422, expected)
    assert (await api.client.get(f"{PLACE}/lab")).json()["held"] is False


async def test_why_tells_that_its_domain_is_frozen(api: API) -> None:
    await create(api)
    free = (await api.client.get(f"{PLACE}/lab/why")).json()
    freeze = Freeze(UnixNs(api.clock.wall_ns()), "audit", "ann")
    row = freeze_row("workspaces", freeze, reason=FreezeReason.BY_PERSON, now=api.clock.wall_ns())
    await ProcessRecord.in_folder(api.objects).safety.freeze("workspaces", freeze, row)
    told = (await api.client.get(f"{PLACE}/lab/why")).json()

    assert free["frozen"] is None
    assert told["frozen"] == {"since": "2023-11-14T22:13:20Z", "reason": "audit", "by": "ann"}
    document = (await api.client.get("/api/v1/openapi.json")).json()["components"]["schemas"]
    assert "FreezeView" in document


async def test_why_tells_what_is_decided_and_who_is_there(api: API) -> None:
    made = await create(api, standby_ttl_seconds=60)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    young = (await api.client.get(f"{PLACE}/lab/why")).json()
    api.clock.advance(61)
    idle = (await api.client.get(f"{PLACE}/lab/why")).json()
    await api.activity.connect(WorkspaceId(made["id"]), ConnectionId("c"), lease_seconds=30)
    used = (await api.client.get(f"{PLACE}/lab/why")).json()

    assert (young["verdict"], young["reason"]) == ("keep", "not_yet")
    assert young["activity"].startswith("unknown: the activity store has not run for long enough")
    assert (idle["verdict"], idle["reason"], idle["activity"]) == ("due", "standby_ttl_expired", "nobody")
    assert idle["rules"][0]["rule"] == "standby after 1m idle"
    assert (used["verdict"], used["reason"], used["activity"]) == ("keep", "connected", "1 connected")
    assert from_timestamp(used["deadline"]) == -(-(api.clock.wall_ns() + 60 * NS) // NS) * NS

    await api.activity.disconnect(WorkspaceId(made["id"]), ConnectionId("c"), idle_seconds=120)
    just_used = (await api.client.get("/api/v1/why/workspace/lab")).json()
    (row,) = (await api.client.get("/api/v1/forecast", params={"domain": "workspaces"})).json()["items"]
    assert (just_used["verdict"], just_used["reason"]) == ("keep", "idle_timer")
    assert from_timestamp(just_used["deadline"]) == -(-(api.clock.wall_ns() + 120 * NS) // NS) * NS
    assert (row["due"], row["due_at"], row["deadline"]) == (False, just_used["deadline"], just_used["deadline"])


async def test_others_neither_hold_nor_ask_why(api: API) -> None:
    await create(api)
    bob, reader = bearer(api, "workspaces:bob"), bearer(api, "read")
    unknown = (404, "UnknownWorkspaceError")

    assert code(await api.client.get(f"{PLACE}/lab/why", headers=bob)) == unknown
    assert code(await api.client.post(f"{PLACE}/lab/hold", json={"reason": "x"}, headers=bob)) == unknown
    assert (await api.client.get(f"{PLACE}/lab/why", headers=reader)).status_code == 200
    assert (await api.client.post(f"{PLACE}/lab/hold", json={"reason": "x"}, headers=reader)).status_code == 403


async def test_a_workspace_of_the_owners_token_is_the_users_unless_another_owner_is_named(api: API) -> None:
    made = await api.client.post(PLACE, json=asked(start=False, owner=None))
    assert (made.status_code, made.json()["owner"]) == (201, user_name())
    assert (await create(api, "his", start=False, owner="eve"))["owner"] == "eve"
