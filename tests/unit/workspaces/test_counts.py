from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.engine.running.metrics import Metrics
from lapse.workspaces.counts import count_loop
from lapse.workspaces.errors import WorkspaceStoreError
from lapse.workspaces.model import DesiredState, Ms, NewWorkspace, ObservedStatus
from lapse.workspaces.store.sqlite import open_sqlite_store
from tests.unit.engine.harness import series

if TYPE_CHECKING:
    from pathlib import Path

NEXT = 'lapse_next_expiry_timestamp_seconds{domain="workspaces"}'


def counted(metrics: Metrics) -> dict[str, float]:
    return {one: series(metrics)[f'lapse_workspaces{{status="{one}"}}'] for one in ObservedStatus}


async def test_workspaces_are_counted_by_status_and_the_next_look_is_told(tmp_path: Path) -> None:
    metrics, now = Metrics("1"), Ms(VirtualClock().wall_ns() // 1_000_000)
    store = open_sqlite_store(tmp_path / "workspaces.db")
    loop = count_loop(store, metrics)
    assert set(counted(metrics).values()) == {0}
    assert series(metrics)[NEXT] == 0
    for name, ttl in (("one", 60), ("two", 30), ("never-started", 10)):
        new = NewWorkspace(
            name=name,
            owner="ada",
            command=("run",),
            port=8000,
            desired_state=DesiredState.RUNNING,
            standby_ttl_seconds=ttl,
            archive_ttl_seconds=ttl,
        )
        made = await store.create(new, now=now)
        if name != "never-started":
            await store.observe({made.id: ObservedStatus.RUNNING}, now=now)

    await loop.tick()
    assert counted(metrics) == {"PENDING": 1, "STANDBY": 0, "RUNNING": 2, "ERROR": 0}
    assert series(metrics)[NEXT] == now / 1_000 + 30
    await store.close()
    with pytest.raises(WorkspaceStoreError):  # the coordinator counts it, and what was told stays
        await loop.tick()
    assert counted(metrics)["RUNNING"] == 2
