"""Two processes on one file, both at work: each thing is ended once, and journalled once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lapse.core.clock import SystemClock, VirtualClock
from lapse.engine.journal.port import Outcome
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, MANIFEST_CHUNK, OBJECT_KEEPER, REQUEST_KINDS
from lapse.requests.api.upstream import PERSISTENT_VOLUME, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy, TTLMode
from tests.integration.requests.stories import answer, detach, manifests, restore, snapshot
from tests.integration.requests.world import World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Kind

MANY = 60
ARTIFACTS: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME, MANIFEST_CHECKPOINT, MANIFEST_CHUNK)


@asynccontextmanager
async def two(folder: Path, policy: RequestPolicy | None = None) -> AsyncIterator[tuple[World, World]]:
    clock = VirtualClock()
    async with opened(folder, policy=policy, clock=clock) as one, opened(folder, policy=policy, clock=clock) as other:
        yield one, other


async def see_each_other(one: World, other: World) -> None:
    """Let both stores notice what the other one wrote: they look every twentieth of a second."""
    real = SystemClock()
    async with asyncio.timeout(20):
        while not (one._is_caught_up() and other._is_caught_up()):
            one.clock.advance(ns=1_000_000)
            await real.sleep(0.001)


async def test_two_scanners_at_once_delete_each_request_once_and_journal_it_once(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        target = await one.config_map("settings")
        for number in range(MANY):
            await one.capture_manifests(f"done-{number}", target)
        await one.settle()
        await see_each_other(one, other)
        one.advance(700)
        sweeps = [world.requests.loops[1].sweeps[0] for world in (one, other)]
        reports = await asyncio.gather(*(sweep.run(proceed=lambda: True) for sweep in sweeps))
        assert all(report.looked for report in reports), "both were at it"
        assert sum(report.ended for report in reports) == MANY
        assert all(report.ended + report.gone == report.looked for report in reports)
        assert await one.all(REQUEST_KINDS[2]) == []
        rows = await one.journal_rows(domain="requests")
        ended = Counter(row.uid for row in rows if row.outcome is Outcome.ENDED)
        assert len(ended) == MANY
        assert set(ended.values()) == {1}
        assert len(rows) == MANY, "whoever came second writes nothing"


async def test_two_sweeps_of_keepers_at_once_end_each_keeper_once(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        for number in range(MANY):
            body = {"metadata": {"name": f"keeper-{number}"}, "spec": {"mode": "TTL", "ttl": "1h"}}
            await one.store.create(OBJECT_KEEPER, body)
        await see_each_other(one, other)
        one.advance(3700)
        sweeps = [world.requests.loops[0].sweeps[0] for world in (one, other)]
        reports = await asyncio.gather(*(sweep.run(proceed=lambda: True) for sweep in sweeps))
        assert sum(report.ended for report in reports) == MANY
        assert sum(report.failed for report in reports) == 0
        rows = await one.journal_rows(domain="keepers")
        assert Counter(row.uid for row in rows if row.outcome is Outcome.ENDED).most_common(1)[0][1] == 1


async def test_two_processes_that_reconcile_the_same_requests_make_everything_once(tmp_path: Path) -> None:
    """Leadership keeps this from happening for long; for a moment it may."""
    for story in (snapshot, detach, restore, manifests):
        folder = tmp_path / story.__name__
        folder.mkdir()
        async with two(folder, RequestPolicy(request_ttl_mode=TTLMode.ANNOTATION)) as (one, other):
            request = await story(one)
            for _ in range(4):
                await see_each_other(one, other)
                await asyncio.gather(one.reconcile(request), other.reconcile(request), return_exceptions=True)
            await answer(one, request)
            for _ in range(4):
                await see_each_other(one, other)
                await asyncio.gather(one.reconcile(request), other.reconcile(request), return_exceptions=True)
            assert await one.reason(request) == ConditionReason.COMPLETED
            assert len(await one.all(OBJECT_KEEPER)) == 1
            for kind in ARTIFACTS:
                assert len(await one.all(kind)) <= 1
            ended = [row for row in await one.journal_rows() if row.outcome is Outcome.ENDED]
            assert len(ended) == (1 if story is detach else 0)
