"""When a key is over: the one rule of the domain, as arithmetic.

A record carries its absolute expiry in Unix milliseconds. It is gone at the instant ``now >= expiry``, whether or not
anything has swept it. The moment of writing is rounded *up* to the millisecond, so a TTL of one second lives at least one second.
"""

from __future__ import annotations

from typing import Final

NS_PER_MS: Final = 1_000_000
MS_PER_SECOND: Final = 1_000


def expiry_ms(now_ns: int, ttl_seconds: int) -> int:
    """Return the absolute expiry of a record that is written now."""
    return -(-now_ns // NS_PER_MS) + ttl_seconds * MS_PER_SECOND


def is_over(expires_ms: int, now_ns: int) -> bool:
    """Whether a record with this expiry is gone."""
    return now_ns >= expires_ms * NS_PER_MS


def seconds_left(expires_ms: int, now_ns: int) -> float | None:
    """Return what is left of a record's life, rounded up to the millisecond so that a live key never shows 0; None when it is over."""
    left_ns = expires_ms * NS_PER_MS - now_ns
    return -(-left_ns // NS_PER_MS) / MS_PER_SECOND if left_ns > 0 else None
