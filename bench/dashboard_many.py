"""Many dashboards on one server: what each change costs, and whether the loops come late.

A part of `bench.dashboard`. A dashboard is a stream of events that asks for the live part of ``/`` when something has
changed, as the script of the page does: after up to 120 ms, and 900 ms after the last time at the earliest. Things are
held and released all the time, with dashboards and without, in turn. The lag of the loops is what the server says of
itself (``lag_seconds`` of each loop in the status); beside it stands how long the status takes to answer, which waits
for the same event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx2

from bench.contest import step
from bench.dashboard_api import cpu_seconds
from bench.dashboard_pages import cookie_of
from tests.servers.lapse_server import PLAIN

if TYPE_CHECKING:
    from tests.servers.lapse_server import LapseServer

_SPREAD_SECONDS: Final = 0.12
_PAUSE_SECONDS: Final = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    dashboards: int = 50
    seconds: float = 20.0
    rounds: int = 1
    changes_each_second: float = 1.0


QUICK: Final = Plan(seconds=4.0)


@dataclass(frozen=True, slots=True)
class Many:
    """One measurement, with so many dashboards."""

    dashboards: int
    changes: int
    fetched: int
    """How often the dashboards have asked for the page, in all."""
    lag_seconds: float
    """The longest of any loop."""
    answer_ms: float
    """The median of GET /api/v1/status."""
    worst_answer_ms: float
    cpu_ms_per_change: float


class _Dashboard:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client, self.fetched, self._asked = client, 0, 0.0
        self._waiting: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()

    async def look(self) -> None:
        async with self._client.stream("GET", "/api/v1/events", timeout=None) as stream:
            async for line in stream.aiter_lines():
                if line == "event: hello":
                    self.ready.set()
                elif line in {"event: row", "event: changed"} and self._waiting is None:
                    self._waiting = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        wait = max(random.uniform(0, _SPREAD_SECONDS), self._asked + _PAUSE_SECONDS - time.monotonic())
        await asyncio.sleep(wait)
        self._asked, self._waiting = time.monotonic(), None
        (await self._client.get("/", timeout=60)).raise_for_status()
        self.fetched += 1


def _client(server: LapseServer, headers: dict[str, str]) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(
        base_url=server.http, headers=headers, trust_env=False, verify=PLAIN, timeout=60, limits=limits
    )


async def _measure(server: LapseServer, cookie: str, plan: Plan, count: int) -> Many:
    async with (
        _client(server, {"Cookie": cookie, "HX-Request": "true"}) as browser,
        _client(server, {"Authorization": f"Bearer {server.owner_token}"}) as owner,
    ):
        dashboards = [_Dashboard(browser) for _ in range(count)]
        tasks = [asyncio.create_task(one.look()) for one in dashboards]
        await asyncio.gather(*(one.ready.wait() for one in dashboards))
        await asyncio.sleep(2)
        items = (await owner.get("/api/v1/forecast", params={"within": "1h", "limit": 10})).json()["items"]
        addresses = [one["address"] for one in items]
        began, cpu, answers, lags, changes = time.perf_counter(), cpu_seconds(server.process.pid), [], [0.0], 0
        while time.perf_counter() - began < plan.seconds:
            address, verb = addresses[changes // 2 % len(addresses)], ("hold", "release")[changes % 2]
            body = {"address": address} | ({"reason": "benchmark"} if verb == "hold" else {})
            (await owner.post(f"/api/v1/{verb}", json=body)).raise_for_status()
            changes += 1
            for _ in range(4):
                asked = time.perf_counter()
                status = (await owner.get("/api/v1/status")).json()
                answers.append(time.perf_counter() - asked)
                lags += [one["lag_seconds"] or 0.0 for one in status["loops"]]
                await asyncio.sleep(1 / plan.changes_each_second / 4)
        used = cpu_seconds(server.process.pid) - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    answers.sort()
    fetched = sum(one.fetched for one in dashboards)
    median, worst = answers[len(answers) // 2] * 1e3, answers[-1] * 1e3
    return Many(count, changes, fetched, max(lags), median, worst, used / changes * 1e3)


def run(server: LapseServer, plan: Plan) -> list[Many]:
    """Measure with none and with many, in turn."""
    name, value = cookie_of(server)
    found: list[Many] = []
    for number in range(plan.rounds):
        for count in (0, plan.dashboards):
            with step(f"{count} dashboards, round {number + 1} of {plan.rounds}"):
                found.append(asyncio.run(_measure(server, f"{name}={value}", plan, count)))
    return found
