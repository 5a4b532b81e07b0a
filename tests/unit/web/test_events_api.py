"""``GET /events`` in this process: real routes, guard, tokens and journal, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.client.events import EventParser, WrittenEvent
from lapse.core.clock import SystemClock, VirtualClock
from lapse.engine.journal.port import AuditReason, Entry, Outcome, audit_row
from lapse.engine.verbs.events import HEARTBEAT_SECONDS
from lapse.engine.verbs.operations import API
from lapse.web.auth.sessions import SESSION_SECONDS
from lapse.web.live import CHECK_SECONDS, MOST_PER_HOLDER, TICK_SECONDS
from lapse.web.server.listener import Endpoint, Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import Message

    from tests.unit.web import conftest

EVENTS = f"{API}/events"


class Stream:
    """One stream, as its client sees it."""

    def __init__(self, api: conftest.API, token: str | None, query: str, headers: Mapping[str, str]) -> None:
        self._api = api
        self.status, self.headers, self.text = 0, dict[str, str](), b""
        self.begun = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self._gone = asyncio.Event()
        self._asked = False
        proof = {} if token is None else {"authorization": f"Bearer {token}"}
        given = {"host": "localhost:8750", **proof, **headers}
        self._scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": EVENTS, "raw_path": EVENTS.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "server": ("127.0.0.1", 8750), "client": ("127.0.0.1", 1), "scheme": "http", "root_path": "",
            "http_version": "1.1",
        }  # fmt: skip
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._api.app(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._asked:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            await self.reading.wait()
            self.text += message["body"]
            self.begun.set()

    def leave(self) -> None:
        self._gone.set()

    @property
    def events(self) -> list[WrittenEvent]:
        return list(EventParser().feed(self.text))

    @property
    def rows(self) -> list[str]:
        return [msgspec.json.decode(one.data)["address"] for one in self.events if one.name == "row"]

    @property
    def positions(self) -> list[str]:
        return [one.position or "" for one in self.events if one.name == "row"]

    @property
    def topics(self) -> set[str]:
        told = [msgspec.json.decode(one.data)["topics"] for one in self.events if one.name == "changed"]
        return {topic for one in told for topic in one}


async def settle() -> None:
    for _ in range(50):
        await SystemClock().sleep(0)


async def pass_time(api: conftest.API, seconds: float = TICK_SECONDS) -> None:
    await settle()
    for _ in range(round(seconds / TICK_SECONDS)):
        api.clock.advance(TICK_SECONDS)
        await settle()


@asynccontextmanager
async def following(
    api: conftest.API, *scopes: str, query: str = "", token: str | None = None, **headers: str
) -> AsyncIterator[Stream]:
    token = token or api.tokens.create("t", scopes or ["admin"])[1]
    stream = Stream(api, token, query, {name.replace("_", "-"): value for name, value in headers.items()})
    await stream.begun.wait()
    try:
        yield stream
    finally:
        stream.reading.set()
        stream.leave()
        await stream.task


def row(address: str, **details: object) -> Entry:
    return audit_row(AuditReason.HOLD_PLACED, address=address, actor="user ann", time_ns=1, details=details or None)


# --- rows -------------------------------------------------------------------------------------------------------------


async def test_a_stream_begins_with_hello_and_goes_on_with_rows_as_they_are_written(api: conftest.API) -> None:
    await api.journal.append(row("workspace/old"))
    async with following(api) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-store", "no")
        assert "content-length" not in stream.headers
        assert stream.text.startswith(b"retry: 2000\n\n")
        assert set(msgspec.json.decode(stream.events[0].data)) == {"now", "version", "topics"}
        assert stream.events[0].name == "hello"
        await api.journal.append(row("workspace/a"), row("workspace/b"))
        await pass_time(api)
        await api.journal.append(row("workspace/c"))
        await pass_time(api)
        assert stream.rows == ["workspace/a", "workspace/b", "workspace/c"]
        assert stream.topics == {"journal"}


async def test_a_row_is_what_the_journal_shows(api: conftest.API) -> None:
    async with following(api) as stream:
        await api.journal.append(row("workspace/a", reason="audit"))
        await pass_time(api)
        (shown,) = (await api.client.get(f"{API}/journal")).json()["items"]
        (told,) = [one for one in stream.events if one.name == "row"]
        assert msgspec.json.decode(told.data) == shown
        assert told.position == shown["place"]


@pytest.mark.parametrize("way", ["header", "query"])
async def test_who_resumes_gets_every_row_once_wherever_the_stream_was_cut(api: conftest.API, way: str) -> None:
    names = [f"workspace/{number}" for number in range(250)]
    async with following(api, token=(token := api.tokens.create("f", ["admin"])[1])) as stream:
        start = stream.events[0].position or ""
        for at in range(0, 250, 7):  # rows of one transaction come together
            await api.journal.append(*map(row, names[at : at + 7]))
        await pass_time(api)
        positions = stream.positions
        assert stream.rows == names
    for cut in (0, 1, 6, 7, 99, 100, 101, 249, 250):
        last = positions[cut - 1] if cut else start
        given: dict[str, str] = {"last_event_id": last} if way == "header" else {"query": f"after={last}"}
        async with following(api, token=token, **given) as stream:
            await pass_time(api)
            assert stream.rows == names[cut:]
            assert stream.events[0].position == last


async def test_several_writers_leave_no_gap_for_who_comes_and_goes(api: conftest.API) -> None:
    names, seen = {f"w/{who}/{n}" for who in range(4) for n in range(40)}, list[str]()
    token = api.tokens.create("f", ["read"])[1]

    async def write(who: int) -> None:
        for number in range(40):
            await api.journal.append(row(f"w/{who}/{number}"))
            await SystemClock().sleep(0)

    last = str(await api.journal.end())
    writing = [asyncio.create_task(write(who)) for who in range(4)]
    while len(seen) < len(names):
        async with following(api, token=token, last_event_id=last) as stream:
            await pass_time(api)
            seen += stream.rows
            last = stream.positions[-1] if stream.positions else last
    await asyncio.gather(*writing)
    assert len(seen) == len(set(seen))
    assert set(seen) == names


async def test_the_header_wins_over_the_query_as_a_browser_sends_both(api: conftest.API) -> None:
    await api.journal.append(row("workspace/a"))
    await api.journal.append(row("workspace/b"))
    first = (await api.client.get(f"{API}/journal")).json()["items"][1]["place"]
    async with following(api, query="after=0.0.0", last_event_id=first) as stream:
        assert stream.rows == ["workspace/b"]


async def test_rows_may_be_of_one_domain_only(api: conftest.API) -> None:
    async with following(api, query="domain=workspaces") as stream:
        mine = msgspec.structs.replace(row("workspace/a"), domain="workspaces", outcome=Outcome.ENDED)
        await api.journal.append(row("workspace/b"), mine, row("workspace/c"))
        await pass_time(api)
        assert stream.rows == ["workspace/a"]


@pytest.mark.parametrize(("scope", "sees"), [("read", True), ("monitor", False), ("operate", False)])
async def test_details_are_shown_to_those_who_see_them_in_the_journal(
    api: conftest.API, scope: str, *, sees: bool
) -> None:
    async with following(api, "admin", token=api.tokens.create("other", ["admin"])[1]), following(api, scope) as stream:
        await api.journal.append(row("workspace/a", reason="hunter2"))
        await pass_time(api)
        (told,) = [one for one in stream.events if one.name == "row"]
        assert (b"hunter2" in told.data) == sees
        assert msgspec.json.decode(told.data).get("details_hidden", False) == (not sees)


@pytest.mark.parametrize("query", ["after=nowhere", "after=1.2", "domain=nothing", "since=1h"])
async def test_what_cannot_be_followed_is_a_problem_document(api: conftest.API, query: str) -> None:
    refused = await api.client.get(f"{EVENTS}?{query}")
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert api.live.subscribers == 0


async def test_an_id_that_nobody_gave_is_refused(api: conftest.API) -> None:
    refused = await api.client.get(EVENTS, headers={"Last-Event-ID": "x\ty"})
    assert (refused.status_code, refused.json()["code"]) == (422, "RowPositionError")


# --- what has changed -------------------------------------------------------------------------------------------------


async def test_changes_of_every_store_are_told_by_topic(api: conftest.API) -> None:
    async with following(api) as stream:
        claim = {"metadata": {"name": "data", "annotations": {"local.lapse.dev/directory": "/x"}}}
        assert (await api.client.post(f"{API}/claims", json=claim)).status_code == 201
        await api.keys.app(7).put("a", "b", 900)
        asked = {"name": "lab", "owner": "ann", "command": ["x"], "port": 9000, "start": False}
        assert (await api.client.post(f"{API}/workspaces", json=asked)).status_code == 201
        assert (await api.client.post(f"{API}/freeze", json={"domain": "workspaces"})).status_code == 200
        for _ in range(12):
            await pass_time(api)
            await SystemClock().sleep(0.01)  # workspaces are counted in a thread
        assert stream.topics == {"journal", "objects", "keys", "workspaces", "status"}


async def test_silence_is_broken_by_a_comment(api: conftest.API) -> None:
    async with following(api) as stream:
        before = stream.text
        await pass_time(api, HEARTBEAT_SECONDS)
        assert stream.text.removeprefix(before) == b":\n\n"
        await pass_time(api, HEARTBEAT_SECONDS)
        assert stream.text.removeprefix(before) in {b":\n\n" * 2, b":\n\n" * 3}


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_a_stream_ends_soon_after_its_token_is_revoked(api: conftest.API) -> None:
    token_id, token = api.tokens.create("t", ["read"])
    async with following(api, token=token) as stream:
        await pass_time(api, CHECK_SECONDS)
        assert not stream.task.done()
        api.tokens.revoke(token_id)
        await pass_time(api, 2 * CHECK_SECONDS)
        assert stream.task.done()
        await api.journal.append(row("workspace/a"))
        assert stream.rows == []


async def test_a_stream_ends_with_its_session(api: conftest.API) -> None:
    cookie = api.sessions.begin(api.owner_id, port=8750).partition(";")[0]
    stream = Stream(api, None, "", {"cookie": cookie})
    await stream.begun.wait()
    assert stream.status == 200
    await pass_time(api, CHECK_SECONDS)
    assert not stream.task.done()
    api.clock.jump_wall(SESSION_SECONDS)
    await pass_time(api, 2 * CHECK_SECONDS)
    assert stream.task.done()


async def test_a_client_that_does_not_read_holds_nobody_up_and_gets_all_when_it_does(api: conftest.API) -> None:
    async with following(api, token=api.tokens.create("slow", ["read"])[1]) as slow, following(api) as quick:
        slow.reading.clear()
        names = [f"workspace/{number}" for number in range(300)]
        for name in names:
            await api.journal.append(row(name))
        await pass_time(api, 2)
        assert quick.rows == names
        assert slow.rows == []
        slow.reading.set()
        await pass_time(api)
        assert slow.rows == names


async def test_a_client_that_leaves_is_forgotten(api: conftest.API) -> None:
    async with following(api):
        assert api.live.subscribers == 1
    assert api.live.subscribers == 0


async def test_too_many_streams_of_one_token_are_refused_for_now(api: conftest.API) -> None:
    token = api.tokens.create("t", ["read"])[1]
    streams = [Stream(api, token, "", {}) for _ in range(MOST_PER_HOLDER)]
    await asyncio.gather(*(stream.begun.wait() for stream in streams))
    refused = await api.stranger.get(EVENTS, headers={"Authorization": f"Bearer {token}"})
    assert (refused.status_code, refused.json()["code"]) == (503, "TooManyStreamsError")
    assert int(refused.headers["retry-after"]) > 0
    for stream in streams:
        stream.leave()
    await asyncio.gather(*(stream.task for stream in streams))


async def test_every_stream_ends_at_once_when_the_server_stops(api: conftest.API) -> None:
    async with following(api) as stream:
        await api.live.close()
        await asyncio.wait_for(stream.task, 1)
    refused = await api.client.get(EVENTS)
    assert (refused.status_code, refused.json()["code"]) == (503, "StoppingError")


async def test_the_openapi_document_shows_the_stream_with_an_example(api: conftest.API) -> None:
    told = (await api.client.get(f"{API}/openapi.json")).json()["paths"][EVENTS]["get"]
    assert {one["name"] for one in told["parameters"]} == {"domain", "after", "Last-Event-ID"}
    assert "event: hello" in told["responses"]["200"]["content"]["text/event-stream"]["example"]
    assert "application/json" not in told["responses"]["200"]["content"]


# --- on a listener ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(api: conftest.API) -> AsyncIterator[tuple[int, VirtualClock]]:
    """Serve on a port of this machine, with limits by a clock of their own."""
    endpoint, clock, stopping = Endpoint("127.0.0.1", 0, setting="http"), VirtualClock(), asyncio.Event()
    serving = asyncio.create_task(Listener("http", api.app, endpoint, clock=clock).run(stopping))
    try:
        yield endpoint.port, clock
    finally:
        await api.live.close()
        stopping.set()
        await serving


async def connected(api: conftest.API, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    token = api.tokens.create("t", ["read"])[1]
    head = f"GET {EVENTS} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    assert b"event: hello" in await reader.readuntil(b'"topics"')
    return reader, writer


async def sweeps(clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        await settle()


async def test_no_limit_of_connections_cuts_a_healthy_stream(api: conftest.API) -> None:
    async with served(api) as (port, clock):
        reader, writer = await connected(api, port)
        await sweeps(clock, 600)
        await api.journal.append(row("workspace/a"))
        await pass_time(api)
        assert b"workspace/a" in await asyncio.wait_for(reader.readuntil(b"workspace/a"), 10)
        writer.close()


async def test_a_client_that_never_reads_is_cut_off_and_what_waits_for_it_is_bounded(api: conftest.API) -> None:
    async with served(api) as (port, clock):
        _, idle = await connected(api, port)
        idle.transport.pause_reading()  # type: ignore[attr-defined]
        reader, writer = await connected(api, port)
        for number in range(100):
            await api.journal.append(*(row(f"workspace/{number}.{n}", reason="x" * 10_000) for n in range(10)))
        await pass_time(api)
        await asyncio.wait_for(reader.readuntil(b"workspace/99.9"), 20)
        assert api.live.subscribers == 2
        await sweeps(clock, 35)
        while api.live.subscribers == 2:
            await SystemClock().sleep(0.01)
        assert api.live.subscribers == 1
        await api.journal.append(row("workspace/last"))
        await pass_time(api)
        await asyncio.wait_for(reader.readuntil(b"workspace/last"), 10)
        writer.close()
        idle.close()
