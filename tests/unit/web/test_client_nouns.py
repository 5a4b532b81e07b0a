"""The nouns of the client, on the routes that they are for."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from lapse.client import AsyncClient, NotLapseError, RemoteError
from lapse.client.calls import ApiCalls
from lapse.client.errors import NotTextError, TagFormError
from lapse.client.nouns import (
    NoRouteError,
    RemoteHistory,
    RemoteKeys,
    RemoteRequests,
    RemoteRetention,
    RemoteWorkspaces,
)
from lapse.client.transport import LapseServer, ServerAnswer
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.kube.errors import NotFoundError
from lapse.requests.addresses import UnknownNameError
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.logs import LogPage
from lapse.workspaces.model import Changes, Ms, ObservedStatus, WorkspaceId
from tests.past import policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.unit.web.conftest import API

JSON = {"Content-Type": "application/json"}
COMMAND = ["python", "-m", "http.server"]


class InProcess:
    """A transport to the application of a test."""

    server = LapseServer.parse("http://localhost:8750")

    def __init__(self, api: API, headers: Mapping[str, str] | None = None) -> None:
        self._api, self._headers = api, headers or {}
        self.targets: list[str] = []

    async def call(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServerAnswer:
        self.targets.append(f"{method} {target}")
        sent = {**self._headers, **(headers or {}), **({} if body is None else JSON)}
        response = await self._api.client.request(method, target, content=body, headers=sent)
        return ServerAnswer(response.status_code, response.content)


def calls_of(api: API, headers: Mapping[str, str] | None = None) -> ApiCalls:
    transport: Any = InProcess(api, headers)
    return ApiCalls(transport)


# --- keys -------------------------------------------------------------------------------------------------------------

ODD_KEYS = ["a/b", "a b?c#d", "ä%2Fö", "100%", "/", "keys:get-many", "\n", "a;b&c=d+e"]


async def test_a_key_is_written_shown_touched_and_deleted(api: API) -> None:
    keys = RemoteKeys(calls_of(api))

    await keys.put(7, "alpha", "one", ttl_seconds=60)
    shown = await keys.show(7, "alpha")
    assert shown is not None
    assert (shown.key, shown.value, shown.ttl_seconds) == ("alpha", "one", 60.0)
    assert await keys.touch(7, "alpha", ttl_seconds=120)
    assert not await keys.insert(7, "alpha", "two", ttl_seconds=60)
    assert not await keys.swap(7, "alpha", "other", "two", ttl_seconds=60)
    assert await keys.swap(7, "alpha", "one", "two", ttl_seconds=60)
    assert not await keys.delete(7, "alpha", expected="one")
    assert await keys.delete(7, "alpha", expected="two")
    assert not await keys.delete(7, "alpha")
    assert not await keys.touch(7, "alpha", ttl_seconds=60)
    assert await keys.show(7, "alpha") is None
    assert await keys.insert(7, "alpha", "", ttl_seconds=60)


async def test_keys_are_listed_in_pages_and_read_and_written_many_at_once(api: API) -> None:
    keys = RemoteKeys(calls_of(api))

    assert await keys.insert_many(7, [("a:1", "x", 60), ("a:2", "y", 60), ("b:1", "z", 60)]) == [True] * 3
    assert await keys.insert_many(7, [("a:1", "x", 60), ("a:3", "y", 60)]) == [False, True]
    first = await keys.list(7, prefix="a:", limit=2)
    rest = await keys.list(7, prefix="a:", limit=2, after=first.next)

    assert [one.key for one in [*first.items, *rest.items]] == ["a:1", "a:2", "a:3"]
    assert rest.next is None
    assert await keys.get_many(7, ["a:1", "none"]) == {"a:1": "x"}


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_a_key_of_any_characters_is_that_key(api: API, key: str) -> None:
    keys = RemoteKeys(calls_of(api))

    await keys.put(7, key, "value", ttl_seconds=60)
    shown = await keys.show(7, key)
    assert shown is not None
    assert shown.key == key
    assert [one.key for one in (await keys.list(7, prefix=key)).items] == [key]
    assert await api.keys.app(7).ttl_get(key) == "value"
    assert await keys.delete(7, key)


async def test_what_is_no_text_is_refused_before_it_is_sent(api: API) -> None:
    keys = RemoteKeys(calls_of(api))

    for wrong in (keys.show(7, "\ud800"), keys.put(7, "a", "\ud800", ttl_seconds=1), keys.list(7, prefix="\ud800")):
        with pytest.raises(NotTextError):
            await wrong


async def test_a_key_that_may_not_be_seen_is_an_error_and_not_an_absent_one(api: API) -> None:
    _, token = api.tokens.create("other", ["keys:8"])
    keys = RemoteKeys(calls_of(api, {"Authorization": f"Bearer {token}"}))

    with pytest.raises(RemoteError) as refused:
        await keys.show(7, "alpha")
    assert refused.value.status == HTTPStatus.FORBIDDEN
    with pytest.raises(RemoteError):
        await keys.delete(7, "alpha")


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_made_listed_shown_and_deleted_by_its_address(api: API) -> None:
    requests = RemoteRequests(calls_of(api))
    directory = {"local.lapse.dev/directory": "/data"}

    claim = await requests.create("pvc", {"metadata": {"name": "data", "annotations": directory}})
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": claim.uid}
    made = await requests.create(
        "vcr", {"metadata": {"name": "nightly"}, "spec": {"mode": "Snapshot", "target": target}}
    )
    page = await requests.list("vcr", namespace="default")

    assert made.address == "vcr/default/nightly"
    assert page.items == [await requests.show("vcr/default/nightly")]
    assert (await requests.list("VolumeCaptureRequest", namespace="other")).items == []
    with pytest.raises(RemoteError) as changed:
        await requests.delete("vcr/default/nightly", if_match='"0"')
    assert changed.value.status == HTTPStatus.PRECONDITION_FAILED
    await requests.delete("vcr/default/nightly", if_match=page.items[0].etag)
    with pytest.raises(NotFoundError):
        await requests.show("vcr/default/nightly")
    await requests.delete("pvc/default/data")


@pytest.mark.parametrize("kind", ["vcr", "vrr", "mcr", "pvc", "keeper", "snapshot", "checkpoint", "volume"])
async def test_every_kind_that_is_served_is_listed(api: API, kind: str) -> None:
    assert (await RemoteRequests(calls_of(api)).list(kind)).items == []


async def test_kinds_that_are_not_served_are_usage_errors(api: API) -> None:
    requests = RemoteRequests(calls_of(api))

    for wrong in ("cm", "requests"):
        with pytest.raises(NoRouteError, match="Expected one of vcr, "):
            await requests.list(wrong)
    with pytest.raises(UnknownNameError):
        await requests.create("nothing", {})
    with pytest.raises(NoRouteError):
        await requests.show("ConfigMap/default/a")


async def test_a_checkpoint_that_is_not_there_is_the_error_that_it_is_elsewhere(api: API) -> None:
    with pytest.raises(NotFoundError):
        await RemoteRequests(calls_of(api)).manifests("none")


# --- history and retention --------------------------------------------------------------------------------------------


async def test_a_run_is_recorded_listed_and_shown(api: API) -> None:
    history = RemoteHistory(calls_of(api))
    execution = {"startTime": "2023-01-31T12:00:00Z", "status": "success"}
    run = {"spec": {"experimentRef": {"name": "kill", "namespace": "shop"}, "execution": execution}}

    made = await history.record(run)
    page = await history.list(experiment="shop/kill", status="success")
    assert [one.address for one in page.items] == [made.address]
    assert (await history.list(status="failure")).items == []
    details = await history.show(made.namespace or "", made.name)
    assert (details.uid, details.experiment) == (made.uid, "shop/kill")
    told = await history.prune(dry_run=True)
    assert [one.name for one in told.policies] == ["history"]
    limits: dict[str, Any] = {"ttl": "0", "retention_limit": 1, "keep_last_success": 0}
    assert (await history.show(made.namespace or "", made.name, **limits)).expires == "by number"
    assert (await history.prune(dry_run=True, **limits)).items == []
    assert told.policies[0].dry_run


async def test_policies_are_listed_shown_and_run(api: API) -> None:
    retention = RemoteRetention(calls_of(api))
    for name in ("month", "week"):
        await api.objects.create(RETENTION_POLICY, policy(name, maxAge="7d"))

    first = await retention.list(limit=1)
    rest = await retention.list(after=first.next)
    assert [one.name for one in [*first.items, *rest.items]] == ["month", "week"]
    assert (await retention.show("week")).kind == "ChaosExperimentHistory"
    assert (await retention.run("week", dry_run=True)).items == []
    with pytest.raises(NotFoundError):
        await retention.run("none", dry_run=True)
    found = await retention.lint([{"metadata": {"name": "a"}, "spec": {}}])
    assert found.policies == 1
    assert found.findings


# --- workspaces -------------------------------------------------------------------------------------------------------


async def test_a_workspace_is_made_changed_and_deleted_only_as_it_was_seen(api: API, tmp_path: Path) -> None:
    workspaces = RemoteWorkspaces(calls_of(api))

    made = await workspaces.create("lab", command=COMMAND, port=9000, owner="ann", start=False)
    assert (made.address, made.command, made.standby_ttl_seconds) == ("workspace/lab", tuple(COMMAND), 600)
    changed = await workspaces.set("lab", Changes(standby_ttl_seconds=60), if_match=made.etag)
    assert (changed.standby_ttl_seconds, changed.port) == (60, 9000)
    for change in (
        workspaces.set("lab", Changes(port=9001), if_match=made.etag),
        workspaces.delete("lab", if_match='"x"'),
    ):
        with pytest.raises(RemoteError) as refused:
            await change
        assert refused.value.status == HTTPStatus.PRECONDITION_FAILED
    assert (await workspaces.list(owner="ann")).items == [await workspaces.show("lab")]
    assert (await workspaces.list(owner="bob")).items == []
    assert (await workspaces.start("lab", if_match=changed.etag)).desired_state == "RUNNING"
    assert await workspaces.logs("lab") == LogPage("", 0, more=False)
    (tmp_path / f"{made.id}.log").write_text("one\ntwo\n")
    assert await workspaces.logs("lab", tail=1) == LogPage("two\n", 8, more=False)
    assert await workspaces.logs("lab", after=4) == LogPage("two\n", 8, more=False)
    assert (await workspaces.open("lab")).url.startswith("http://lab.w.localhost:8752/")
    assert (await workspaces.delete("lab")).deleted_at is not None
    with pytest.raises(UnknownWorkspaceError):
        await workspaces.show("lab")


@pytest.mark.parametrize(("verb", "wanted"), [("stop", "STANDBY"), ("archive", "PENDING")])
async def test_another_state_is_asked_for(api: API, verb: str, wanted: str) -> None:
    workspaces = RemoteWorkspaces(calls_of(api))
    made = await workspaces.create("lab", command=COMMAND, port=9000, owner="ann")
    await api.workspaces.observe({WorkspaceId(made.id): ObservedStatus.RUNNING}, now=Ms(made.created_at // 1_000_000))

    assert (await getattr(workspaces, verb)("lab")).desired_state == wanted


async def test_an_etag_with_a_line_end_is_refused_before_it_is_sent(api: API) -> None:
    calls = calls_of(api)
    with pytest.raises(TagFormError):
        await RemoteWorkspaces(calls).stop("lab", if_match='"a"\r\nX: y')


# --- in common --------------------------------------------------------------------------------------------------------


async def test_what_another_program_answers_is_no_answer_and_shows_no_key() -> None:
    class Other:
        server = LapseServer.parse("http://localhost:1")

        async def call(self, *_: object) -> ServerAnswer:
            return ServerAnswer(200, b"<html>")

    other: Any = Other()
    with pytest.raises(NotLapseError) as refused:
        await RemoteKeys(ApiCalls(other)).show(7, "secret-name")
    assert "secret-name" not in str(refused.value)


def test_the_client_has_every_noun() -> None:
    client = AsyncClient("http://localhost:8750", "token")
    assert isinstance(client.keys, RemoteKeys)
    assert isinstance(client.requests, RemoteRequests)
    assert isinstance(client.history, RemoteHistory)
    assert isinstance(client.retention, RemoteRetention)
    assert isinstance(client.workspaces, RemoteWorkspaces)
