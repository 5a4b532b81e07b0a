from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.backends.dynamodb.calls import ServerClock, server_seconds

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def date(server_ns: int) -> str:
    return formatdate(server_ns // SECOND, usegmt=True)


def told(clock: ServerClock, *, boot_ns: int, skew_ns: int, trip_ns: int = 0) -> None:
    """One answer: our boottime clock began at START, and the wall clock is ``skew_ns`` ahead of the server's."""
    server_ns = START + boot_ns - skew_ns + trip_ns // 2
    clock.note(date(server_ns), sent_ns=boot_ns, received_ns=boot_ns + trip_ns)


def refused(clock: ServerClock, boot_ns: int, jump_ns: int = 0) -> str | None:
    return clock.refusal(START + boot_ns + jump_ns, boot_ns)


def test_nothing_is_refused_before_the_server_has_told_its_time() -> None:
    clock = ServerClock(SECOND)

    assert not clock.is_known
    assert refused(clock, 0) is None


@given(
    skew_ns=st.integers(-SECOND, SECOND),
    answers=st.lists(st.tuples(st.integers(0, 5 * SECOND), st.integers(0, 3 * SECOND)), min_size=1, max_size=30),
)
def test_a_clock_within_the_bound_is_never_refused(skew_ns: int, answers: list[tuple[int, int]]) -> None:
    clock = ServerClock(SECOND)
    boot_ns = 0
    for pause_ns, trip_ns in answers:
        boot_ns += pause_ns
        told(clock, boot_ns=boot_ns, skew_ns=skew_ns, trip_ns=trip_ns)
        boot_ns += trip_ns
        assert refused(clock, boot_ns) is None


@given(skew_ns=st.integers(2 * SECOND + 1, 600 * SECOND), ahead=st.booleans(), boot_ns=st.integers(0, 10 * SECOND))
def test_a_clock_off_by_more_than_the_bound_and_a_second_is_refused_after_one_answer(
    skew_ns: int,
    ahead: bool,  # noqa: FBT001 - drawn
    boot_ns: int,
) -> None:
    clock = ServerClock(SECOND)
    told(clock, boot_ns=boot_ns, skew_ns=skew_ns if ahead else -skew_ns)

    problem = refused(clock, boot_ns)

    assert problem is not None
    assert ("ahead of" if ahead else "behind") in problem
    assert "max_skew allows 1 s" in problem


@pytest.mark.parametrize("skew", [1.05, -1.05])
def test_many_answers_narrow_the_distance_below_the_resolution_of_a_date(skew: float) -> None:
    clock = ServerClock(SECOND)
    told(clock, boot_ns=0, skew_ns=round(skew * SECOND), trip_ns=10_000_000)
    assert refused(clock, 0) is None  # not proven yet

    for number in range(1, 100):
        told(clock, boot_ns=number * 37_000_000, skew_ns=round(skew * SECOND), trip_ns=10_000_000)

    assert refused(clock, 99 * 37_000_000) is not None


def test_a_jump_of_the_wall_clock_is_seen_without_an_answer_and_forgiven_when_it_is_undone() -> None:
    clock = ServerClock(SECOND)
    told(clock, boot_ns=0, skew_ns=0)

    assert refused(clock, SECOND, 300 * SECOND) is not None
    assert refused(clock, SECOND, -300 * SECOND) is not None
    assert refused(clock, SECOND) is None


def test_a_machine_that_stood_still_is_known_by_the_next_answer() -> None:
    clock = ServerClock(SECOND)
    told(clock, boot_ns=0, skew_ns=0)
    told(clock, boot_ns=SECOND, skew_ns=-300 * SECOND)

    assert "behind" in (refused(clock, SECOND) or "")


def test_an_answer_without_a_date_or_with_a_strange_one_says_nothing() -> None:
    clock = ServerClock(SECOND)

    clock.note(None, sent_ns=0, received_ns=0)
    clock.note("yesterday", sent_ns=0, received_ns=0)

    assert not clock.is_known
    assert server_seconds("Sun, 06 Nov 1994 08:49:37 GMT") == 784_111_777
