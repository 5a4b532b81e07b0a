"""Whether this machine's clock may decide about expiry: for backends where the client's clock does.

Such a backend asks its server for the time when it is opened and every half minute from then on, and refuses to work
while the two clocks are further apart than the user allows: a clock five minutes ahead would bury live records, one
five minutes behind would show dead ones. Between two measurements a jump is seen at once, because the wall clock and
the monotonic clock then move apart.

Not guaranteed: that two machines agree. Each may be off by the bound, so they may differ by twice the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.expiry import NS_PER_MS, NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock

MEASURE_EVERY_NS: Final = 30 * NS_PER_SECOND


class ClockWatch:
    """Knows the last measurement. Safe to use from any thread: every field is replaced as a whole."""

    def __init__(self, clock: Clock, max_skew_ns: int, measure_later: Callable[[], None]) -> None:
        """Watch ``clock``; ``measure_later`` starts a measurement and returns at once, its end calls `note`."""
        self._wall_ns, self._monotonic_ns = clock.wall_ns, clock.monotonic_ns
        self._max_skew_ns = max_skew_ns
        self._measure_later = measure_later
        self._distance_ns: int | None = None
        """Wall minus monotonic when it was last measured; None before the first time."""
        self._due_ns = 0
        self.refusal: str | None = None
        """What is wrong with this machine's clock, in words; None while it may decide."""

    def now_ns(self) -> int | None:
        """Return the wall clock; None when it must be measured before it may be used."""
        wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
        if self.refusal is not None or self._distance_ns is None:
            return None
        if abs(wall_ns - monotonic_ns - self._distance_ns) > self._max_skew_ns:
            return None
        if monotonic_ns >= self._due_ns:
            self._due_ns = monotonic_ns + MEASURE_EVERY_NS  # before it starts, so that one caller alone starts it
            self._measure_later()
        return wall_ns

    def note(self, *, sent_ns: int, received_ns: int, server_ms: int) -> None:
        """Take in a measurement: the server read its clock (in whole milliseconds) between two reads of ours."""
        monotonic_ns = self._monotonic_ns()
        self.refusal = self._judge(sent_ns - (server_ms + 1) * NS_PER_MS, received_ns - server_ms * NS_PER_MS)
        self._distance_ns = received_ns - monotonic_ns
        self._due_ns = monotonic_ns + MEASURE_EVERY_NS

    def _judge(self, least_ns: int, most_ns: int) -> str | None:
        # How far ahead we are lies between the two; a slow answer is no proof of a wrong clock, so doubt is no refusal.
        if least_ns > self._max_skew_ns:
            ahead_ns, direction = least_ns, "ahead of"
        elif most_ns < -self._max_skew_ns:
            ahead_ns, direction = -most_ns, "behind"
        else:
            return None
        return (
            f"the clock of this machine is {ahead_ns / NS_PER_SECOND:.1f} s {direction} the server's, and "
            f"max_skew allows {self._max_skew_ns / NS_PER_SECOND:g} s; set the clock, or let NTP do it"
        )
