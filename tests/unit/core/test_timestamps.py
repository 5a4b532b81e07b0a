from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.timestamps import EARLIEST, LATEST, from_timestamp, read_timestamp, to_micro_timestamp, to_timestamp

NOT_SET = [
    "0001-01-01T00:00:00Z",  # Go
    "1970-01-01T00:00:00Z",
    "1970-01-01T00:00:00.000Z",
    "1970-01-01T01:00:00+01:00",
    "1970-01-01T03:00:00Z",  # the epoch, written as if it were local time
    "1970-12-31T23:59:59.999999Z",
    "1969-12-31T23:59:59Z",
    "1601-01-01T00:00:00Z",  # Windows
    "2262-04-11T23:47:16.854776Z",  # the first beyond 64 bits
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999999999-14:00",
    "0001-01-01T00:00:00+14:00",
]


@pytest.mark.parametrize("text", NOT_SET)
def test_a_time_that_means_not_set_is_no_moment(text: str) -> None:
    assert from_timestamp(text) is None
    assert read_timestamp(text) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1971-01-01T00:00:00.000001Z", EARLIEST + 1_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000_000),
        ("2262-04-11T23:47:16Z", LATEST // 1_000_000_000 * 1_000_000_000),
    ],
)
def test_any_other_time_is_read_exactly(text: str, expected: int) -> None:
    assert from_timestamp(text) == expected


@pytest.mark.parametrize(
    "text", ["", "never", "2023-11-14", "2023-11-14T22:13:20", "2026-02-30T00:00:00Z", "\ud800", "\0"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert from_timestamp(text) is None
    assert read_timestamp(text) is None


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_any_number_is_printed_as_a_time_that_can_be_read(moment: int) -> None:
    for text in (to_timestamp(moment), to_micro_timestamp(moment)):
        assert read_timestamp(text) is not None
        assert len(text.partition("-")[0]) == 4


@given(st.integers(min_value=EARLIEST, max_value=LATEST // 1_000_000_000 * 1_000_000_000))
def test_printing_rounds_up_to_the_second(moment: int) -> None:
    found = from_timestamp(to_timestamp(moment))
    assert found is not None
    assert 0 <= found - moment < 1_000_000_000


def test_what_is_beyond_the_years_is_printed_as_the_first_or_the_last() -> None:
    assert to_timestamp(10**30) == "9999-12-31T23:59:59Z"
    assert to_timestamp(-(10**30)) == "0001-01-01T00:00:00Z"
