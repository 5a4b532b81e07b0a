from __future__ import annotations

import pytest

from lapse.core.clock import VirtualClock
from lapse.keys.backends.cassandra.backend import MEASURE_EVERY_NS, ClockWatch

MS = 1_000_000
SECOND = 1_000_000_000


class Watched:
    """A watch with a bound of half a second over a virtual clock, and a server whose clock is right."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.started = 0
        self.watch = ClockWatch(self.clock, SECOND // 2, self._start)

    def _start(self) -> None:
        self.started += 1

    def measure(self, *, ahead_ns: int = 0, there_ns: int = 0, back_ns: int = 0) -> None:
        sent_ns = self.clock.wall_ns()
        server_ms = (sent_ns - ahead_ns + there_ns) // MS
        self.watch.note(sent_ns=sent_ns, received_ns=sent_ns + there_ns + back_ns, server_ms=server_ms)


def test_a_clock_must_be_measured_before_it_is_used() -> None:
    watched = Watched()

    assert watched.watch.now_ns() is None
    watched.measure()
    assert watched.watch.now_ns() == watched.clock.wall_ns()


@pytest.mark.parametrize(
    ("ahead_ns", "there_ns", "back_ns", "refusal"),
    [
        pytest.param(0, 0, 0, None, id="clocks that agree"),
        pytest.param(499 * MS, 0, 0, None, id="just within the bound ahead"),
        pytest.param(-499 * MS, 0, 0, None, id="just within the bound behind"),
        pytest.param(600 * MS, 0, 0, "0.6 s ahead of", id="ahead"),
        pytest.param(-600 * MS, 0, 0, "0.6 s behind", id="behind"),
        pytest.param(300 * SECOND, 0, 0, "300.0 s ahead of", id="five minutes ahead"),
        pytest.param(-300 * SECOND, 0, 0, "300.0 s behind", id="five minutes behind"),
        pytest.param(0, 2 * SECOND, 0, None, id="a slow way there proves nothing"),
        pytest.param(0, 0, 2 * SECOND, None, id="a slow way back proves nothing"),
        pytest.param(300 * SECOND, SECOND, SECOND, "299.0 s ahead of", id="so far off that slowness is no excuse"),
    ],
)
def test_only_a_clock_that_is_certainly_too_far_off_is_refused(
    ahead_ns: int, there_ns: int, back_ns: int, refusal: str | None
) -> None:
    watched = Watched()

    watched.measure(ahead_ns=ahead_ns, there_ns=there_ns, back_ns=back_ns)

    assert (watched.watch.refusal is None) == (refusal is None)
    if refusal is not None:
        assert f"the clock of this machine is {refusal} the server's" in str(watched.watch.refusal)
        assert "max_skew allows 0.5 s" in str(watched.watch.refusal)
        assert watched.watch.now_ns() is None


def test_a_jump_of_the_wall_clock_is_seen_at_once() -> None:
    watched = Watched()
    watched.measure()

    watched.clock.jump_wall(0.4)
    assert watched.watch.now_ns() is not None
    watched.clock.jump_wall(0.2)
    assert watched.watch.now_ns() is None


def test_a_suspended_machine_measures_before_it_goes_on() -> None:
    watched = Watched()
    watched.measure()

    watched.clock.suspend(3600)

    assert watched.watch.now_ns() is None
    watched.measure()
    assert watched.watch.now_ns() is not None


def test_one_caller_starts_the_measurement_that_is_due_and_nobody_waits_for_it() -> None:
    watched = Watched()
    watched.measure()
    watched.clock.advance(ns=MEASURE_EVERY_NS - 1)
    assert watched.watch.now_ns() is not None
    assert watched.started == 0

    watched.clock.advance(ns=1)

    assert [watched.watch.now_ns() for _ in range(3)] == [watched.clock.wall_ns()] * 3
    assert watched.started == 1


def test_a_clock_that_was_set_right_is_admitted_again() -> None:
    watched = Watched()
    watched.measure(ahead_ns=300 * SECOND)
    assert watched.watch.now_ns() is None

    watched.measure()

    assert watched.watch.now_ns() is not None
