"""The cost of the API: a get of a key beside a bare FastAPI route that returns a constant of the same size.

A part of `bench.dashboard`. Both are served by the same listener (uvicorn with the same settings, on uvloop), each in a
process of its own, and asked by the same client over kept connections, in turn within every round. Ours is a whole
``lapse up`` with its loops; the bare route has no token, no check, no measurement and no store. CPU is that of the
server's process, so what the client takes does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import uvloop
from fastapi import FastAPI

from bench.proxy_peers import child
from lapse.web.server.listener import Endpoint, Listener
from tests.servers.lapse_server import LapseServer
from tests.servers.ports import reserved_port

LOOPBACK: Final = "127.0.0.1"
OURS: Final = "a get of a key"
BARE: Final = "a bare FastAPI route"
KEY: Final = "/api/v1/apps/7/keys/alpha:0004D2"
VALUE: Final = "device:0000000000042"
_CONSTANT: Final = {
    "address": "key/7/alpha:0004D2",
    "key": "alpha:0004D2",
    "value": VALUE,
    "expires_at": "2026-01-31T12:00:00Z",
    "ttl_seconds": 86399.999,
}
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 40
    """Many short ones: a busy moment of the machine then hits few of them."""
    connections: int = 8
    requests: int = 50
    """Of each connection in a round."""


QUICK: Final = Plan(rounds=4, requests=20)


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second: of the server's CPU time, and of the wall clock."""

    by_cpu: float
    by_wall: float


class _Asking(asyncio.Protocol):
    """A kept connection that asks for the same again and again, each time when the answer is there."""

    def __init__(self, request: bytes, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._left, self._got = request, count, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(_HEAD_END)
        if not end:
            return
        start = head.index(_LENGTH) + len(_LENGTH)
        if len(body) < int(head[start:].partition(b"\r")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.done.set_exception(RuntimeError(self._got.decode()))
            return
        self._got, self._left = b"", self._left - 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError())


async def _drive(port: int, request: bytes, plan: Plan) -> None:
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Asking(request, plan.requests), LOOPBACK, port)
        for _ in range(plan.connections)
    ]
    await asyncio.gather(*(asking.done for _, asking in made))


def _rates(port: int, pid: int, request: bytes, plan: Plan) -> Rates:
    began, cpu_began = time.perf_counter(), cpu_seconds(pid)
    uvloop.run(_drive(port, request, plan))
    count = plan.connections * plan.requests
    return Rates(count / (cpu_seconds(pid) - cpu_began), count / (time.perf_counter() - began))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, to the nanosecond; that of threads that have ended is missing."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9


def _request(port: int, path: str, token: str) -> bytes:
    # Both are sent the token, so that both read as much.
    lines = [f"GET {path} HTTP/1.1", f"Host: {LOOPBACK}:{port}", f"Authorization: Bearer {token}", "Accept: */*"]
    return "\r\n".join([*lines, "", ""]).encode()


def run(plan: Plan, folder: Path) -> dict[str, list[Rates]]:
    """Ask both in turn; return what came of each round."""
    found: dict[str, list[Rates]] = {OURS: [], BARE: []}
    with contextlib.ExitStack() as stack:
        server = LapseServer.start(folder)
        stack.callback(server.stop)
        with server.client() as client:
            client.put(KEY, json={"value": VALUE, "ttl_seconds": 86_400}).raise_for_status()
        port = stack.enter_context(reserved_port())
        bare = stack.enter_context(child([sys.executable, "-m", "bench.dashboard_api", str(port)], port))
        ours = int(server.http.rpartition(":")[2])
        asked: dict[str, tuple[int, int, bytes]] = {
            OURS: (ours, server.process.pid, _request(ours, KEY, server.owner_token)),
            BARE: (port, bare, _request(port, KEY, server.owner_token)),
        }
        for number in range(plan.rounds + 1):  # the first one warms up
            for name in list(asked) if number % 2 else reversed([*asked]):
                rates = _rates(*asked[name], plan)
                found[name] += [rates] * bool(number)
    return found


# --- the bare route ---------------------------------------------------------------------------------------------------


def _bare() -> FastAPI:
    app = FastAPI()

    @app.get("/api/v1/apps/{app}/keys/{key}")
    async def get(app: str, key: str) -> dict[str, object]:  # noqa: ARG001 - as the route of keys has them
        return _CONSTANT

    return app


async def _serve(port: int) -> None:
    endpoint = Endpoint(LOOPBACK, port, setting="http")
    await Listener("bare", _bare(), endpoint).run(asyncio.Event())


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
