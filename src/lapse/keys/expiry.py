"""Expiry of a key: the one rule of the domain, as arithmetic.

A record carries its absolute expiry in Unix milliseconds. It is gone at the instant ``now >= expiry``, whether or not
anything has swept it. The moment of writing is rounded *up* to the millisecond, so a TTL of one second lives at least
one second.
"""

from __future__ import annotations

from typing import Final

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000


def expiry_ns(now_ns: int, ttl_seconds: int) -> int:
    """Return the absolute expiry of a record that is written now: a whole millisecond, in the clock's nanoseconds."""
    return -(-(now_ns + ttl_seconds * NS_PER_SECOND) // NS_PER_MS) * NS_PER_MS


def expiry_ms(now_ns: int, ttl_seconds: int) -> int:
    """Return the same in Unix milliseconds, as it is stored."""
    return expiry_ns(now_ns, ttl_seconds) // NS_PER_MS


def is_over(expires_ns: int, now_ns: int) -> bool:
    """Whether a record with this expiry is gone."""
    return now_ns >= expires_ns


def seconds_left(expires_ns: int, now_ns: int) -> float | None:
    """Return what is left of a record's life in whole milliseconds; None when it is over.

    Counted from now as a write would count it, rounded up, so a key that was just written with a TTL of 900 shows 900
    and never more; and never 0, because a live key has something left.
    """
    if now_ns >= expires_ns:
        return None
    return max(1, (expires_ns // NS_PER_MS) + (-now_ns // NS_PER_MS)) / 1000
