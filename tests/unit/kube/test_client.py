"""The client against a server that misbehaves: what is answered, what is concluded, and what is sent."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock
from lapse.kube.api import transport
from lapse.kube.api.client import USER_AGENT, KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import Cluster, KubeConfig
from lapse.kube.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NoSuchKindError,
    NotFoundError,
    StoreUnavailableError,
    UnauthenticatedError,
    UnknownKindError,
)
from lapse.kube.resources import EventType, ObjectKey, metadata_only, untyped
from lapse.objects.kubernetes import KubernetesStore
from tests.servers.ports import reserved_port
from tests.unit.kube.faulty import (
    KEY,
    QUICK,
    FaultyServer,
    client_of,
    cuts,
    event,
    keeps_silent,
    obj,
    refuses,
    says,
    streams,
)
from tests.unit.kube.scripted import THING

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import Event
    from tests.unit.kube.scripted import Thing

SECRET = "sesame-open"
CLUSTER_THING = untyped("example.dev/v1", "ClusterThing", "clusterthings", namespaced=False)


async def seen(client: KubeClient, since: str = "1") -> list[Event[Thing]]:
    return [told async for told in client.watch(THING, since=since)]


# --- what a failure means ---------------------------------------------------------------------------------------------


async def test_too_many_requests_is_no_answer_and_tells_when_to_come_back() -> None:
    server = FaultyServer(says(429, {"kind": "Status", "message": "slow down"}, {"Retry-After": "7"}))
    async with client_of(server) as client:
        with pytest.raises(StoreUnavailableError, match="429 slow down") as failure:
            await client.get(THING, KEY)
    assert failure.value.retry_after == 7.0
    assert len(server.asked) == 1, "the client does not repeat it: the caller decides"


@pytest.mark.parametrize("code", [500, 502, 503, 504, 301, 302])
async def test_a_server_that_is_ill_or_sends_us_elsewhere_proves_nothing(code: int) -> None:
    server = FaultyServer(says(code, b"<html>", {"Location": "/elsewhere"}))
    async with client_of(server, token=SECRET.encode()) as client:
        with pytest.raises(StoreUnavailableError) as failure:
            await client.get(THING, KEY)
        with pytest.raises(StoreUnavailableError):
            await client.delete(THING, KEY)
        with pytest.raises(StoreUnavailableError):
            await seen(client)
    assert failure.value.retry_after is None
    assert {path.partition("?")[0] for _, path, _, _ in server.asked} <= {
        "/apis/example.dev/v1/namespaces/default/things/a",
        "/apis/example.dev/v1/things",
    }


@pytest.mark.parametrize("code", [403, 404, 409, 410, 422])
async def test_a_page_of_something_in_between_proves_nothing(code: int) -> None:
    async with client_of(FaultyServer(says(code, b"<html>Not here</html>"))) as client:
        with pytest.raises(StoreUnavailableError, match="not from an API server") as failure:
            await client.get(THING, KEY)
    assert "html" not in str(failure.value)


async def test_a_kind_that_is_not_served_is_told_from_an_object_that_is_not_there() -> None:
    server = FaultyServer(says(404, b"404 page not found\n"), refuses(404, "NotFound"))
    async with client_of(server) as client:
        with pytest.raises(UnknownKindError, match=r"the kind Thing of example\.dev/v1"):
            await client.get(THING, KEY)
        with pytest.raises(NotFoundError, match="no Thing default/a"):
            await client.get(THING, KEY)


async def test_a_group_that_is_not_served_is_wrong_input_about_the_kind_that_was_typed() -> None:
    async with client_of(FaultyServer(says(404, b"404 page not found\n"))) as client:
        with pytest.raises(NoSuchKindError, match=r"no kind Foo\.bar in this cluster\. Expected .*Thing") as failure:
            await KubernetesStore(client, kinds=[THING]).resolve_word("Foo.bar")
    assert (failure.value.exit_code, failure.value.status) == (64, 422)


async def test_a_missing_namespace_is_named() -> None:
    async with client_of(FaultyServer(refuses(404, "NotFound", kind="namespaces", name="default"))) as client:
        with pytest.raises(NotFoundError, match="no Namespace default"):
            await client.create(THING, {"metadata": {"name": "a", "namespace": "default"}})


async def test_an_object_that_is_too_large_for_etcd_is_invalid_and_not_retried_for_ever() -> None:
    async with client_of(FaultyServer(refuses(500, message="etcdserver: request is too large"))) as client:
        with pytest.raises(InvalidError, match="too large"):
            await client.patch(THING, KEY, {"owner": "x"})


async def test_a_wrong_uid_in_a_patch_is_a_conflict_and_the_same_answer_without_one_is_invalid() -> None:
    server = FaultyServer(refuses(422, "Invalid", causes=[{"field": "metadata.uid", "message": "immutable"}]))
    async with client_of(server) as client:
        with pytest.raises(ConflictError):
            await client.patch(THING, KEY, {}, uid="other")
        with pytest.raises(InvalidError):
            await client.patch(THING, KEY, {"metadata": {"uid": "other"}})


async def test_forbidden_says_what_the_server_said() -> None:
    async with client_of(FaultyServer(refuses(403, "Forbidden", "things is forbidden: User x"))) as client:
        with pytest.raises(ForbiddenError, match="things is forbidden: User x"):
            await client.list(THING)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"metadata": 5}',
        b'{"metadata": {"name": 3}}',
        b'{"metadata": {"resourceVersion": "5"}}',
        b'{"kind": "Login", "metadata": {"resourceVersion": "5"}, "items": []}',
        b'{"kind": "ThingList", "metadata": {"resourceVersion": ""}, "items": []}',
    ],
)
async def test_an_answer_that_cannot_be_read_proves_nothing(garbage: bytes) -> None:
    async with client_of(FaultyServer(says(200, garbage))) as client:
        with pytest.raises(StoreUnavailableError, match="not a Thing of example"):
            await client.get(THING, KEY)
        with pytest.raises(StoreUnavailableError, match="not a Thing of example"):
            await client.list(THING)
        with pytest.raises(StoreUnavailableError, match="not a ClusterThing of example"):
            await client.get(CLUSTER_THING, ObjectKey(None, "a"))


async def test_a_cut_connection_proves_nothing() -> None:
    async with client_of(FaultyServer(cuts())) as client:
        with pytest.raises(StoreUnavailableError, match="was cut"):
            await client.create(THING, obj())


async def test_a_connection_that_is_cut_inside_an_answer_proves_nothing() -> None:
    async with client_of(FaultyServer(streams(b'{"metadata"', then="cut"))) as client:
        with pytest.raises(StoreUnavailableError, match="was cut"):
            await client.get(THING, KEY)


async def test_a_silent_server_is_given_up_in_time() -> None:
    clock = SystemClock()
    async with client_of(FaultyServer(keeps_silent()), limits=QUICK) as client:
        start_ns = clock.monotonic_ns()
        with pytest.raises(StoreUnavailableError, match=r"no answer from http://127\.0\.0\.1:\d+ within 0\.5 s"):
            await client.get(THING, KEY)
        assert clock.monotonic_ns() - start_ns < 30e9


async def test_a_server_that_is_away_proves_nothing() -> None:
    with reserved_port() as port:
        client = KubeClient(KubeConfig(cluster=Cluster(server=f"http://127.0.0.1:{port}")), environ={})
        for call in (client.get(THING, KEY), client.check(), seen(client)):
            with pytest.raises(StoreUnavailableError, match=r"no connection to http://127\.0\.0\.1:\d+"):
                await call
        await client.close()


async def test_a_closed_client_says_so_and_closes_again() -> None:
    async with client_of(FaultyServer(says(200, obj()))) as client:
        await client.get(THING, KEY)
        await client.close()
        with pytest.raises(StoreUnavailableError, match="is closed"):
            await client.get(THING, KEY)
        await client.close()


class MovedClock(SystemClock):
    """The machine's, some time later."""

    later_seconds = 0

    def boottime_ns(self) -> int:
        return super().boottime_ns() + self.later_seconds * 1_000_000_000


async def test_it_knows_how_long_ago_the_server_granted_something() -> None:
    forbidden = says(403, {"kind": "Status", "message": "no"})
    server, clock = FaultyServer(forbidden, says(200, obj()), cuts()), MovedClock()
    async with server.running():
        client = KubeClient(server.config(), clock=clock, environ={})
        assert not client.answered_within(60)
        with pytest.raises(ForbiddenError):
            await client.get(THING, KEY)
        assert not client.answered_within(60), "a refusal may be that of something in between"
        await client.get(THING, KEY)
        assert client.answered_within(60)
        clock.later_seconds = 61
        assert not client.answered_within(60)
        with pytest.raises(StoreUnavailableError):
            await client.get(THING, KEY)
        assert not client.answered_within(60)
        server.script = [streams(event("BOOKMARK", obj(version="9")))]
        await seen(client)
        assert client.answered_within(60)
        await client.close()


# --- watching ---------------------------------------------------------------------------------------------------------


async def test_a_watch_reports_changes_and_bookmarks_whatever_pieces_they_come_in() -> None:
    text = event("ADDED", obj(version="7", owner="me")) + event("BOOKMARK", obj(version="9")) + b"\n"
    text += event("DELETED", obj(version="11"))
    server = FaultyServer(streams(text[:5], text[5:90], text[90:]), streams(*[bytes([byte]) for byte in text]))
    async with client_of(server) as client:
        for _ in range(2):
            told = await seen(client)
            assert [(one.type, one.resource_version) for one in told] == [
                (EventType.ADDED, "7"),
                (EventType.BOOKMARK, "9"),
                (EventType.DELETED, "11"),
            ]
            assert told[0].object is not None
            assert told[0].object.owner == "me"
            assert told[1].object is None


async def test_gone_inside_a_watch_is_gone() -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (5)"}
    async with client_of(FaultyServer(streams(event("ERROR", expired)))) as client:
        with pytest.raises(GoneError, match="since version 1"):
            await seen(client)


async def test_another_error_inside_a_watch_proves_nothing() -> None:
    broken = {"kind": "Status", "code": 500, "message": "etcd event received with PrevKv=nil"}
    async with client_of(FaultyServer(streams(event("ERROR", broken), then="silence"))) as client:
        with pytest.raises(StoreUnavailableError, match="PrevKv"):
            await seen(client)


@pytest.mark.parametrize("line", [b"{\n", b"null\n", event("NOVELTY", obj()), event("ADDED", {"metadata": 3})])
async def test_a_line_that_cannot_be_read_ends_the_watch(line: bytes) -> None:
    async with client_of(FaultyServer(streams(line, then="silence"))) as client:
        with pytest.raises(StoreUnavailableError, match="not a Thing of example"):
            await seen(client)


async def test_a_watch_that_is_cut_is_not_taken_for_one_that_ended() -> None:
    async with client_of(FaultyServer(streams(event("ADDED", obj()), then="cut"))) as client:
        watch = client.watch(THING, since="1")
        assert (await anext(watch)).type is EventType.ADDED
        with pytest.raises(StoreUnavailableError, match="was cut"):
            await anext(watch)


async def test_a_watch_that_stays_silent_longer_than_the_server_would_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_SILENCE_SECONDS", 0.2)
    async with client_of(FaultyServer(streams(event("ADDED", obj()), then="silence")), watch_seconds=1.0) as client:
        watch = client.watch(THING, since="1")
        await anext(watch)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailableError, match=r"no answer from .* within 1\.2 s"):
                await anext(watch)


async def test_a_watch_that_nobody_wants_any_more_ends_its_connection() -> None:
    server = FaultyServer(streams(event("ADDED", obj()), then="silence"))
    async with client_of(server) as client:
        watch = client.watch(THING, since="1")
        await anext(watch)
        await watch.aclose()
        assert not len(client._transport._connections)


async def test_watches_do_not_take_the_connections_of_calls() -> None:
    waiting = streams(event("ADDED", obj()), then="silence")
    server = FaultyServer(waiting, waiting, waiting, says(200, obj()))
    async with client_of(server, limits=CallLimits(connections=1, request_seconds=5.0)) as client:
        watches = [client.watch(THING, since="1") for _ in range(3)]
        for watch in watches:
            await anext(watch)
        assert (await client.get(THING, KEY)).metadata.name == "a"
        for watch in watches:
            await watch.aclose()


async def test_a_watch_asks_for_bookmarks_and_for_an_end() -> None:
    server = FaultyServer(streams())
    async with client_of(server, watch_seconds=100.0) as client:
        assert await seen(client, since="42") == []
    _, path, _, _ = server.asked[0]
    assert "watch=1&allowWatchBookmarks=true&resourceVersion=42&timeoutSeconds=" in path
    assert 90 <= int(path.rpartition("=")[2]) <= 110


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_preconditions_are_part_of_deletions_and_patches() -> None:
    server = FaultyServer(says(200, obj()))
    async with client_of(server) as client:
        await client.delete(THING, KEY, uid="u", version="3")
        await client.patch(THING, KEY, {"owner": "me", "metadata": {"labels": {"a": "b"}}}, uid="u", version="3")
        await client.patch_status(THING, KEY, {"phase": None}, version="3")
    methods = [(method, path, headers["Content-Type"]) for method, path, headers, _ in server.asked]
    address = "/apis/example.dev/v1/namespaces/default/things/a"
    assert methods == [
        ("DELETE", address, "application/json"),
        ("PATCH", address, "application/merge-patch+json"),
        ("PATCH", f"{address}/status", "application/merge-patch+json"),
    ]
    assert [json.loads(body) for _, _, _, body in server.asked] == [
        {"propagationPolicy": "Background", "preconditions": {"uid": "u", "resourceVersion": "3"}},
        {"owner": "me", "metadata": {"labels": {"a": "b"}, "uid": "u", "resourceVersion": "3"}},
        {"status": {"phase": None}, "metadata": {"resourceVersion": "3"}},
    ]


async def test_a_name_cannot_lead_elsewhere() -> None:
    server = FaultyServer(says(200, obj()))
    async with client_of(server) as client:
        await client.delete(THING, ObjectKey("de fault", "a?b=c#d"))
        for kind, key in (
            (THING, ObjectKey("default", "")),
            (THING, ObjectKey("default", "..")),
            (THING, ObjectKey(None, "a")),
            (THING, ObjectKey("", "a")),
            (THING, ObjectKey("de/fault", "a")),
            (THING, ObjectKey("default", "../a")),
            (CLUSTER_THING, ObjectKey("default", "a")),
        ):
            with pytest.raises(InvalidError):
                await client.delete(kind, key)
        for label in ({"a": "b,c"}, {"a": "b!"}, {"": "b"}, {"a in (b)": "c"}):
            with pytest.raises(InvalidError):
                await client.list(THING, labels=label)
    assert [path for _, path, _, _ in server.asked] == [
        "/apis/example.dev/v1/namespaces/de%20fault/things/a%3Fb%3Dc%23d"
    ]


async def test_what_is_no_json_is_invalid_before_it_is_sent() -> None:
    server = FaultyServer(says(200, obj()))
    async with client_of(server) as client:
        for changes in ({"a": object()}, {"a": "\ud800"}):
            with pytest.raises(InvalidError, match="JSON"):
                await client.patch(THING, KEY, changes)
    assert server.asked == []


async def test_metadata_alone_is_asked_for_and_the_whole_is_understood_too() -> None:
    page = {
        "kind": "ThingList",
        "metadata": {"resourceVersion": "9", "continue": ""},
        "items": [obj(), {**obj("b"), "spec": {"x": 1}}],
    }
    server = FaultyServer(says(200, page))
    async with client_of(server) as client:
        found = await client.list(metadata_only(THING), namespace="default", limit=2)
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert found.next is None
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    assert server.headers[0]["Accept"] == accept


async def test_items_of_an_untyped_list_say_what_they_are() -> None:
    page = {"kind": "ClusterThingList", "metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "a"}}]}
    async with client_of(FaultyServer(says(200, page), says(200, {**page, "items": None}))) as client:
        found = await client.list(CLUSTER_THING)
        assert [item.body["kind"] for item in found.items] == ["ClusterThing"]
        assert (await client.list(CLUSTER_THING)).items == ()


async def test_it_says_who_it_is() -> None:
    server = FaultyServer(says(200, obj()))
    async with client_of(server, impersonation={"Impersonate-User": "jane"}, groups=("a", "b")) as client:
        await client.get(THING, KEY)
    assert server.headers[0]["User-Agent"] == USER_AGENT
    assert USER_AGENT.startswith("lapse/")
    assert server.headers[0]["Impersonate-User"] == "jane"


async def test_a_large_body_goes_through() -> None:
    server = FaultyServer(says(200, obj()))
    async with client_of(server, limits=CallLimits()) as client:
        await client.patch(THING, KEY, {"owner": "x" * 2_000_000})
    assert len(server.asked[0][3]) > 2_000_000


# --- credentials ------------------------------------------------------------------------------------------------------


async def test_a_refused_token_is_read_again_and_the_call_made_once_more(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server = FaultyServer(says(200, obj()), refuses(401), says(200, obj()))
    async with client_of(server, token=file) as client:
        await client.get(THING, KEY)
        file.write_text("new\n")
        await client.get(THING, KEY)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_a_watch_renews_its_credentials_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server = FaultyServer(says(200, obj()), refuses(401), streams(event("ADDED", obj())))
    async with client_of(server, token=file) as client:
        await client.get(THING, KEY)
        file.write_text("new")
        assert [one.type for one in await seen(client)] == [EventType.ADDED]


async def test_a_token_that_is_refused_for_good_says_nothing_about_objects_and_is_not_shown() -> None:
    server = FaultyServer(refuses(401, "Unauthorized", "Unauthorized"))
    async with client_of(server, token=SECRET.encode()) as client:
        with pytest.raises(UnauthenticatedError, match="does not accept the credentials: Unauthorized") as failure:
            await client.get(THING, KEY)
        with pytest.raises(UnauthenticatedError):
            await seen(client)
        assert isinstance(failure.value, StoreUnavailableError)
        assert not isinstance(failure.value, ForbiddenError)
        assert SECRET not in repr(client.config)
    assert len(server.asked) == 2, "there is no other token to try"


async def test_no_failure_and_no_cause_of_one_holds_the_token() -> None:
    server = FaultyServer(says(500, b"oops"), cuts(), keeps_silent(), says(200, b"{"), refuses(403))
    async with client_of(server, token=SECRET.encode(), limits=QUICK) as client:
        for _ in range(5):
            with pytest.raises((StoreUnavailableError, ForbiddenError)) as failure:
                await client.create(THING, obj())
            error: BaseException | None = failure.value
            while error is not None:
                assert SECRET not in f"{error} {error!r}"
                error = error.__cause__


async def test_calls_are_spread_when_a_rate_is_set() -> None:
    clock = SystemClock()
    server = FaultyServer(says(200, obj()))
    async with client_of(server, limits=CallLimits(per_second=20, burst=1)) as client:
        start_ns = clock.monotonic_ns()
        await asyncio.gather(*(client.get(THING, KEY) for _ in range(5)))
    assert clock.monotonic_ns() - start_ns >= 0.19e9
