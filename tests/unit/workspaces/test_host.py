from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lapse.core.clock import SystemClock, VirtualClock
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnknown, ConnectionId, Quiet
from lapse.workspaces.model import WorkspaceId
from lapse.workspaces.runtime.host import WorkspaceHost
from lapse.workspaces.runtime.process import ProcessRuntime
from lapse.workspaces.store.sqlite import open_sqlite_store

if TYPE_CHECKING:
    from pathlib import Path

A = WorkspaceId("a")


async def until_held(host: WorkspaceHost) -> None:
    async with asyncio.timeout(30):
        while host.since_ns is None:
            await SystemClock().sleep(0.01)


async def test_of_two_hosts_on_one_folder_the_second_waits_until_the_first_has_gone(tmp_path: Path) -> None:
    store, clock = open_sqlite_store(tmp_path / "workspaces.db"), SystemClock()
    hosts = [
        WorkspaceHost(store, ProcessRuntime(tmp_path / "host", node="n", clock=clock), clock=clock) for _ in range(2)
    ]
    ends = [asyncio.Event() for _ in hosts]
    loop = asyncio.get_running_loop()
    first = loop.create_task(hosts[0].run(ends[0]))
    await until_held(hosts[0])
    second = loop.create_task(hosts[1].run(ends[1]))
    await clock.sleep(0.1)
    assert hosts[1].since_ns is None
    ends[0].set()
    await first
    assert hosts[0].since_ns is None
    await until_held(hosts[1])
    ends[1].set()
    await second
    await store.close()


async def test_a_host_that_waits_can_be_ended(tmp_path: Path) -> None:
    store, clock = open_sqlite_store(tmp_path / "workspaces.db"), SystemClock()
    holder = ProcessRuntime(tmp_path / "host", node="n", clock=clock)
    await holder.open()
    host = WorkspaceHost(store, ProcessRuntime(tmp_path / "host", node="n", clock=clock), clock=clock)
    end = asyncio.Event()
    waiting = asyncio.get_running_loop().create_task(host.run(end))
    await clock.sleep(0.1)
    assert not waiting.done()
    end.set()
    await asyncio.wait_for(waiting, 30)
    await holder.close()
    await store.close()


async def test_activity_of_a_process_is_not_believed_before_the_workspaces_are_its_own_for_two_leases() -> None:
    clock = VirtualClock()
    since: int | None = None
    activity = InProcessActivity(clock, lease_seconds=30, since=lambda: since)
    clock.advance(1000)
    assert await activity.read([A]) == {A: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
    since = clock.monotonic_ns()
    clock.advance(59)
    assert await activity.read([A]) == {A: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
    clock.advance(1)
    assert await activity.read([A]) == {A: Quiet()}
    await activity.connect(A, ConnectionId("c"), lease_seconds=30)
    since = None
    assert await activity.read([A]) == {A: ActivityUnknown(ActivityDoubt.EPOCH_YOUNG)}
