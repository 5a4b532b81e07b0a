"""Moments as people give them: so long from now, a point in time, or never. Pure.

One grammar for ends of holds and for questions about another time, on the command line and over HTTP.
"""

from __future__ import annotations

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.core.timestamps import from_timestamp, is_moment


class MomentError(UsageError, ValueError):
    """{given!r} is not a time: expected a duration from now, such as 7d, or a point in time as 2030-01-31T12:00:00Z.

    The time must be after 1970 and before 2262; never means no end.
    """


class MomentOverError(UsageError, ValueError):
    """The end {given!r} is not in the future. Expected a later one, such as 7d or 2030-01-31T12:00:00Z, or never."""


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
