"""A clock that does not follow the wall clock when that jumps: domains decide by it, and write their times with it.

As long as the wall clock and the time since boot, which goes on while a machine sleeps, move alike, its time is that of
the wall clock. When they do not, something has set the wall clock; then its time is the last believed one plus what has
passed since, by the time since boot, and it is *in doubt* until the wall clock comes back or `believe` is called. So
nothing is decided by a wrong time, not even between a jump and the first look at it.

A `Mark` outlives the process. On the same boot it tells exactly whether the clock was set meanwhile. On another boot
nobody knows for how long the machine was off: a clock that is behind the mark is in doubt, and so is one that is more
than `LONGEST_OFF_SECONDS` ahead; one that is less ahead is in doubt for `dry_seconds`, in which nothing is ended and
everybody can read what would be.

A second source is the kernel, while something such as an NTP daemon keeps its clock synchronised (`synchronised_ns`,
by ``adjtimex``, which needs no right). A clock that somebody sets by hand is not synchronised until the daemon has
looked at it again. The time is the kernel's own, so a process whose clock is faked is noticed as well.

Not noticed: a clock that creeps, or jumps by less than the limit. A machine that was paused from outside, which its own
clocks do not notice, looks like one whose clock was set.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.clock import Clock

LIMIT_SECONDS: Final = 600.0
"""Above what clocks are corrected by in good order, below what a TTL of a day would mind."""
LONGEST_OFF_SECONDS: Final = 30 * 86_400.0
DRY_SECONDS: Final = 3_600.0
_NS: Final = 1_000_000_000

_LONG, _INT = ctypes.c_long, ctypes.c_int
_TIME_ERROR: Final = 5
_UNSYNCHRONISED: Final = 0x0040
_IN_NANOSECONDS: Final = 0x2000


class Mark(msgspec.Struct, frozen=True):
    """What was believed at one moment."""

    boot_id: str
    wall_ns: int
    boottime_ns: int
    dry_until_ns: int = 0
    """In boottime: until then nothing is ended."""


class BelievedClock:
    """See the module; a `Clock` over another one. Reading it is safe from any thread."""

    def __init__(self, clock: Clock, *, limit_seconds: float = LIMIT_SECONDS, dry_seconds: float = DRY_SECONDS) -> None:
        """Believe ``clock`` as it is now."""
        self.machine = clock
        self.dry_seconds = dry_seconds
        self._wall, self._boottime = clock.wall_ns, clock.boottime_ns
        self.monotonic_ns, self.boottime_ns, self.sleep = clock.monotonic_ns, clock.boottime_ns, clock.sleep
        self.boot_id = clock.boot_id
        self.limit_ns = round(limit_seconds * _NS)
        self._offset = self._wall() - self._boottime()
        """How far the wall clock was from the time since boot when all was well."""
        self._dry_until_ns = 0
        self._seen = 0
        """The last time of the wall clock that was compared, and believed."""

    def wall_ns(self) -> int:
        """See `Clock`: the wall clock's time, or the last believed one plus what has passed since."""
        wall = self._wall()
        if 0 <= wall - self._seen < _NS:  # nearly always: hardly later than a time that was compared
            return wall
        offset = wall - self._boottime()
        if -self.limit_ns <= offset - self._offset <= self.limit_ns:
            self._offset = offset  # small corrections are followed
            self._seen = wall
            return wall
        self.jump_ns()  # follows, if the process only stood still between the two readings
        return self._offset + self._boottime()

    def jump_ns(self) -> int:
        """Return how far the wall clock is from what is believed; 0 when it is believed."""
        jump = 0
        for _ in range(2):  # twice, because a process may stand still between the two readings
            offset = self._wall() - self._boottime()
            jump = offset - self._offset
            if abs(jump) <= self.limit_ns:
                self._offset = offset
                return 0
        return jump

    def in_doubt(self) -> bool:
        """See `Clock`."""
        return self.jump_ns() != 0 or self.dry_ns() > 0

    def dry_ns(self) -> int:
        """Return for how long everything is dry, because the machine was off for a time that nobody knows."""
        return max(0, self._dry_until_ns - self._boottime()) if self._dry_until_ns else 0

    def believe(self) -> None:
        """Take the wall clock for right, as it is now."""
        self._offset = self._wall() - self._boottime()
        self._dry_until_ns = self._seen = 0

    def distrust(self, off_ns: int) -> None:
        """Go on from what something that knows better says: the wall clock is off by so much, and in doubt."""
        self._offset = self._wall() - self._boottime() - off_ns
        self._seen = 0

    def mark(self) -> Mark:
        """Return what is believed now."""
        boottime = self._boottime()
        return Mark(self.boot_id(), self._offset + boottime, boottime, self._dry_until_ns)

    def machine_mark(self) -> Mark:
        """Return what the machine's own clock says now, believed or not: a person has looked at it."""
        return Mark(self.boot_id(), self._wall(), self._boottime())

    def recall(self, mark: Mark | None, *, is_fresh_within: float = 0) -> None:
        """Go on from what was believed before; ``is_fresh_within`` is how many seconds old a mark may be by itself."""
        boot_id = self.boot_id()
        if mark is None or not boot_id or not mark.boot_id:
            return
        self._seen = 0
        if mark.boot_id == boot_id:
            self._offset, self._dry_until_ns = mark.wall_ns - mark.boottime_ns, mark.dry_until_ns
            return
        boottime, wall = self._boottime(), self._wall()
        ahead = wall - mark.wall_ns
        self._offset = max(wall, mark.wall_ns) - boottime  # the later one: a time that is too early ends things early
        was_dry = mark.dry_until_ns > mark.boottime_ns  # then its time was not believed either
        if ahead > LONGEST_OFF_SECONDS * _NS:
            self.distrust(ahead)
        elif was_dry or ahead > self.limit_ns + round(is_fresh_within * _NS):
            self._dry_until_ns = boottime + round(self.dry_seconds * _NS)


class Timex(ctypes.Structure):
    """``struct timex`` of Linux, as far as it is looked at, with room for the rest."""

    _fields_: ClassVar = [
        ("modes", ctypes.c_uint),
        *((name, _LONG) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", _INT),
        *((name, _LONG) for name in ("constant", "precision", "tolerance", "seconds", "fraction")),
        ("rest", _LONG * 32),
    ]


def adjtimex(timex: Timex) -> int:
    """Fill ``timex`` with what the kernel says; return the state of its clock, below 0 where it cannot be asked."""
    if not sys.platform.startswith("linux"):
        return -1
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)))
    except (OSError, AttributeError):
        return -1


async def synchronised_ns(ask: Callable[[Timex], int] = adjtimex) -> int | None:
    """Return the kernel's time as Unix nanoseconds; None unless its clock is synchronised."""
    timex = Timex()
    state = ask(timex)
    if not 0 <= state < _TIME_ERROR or timex.status & _UNSYNCHRONISED:
        return None
    unit = 1 if timex.status & _IN_NANOSECONDS else 1_000
    return int(timex.seconds) * _NS + int(timex.fraction) * unit
