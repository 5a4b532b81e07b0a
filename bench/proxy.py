"""The cost of the workspace proxy, beside configurable-http-proxy (JupyterHub's) and nginx.

A part of `bench.workspaces`. All proxies stand before the same program and take turns within every round, so that a
busy moment hits all alike. Websockets: 200 connections, 512-byte messages, echoed. HTTP: 50 kept connections, a
kilobyte. Memory: what 2 000 more idle websockets add to a process that has a thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvloop

from bench import proxy_peers
from bench.contest import step
from bench.proxy_load import Figures, cpu_seconds, drive, pingers, resident_bytes
from bench.proxy_peers import CHP, CHP_VERSION, HOST, NGINX, OURS, Peer, PeerMissingError, nginx_version
from bench.workspaces_page import ProxyFigures
from tests.servers.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PEERS: Final = (
    (OURS, proxy_peers.ours),
    (CHP, proxy_peers.configurable_http_proxy),
    (NGINX, proxy_peers.nginx),
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


_FIRST: Final = 1000
NONE: Final = Figures(float("nan"), float("nan"))
QUICK: Final = Plan(rounds=2, trips=40, requests=60, idle=400)


async def measure(peers: Sequence[Peer], plan: Plan) -> dict[str, ProxyFigures]:
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
    return {peer.name: ProxyFigures(websocket[peer.name], http[peer.name], idle[peer.name]) for peer in peers}


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
        # The first ones fill what the process has left over from its start, so that the rest shows what each one takes.
        first = await pingers(peer.port, HOST, _FIRST, upgrade=True)
        await _settled(peer)
        before = resident_bytes(peer.pids)
        clients = await pingers(peer.port, HOST, plan.idle, upgrade=True)
        await _settled(peer)
        grown = resident_bytes(peer.pids) - before
        for client in [*first, *clients]:
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


def run(plan: Plan) -> tuple[dict[str, ProxyFigures], dict[str, str]]:
    """Measure all that can be had; return their figures, and why others are missing."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(reserved_port())
        argv = [sys.executable, "-m", "bench.proxy_load", str(upstream)]
        stack.enter_context(proxy_peers.child(argv, upstream))
        peers: list[Peer] = []
        missing: dict[str, str] = {}
        for name, start in PEERS:
            ports = (stack.enter_context(reserved_port()), stack.enter_context(reserved_port()))
            try:
                peers.append(stack.enter_context(start(ports, upstream)))
            except PeerMissingError as error:
                missing[name] = str(error)
        return uvloop.run(measure(peers, plan)), missing


def versions(measured: Collection[str]) -> dict[str, str]:
    """Return those of the others that were measured."""
    found = {}
    if CHP in measured:
        found[CHP] = CHP_VERSION
    if NGINX in measured:
        found[NGINX] = nginx_version()
    return found
