"""Options of keys URLs: what the query parameters of every backend are made of.

A backend lists its options; `lapse.keys.url` parses them. A parser raises ``ValueError`` (or `DurationError`), and the
error that a person sees says what was expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lapse.core.duration import Duration
from lapse.keys.validation import MAX_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Option:
    """One query parameter of a URL."""

    parse: Callable[[str], Any]
    default: Any
    expected: str


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a parser for a whole number within bounds, in plain digits."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not lowest <= int(text) <= highest:
            raise ValueError(text)
        return int(text)

    return parse


def positive_duration(text: str) -> Duration:
    """Parse a positive duration or never."""
    duration = Duration.parse(text)
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise ValueError(text)
    return duration


def finite_duration(text: str) -> Duration:
    """Parse a positive duration that is not never."""
    duration = positive_duration(text)
    if duration.is_never:
        raise ValueError(text)
    return duration


def existing_file(text: str) -> Path:
    """Parse the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise ValueError(text)
    return path


def interval_seconds(duration: Duration) -> float | None:
    """Turn a ``sweep_interval`` into seconds; None for never."""
    return None if duration.is_never else duration.seconds


_MOST_ENTRIES: Final = 100_000_000

BUCKETS: Final = Option(whole_number(1, MAX_BUCKETS), 1, f"a whole number from 1 to {MAX_BUCKETS}")
SWEEP_INTERVAL: Final = Option(positive_duration, Duration.of_seconds(1), "a duration such as 1s, or never")
CACHE: Final = {
    "cache": Option(whole_number(0, _MOST_ENTRIES), 0, "a whole number of entries, 0 for none"),
    "cache_max_age": Option(finite_duration, Duration.parse("500ms"), "a duration such as 500ms"),
}
"""Options of every network backend: a cache in front of it, see `lapse.keys.cache`."""
