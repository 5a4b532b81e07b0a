from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.duration import (
    DAY,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    NEVER,
    SECOND,
    WEEK,
    Duration,
    DurationError,
    short,
)
from lapse.core.errors import UsageError

LONGEST = 2**63 - 1

GOOD = [
    # Go's form
    ("10m", 10 * MINUTE),
    ("1h30m", 90 * MINUTE),
    ("720h", 720 * HOUR),
    ("1.5h", 90 * MINUTE),
    (".5s", 500 * MILLISECOND),
    ("1.s", SECOND),
    ("1h1h", 2 * HOUR),
    ("5m1h", HOUR + 5 * MINUTE),
    ("100ms", 100 * MILLISECOND),
    ("3us", 3 * MICROSECOND),
    ("3\u00b5s", 3 * MICROSECOND),
    ("3\u03bcs", 3 * MICROSECOND),
    ("7ns", 7),
    ("007s", 7 * SECOND),
    ("0s", 0),
    ("0", 0),
    (" 10m\n", 10 * MINUTE),
    # days and weeks
    ("7d", 7 * DAY),
    ("2w", 2 * WEEK),
    ("1w2d3h4m5s6ms7us8ns", WEEK + 2 * DAY + 3 * HOUR + 4 * MINUTE + 5 * SECOND + 6_007_008),
    ("0.5d", 12 * HOUR),
    # signs
    ("+5m", 5 * MINUTE),
    ("-5m", -5 * MINUTE),
    ("-0", 0),
    ("+0", 0),
    ("-PT5M", -5 * MINUTE),
    # ISO 8601
    ("PT10M", 10 * MINUTE),
    ("P1DT12H", 36 * HOUR),
    ("PT36H", 36 * HOUR),
    ("P2W", 2 * WEEK),
    ("P1.5W", 252 * HOUR),
    ("PT1.5S", 1500 * MILLISECOND),
    ("PT1,5S", 1500 * MILLISECOND),
    ("P0.5D", 12 * HOUR),
    ("PT1H0.5M", HOUR + 30 * SECOND),
    ("PT0S", 0),
    # the ends of what fits
    ("9223372036854775807ns", LONGEST),
    ("106751d23h47m16s854ms775us807ns", LONGEST),
    ("-9223372036854775807ns", -LONGEST),
]


@pytest.mark.parametrize(("text", "nanoseconds"), GOOD)
def test_a_duration_is_read_exactly(text: str, nanoseconds: int) -> None:
    assert Duration.parse(text).nanoseconds == nanoseconds


BAD = [
    ("10minutes", "'minutes' is not a unit"),
    ("600", "it has no unit (seconds would be 600s)"),
    ("1.5", "it has no unit (seconds would be 1.5s)"),
    ("00", "it has no unit"),
    ("", "it holds no number"),
    ("   ", "it holds no number"),
    ("-", "it holds no number"),
    ("+", "it holds no number"),
    ("--5m", "it has more than one sign"),
    ("+-5m", "it has more than one sign"),
    ("1h-5m", "'h-' is not a unit"),
    ("1y", "'y' is not a unit"),
    ("5M", "'M' is not a unit"),
    ("1 h", "' h' is not a unit"),
    ("h", "'h' is not a number with a unit"),
    (".s", "'.s' is not a number with a unit"),
    ("1..5s", "'1..5s' is not a number with a unit"),
    ("1h30", "'30' is not a number with a unit"),
    ("1e3s", "'e' is not a unit"),
    ("1_0s", "'_' is not a unit"),
    ("1,5s", "',' is not a unit"),
    ("inf", "'inf' is not a number with a unit"),
    ("NEVER", "'NEVER' is not a number with a unit"),
    ("-never", "'never' is not a number with a unit"),
    ("P", "it is not a complete ISO 8601 duration"),
    ("PT", "it is not a complete ISO 8601 duration"),
    ("P1DT", "it is not a complete ISO 8601 duration"),
    ("P1W2D", "it is not a complete ISO 8601 duration"),
    ("PT5M3", "it is not a complete ISO 8601 duration"),
    ("PT-5M", "it is not a complete ISO 8601 duration"),
    ("PT5M1H", "it is not a complete ISO 8601 duration"),
    ("PT1.5H30M", "only the last part of an ISO 8601 duration may have a fraction"),
    ("P1Y", "years and months have no fixed length"),
    ("P1M", "years and months have no fixed length"),
    ("P1Y2M10DT2H", "years and months have no fixed length"),
    ("0.0000000001s", "it is finer than a nanosecond"),
    ("0.5ns", "it is finer than a nanosecond"),
    ("9223372036854775808ns", "it is longer than 292 years; write never for no limit"),
    ("106752d", "it is longer than 292 years; write never for no limit"),
    ("-106752d", "it is longer than 292 years; write never for no limit"),
    ("P106752D", "it is longer than 292 years; write never for no limit"),
    ("\ud800", r"'\ud800' is not a number with a unit"),
    ("1\ud800", r"'\ud800' is not a unit"),
    ("١٠m", "'١٠m' is not a number with a unit"),
    ("1٠m", "'٠m' is not a unit"),
    ("PT١٠M", "it is not a complete ISO 8601 duration"),
    ("½h", "'½h' is not a number with a unit"),
    ("1\x00s", r"'\x00s' is not a unit"),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_what_is_no_duration_is_refused_with_what_was_wrong_and_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(DurationError) as caught:
        Duration.parse(text)

    said = str(caught.value)
    assert said.startswith(f"{text!r} is not a duration: ")
    assert problem in said
    assert "Expected numbers with units (ns, us, ms, s, m, h, d, w) as in 10m or 1h30m" in said
    assert "ISO 8601 as in PT10M, or never" in said


@pytest.mark.parametrize("text", ["9" * 5000 + "s", "0." + "0" * 5000 + "1s", "PT" + "9" * 5000 + "S", "1h" * 51])
def test_an_overlong_text_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(DurationError, match=f"it has {len(text)} characters") as caught:
        Duration.parse(text)

    assert len(str(caught.value)) < 300


def test_the_error_is_a_value_error_and_a_usage_error() -> None:
    assert issubclass(DurationError, ValueError)
    assert issubclass(DurationError, UsageError)


def test_no_float_creeps_in() -> None:
    tenth = Duration.parse("0.1s").nanoseconds

    assert tenth is not None
    assert 3 * tenth == Duration.parse("300ms").nanoseconds  # 0.1 + 0.1 + 0.1 != 0.3 in floats
    assert Duration.parse("9007199.254740993s").nanoseconds == 9_007_199_254_740_993  # 2**53 + 1, no float
    assert Duration.parse("1.000000001h").nanoseconds == HOUR + 3600


CANONICAL = [
    ("0", "0s"),
    ("60m", "1h"),
    ("90s", "1m30s"),
    ("1.5h", "1h30m"),
    ("2w", "14d"),
    ("36h", "1d12h"),
    ("PT10M", "10m"),
    ("1500ms", "1s500ms"),
    ("1us1ns", "1us1ns"),
    ("3\u03bcs", "3us"),
    ("-90m", "-1h30m"),
    ("never", "never"),
]


@pytest.mark.parametrize(("text", "printed"), CANONICAL)
def test_printing_is_canonical(text: str, printed: str) -> None:
    assert str(Duration.parse(text)) == printed


durations = st.integers(-LONGEST, LONGEST).map(Duration) | st.just(NEVER)


@given(durations)
def test_what_is_printed_reads_back_as_the_same_duration(duration: Duration) -> None:
    assert Duration.parse(str(duration)) == duration


@given(durations)
def test_the_canonical_form_is_the_only_form_of_its_kind(duration: Duration) -> None:
    assert str(Duration.parse(str(duration))) == str(duration)


@given(
    st.lists(
        st.tuples(st.integers(0, 1_000), st.sampled_from(["ns", "us", "ms", "s", "m", "h", "d", "w"])),
        min_size=1,
        max_size=9,
    )
)
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    whole = Duration.parse("".join(f"{number}{unit}" for number, unit in parts)).nanoseconds

    assert whole == sum(Duration.parse(f"{number}{unit}").nanoseconds or 0 for number, unit in parts)


@given(durations, durations)
def test_order_is_by_length_and_never_is_the_longest(one: Duration, other: Duration) -> None:
    def length(duration: Duration) -> float:
        return float("inf") if duration.nanoseconds is None else duration.nanoseconds

    assert (one < other) == (length(one) < length(other))
    assert (one <= other) == (length(one) <= length(other))
    assert (one > other) == (length(one) > length(other))
    assert (one >= other) == (length(one) >= length(other))


def test_never_is_longer_than_the_longest_and_not_longer_than_itself() -> None:
    assert Duration(LONGEST) < NEVER
    assert not NEVER < NEVER  # noqa: PLR0124 - that is the point
    assert NEVER <= NEVER  # noqa: PLR0124
    assert Duration.parse("never") == NEVER
    assert NEVER.is_never
    assert not Duration(0).is_never


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_a_duration_error(text: str) -> None:
    try:
        duration = Duration.parse(text)
    except DurationError:
        return
    assert Duration.parse(str(duration)) == duration


def test_seconds_are_for_timers() -> None:
    assert Duration.parse("1.5s").seconds == 1.5
    assert NEVER.seconds == float("inf")
    assert Duration.of_seconds(90) == Duration.parse("1m30s")


@pytest.mark.parametrize(
    ("text", "printed"),
    [("10m", "10m"), ("24h", "24h"), ("7d", "168h"), ("1d1h30m", "25h30m"), ("0", "0s"), ("never", "never")],
)
def test_for_programs_in_go_days_are_printed_as_hours(text: str, printed: str) -> None:
    assert Duration.parse(text).go() == printed
    assert Duration.parse(Duration.parse(text).go()) == Duration.parse(text)


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (-1, "0s"),
        (0, "0s"),
        (1, "1s"),
        (59 * SECOND + 1, "1m"),
        (61 * SECOND, "1m1s"),
        (3600 * SECOND, "1h"),
        (3601 * SECOND, "1h"),
        (90_000 * SECOND, "1d1h"),
        (40 * 86_400 * SECOND, "40d"),
    ],
)
def test_a_span_is_shown_by_its_two_largest_units(nanoseconds: int, shown: str) -> None:
    assert short(nanoseconds) == shown
