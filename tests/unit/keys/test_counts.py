from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.app.workspaces import ticket_records
from lapse.core.clock import VirtualClock
from lapse.engine.running.metrics import Metrics
from lapse.keys.aio import open_keys_async
from lapse.keys.counts import count_loops
from tests.unit.engine.harness import series

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("form", ["memory://", "file://{folder}/keys.db"])
async def test_keys_of_all_applications_are_one_number_that_no_scrape_counts(form: str, tmp_path: Path) -> None:
    metrics, clock = Metrics("1"), VirtualClock()
    async with open_keys_async(form.format(folder=tmp_path), clock=clock, sweep=False) as keys:
        (loop,) = count_loops(keys, metrics)
        for app in (7, 8):
            await keys.app(app).put("a", "x", 10)
        await ticket_records(keys, clock=clock).put("ticket", "x", 10)  # no key of an application
        assert series(metrics)["lapse_keys_stored"] == 0
        await loop.tick()
        assert series(metrics)["lapse_keys_stored"] == 2

        clock.advance(10)
        await loop.tick()
        assert series(metrics)["lapse_keys_stored"] == 2  # expired, and not removed yet
        clock.advance(1)
        while (await keys.sweep()).more:
            pass
        await loop.tick()
        assert series(metrics)["lapse_keys_stored"] == 0
