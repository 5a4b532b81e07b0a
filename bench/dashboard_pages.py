"""The cost of the dashboard's pages: bytes of a first visit, first paint, live updates, and what an idle page takes.

A part of `bench.dashboard`, in a real Chromium in front of a real ``lapse up`` on loopback. The floor of the first
paint is a file of text from the same server, in the same run: what the browser and the connection take anyway.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import requests_ttl
from bench.contest import step
from bench.dashboard_api import cpu_seconds
from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from tests.servers.chromium import chromium
from tests.servers.lapse_server import LapseServer, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

_SECOND: Final = 1_000_000_000
_TTL: Final = 24 * 3600
_SPARED: Final = 1200  # seconds: nothing is over while it is measured
_HOUR: Final = 3600
FLOOR: Final = "/static/log_in.js"
_PAINT: Final = """() => new Promise(found => {
  const look = () => performance.getEntriesByName("first-contentful-paint")[0];
  const told = () => { const one = look(); if (one) found(one.startTime); else setTimeout(told, 5); };
  told();
})"""
_WATCH: Final = """row => { window.held = new Promise(found => {
  const watch = new MutationObserver(() => {
    if (!document.getElementById(row)?.classList.contains("is-held")) return;
    watch.disconnect();
    found(Date.now());
  });
  watch.observe(document.getElementById("live"), { subtree: true, childList: true, attributes: true });
}); }"""
_FREE: Final = """() => {
  const row = document.querySelector("#soon-rows > tr:not(.is-held)");
  return row && [row.id, row.querySelector("input[name=address]").value];
}"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    things: tuple[int, ...] = (10, 100_000)
    holds: tuple[int, ...] = (20, 3)
    """With so many things: where each takes most of a minute, few are enough to see that."""
    visits: int = 7
    idle_seconds: float = 20.0
    idle_rounds: int = 7
    """Many short ones: what the server does by itself differs from one to the next by more than a page takes."""


QUICK: Final = Plan(things=(10, 1_000), holds=(4, 2), visits=3, idle_seconds=5.0, idle_rounds=2)


@dataclass(frozen=True, slots=True)
class Visit:
    """One first visit."""

    paint_ms: float
    bytes: int
    """Of all answers, heads included, as they came over the wire."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What was found with so many things."""

    things: int
    visits: list[Visit]
    floor_ms: list[float]
    cold_seconds: float
    """The first GET / after the start."""
    warm_seconds: list[float]
    counted_seconds: float
    """From the first GET / until a page shows figures: while they are counted, pages say so."""
    forecast_cpu_seconds: float
    """Of the server, for one forecast of an hour over everything."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What a page takes that nobody touches."""

    requests: list[str]
    """Of the page, but the stream of events."""
    with_percent: list[float]
    without_percent: list[float]


# --- a server with things ---------------------------------------------------------------------------------------------


def fill(folder: Path, things: int) -> None:
    """Store so many finished requests, which all lapse within the hour, but not while it is measured."""
    folder.mkdir(parents=True)
    now = SystemClock().wall_ns()
    ages = (_TTL - _SPARED - number * (_HOUR - _SPARED - 60) // things for number in range(things))
    with step(f"fill: {things:,} things"):
        store = open_store(folder, clock=SystemClock())
        requests_ttl.fill(store, (now - age * _SECOND for age in ages))
        asyncio.run(store.close())


@contextmanager
def serving(folder: Path) -> Iterator[LapseServer]:
    """Give a server that has read what is in a folder."""
    server = LapseServer.start(folder, "--request-ttl=24h")
    try:
        with server.client() as client, step("read"):
            client.timeout = 120
            until(lambda: not client.get("/api/v1/plan", params={"within": "1m"}).json()["problems"], seconds=120)
        yield server
    finally:
        server.stop()


def cookie_of(server: LapseServer) -> tuple[str, str]:
    """Return name and value of the cookie of a new session."""
    with server.client("") as client:
        answer = client.post(
            "/api/v1/session", json={"token": server.owner_token}, headers={"Origin": server.http}
        ).raise_for_status()
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


@contextmanager
def visitor(browser: Browser, server: LapseServer) -> Iterator[tuple[BrowserContext, Page]]:
    """Give a window of somebody who has never been here, with a session."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        name, value = cookie_of(server)
        context.add_cookies([{"name": name, "value": value, "url": server.http}])
        yield context, context.new_page()


# --- first visits -----------------------------------------------------------------------------------------------------


def _visit(browser: Browser, server: LapseServer, path: str) -> Visit:
    sizes: list[float] = []
    with visitor(browser, server) as (context, page):
        wire = context.new_cdp_session(page)
        wire.send("Network.enable")
        wire.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        page.goto(server.http + path, wait_until="load")
        paint: float = page.evaluate(_PAINT)
        page.wait_for_timeout(300)
    return Visit(paint, round(sum(sizes)))


def pages(server: LapseServer, browser: Browser, plan: Plan, things: int) -> Pages:
    """Measure first visits and answers."""
    with server.client() as client, step("GET /, cold and warm"):
        client.timeout = 120
        began = time.perf_counter()
        client.get("/").raise_for_status()
        cold = time.perf_counter() - began
        until(lambda: "Counting" not in client.get("/").text, seconds=120)
        counted = time.perf_counter() - began
        warm = []
        for _ in range(plan.visits):
            began = time.perf_counter()
            client.get("/").raise_for_status()
            warm.append(time.perf_counter() - began)
            time.sleep(0.3)
        cpu = cpu_seconds(server.process.pid)
        client.get("/api/v1/forecast", params={"within": "1h"}).raise_for_status()
        cpu = cpu_seconds(server.process.pid) - cpu
    with step("first visits"):
        _visit(browser, server, "/")  # the first one starts the browser's processes
        both = [(_visit(browser, server, "/"), _visit(browser, server, FLOOR)) for _ in range(plan.visits)]
    return Pages(things, [one for one, _ in both], [one.paint_ms for _, one in both], cold, warm, counted, cpu)


# --- live updates, and none -------------------------------------------------------------------------------------------


def live(server: LapseServer, browser: Browser, holds: int) -> list[float]:
    """Hold things over the API, one after the other; return after how many seconds the page shows each."""
    found: list[float] = []
    with visitor(browser, server) as (_, page), server.client() as client, step(f"{holds} holds"):
        client.timeout = 60
        page.goto(server.http + "/", wait_until="load")
        page.wait_for_selector(".link-state.good", timeout=30_000)
        held: list[str] = []
        for number in range(holds):
            free = page.evaluate(_FREE)
            if free is None:  # all are held: begin again
                for address in held:
                    client.post("/api/v1/release", json={"address": address}).raise_for_status()
                page.wait_for_selector("#soon-rows > tr:not(.is-held)", timeout=30_000)
                page.wait_for_timeout(3000)
                free, held = page.evaluate(_FREE), []
            row, name = free
            page.evaluate(_WATCH, row)
            began = time.time()
            client.post("/api/v1/hold", json={"address": name, "reason": "benchmark"}).raise_for_status()
            found.append(page.evaluate("() => window.held") / 1000 - began)
            held.append(name)
            page.wait_for_timeout(1000 + 137 * number % 400)  # not in step with the ticks of the server
    return found


def idle(server: LapseServer, browser: Browser, plan: Plan) -> Idle:
    """Leave a page alone, and take it away, in turn."""
    asked: list[str] = []
    shares: dict[bool, list[float]] = {True: [], False: []}
    pid = server.process.pid

    def share() -> float:
        time.sleep(3)
        began, cpu = time.perf_counter(), cpu_seconds(pid)
        time.sleep(plan.idle_seconds)
        return (cpu_seconds(pid) - cpu) / (time.perf_counter() - began) * 100

    for number in range(plan.idle_rounds):
        with step(f"idle, round {number + 1} of {plan.idle_rounds}"):
            shares[False].append(share())
            with visitor(browser, server) as (_, page):
                page.goto(server.http + "/", wait_until="load")
                page.wait_for_selector(".link-state.good", timeout=30_000)
                page.wait_for_timeout(3000)
                page.on("request", lambda request: asked.append(request.url.removeprefix(server.http)))
                began, cpu = time.perf_counter(), cpu_seconds(pid)
                page.wait_for_timeout(plan.idle_seconds * 1000)
                shares[True].append((cpu_seconds(pid) - cpu) / (time.perf_counter() - began) * 100)
    return Idle([one for one in asked if one != "/api/v1/events"], shares[True], shares[False])


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """Measure with few things and with many."""
    found: dict[str, Any] = {"pages": [], "live": {}, "idle": None}
    for things in plan.things:
        fill(folder / str(things), things)
    with chromium() as browser:  # while it is open, this thread has a running event loop
        for things, holds in zip(plan.things, plan.holds, strict=True):
            with serving(folder / str(things)) as server:
                found["pages"].append(pages(server, browser, plan, things))
                found["live"][f"{things:,} things"] = live(server, browser, holds)
                if things == plan.things[0]:
                    found["idle"] = idle(server, browser, plan)
    return found
