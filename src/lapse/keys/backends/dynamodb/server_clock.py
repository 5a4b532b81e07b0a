"""Whether this machine's clock may decide about expiry: its distance from the server's, told by ``Date`` headers.

Every answer of DynamoDB carries the server's time in whole seconds. One such header says little: the server wrote it
somewhere between our sending and our receiving, and somewhere within its second. So each answer gives an interval in
which the distance must lie, and the intervals of several answers are intersected; soon the distance is known to a few
milliseconds, without a request of its own. The server is compared with this machine's boottime clock, which never
jumps: when somebody sets the wall clock, that is seen before the next request is sent.

Guarantee: a clock is refused only when it is proven to be further off than allowed. Not guaranteed: that two machines
agree. Each may be off by the bound, and before a few answers came by up to one second more.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

from lapse.keys.expiry import NS_PER_SECOND

RESOLUTION_SECONDS: Final = 1
"""Of a ``Date`` header, which the server rounds down."""
_DRIFT: Final = 1000
"""An old interval grows by a thousandth of its age: twice as much as NTP may slew a clock."""


@lru_cache(maxsize=8)
def server_seconds(date: str) -> int | None:
    """Return the Unix time of a ``Date`` header; None when it is none. Remembered, as it changes once a second."""
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except ValueError:
        return None


class ServerClock:
    """What is known about the server's clock. Safe to use from any thread: it is replaced as a whole."""

    def __init__(self, max_skew_ns: int) -> None:
        """Allow the wall clock to be off by ``max_skew_ns``, in either direction."""
        self._max_skew_ns = max_skew_ns
        self._known: tuple[int, int, int] | None = None
        """Least and most of the server's clock minus our boottime clock, and the boottime of the last answer."""

    @property
    def is_known(self) -> bool:
        """Whether the server has told its time at least once."""
        return self._known is not None

    def note(self, date: str | None, *, sent_ns: int, received_ns: int) -> None:
        """Take in an answer's ``Date``; the boottime clock showed these when we sent and when we received."""
        seconds = server_seconds(date) if date is not None else None
        if seconds is None:
            return
        least = seconds * NS_PER_SECOND - received_ns
        most = (seconds + RESOLUTION_SECONDS) * NS_PER_SECOND - sent_ns
        if self._known is not None:
            old_least, old_most, then_ns = self._known
            grown = max(0, received_ns - then_ns) // _DRIFT
            both = max(least, old_least - grown), min(most, old_most + grown)
            if both[0] <= both[1]:  # else one of the clocks made a leap, and only the new interval counts
                least, most = both
        self._known = least, most, received_ns

    def refusal(self, wall_ns: int, boottime_ns: int) -> str | None:
        """Say in words how wrong the wall clock is; None when it is not proven to be further off than allowed."""
        if self._known is None:
            return None
        least, most, _ = self._known
        distance = wall_ns - boottime_ns
        if distance - most > self._max_skew_ns:
            off_ns, direction = distance - most, "ahead of"
        elif least - distance > self._max_skew_ns:
            off_ns, direction = least - distance, "behind"
        else:
            return None
        return (
            f"the clock of this machine is {off_ns / NS_PER_SECOND:.1f} s {direction} the server's, and max_skew "
            f"allows {self._max_skew_ns / NS_PER_SECOND:g} s; set the clock, or let NTP do it"
        )
