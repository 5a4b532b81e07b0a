"""Live events of a real ``lapse up``: changes of other processes, a server that is killed, and one that is stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from contextlib import aclosing
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from lapse.app.demo.making import free_port
from lapse.client import AsyncClient, Client, RemoteError
from lapse.core.clock import SystemClock
from lapse.engine.verbs.contract import JournalRequest
from lapse.engine.verbs.events import ChangedEvent, RowEvent
from tests.servers.lapse_server import LapseServer, lapse

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.client.events import LiveEvent
    from tests.integration.up.conftest import Start


CLOCK = SystemClock()
SECOND = 1_000_000_000
BEGINNING = "0.0.0"
"""There is a row from the start on: of the owner's token."""


def record(folder: Path) -> str:
    made = lapse(
        *("history", "record", "--experiment=shop/kill-pods", "--status=success", "-o", "json"),
        *("--start=2026-01-31T02:00:00Z", "--end=2026-01-31T02:04:00Z", f"--state-dir={folder}"),
        state_dir=folder,
    )
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["address"])


def follow(client: Client) -> Queue[tuple[int, LiveEvent]]:
    """Follow in a thread, and note when each event came."""
    came: Queue[tuple[int, LiveEvent]] = Queue()

    def run() -> None:
        for event in client.events(after=BEGINNING):
            came.put((CLOCK.monotonic_ns(), event))

    threading.Thread(target=run, daemon=True).start()
    assert came.get(timeout=10)  # it is connected
    return came


def test_a_hold_by_a_command_on_the_folder_arrives_within_a_second(start: Start, tmp_path: Path) -> None:
    server = start()
    address = record(tmp_path)
    came = [follow(Client(server.http, server.owner_token)) for _ in range(2)]

    held = lapse("hold", address, "--reason=audit", f"--state-dir={tmp_path}", state_dir=tmp_path)
    done = CLOCK.monotonic_ns()
    assert held.returncode == 0, held.stderr
    for one in came:
        events = [one.get(timeout=10)]
        while not any(isinstance(event, RowEvent) and event.row.address == address for _, event in events):
            events.append(one.get(timeout=10))
        assert events[-1][0] - done < SECOND
        told = {topic for _, event in events if isinstance(event, ChangedEvent) for topic in event.topics}
        while not {"journal", "objects"} <= told:
            event = one.get(timeout=10)[1]
            told |= set(event.topics) if isinstance(event, ChangedEvent) else set()


async def test_a_client_goes_on_without_a_gap_when_the_server_is_killed_and_started_again(tmp_path: Path) -> None:
    port = free_port(0)
    flags = ("up", f"--state-dir={tmp_path}", f"--http-port={port}", "--proxy-port=0")
    server = await asyncio.to_thread(LapseServer.spawn, tmp_path, *flags)
    address = await asyncio.to_thread(record, tmp_path)
    client = AsyncClient(f"http://127.0.0.1:{port}", (tmp_path / "owner-token").read_text().strip())
    before = (await client.journal(JournalRequest(limit=1))).items
    seen, reconnected = list[RowEvent](), asyncio.Event()

    async def run() -> None:
        after = before[0].place if before else BEGINNING
        async with aclosing(client.events(after=after)) as events:
            async for event in events:
                if isinstance(event, RowEvent):
                    seen.append(event)
                elif len(event.topics) > 3:  # everything may have changed
                    reconnected.set()

    def steer(verb: str, *reason: str) -> None:
        done = lapse(verb, address, *reason, f"--state-dir={tmp_path}", state_dir=tmp_path)
        assert done.returncode == 0, done.stderr

    following = asyncio.create_task(run())
    try:
        await asyncio.to_thread(steer, "hold", "--reason=audit")
        server.process.kill()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(steer, "release")
        server = await asyncio.to_thread(LapseServer.spawn, tmp_path, *flags)
        await asyncio.to_thread(steer, "hold", "--reason=again")
        await asyncio.wait_for(reconnected.wait(), 30)
        reasons = [one.row.reason for one in seen if one.row.address == address]
        while reasons != ["hold_placed", "hold_released", "hold_placed"]:
            assert len(reasons) < 3, reasons
            await CLOCK.sleep(0.1)
            reasons = [one.row.reason for one in seen if one.row.address == address]
        assert len({one.position for one in seen}) == len(seen)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await asyncio.to_thread(server.stop)


def test_a_revoked_token_ends_the_stream_and_the_client_says_so(start: Start, tmp_path: Path) -> None:
    server, folder = start(), f"--state-dir={tmp_path}"
    token = lapse("tokens", "create", "--name=ann", "--scope=monitor", folder, state_dir=tmp_path).stdout.strip()
    came: Queue[LiveEvent | RemoteError] = Queue()

    def run() -> None:
        try:
            for event in Client(server.http, token).events(after=BEGINNING):
                came.put(event)
        except RemoteError as error:
            came.put(error)

    threading.Thread(target=run, daemon=True).start()
    error: LiveEvent | RemoteError = came.get(timeout=10)
    assert lapse("tokens", "revoke", token.split("_")[1], folder, state_dir=tmp_path).returncode == 0
    while not isinstance(error, RemoteError):
        error = came.get(timeout=20)
    assert (error.status, error.code) == (401, "TokenInvalidError")


@pytest.mark.parametrize("reads", [True, False])
def test_streams_do_not_keep_a_server_from_ending(start: Start, *, reads: bool) -> None:
    server = start()
    host, port = server.http.removeprefix("http://").split(":")
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {server.owner_token}\r\n\r\n"
    streams = [socket.create_connection((host, int(port))) for _ in range(5)]
    for one in streams:
        one.sendall(head.encode())
        assert one.recv(1 if not reads else 4096)
    began = CLOCK.monotonic_ns()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert CLOCK.monotonic_ns() - began < 3 * SECOND
    for one in streams:
        one.close()
