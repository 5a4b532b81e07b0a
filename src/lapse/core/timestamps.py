"""Points in time as text: as the Kubernetes API writes them, and as people give them. Pure.

Written in RFC 3339, UTC, whole seconds. A moment that starts a TTL is rounded *up*: rounded down, everything would
lapse up to a second early. Leases and Events have microseconds instead (MicroTime), always with six digits: an API
server answers 400 otherwise.

Some texts are times and mean 'not set': ``0001-01-01T00:00:00Z`` is the zero of Go, the Unix epoch that of others, in
any time zone, and year 9999 is 'never'. `from_timestamp` reads none of them as a moment, so that nobody can count an
age from them: before 1971, and beyond what 64 bits of nanoseconds hold (the year 2262), there is no moment. The first
year of Unix time is also where seconds, milliseconds and microseconds end up that were taken for nanoseconds.

People give a duration from now, a point in time, or never (`read_moment`): one grammar for ends of holds and for
questions about another time, on the command line and over HTTP.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError

EARLIEST: Final = 365 * 86_400 * 1_000_000_000
"""The first moment: the beginning of 1971."""
LATEST: Final = 2**63 - 1
"""The last moment, in the year 2262: stores have 64 bits for one."""
_SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_LAST_SECOND: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


class MomentError(UsageError, ValueError):
    """{given!r} is not a time: expected a duration, such as 7d, or a point in time as 2030-01-31T12:00:00Z.

    The time must be after 1970 and before 2262; never means no end.
    """


class MomentOverError(UsageError, ValueError):
    """The end {given!r} is not in the future. Expected a later one, such as 7d or 2030-01-31T12:00:00Z, or never."""


def to_timestamp(moment: int) -> str:
    """Print a moment, rounded up to the second; what is beyond the years 1 to 9999 as the first or last of these."""
    seconds = min(max(-(-moment // _SECOND), _FIRST_SECOND), _LAST_SECOND)
    # Not strftime: it prints the year 1 with one digit.
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat() + "Z"


def to_micro_timestamp(moment: int) -> str:
    """Print a moment as a MicroTime; what is beyond the years 1 to 9999 as the first or last of these."""
    micros = min(max(moment // 1_000, _FIRST_SECOND * 1_000_000), _LAST_SECOND * 1_000_000)
    return (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def is_moment(nanoseconds: int) -> bool:
    """Whether this many nanoseconds since 1970 are a moment, and not a way to say 'not set'."""
    return EARLIEST <= nanoseconds <= LATEST


def from_timestamp(text: str) -> UnixNs | None:
    """Read a moment exactly, with or without a fraction; None when there is none. Doubt is for the caller.

    None is also the answer for a time that means 'not set': see the module.
    """
    found = read_timestamp(text)
    return None if found is None or not is_moment(found) else UnixNs(found)


def read_timestamp(text: str) -> int | None:
    """Return the nanoseconds since 1970 of any time of the years 1 to 9999; None for what is no time.

    For times that nothing is counted from, such as the end of a credential.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        return None
    since = found - _EPOCH
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1_000


def read_moment(text: str, now: int) -> UnixNs | None:
    """Return the moment that is meant at ``now``; None for never. Raises `MomentError`."""
    try:
        duration = Duration.parse(text)
    except DurationError as error:
        moment = from_timestamp(text)
        if moment is None:
            raise MomentError(given=text) from error
        return moment
    if duration.nanoseconds is None:
        return None
    if not is_moment(now + duration.nanoseconds):
        raise MomentError(given=text)
    return UnixNs(now + duration.nanoseconds)


def read_end(text: str, now: int) -> UnixNs | None:
    """Return the same for something that ends then, which must be in the future."""
    moment = read_moment(text, now)
    if moment is not None and moment <= now:
        raise MomentOverError(given=text)
    return moment
