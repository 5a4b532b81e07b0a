"""Leases of ``lapse busy`` over HTTP: who may have one, what it keeps, and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.workspaces.activity.port import Connected, Quiet
from lapse.workspaces.model import DesiredBy, DesiredState, ObservedStatus, WorkspaceId
from tests.unit.web.test_keys_api import code
from tests.unit.web.test_workspaces_api import PLACE, bearer, create, now, observe

if TYPE_CHECKING:
    from tests.unit.web.conftest import API


async def running(api: API, name: str = "lab", **more: object) -> dict[str, Any]:
    made = await create(api, name, **more)
    await observe(api, made["id"], ObservedStatus.RUNNING)
    api.clock.advance(61)  # the activity store is believed from now on
    return made


def program(api: API, workspace: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {api.tokens.of_program(workspace['id'])}"}


async def signal(api: API, workspace: dict[str, Any]) -> object:
    one = WorkspaceId(workspace["id"])
    return (await api.activity.read([one]))[one]


async def test_a_program_keeps_its_own_workspace_busy_until_it_is_done(api: API) -> None:
    lab = await running(api)
    mine = program(api, lab)
    begun = await api.client.post(f"{PLACE}/lab/busy", json={}, headers=mine)
    lease = begun.json()["lease"]
    kept = await signal(api, lab)
    api.clock.advance(20)
    renewed = await api.client.post(f"{PLACE}/lab/busy", json={"lease": lease}, headers=mine)
    api.clock.advance(20)
    still = await signal(api, lab)
    ended = await api.client.delete(f"{PLACE}/lab/busy/{lease}", headers=mine)

    assert begun.status_code == 200
    assert (begun.json()["lease_seconds"], begun.json()["most_seconds"]) == (30, 86_400)
    assert renewed.json()["lease"] == lease
    assert kept == still == Connected(1)
    assert ended.status_code == 204
    assert await signal(api, lab) == Quiet()
    assert (await api.workspaces.get(WorkspaceId(lab["id"]))).last_access_at == now(api)


async def test_a_lease_is_an_access_before_it_counts_and_no_version(api: API) -> None:
    lab = await running(api)
    before = await api.workspaces.get(WorkspaceId(lab["id"]))
    await api.client.post(f"{PLACE}/lab/busy", json={}, headers=program(api, lab))
    after = await api.workspaces.get(WorkspaceId(lab["id"]))

    assert after.last_access_at == now(api) > before.last_access_at
    assert (after.version, after.desired_by) == (before.version, before.desired_by)
    assert await api.workspaces.to_standby([before.candidate], now=now(api)) == set(), "the decision before has lost"


async def test_a_lease_that_is_not_renewed_ends_and_begins_again_when_it_is(api: API) -> None:
    lab = await running(api)
    mine = program(api, lab)
    lease = (await api.client.post(f"{PLACE}/lab/busy", json={}, headers=mine)).json()["lease"]
    api.clock.advance(31)
    assert await signal(api, lab) == Quiet()
    again = await api.client.post(f"{PLACE}/lab/busy", json={"lease": lease}, headers=mine)

    assert (again.status_code, again.json()["lease"]) == (200, lease)
    assert await signal(api, lab) == Connected(1)
    assert (await api.workspaces.get(WorkspaceId(lab["id"]))).last_access_at == now(api)


async def test_the_token_of_a_program_is_good_for_nothing_else(api: API) -> None:
    lab, other = await running(api), await running(api, "other", owner="bob")
    mine = program(api, lab)
    bearer(api, "admin")

    assert code(await api.client.post(f"{PLACE}/other/busy", json={}, headers=mine)) == (404, "UnknownWorkspaceError")
    assert await signal(api, other) == Quiet()
    for method, path in [
        ("GET", PLACE),
        ("GET", f"{PLACE}/lab"),
        ("GET", f"{PLACE}/lab/why"),
        ("PATCH", f"{PLACE}/lab"),
        ("POST", f"{PLACE}/lab/start"),
        ("POST", f"{PLACE}/lab/stop"),
        ("POST", f"{PLACE}/lab/open"),
        ("POST", f"{PLACE}/lab/hold"),
        ("DELETE", f"{PLACE}/lab"),
        ("POST", PLACE),
        ("GET", "/api/v1/status"),
        ("GET", "/api/v1/apps/1/keys"),
    ]:
        body: Any = None if method in {"GET", "DELETE"} else {}
        answer = await api.client.request(method, path, json=body, headers=mine)
        assert answer.status_code == 403, (method, path, answer.text)


@pytest.mark.parametrize(
    "token", ["lapsews_{id}_", "lapsews_{id}_" + "0" * 64, "lapsews__x", "lapsews_{other}_{secret}"]
)
async def test_a_token_that_was_made_up_is_refused(api: API, token: str) -> None:
    lab, other = await running(api), await running(api, "other")
    secret = api.tokens.of_program(lab["id"]).rpartition("_")[2]
    made_up = token.format(id=lab["id"], other=other["id"], secret=secret)
    answer = await api.client.post(f"{PLACE}/lab/busy", json={}, headers={"Authorization": f"Bearer {made_up}"})

    assert code(answer) == (401, "TokenInvalidError")


async def test_owners_keep_their_own_busy_and_readers_none(api: API) -> None:
    lab = await running(api)
    ann, bob, reader = (bearer(api, scope) for scope in ("workspaces:ann", "workspaces:bob", "read"))

    assert (await api.client.post(f"{PLACE}/lab/busy", json={}, headers=ann)).status_code == 200
    assert code(await api.client.post(f"{PLACE}/lab/busy", json={}, headers=bob)) == (404, "UnknownWorkspaceError")
    assert code(await api.client.post(f"{PLACE}/lab/busy", json={}, headers=reader)) == (403, "ScopeMissingError")
    assert await signal(api, lab) == Connected(1)


async def test_what_does_not_run_or_is_to_stop_is_not_kept_and_not_woken(api: API) -> None:
    made = await create(api)
    waiting = await api.client.post(f"{PLACE}/lab/busy", json={}, headers=program(api, made))
    await observe(api, made["id"], ObservedStatus.RUNNING)
    await api.workspaces.set_desired(
        WorkspaceId(made["id"]), DesiredState.STANDBY, DesiredBy.USER, version=None, now=now(api)
    )
    stopping = await api.client.post(f"{PLACE}/lab/busy", json={}, headers=program(api, made))

    assert code(waiting) == code(stopping) == (409, "NotRunningError")
    assert (await api.workspaces.get(WorkspaceId(made["id"]))).desired_state is DesiredState.STANDBY


async def test_a_lease_is_bounded(api: API) -> None:
    lab = await running(api)
    mine = program(api, lab)
    lease = (await api.client.post(f"{PLACE}/lab/busy", json={}, headers=mine)).json()["lease"]
    api.clock.advance(86_400)
    over = await api.client.post(f"{PLACE}/lab/busy", json={"lease": lease}, headers=mine)

    assert code(over) == (409, "LeaseOverError")
    assert await signal(api, lab) == Quiet()
    assert (await api.client.delete(f"{PLACE}/lab/busy/{lease}", headers=mine)).status_code == 204


@pytest.mark.parametrize("lease", ["", "c-1", "busy-1", "busy-x-y", "busy-99999999999999999-a", "busy-1-a b"])
async def test_a_lease_of_no_such_name_is_refused(api: API, lease: str) -> None:
    lab = await running(api)
    answer = await api.client.post(f"{PLACE}/lab/busy", json={"lease": lease}, headers=program(api, lab))

    assert answer.status_code in {409, 422}
    assert await signal(api, lab) == Quiet()
