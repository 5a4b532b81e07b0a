from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.jitter import around, backoff, chance

ALMOST_ONE = 1 - 2**-53
chances = st.floats(0, 1, exclude_max=True)


@given(st.floats(0, 1e6), st.floats(0, 1), chances)
def test_a_wait_moves_by_at_most_its_fraction(seconds: float, fraction: float, drawn: float) -> None:
    wait = around(seconds, fraction=fraction, chance=lambda: drawn)

    assert seconds * (1 - fraction) <= wait * (1 + 1e-12)
    assert wait <= seconds * (1 + fraction) * (1 + 1e-12)


@pytest.mark.parametrize(("drawn", "wait"), [(0, 9.0), (0.5, 10.0), (ALMOST_ONE, 11.0)])
def test_a_wait_is_moved_by_a_tenth_in_either_direction_unless_told_otherwise(drawn: float, wait: float) -> None:
    assert around(10, chance=lambda: drawn) == pytest.approx(wait)


def test_a_fraction_of_nothing_moves_nothing() -> None:
    assert around(10, fraction=0) == 10


@pytest.mark.parametrize(
    ("attempt", "longest_wait"), [(0, 0.1), (1, 0.2), (2, 0.4), (8, 25.6), (9, 30.0), (60, 30.0), (10_000, 30.0)]
)
def test_retries_wait_twice_as_long_each_time_up_to_a_bound(attempt: int, longest_wait: float) -> None:
    assert backoff(attempt, chance=lambda: ALMOST_ONE) == pytest.approx(longest_wait)


@given(st.integers(0, 10_000), chances)
def test_a_retry_waits_at_least_half_and_at_most_all_of_its_time(attempt: int, drawn: float) -> None:
    full = backoff(attempt, chance=lambda: ALMOST_ONE)

    assert full / 2 * (1 - 1e-12) <= backoff(attempt, chance=lambda: drawn) <= full * (1 + 1e-12)


def test_no_retry_is_immediate() -> None:
    assert backoff(0, chance=lambda: 0) == pytest.approx(0.05)


def test_chance_is_a_number_from_zero_to_below_one() -> None:
    assert all(0 <= chance() < 1 for _ in range(1000))
