from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import VirtualClock
from lapse.engine.running.metrics import Metrics
from lapse.keys.aio import open_keys_async
from lapse.keys.counts import ExpiredCounts
from lapse.keys.sweeper import SWEEP_SLICE, CleanupLoop

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.engine.journal.port import Entry


async def test_expired_keys_are_removed_and_counted_and_live_ones_stay() -> None:
    clock, metrics = VirtualClock(), Metrics("test")
    async with open_keys_async("memory://", clock=clock, sweep=False) as keys:
        await keys.app(7).put("short", "x", 1)
        await keys.app(7).put("long", "x", 900)
        loop = CleanupLoop(keys, interval=1, metrics=metrics)
        clock.advance(5)
        again = await loop.tick()
        left = list(keys.backend.counts())

    assert again is None
    assert [count for _, _, count in left] == [1]
    assert b'lapse_deletions_total{domain="keys",reason="ttl_expired"} 1.0' in metrics.exposition()
    assert b'lapse_expiry_lag_seconds_sum{domain="keys"} 4.0' in metrics.exposition()


async def test_while_there_is_more_to_remove_the_next_slice_follows_at_once() -> None:
    clock = VirtualClock()
    async with open_keys_async("memory://", clock=clock, sweep=False) as keys:
        await keys.app(7).insert_many([(str(number), "x", 1) for number in range(SWEEP_SLICE + 1)])
        loop = CleanupLoop(keys, interval=60, metrics=Metrics("test"))
        clock.advance(5)
        first = await loop.tick()
        second = await loop.tick()
        left = list(keys.backend.counts())

    assert first is not None
    assert first < 0.1
    assert second is None
    assert left == []


async def test_while_the_clock_is_in_doubt_no_key_is_removed_and_what_it_hid_comes_back() -> None:
    machine = VirtualClock(boot_id="one")
    clock = BelievedClock(machine)
    async with open_keys_async("memory://", clock=machine, sweep=False) as keys:
        await keys.app(7).put("day", "x", 86_400)
        loop = CleanupLoop(keys, interval=1, metrics=Metrics("test"), clock=clock)
        machine.jump_wall(365 * 86_400)
        assert await keys.app(7).ttl_get("day") is None
        await loop.tick()
        machine.jump_wall(-365 * 86_400)
        assert await keys.app(7).ttl_get("day") == "x"


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_the_journal_is_told_how_many_of_each_application_and_no_names(tmp_path: Path, kind: str) -> None:
    clock, metrics, rows = VirtualClock(), Metrics("test"), list[Any]()

    async def append(row: Entry) -> None:
        rows.append(row)

    journal: Any = SimpleNamespace(append=append)
    url = "memory://" if kind == "memory" else f"file://{tmp_path}/keys.db"
    async with open_keys_async(url, clock=clock, sweep=False) as keys:
        expired = ExpiredCounts(journal, clock=clock, metrics=metrics)
        loop = CleanupLoop(keys, interval=1, metrics=metrics, expired=expired)

        async def sweep() -> None:
            while await loop.tick() is not None:
                pass
            await loop.tick()  # a store in memory sweeps one application at a time

        await keys.app(7).insert_many([(f"s3cr3t{number}", "x", 1) for number in range(SWEEP_SLICE + 1)])
        await keys.app(8).put("s3cr3t", "x", 1)
        await sweep()
        assert rows == []
        clock.advance(5)
        await sweep()
        await keys.app(9).put("s3cr3t", "x", 1)
        clock.advance(5)
        await sweep()
        assert len(rows) == 1
        clock.advance(60)
        await sweep()
        await sweep()

    assert [row.details for row in rows] == [
        {"count": SWEEP_SLICE + 2, "apps": {"7": SWEEP_SLICE + 1, "8": 1}},
        {"count": 1, "apps": {"9": 1}},
    ]
    assert {(row.domain, row.address, row.reason, row.outcome) for row in rows} == {
        ("keys", "", "ttl_expired", "ended")
    }
    assert "s3cr3t" not in str(rows)
