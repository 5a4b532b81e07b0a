"""The dashboard with many who look, and with many things: what changes arrives at all, loops run on time, pages answer.

Fifty dashboards are fifty streams of events whose readers ask for the live part of the page again when told to, as the
script of the pages does; three real pages are among them. The bounds are those of a machine that is busy with other
tests; the figures themselves are the benchmark's.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from playwright.sync_api import expect

from bench import history
from lapse.app.record import open_store
from lapse.core.clock import SystemClock
from tests.integration.browser.house import House, is_live, row_of
from tests.servers.lapse_server import PLAIN, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.server("chromium", private=True),
    pytest.mark.slow,
    pytest.mark.timeout(400),
]
MANY = 50
ITEMS = 100_000
CLOCK = SystemClock()
SPREAD_SECONDS, PAUSE_SECONDS = 0.12, 0.9  # as in lapse.js
MORE_LAG_SECONDS = 1.0
"""By so much a loop may be later than without dashboards; the benchmark, on a quiet machine, wants a tenth."""
MOST_SECONDS = 1.0
"""For a page over so many things: the quickest of some, because the machine may be busy with other tests."""


def seconds_now() -> float:
    return CLOCK.monotonic_ns() / 1e9


class Dashboards:
    """Readers of events that ask for the live part of the page when something has changed."""

    def __init__(self, house: House) -> None:
        self._http, self._token = house.server.http, house.server.owner_token
        self.connected, self.failed = 0, 0
        self.seen: list[str] = MANY * [""]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> Dashboards:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(20)

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        limits = httpx2.Limits(max_connections=4 * MANY)
        async with httpx2.AsyncClient(
            base_url=self._http, headers=headers, trust_env=False, verify=PLAIN, limits=limits, timeout=60
        ) as client:
            tasks = [asyncio.create_task(self._look(client, number)) for number in range(MANY)]
            while not self._stopping.is_set():
                await CLOCK.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, client: httpx2.AsyncClient, number: int) -> None:
        asked = 0.0
        async with client.stream("GET", "/api/v1/events") as stream:
            async for line in stream.aiter_lines():
                self.connected += line == "event: hello"
                if not line.startswith("event: "):
                    continue
                await CLOCK.sleep(max(SPREAD_SECONDS * number / MANY, asked + PAUSE_SECONDS - seconds_now()))
                asked = seconds_now()
                answer = await client.get("/", headers={"HX-Request": "true"})
                self.failed += answer.status_code != 200
                self.seen[number] = answer.text


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    running = House.start(tmp_path)
    yield running
    running.server.stop()


def lags(house: House) -> dict[str, float]:
    with house.server.client() as client:
        loops: list[dict[str, Any]] = client.get("/api/v1/status").json()["loops"]
    return {one["name"]: one["lag_seconds"] or 0.0 for one in loops}


def worst_lag(house: House, name: str) -> float:
    """Change something a few times; return by how much a loop was late at most."""
    worst = 0.0
    for number in range(3):
        house.record(f"{name}-{number}")
        worst = max(worst, *lags(house).values())
    return worst


def test_fifty_dashboards_see_what_changes_and_loops_run_on_time(house: House, browser: Browser) -> None:
    alone = worst_lag(house, "alone")
    many = Dashboards(house).start()
    try:
        with browser.new_context() as context:
            pages = [house.visit(context)]
            for _ in range(2):
                pages.append(context.new_page())
                pages[-1].goto(house.server.http)
            for page in pages:
                is_live(page)
            until(lambda: many.connected == MANY)
            worst = 0.0
            for round in range(3):  # noqa: A001 - there is no better word
                address = house.record(f"many-{round}")
                until(lambda address=address: all(address in one for one in many.seen))  # type: ignore[misc]
                for page in pages:
                    expect(row_of(page, address)).to_be_attached()
                worst = max(worst, *lags(house).values())
        assert many.failed == 0
        assert worst < alone + MORE_LAG_SECONDS
    finally:
        many.stop()


def answers(house: House) -> bool:
    with house.server.client() as client:
        try:
            return client.get("/api/v1/status").is_success
        except httpx2.TimeoutException:
            return False


def seconds_of(client: httpx2.Client, path: str) -> float:
    began = seconds_now()
    assert client.get(path).status_code == 200
    return seconds_now() - began


async def fill(folder: Path) -> None:
    store = open_store(folder, clock=SystemClock())
    try:
        history.fill(store, ITEMS, 100, seconds=3600)
    finally:
        await store.close()


def test_a_page_over_a_hundred_thousand_things_answers_and_says_while_it_is_still_counting(
    tmp_path: Path, browser: Browser
) -> None:
    with ThreadPoolExecutor(1) as thread:  # this one has the browser's event loop
        thread.submit(asyncio.run, fill(tmp_path)).result()
    # Half of them lapse in the coming hour, the first in half an hour.
    given = {"LAPSE_HISTORY_TTL": "90m", "LAPSE_HISTORY_RETENTION_LIMIT": "0", "LAPSE_RETENTION_INTERVAL": "never"}
    house = House.start(tmp_path, settings=given)
    try:
        with browser.new_context() as context:
            until(lambda: answers(house), seconds=120)  # a process that has just begun looks at all of them once
            page = house.visit(context)
            # At first it is being counted; who has live updates sees it when it is there.
            expect(page.locator("#soon-rows > tr").first).to_be_attached()
            with house.server.client() as client:
                for path in ("/", "/?window=week"):
                    assert min(seconds_of(client, path) for _ in range(5)) < MOST_SECONDS
    finally:
        house.server.stop()
