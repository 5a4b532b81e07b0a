from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.port import expiry_ms, expiry_ns, is_over, seconds_left

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND

moments = st.integers(0, 2**62)
ttls = st.integers(1, 31_536_000)


def test_a_record_is_gone_at_the_instant_of_its_expiry_and_not_before() -> None:
    expires = expiry_ns(NOW, 900)

    assert not is_over(expires, NOW + 900 * SECOND - 1)
    assert is_over(expires, NOW + 900 * SECOND)
    assert is_over(expires, NOW + 900 * SECOND + 1)


def test_the_expiry_is_rounded_up_to_the_millisecond() -> None:
    assert expiry_ms(NOW, 1) == 1_700_000_001_000
    assert expiry_ms(NOW + 1, 1) == 1_700_000_001_001
    assert expiry_ms(NOW + 999_999, 1) == 1_700_000_001_001
    assert expiry_ms(NOW + 1_000_000, 1) == 1_700_000_001_001


@given(moments, ttls)
def test_a_record_lives_at_least_its_ttl_and_at_most_a_millisecond_more(now: int, ttl: int) -> None:
    lives = expiry_ns(now, ttl) - now

    assert ttl * SECOND <= lives < ttl * SECOND + 1_000_000


@given(moments, ttls)
def test_the_stored_milliseconds_say_exactly_the_same(now: int, ttl: int) -> None:
    assert expiry_ms(now, ttl) * 1_000_000 == expiry_ns(now, ttl)


@given(moments, ttls, st.integers(0, 31_536_001 * SECOND))
def test_what_is_left_is_never_zero_never_above_the_ttl_and_within_a_millisecond_of_the_truth(
    now: int, ttl: int, later: int
) -> None:
    expires = expiry_ns(now, ttl)
    left = seconds_left(expires, now + later)

    if is_over(expires, now + later):
        assert left is None
    else:
        assert left is not None
        assert left >= 0.001
        assert left <= ttl
        assert abs(round(left * 1000) * 1_000_000 - (expires - now - later)) < 1_000_000


def test_the_last_nanosecond_counts_as_a_millisecond() -> None:
    assert seconds_left(NOW, NOW - 1) == 0.001
    assert seconds_left(NOW, NOW) is None
