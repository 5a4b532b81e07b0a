from __future__ import annotations

import pytest

from lapse.core.duration import DAY
from lapse.core.timestamps import MomentError, MomentOverError, read_end, read_moment

NOW = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", NOW + 7 * DAY),
        ("PT1H", NOW + DAY // 24),
        ("-1d", NOW - DAY),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("never", None),
    ],
)
def test_a_moment_is_a_duration_from_now_a_point_in_time_or_never(text: str, expected: int | None) -> None:
    assert read_moment(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "7", "10minutes", "2023-11-14", "2023-11-14T22:13:20", "7d\n8d"),
        *("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2500000h", "-500000h"),
    ],
)
def test_what_is_no_moment_is_refused_and_the_message_says_what_was_expected(text: str) -> None:
    with pytest.raises(MomentError, match=r"expected a duration, such as 7d, or a point in time"):
        read_moment(text, NOW)


@pytest.mark.parametrize("text", ["0s", "-1s", "2023-11-14T22:13:20Z"])
def test_an_end_must_be_in_the_future(text: str) -> None:
    with pytest.raises(MomentOverError, match="is not in the future"):
        read_end(text, NOW)


def test_an_end_in_the_future_is_taken() -> None:
    assert read_end("1ns", NOW) == NOW + 1
    assert read_end("never", NOW) is None
