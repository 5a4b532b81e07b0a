"""The clock guard stands before every domain: a wrong clock ends nothing, dates nothing that counts, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.requests.api.kinds import OBJECT_KEEPER
from tests.integration.clock.machine import DOMAINS, FOLLOWER, KEPT, Machine

if TYPE_CHECKING:
    from pathlib import Path

HOUR, DAY = 3_600, 86_400
YEAR = 365 * DAY
JUMPS = [HOUR, DAY, YEAR, -HOUR, -DAY, -YEAR]
ALL_STAND = dict.fromkeys(DOMAINS, True)
NONE_STAND = dict.fromkeys(DOMAINS, False)
FROZEN = sorted((domain, "frozen", "clock_jumped") for domain in DOMAINS)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    clock = VirtualClock(boot_id="one")
    clock.advance(DAY)
    return Machine(tmp_path, clock)


async def test_a_right_clock_ends_everything_on_time_also_after_sleep(machine: Machine) -> None:
    async with machine.process() as process:
        await process.fill()
        machine.clock.advance(HOUR - 60)
        await process.work()
        assert await process.stands() == ALL_STAND
        machine.clock.suspend(120)
        await process.work()
        assert await process.stands() == NONE_STAND
        await process.gate.look()
        assert (process.frozen(), await process.told()) == ([], [])


@pytest.mark.parametrize("seconds", JUMPS)
@pytest.mark.parametrize("looks", [False, True], ids=["at the act", "by a look"])
async def test_a_jump_while_it_runs_ends_nothing_in_any_domain(machine: Machine, seconds: int, looks: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async with machine.process() as process:
        await process.fill()
        machine.clock.advance(60)
        await process.work()
        machine.clock.jump_wall(seconds)
        if looks:
            await process.gate.look()
        await process.work()
        assert await process.stands() == ALL_STAND
        await process.gate.look()
        assert process.frozen() == list(DOMAINS)
        assert await process.told() == FROZEN

        await process.resume()
        machine.clock.advance(5)  # what is frozen is not read more often
        await process.gate.look()
        await process.work()
        assert process.frozen() == []
        assert await process.stands() == (NONE_STAND if seconds > 0 else ALL_STAND), "the clock is believed as it is"


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_jump_before_the_start_ends_nothing_in_any_domain(machine: Machine, seconds: int) -> None:
    async with machine.process() as process:
        await process.fill()
        await process.work()
    machine.clock.advance(60)
    machine.clock.suspend(60)
    machine.clock.jump_wall(seconds)
    async with machine.process() as process:
        await process.work()
        await process.gate.look()
        assert await process.stands() == ALL_STAND
        assert process.frozen() == list(DOMAINS)
        await process.resume()
    async with machine.process() as process:
        await process.work()
        assert await process.stands() == (NONE_STAND if seconds > 0 else ALL_STAND), "resumed while nothing ran"
        assert process.frozen() == []


@pytest.mark.parametrize("away", [31 * DAY, YEAR, -2 * HOUR, -YEAR])
async def test_another_boot_that_is_behind_or_far_ahead_ends_nothing(machine: Machine, away: int) -> None:
    async with machine.process() as process:
        await process.fill()
        await process.work()
    machine.clock.reboot("two", seconds=away)
    async with machine.process() as process:
        await process.work()
        await process.gate.look()
        assert await process.stands() == ALL_STAND
        assert process.frozen() == list(DOMAINS)


async def test_another_boot_after_some_days_is_dry_for_an_interval_and_tells_what_would_end(machine: Machine) -> None:
    async with machine.process() as process:
        await process.fill()
        await process.work()
    machine.clock.reboot("two", seconds=3 * DAY)
    for _ in range(2):  # a restart does not end it
        async with machine.process() as process:
            await process.work()
            assert await process.stands() == ALL_STAND
            assert await process.would_end() == set(DOMAINS)
            assert process.frozen() == []
            machine.clock.advance(HOUR / 3)
    async with machine.process() as process:
        await process.work()
        machine.clock.advance(HOUR / 3 + 1)
        await process.work()
        assert await process.stands() == NONE_STAND


@pytest.mark.parametrize("back", [DAY, 2 * DAY, YEAR])
async def test_a_clock_that_is_set_back_right_after_it_was_resumed_is_noticed_over_a_restart(
    machine: Machine, back: int
) -> None:
    async with machine.process() as process:
        await process.fill()
        await process.work()
        machine.clock.jump_wall(YEAR)
        await process.gate.look()
        await process.resume()  # and the process ends before it looks again
    machine.clock.jump_wall(-back)
    async with machine.process() as process:
        await process.work()
        await process.gate.look()
        assert process.frozen() == list(DOMAINS)
        assert await process.stands() == ALL_STAND


@pytest.mark.parametrize("seconds", [HOUR, DAY, YEAR])
async def test_no_loss_is_dated_by_a_clock_in_doubt(machine: Machine, seconds: int) -> None:
    async with machine.process() as process:
        await process.work()
        machine.clock.jump_wall(seconds)
        await process.lose()
        await process.work()
        assert await process.lost_at() is None
        machine.clock.jump_wall(-seconds)  # put right
        await process.work()
        assert await process.lost_at() == to_timestamp(machine.clock.wall_ns())


async def test_times_that_are_written_in_doubt_go_on_from_what_was_believed(machine: Machine) -> None:
    async with machine.process() as process:
        await process.work()
        before = process.clock.wall_ns()
        machine.clock.jump_wall(YEAR)
        machine.clock.advance(60)
        await process.fill()
        kept = await process.store.get(OBJECT_KEEPER, KEPT)
        assert from_timestamp(kept.metadata.creation_timestamp or "") == before + 60 * 1_000_000_000
        assert (await process.workspaces.by_name("notes")).created_at == before // 1_000_000 + 60_000


async def test_a_loss_that_a_slow_clock_dated_before_the_keeper_shortens_no_life(machine: Machine) -> None:
    async with machine.process() as process:
        await process.lose()
        status = {"phase": "Expiring", "lostAt": "2001-01-01T00:00:00Z"}
        await process.store.patch_status(OBJECT_KEEPER, FOLLOWER, status)
        await process.work()
        machine.clock.advance(9 * HOUR)
        await process.work()
        assert (await process.store.get(OBJECT_KEEPER, FOLLOWER)).status is not None
        machine.clock.advance(2 * HOUR)
        await process.work()
        assert not (await process.store.list(OBJECT_KEEPER)).items


@pytest.mark.parametrize("seconds", [YEAR, -YEAR])
async def test_a_second_clock_that_agrees_lets_everything_go_on(machine: Machine, seconds: int) -> None:
    async def second() -> int:
        return machine.clock.wall_ns()

    async with machine.process([second]) as process:
        await process.fill()
        await process.work()
        machine.clock.jump_wall(seconds)
        await process.gate.look()
        await process.work()
        assert await process.stands() == (NONE_STAND if seconds > 0 else ALL_STAND)
        assert (process.frozen(), await process.told()) == ([], [])


async def test_a_second_clock_that_contradicts_from_the_start_stops_everything(machine: Machine) -> None:
    async def second() -> int:
        return machine.clock.wall_ns() - YEAR * 1_000_000_000

    async with machine.process([second]) as process:
        await process.fill()
        await process.lose()
        machine.clock.advance(2 * HOUR)
        await process.gate.look()
        await process.work()
        assert await process.stands() == ALL_STAND
        assert await process.lost_at() is None
        assert process.frozen() == list(DOMAINS)


async def test_a_second_clock_that_agrees_later_lets_go_on_what_this_process_has_frozen(machine: Machine) -> None:
    known: list[int] = []

    async def second() -> int | None:
        return machine.clock.wall_ns() if known else None

    async with machine.process([second]) as process:
        await process.fill()
        await process.work()
    machine.clock.reboot("two", seconds=-YEAR)  # as a machine without a battery does
    async with machine.process([second]) as process:
        await process.gate.look()
        await process.gate.look()
        assert process.frozen() == list(DOMAINS)
        machine.clock.jump_wall(YEAR + 2 * HOUR)  # NTP has its say
        known.append(1)
        machine.clock.advance(5)
        await process.gate.look()
        await process.work()
        assert process.frozen() == []
        assert await process.stands() == NONE_STAND
