"""What the workspace proxy costs, beside configurable-http-proxy (JupyterHub's) and nginx.

``python -m bench.proxy [--quick]`` prints a table and the ratios that are claimed. All proxies stand before the same
program and take turns within every round, so that a busy moment hits all alike; each ratio is the median of the rounds'
ratios. Websockets: 200 connections, 512-byte messages, echoed. HTTP: 50 kept connections, a kilobyte. Memory: what
2 000 idle websockets add to the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final

import uvloop

from bench import proxy_peers
from bench.contest import require_linux, step
from bench.proxy_load import Figures, cpu_seconds, drive, pingers, resident_bytes
from bench.proxy_peers import CHP, HOST, Peer, PeerMissingError
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Sequence

PEERS: Final = (
    ("lapse", proxy_peers.ours),
    (CHP, proxy_peers.configurable_http_proxy),
    ("nginx", proxy_peers.nginx),
    ("aiohttp", proxy_peers.on_aiohttp),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int = 5
    sockets: int = 200
    trips: int = 150
    clients: int = 50
    requests: int = 200
    idle: int = 2000


NONE: Final = Figures(float("nan"), float("nan"))
QUICK: Final = Plan(rounds=2, trips=40, requests=60, idle=400)


@dataclass(frozen=True, slots=True)
class Result:
    """All about one proxy."""

    websocket: list[Figures]
    http: list[Figures]
    idle_kb: float


async def measure(peers: Sequence[Peer], plan: Plan) -> dict[str, Result]:
    """Let all take turns."""
    websocket: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
    http: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
    idle = {peer.name: await _idle(peer, plan) for peer in peers}
    for number in range(plan.rounds + 1):  # the first one warms up
        for peer in peers if number % 2 else reversed(peers):
            with step(f"round {number}, {peer.name}"):
                trips = await _drive(peer, plan.sockets, plan.trips, upgrade=True) if peer.websockets else NONE
                requests = await _drive(peer, plan.clients, plan.requests, upgrade=False)
            if number:
                websocket[peer.name].append(trips)
                http[peer.name].append(requests)
    return {peer.name: Result(websocket[peer.name], http[peer.name], idle[peer.name]) for peer in peers}


async def _drive(peer: Peer, count: int, trips: int, *, upgrade: bool) -> Figures:
    clients = await pingers(peer.port, HOST, count, upgrade=upgrade)
    gc.disable()
    figures = await drive(clients, trips, peer.pids)
    gc.enable()
    for client in clients:
        client.transport.abort()
    return figures


async def _idle(peer: Peer, plan: Plan) -> float:
    """Return the kilobytes per idle websocket, measured before anything else has grown the process."""
    if not peer.websockets:
        return float("nan")
    with step(f"{plan.idle} idle websockets, {peer.name}"):
        few = await pingers(peer.port, HOST, 20, upgrade=True)  # whatever the first connections load stays out of it
        before = resident_bytes(peer.pids)
        clients = await pingers(peer.port, HOST, plan.idle, upgrade=True)
        await _settled(peer)
        grown = resident_bytes(peer.pids) - before
        for client in [*few, *clients]:
            client.transport.abort()
        await _settled(peer)
    return grown / plan.idle / 1024


async def _settled(peer: Peer) -> None:
    """Wait until the process has nothing to do."""
    for _ in range(20):
        before = cpu_seconds(peer.pids)
        await asyncio.sleep(0.3)
        if cpu_seconds(peer.pids) - before <= 0.01:
            return


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def ratios(results: dict[str, Result]) -> dict[str, float]:
    """Return what is claimed: ours divided by the other's."""
    mine = results["lapse"]
    found: dict[str, float] = {}
    for name, other in results.items():
        if name != "lapse":
            found |= {
                f"websocket cpu / {name}": ratio(_cpu(mine.websocket), _cpu(other.websocket)),
                f"http per second / {name}": ratio(_rate(mine.http), _rate(other.http)),
                f"http cpu / {name}": ratio(_cpu(mine.http), _cpu(other.http)),
                f"idle memory / {name}": mine.idle_kb / other.idle_kb,
            }
    return {name: round(value, 3) for name, value in found.items() if not isnan(value)}


def _cpu(figures: Sequence[Figures]) -> list[float]:
    return [each.cpu_us for each in figures]


def _rate(figures: Sequence[Figures]) -> list[float]:
    return [each.per_second for each in figures]


def table(results: dict[str, Result]) -> str:
    """Return the figures for people."""
    lines = [f"{'':24} {'us/trip':>8} {'trips/s':>8} {'us/request':>11} {'requests/s':>11} {'KB idle':>8}"]
    for name, result in results.items():
        figures = [
            statistics.median(each)
            for each in (_cpu(result.websocket), _rate(result.websocket), _cpu(result.http), _rate(result.http))
        ]
        trip, trips, request, requests = figures
        lines.append(f"{name:24} {trip:8.1f} {trips:8.0f} {request:11.1f} {requests:11.0f} {result.idle_kb:8.2f}")
    return "\n".join(lines)


def main() -> None:
    """Run it."""
    require_linux()
    plan = QUICK if "--quick" in sys.argv[1:] else Plan()
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(reserved_port())
        argv = [sys.executable, "-m", "bench.proxy_load", str(upstream)]
        stack.enter_context(proxy_peers.child(argv, upstream))
        peers: list[Peer] = []
        for name, start in PEERS:
            ports = (stack.enter_context(reserved_port()), stack.enter_context(reserved_port()))
            try:
                peers.append(stack.enter_context(start(ports, upstream)))
            except PeerMissingError as error:
                print(f"  {name} is NOT measured: {error}", flush=True)
        start_time = time.perf_counter()
        results = uvloop.run(measure(peers, plan))
        print(f"{time.perf_counter() - start_time:.0f} s")
    print(table(results))
    print(json.dumps(ratios(results), indent=1))


if __name__ == "__main__":
    main()
