"""The clock of domains: it follows the wall clock, a sleeping laptop and small corrections, and no jump."""

from __future__ import annotations

import pytest

from lapse.core.believed_clock import BelievedClock, Mark, Timex, synchronised_ns
from lapse.core.clock import SystemClock, VirtualClock

NS = 1_000_000_000
HOUR, DAY, YEAR = 3_600, 86_400, 365 * 86_400


def booted(boot_id: str = "one") -> VirtualClock:
    clock = VirtualClock(boot_id=boot_id)
    clock.advance(DAY)
    return clock


def test_time_that_passes_sleep_and_small_corrections_are_followed() -> None:
    machine = booted()
    clock = BelievedClock(machine)
    for _ in range(10):
        machine.advance(DAY)
        machine.suspend(7 * DAY)
        machine.jump_wall(599)
        assert (clock.wall_ns(), clock.in_doubt()) == (machine.wall_ns(), False)


@pytest.mark.parametrize("seconds", [601, HOUR, DAY, YEAR, -601, -HOUR, -YEAR])
def test_a_jump_is_not_followed_and_time_goes_on_from_before_it(seconds: int) -> None:
    machine = booted()
    clock = BelievedClock(machine)
    before = clock.wall_ns()
    machine.jump_wall(seconds)
    machine.advance(60)

    assert (clock.wall_ns(), clock.in_doubt()) == (before + 60 * NS, True)
    assert clock.jump_ns() == seconds * NS
    machine.jump_wall(-seconds)
    assert (clock.wall_ns(), clock.in_doubt()) == (before + 60 * NS, False), "it was put right"


def test_a_clock_that_is_believed_again_is_followed_from_there() -> None:
    machine = booted()
    clock = BelievedClock(machine)
    machine.jump_wall(YEAR)
    assert clock.in_doubt()
    clock.believe()
    assert (clock.wall_ns(), clock.in_doubt()) == (machine.wall_ns(), False)


def test_a_process_that_stood_still_between_two_readings_is_in_no_doubt() -> None:
    class Stopped(VirtualClock):
        stops = 0

        def wall_ns(self) -> int:
            now = super().wall_ns()
            if self.stops:
                self.stops -= 1
                self.suspend(HOUR)
            return now

    machine = Stopped()
    clock = BelievedClock(machine)
    machine.stops = 1
    clock.wall_ns()
    assert (clock.wall_ns(), clock.in_doubt()) == (machine.wall_ns(), False)


@pytest.mark.parametrize("seconds", [HOUR, YEAR, -YEAR])
def test_on_the_same_boot_a_jump_while_no_process_ran_is_seen_exactly(seconds: int) -> None:
    machine = booted()
    mark = BelievedClock(machine).mark()
    machine.advance(3 * DAY)
    machine.jump_wall(seconds)
    clock = BelievedClock(machine)
    assert not clock.in_doubt()
    clock.recall(mark)
    assert clock.jump_ns() == seconds * NS
    assert clock.wall_ns() == machine.wall_ns() - seconds * NS


def test_on_another_boot_what_is_behind_or_far_ahead_is_in_doubt_and_what_is_less_ahead_is_dry_for_a_while() -> None:
    found = {}
    for seconds in (-YEAR, -HOUR, -60, 60, 599, HOUR, 29 * DAY, 31 * DAY, YEAR):
        machine = booted()
        mark = BelievedClock(machine).mark()
        machine.reboot("two", seconds=seconds)
        clock = BelievedClock(machine, dry_seconds=HOUR)
        clock.recall(mark)
        found[seconds] = (bool(clock.jump_ns()), clock.dry_ns() // NS)
        if seconds < -600:
            assert clock.wall_ns() == mark.wall_ns, "no time is earlier than what was known"
        machine.advance(HOUR)
        assert clock.dry_ns() == 0
    assert found == {
        -YEAR: (True, 0), -HOUR: (True, 0), -60: (False, 0), 60: (False, 0), 599: (False, 0),
        HOUR: (False, HOUR), 29 * DAY: (False, HOUR), 31 * DAY: (True, 0), YEAR: (True, 0),
    }  # fmt: skip


def test_a_restart_neither_ends_nor_prolongs_what_is_dry() -> None:
    machine = booted()
    mark = BelievedClock(machine).mark()
    machine.reboot("two", seconds=DAY)
    clock = BelievedClock(machine, dry_seconds=HOUR)
    clock.recall(mark)
    machine.advance(HOUR / 2)
    again = BelievedClock(machine, dry_seconds=HOUR)
    again.recall(clock.mark())
    assert (again.dry_ns(), again.in_doubt()) == (HOUR // 2 * NS, True)
    machine.advance(HOUR / 2)
    assert not again.in_doubt()


def test_without_a_boot_that_is_known_nothing_is_concluded() -> None:
    machine = VirtualClock()
    clock = BelievedClock(machine)
    clock.recall(Mark("one", machine.wall_ns() + YEAR * NS, 0))
    clock.recall(None)
    assert (clock.wall_ns(), clock.in_doubt()) == (machine.wall_ns(), False)


def test_the_machine_has_a_boot() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id()
    assert SystemClock().boottime_ns() >= 0


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [(0, 0x0001, 5_000_007_000), (0, 0x2001, 5_000_000_007), (5, 0, None), (0, 0x0040, None), (-1, 0, None)],
)
async def test_the_kernel_tells_the_time_only_while_its_clock_is_synchronised(
    state: int, status: int, expected: int | None
) -> None:
    def ask(timex: Timex) -> int:
        timex.status, timex.seconds, timex.fraction = status, 5, 7
        return state

    assert await synchronised_ns(ask) == expected


async def test_the_real_kernel_agrees_with_the_real_clock_if_it_says_anything() -> None:
    found = await synchronised_ns()
    assert found is None or abs(found - SystemClock().wall_ns()) < 60 * NS


def test_a_second_reboot_within_the_dry_time_is_dry_again() -> None:
    clock = VirtualClock(boot_id="one")
    mark = BelievedClock(clock).mark()
    clock.reboot("two", seconds=10 * 86_400)
    second = BelievedClock(clock)
    second.recall(mark)
    assert second.dry_ns() > 0
    clock.advance(120)
    mark = second.mark()
    clock.reboot("three", seconds=60)
    third = BelievedClock(clock)
    third.recall(mark)
    assert third.dry_ns() > 0
    assert third.in_doubt()
