"""The kernel's word for the time: given only while something keeps its clock synchronised, such as an NTP daemon.

Asked by ``adjtimex``, which needs no right. A clock that somebody sets by hand is not synchronised until the daemon has
looked at it again. The time is the kernel's own, so a process whose clock is faked is noticed as well.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LONG, _INT = ctypes.c_long, ctypes.c_int
_TIME_ERROR: Final = 5
_UNSYNCHRONISED: Final = 0x0040
_IN_NANOSECONDS: Final = 0x2000
_SECOND: Final = 1_000_000_000


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
    return int(timex.seconds) * _SECOND + int(timex.fraction) * unit
