"""Lengths of time for people who glance. Pure."""

from __future__ import annotations

from lapse.core.duration import short


def span(seconds: float) -> str:
    """Print a length of time, finer than `short` where that matters: 224 ms, 2.5 s; then 45s, 3m20s, 12d3h."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:  # noqa: PLR2004 - from ten seconds on nobody reads tenths
        return f"{seconds:.1f} s"
    return short(int(seconds) * 1_000_000_000)
