"""Options that several keys backends have in common."""

from __future__ import annotations

from typing import Final

from lapse.core.duration import Duration
from lapse.db.urls import Option, finite_duration, positive_duration, whole_number
from lapse.keys.validation import MAX_BUCKETS


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
"""Options of every network backend: a cache in front of it, see `lapse.keys.backends.cache`."""
