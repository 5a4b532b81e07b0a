"""Probes: what a program answers, what that does to its row, and that no answer is never 'idle'."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.timestamps import to_timestamp
from lapse.workspaces.activity import probes
from lapse.workspaces.activity.probes import ProbeFailedError, Prober, Reach, get, last_activity
from lapse.workspaces.model import Changes, DesiredState, Ms, NewWorkspace, ObservedStatus
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.workspaces.model import Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

NOW = Ms(1_700_000_000_000)
BUSY, IDLE = [{"execution_state": "busy"}, {"execution_state": "idle"}], [{"execution_state": "idle"}]


# --- what an answer says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"has_activity": True}, NOW),
        ({"has_activity": False}, None),
        ({"last_activity": "2023-11-14T22:13:10Z"}, NOW - 10_000),
        ({"last_activity": "2023-11-14T23:13:10.500+01:00"}, NOW - 9_500),
        ({"last_activity": 1_699_999_990}, NOW - 10_000),
        ({"last_activity": 1_699_999_990.5}, NOW - 9_500),
        ({"last_activity": "2030-01-01T00:00:00Z"}, NOW),
        ({"has_activity": False, "last_activity": 1_699_999_990}, NOW - 10_000),
        ({"has_activity": True, "last_activity": 5}, NOW),
        ({"has_activity": True, "more": "is ignored"}, NOW),
    ],
)
def test_an_answer_says_when_there_was_activity(answer: dict[str, Any], expected: int | None) -> None:
    assert last_activity(json.dumps(answer).encode(), NOW) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"ok", b"[]", b"{}", b"null", b"\xff", b'{"has_activity": 1}', b'{"has_activity": "no"}',
        b'{"has_activity": null}', b'{"last_activity": "yesterday"}', b'{"last_activity": "2023-11-14T22:13:10"}',
        b'{"last_activity": true}', b'{"last_activity": -5}', b'{"last_activity": 0}', b'{"last_activity": 1e999}',
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_failure_and_not_idle(answer: bytes) -> None:
    with pytest.raises(ProbeFailedError):
        last_activity(answer, NOW)


# --- a round ----------------------------------------------------------------------------------------------------------


class Programs:
    """What the programs of this machine answer, by port and path; what is not here does not answer."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, str], Any] = {}
        self.asked: list[tuple[int, str]] = []
        self.at_once = self.most_at_once = 0

    async def __call__(self, reach: Reach, path: str) -> bytes:
        port = reach.port
        self.asked.append((port, path))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await SystemClock().sleep(0)
        self.at_once -= 1
        if (port, path) not in self.answers:
            raise ProbeFailedError(problem=f"port {port} does not answer: Connection refused")
        return json.dumps(self.answers[port, path]).encode()


class Machine:
    def __init__(self, store: WorkspaceStore) -> None:
        self.store, self.clock, self.programs = store, VirtualClock(), Programs()
        self.up: list[bool] = []
        self.prober = Prober(store, node="here", clock=self.clock, signal=self.up.append, fetch=self.programs)

    @property
    def now(self) -> Ms:
        return Ms(self.clock.wall_ns() // 1_000_000)

    async def running(self, name: str, port: int, probe: str | None, node: str = "here") -> WorkspaceId:
        new = NewWorkspace(name=name, owner="ann", command=("x",), port=port, probe=probe, node_id=node)
        made = await self.store.create(new, now=self.now)
        await self.store.observe({made.id: ObservedStatus.RUNNING}, now=self.now)
        return made.id

    async def row(self, workspace: WorkspaceId) -> Workspace:
        return await self.store.get(workspace)


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    store = open_sqlite_store(folder / "workspaces.db")
    try:
        yield Machine(store)
    finally:
        await store.close()


async def test_a_busy_kernel_is_activity_now_and_an_idle_one_since_its_last(tmp_path: Path) -> None:
    async with machine(tmp_path) as here:
        one = await here.running("one", 9001, "jupyter")
        began = here.now
        here.clock.advance(301)
        last = to_timestamp(here.clock.wall_ns() - 200 * 10**9)
        here.programs.answers = {
            (9001, "/api/kernels?no_track_activity=1"): BUSY,
            (9001, "/api/status"): {"last_activity": last, "kernels": 1, "connections": 0},
        }
        await here.prober.round()
        busy = await here.row(one)
        here.clock.advance(301)
        here.programs.answers[9001, "/api/kernels?no_track_activity=1"] = IDLE
        await here.prober.round()
        idle = await here.row(one)

    assert (busy.last_access_at, busy.probed_at) == (began + 301_000, began + 301_000)
    assert (idle.last_access_at, idle.probed_at) == (busy.last_access_at, began + 602_000), "never back"
    assert here.up == [True, True]


async def test_a_program_that_does_not_answer_is_told_and_then_answers_again(tmp_path: Path) -> None:
    async with machine(tmp_path) as here:
        one = await here.running("one", 9001, "/alive")
        began = here.now
        here.clock.advance(301)
        await here.prober.round()
        failed = await here.row(one)
        here.programs.answers = {(9001, "/alive"): {"has_activity": False}}
        await here.prober.round()
        answered = await here.row(one)

    assert (failed.probed_at, failed.probe_error) == (None, "port 9001 does not answer: Connection refused")
    assert (answered.probed_at, answered.probe_error) == (began + 301_000, None)
    assert failed.last_access_at == answered.last_access_at == began
    assert here.up == [False, True]


async def test_only_those_are_asked_whose_time_is_over_here_and_who_have_a_probe(tmp_path: Path) -> None:
    async with machine(tmp_path) as here:
        await here.running("old", 9001, "/alive")
        await here.running("plain", 9002, None)
        await here.running("elsewhere", 9003, "/alive", node="there")
        held = await here.running("held", 9004, "/alive")
        stopped = await here.running("stopped", 9005, "/alive")
        await here.store.hold(held, "demo", now=here.now)
        await here.store.observe({stopped: ObservedStatus.STANDBY}, now=here.now)
        here.clock.advance(300)
        await here.prober.round()
        early = list(here.programs.asked)
        here.clock.advance(1)
        await here.running("young", 9006, "/alive")
        await here.prober.round()

    assert early == []
    assert here.programs.asked == [(9001, "/alive")]


async def test_few_are_asked_at_once(tmp_path: Path) -> None:
    async with machine(tmp_path) as here:
        for number in range(3 * probes.AT_ONCE):
            await here.running(f"w{number}", 9000 + number, "/alive")
        here.clock.advance(301)
        await here.prober.round()

    assert len(here.programs.asked) == 3 * probes.AT_ONCE
    assert here.programs.most_at_once == probes.AT_ONCE


async def test_a_probe_that_was_changed_meanwhile_is_not_answered_for(tmp_path: Path) -> None:
    async with machine(tmp_path) as here:
        one = await here.running("one", 9001, "/alive")
        here.clock.advance(301)
        await here.store.configure(one, Changes(standby_ttl_seconds=1), now=here.now)

        async def fetch(reach: Reach, path: str) -> bytes:
            await here.store.configure(one, Changes(probe="/other"), now=here.now)
            return b'{"has_activity": false}'

        await Prober(here.store, node="here", clock=here.clock, fetch=fetch).round()
        row = await here.row(one)

    assert (row.probe, row.probed_at, row.desired_state) == ("/other", None, DesiredState.RUNNING)


# --- over HTTP --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(answer: bytes, *, silent: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if silent:
            await reader.read()  # until the caller has gone
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


async def test_a_path_is_asked_for_on_the_port_of_the_program() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}") as (port, heads):
        assert await get(Reach(port), "/alive?x=1") == b"{}"
    assert heads[0].startswith(b"GET /alive?x=1 HTTP/1.0\r\n")
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in heads[0]


async def test_a_program_that_knows_the_proxy_is_asked_as_the_proxy_asks_it(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")
        writer.close()

    path = str(tmp_path / "socket")
    async with await asyncio.start_unix_server(serve, path):
        assert await get(Reach(1, path, "s3cret"), "/alive") == b"{}"
    assert b"\r\nX-Lapse-Workspace-Secret: s3cret\r\n" in heads[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", "answered with 302, expected 200"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n{}", "answered with 403"),
        (b"hello", "something that is not HTTP"),
        (b"", "something that is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 << 20), "longer than"),
    ],
)
async def test_any_other_answer_is_a_failure(answer: bytes, said: str) -> None:
    async with serving(answer) as (port, _):
        with pytest.raises(ProbeFailedError, match=said):
            await get(Reach(port), "/alive")


async def test_nobody_who_listens_is_a_failure() -> None:
    async with serving(b"") as (port, _):
        pass
    with pytest.raises(ProbeFailedError, match=f"port {port} does not answer"):
        await get(Reach(port), "/alive")


async def test_who_does_not_answer_in_time_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ANSWER_SECONDS", 0.05)
    async with serving(b"", silent=True) as (port, _), machine(tmp_path) as here:
        one = await here.running("one", port, "/alive")
        here.clock.advance(301)
        await Prober(here.store, node="here", clock=here.clock).round()
        assert (await here.row(one)).probe_error == "no answer within 0.05 seconds"
        await SystemClock().sleep(0.05)  # the server's side ends
