from __future__ import annotations

import asyncio

import pytest

from lapse.core.clock import Clock, SystemClock, VirtualClock

SECOND = 1_000_000_000


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251 - no time passes: this only yields


def read(clock: Clock) -> tuple[int, int, int]:
    return clock.wall_ns(), clock.monotonic_ns(), clock.boottime_ns()


def moved(clock: Clock, since: tuple[int, int, int]) -> tuple[int, int, int]:
    wall, monotonic, boottime = (now - then for now, then in zip(read(clock), since, strict=True))
    return wall, monotonic, boottime


def test_virtual_time_stands_still_until_it_is_told_to_move() -> None:
    clock = VirtualClock()

    assert read(clock) == read(clock)


def test_virtual_time_starts_at_the_same_moment_every_time() -> None:
    assert read(VirtualClock()) == read(VirtualClock())
    assert VirtualClock(wall_ns=5).wall_ns() == 5


def test_advance_moves_all_three_clocks() -> None:
    clock = VirtualClock()
    start = read(clock)

    clock.advance(1.5)
    clock.advance(ns=7)

    assert moved(clock, start) == (1_500_000_007,) * 3


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = VirtualClock()
    start = read(clock)

    clock.jump_wall(-3600)

    assert moved(clock, start) == (-3600 * SECOND, 0, 0)


def test_suspension_moves_wall_and_boottime_and_not_monotonic() -> None:
    clock = VirtualClock()
    start = read(clock)

    clock.suspend(60)

    assert moved(clock, start) == (60 * SECOND, 0, 60 * SECOND)


async def test_a_sleeper_wakes_at_the_exact_instant_and_not_a_nanosecond_before() -> None:
    clock = VirtualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await settle()

    clock.advance(ns=10 * SECOND - 1)
    await settle()
    assert not sleeper.done()

    clock.advance(ns=1)
    await settle()
    assert sleeper.done()


async def test_sleepers_wake_in_the_order_of_their_deadlines_whoever_slept_first() -> None:
    clock = VirtualClock()
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleep(seconds)) for seconds in (3, 1, 2, 0.5)]
    await settle()
    clock.advance(10)
    await asyncio.gather(*tasks)

    assert woken == [0.5, 1, 2, 3]


async def test_neither_a_jump_nor_a_suspension_wakes_a_sleeper() -> None:
    clock = VirtualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await settle()

    clock.jump_wall(100)
    clock.suspend(100)
    clock.advance(0)
    await settle()
    assert not sleeper.done()

    clock.advance(10)
    await sleeper


async def test_a_cancelled_sleeper_harms_nobody() -> None:
    clock = VirtualClock()
    cancelled, patient = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(1))
    await settle()

    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    clock.advance(1)
    await patient

    assert cancelled.cancelled()


async def test_a_sleeper_may_sleep_again_when_it_wakes() -> None:
    clock = VirtualClock()
    beats: list[int] = []

    async def beat() -> None:
        while len(beats) < 3:
            await clock.sleep(5)
            beats.append(clock.monotonic_ns() // SECOND)

    task = asyncio.create_task(beat())
    for _ in range(3):
        await settle()
        clock.advance(5)
    await task

    assert beats == [5, 10, 15]


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_sleep_of_nothing_lets_others_run_and_returns(seconds: float) -> None:
    clock = VirtualClock()
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    task = asyncio.create_task(other())
    await clock.sleep(seconds)

    assert ran == ["other"]
    await task


def test_the_system_clocks_are_nanoseconds_and_do_not_go_back() -> None:
    clock = SystemClock()
    start = read(clock)

    assert start[0] > 1_700_000_000 * SECOND  # Unix nanoseconds: after 2023 and before 2100
    assert start[0] < 4_102_444_800 * SECOND
    assert clock.monotonic_ns() >= start[1]
    assert clock.boottime_ns() >= start[2]


def test_the_boottime_clock_counts_at_least_what_the_monotonic_one_counts() -> None:
    clock = SystemClock()
    monotonic = clock.monotonic_ns()

    assert clock.boottime_ns() >= monotonic


async def test_the_system_clock_sleeps_on_the_event_loop() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    task = asyncio.create_task(other())
    await SystemClock().sleep(0)

    assert ran == ["other"]
    await task
