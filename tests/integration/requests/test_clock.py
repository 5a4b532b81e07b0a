"""A clock in doubt: no request's deadline has passed, and what ends meanwhile is dated by what was believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import VirtualClock
from lapse.core.timestamps import to_timestamp
from lapse.requests.api.conditions import ConditionReason
from tests.integration.requests.stories import restore, snapshot
from tests.integration.requests.world import World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.requests.stories import Ask

HOUR, DAY = 3_600, 86_400
YEAR = 365 * DAY


class Watch(BelievedClock):
    """What domains are given, with the crown of the clock below it."""

    def __init__(self) -> None:
        self.below = VirtualClock(boot_id="one")
        super().__init__(self.below)
        self.advance = self.below.advance


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def world(tmp_path: Path, watch: Watch) -> AsyncIterator[World]:
    async with opened(tmp_path, clock=cast("VirtualClock", watch)) as made:
        yield made


@pytest.mark.parametrize("ask", [snapshot, restore])
@pytest.mark.parametrize("seconds", [3_600, DAY, 2 * DAY, YEAR, -3_600, -DAY, -YEAR])
async def test_a_request_in_flight_survives_a_clock_that_jumps(
    world: World, watch: Watch, ask: Ask, seconds: int
) -> None:
    request = await ask(world)
    await world.settle()
    watch.below.jump_wall(seconds)
    for _ in range(3):
        await world.live(hours=10, step=HOUR)
        assert await world.outcome(request) is None, "in doubt nobody's deadline has passed"
    watch.below.jump_wall(-seconds)
    await world.live(minutes=2)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED, "more than a day has passed by any clock"


@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
async def test_what_ends_while_the_clock_is_in_doubt_is_dated_by_what_was_believed(
    world: World, watch: Watch, seconds: int
) -> None:
    request = await snapshot(world)
    await world.settle()
    watch.below.jump_wall(seconds)
    await world.snapshot_ready(request)
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED
    status = (await world.fresh(request)).status
    assert status is not None
    assert status.completion_timestamp == to_timestamp(watch.below.wall_ns() - seconds * 1_000_000_000)
