"""Lengths of time for people who glance. Pure."""

from __future__ import annotations

from typing import Final

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_LETTERS: Final = {DAY: "d", HOUR: "h", MINUTE: "m"}


def span(seconds: float) -> str:
    """Print a length of time for people who glance: 224 ms, 2.5 s, 3m 20s, 1h 5m, 12d 3h."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:  # noqa: PLR2004 - from ten seconds on nobody reads tenths
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for large, small, size in ((DAY, "h", HOUR), (HOUR, "m", MINUTE), (MINUTE, "s", 1)):
        if whole >= large:
            return f"{whole // large}{_LETTERS[large]} {whole % large // size}{small}"
    return f"{whole} s"
