"""Points in time as the Kubernetes API writes them: RFC 3339, UTC, whole seconds.

A moment that starts a TTL is rounded *up*: rounded down, everything would lapse up to a second early. Leases and Events
have microseconds instead (MicroTime), always with six digits: an API server answers 400 otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lapse.core.clock import UnixNs

_SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_timestamp(moment: int) -> str:
    """Print a moment, rounded up to the second."""
    return (_EPOCH + timedelta(seconds=-(-moment // _SECOND))).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_micro_timestamp(moment: int) -> str:
    """Print a moment as a MicroTime."""
    return (_EPOCH + timedelta(microseconds=moment // 1_000)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_timestamp(text: str) -> UnixNs | None:
    """Read a moment exactly, with or without a fraction; None when it cannot be read. Doubt is for the caller."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        return None
    since = found - _EPOCH
    return UnixNs((since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1_000)
