"""REQUEST_DEADLINE: a request that never finishes ends, and not a moment early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.duration import Duration
from lapse.kube.errors import StoreUnavailableError
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.stories import restore, snapshot
from tests.integration.requests.world import Call, World, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.requests.stories import Ask

DAY = 24 * 3600


@pytest.mark.parametrize("ask", [snapshot, restore])
async def test_at_the_deadline_itself_a_request_may_still_finish_and_a_nanosecond_later_it_is_over(
    world: World, ask: Ask
) -> None:
    request = await ask(world)
    await world.settle()
    world.advance(DAY)
    await world.settle()
    await world.reconcile(request)
    assert await world.outcome(request) is None
    world.advance(ns=1)
    await world.settle()  # its own timer brings it back
    assert await world.outcome(request) == (
        ConditionReason.DEADLINE_EXCEEDED,
        "the request was not finished within 1d",
    )


async def test_a_result_that_is_there_when_somebody_looks_again_counts_however_late(world: World) -> None:
    request = await snapshot(world)
    await world.settle()
    await world.stop()
    await world.snapshot_ready(request)
    world.advance(3 * DAY)
    await world.restart()
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_without_a_deadline_a_request_waits_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path, policy=RequestPolicy(request_deadline=Duration.parse("never"))) as world:
        request = await snapshot(world)
        await world.live(hours=10_000, step=36_000_000)
        assert await world.outcome(request) is None
        await world.snapshot_ready(request)
        await world.settle()
        assert await world.reason(request) == ConditionReason.COMPLETED


@pytest.mark.parametrize("unready", ["claim", "source"])
async def test_a_source_that_is_never_ready_ends_at_the_deadline(world: World, unready: str) -> None:
    if unready == "claim":
        request = await world.capture("one", await world.volume(phase="Pending"))
    else:
        request = await world.restore("one", await world.snapshot(ready=False))  # type: ignore[assignment]
    await world.live(hours=23, step=3600)
    assert await world.outcome(request) is None
    await world.live(minutes=65)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED
    assert len(await world.all(PERSISTENT_VOLUME_CLAIM)) == (1 if unready == "claim" else 0)


async def test_a_source_that_becomes_ready_in_time_is_captured_at_once(world: World) -> None:
    claim = await world.volume(phase="Pending")
    request = await world.capture("one", claim)
    await world.live(hours=20, step=3600)
    await world.volume()
    await world.settle()
    await world.snapshot_ready(request)
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_a_store_that_never_answers_ends_a_request_at_its_deadline_once_that_can_be_written(
    world: World,
) -> None:
    request = await snapshot(world)

    def away(call: Call) -> None:
        if call.kind == "StorageClass":
            raise StoreUnavailableError(problem="this server is broken")

    world.wire.before = away
    await world.live(hours=24, step=1200)
    await world.live(minutes=2, step=10)
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.DEADLINE_EXCEEDED
    assert "this server is broken" in outcome[1]


async def test_a_request_that_ended_at_its_deadline_lapses_like_any_other(world: World) -> None:
    request = await snapshot(world)
    await world.live(hours=24.1, step=1800)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED
    await world.live(minutes=12)
    assert not await world.exists(request)


async def test_an_answer_after_the_deadline_changes_nothing(world: World) -> None:
    request = await snapshot(world)
    await world.live(hours=24.1, step=1800)
    version = (await world.fresh(request)).metadata.resource_version
    await world.snapshot_ready(request)
    await world.settle()
    assert (await world.fresh(request)).metadata.resource_version == version
