"""Clocks: the only place of the product that reads the time or sleeps.

Three clocks, because they answer different questions. *Wall* (Unix time) is what expiry is written in; it may jump.
*Monotonic* never goes back and stops while a machine is suspended: for time-outs. *Boottime* never goes back and counts
suspension as well: compared with the wall clock it tells a jump from a closed laptop lid.

Everything that decides takes its clock as an argument, so that tests use `VirtualClock` and never wait. Domains are
given a `lapse.core.believed_clock.BelievedClock`, which does not follow a wall clock that jumps.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final, NewType, Protocol

UnixNs = NewType("UnixNs", int)
"""A point in time: nanoseconds since the Unix epoch."""

_SECOND: Final = 1_000_000_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What a part of Lapse may ask about time."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump in either direction."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; stands still during suspension."""
        ...

    def boottime_ns(self) -> int:
        """Nanoseconds that never go back; goes on during suspension."""
        ...

    def boot_id(self) -> str:
        """Return what tells this boot of the machine from every other; empty where nothing does."""
        ...

    def in_doubt(self) -> bool:
        """Whether the wall clock is known to have jumped, so that nothing may be called over by it."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for ``seconds`` of monotonic time."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # Bound as they are, without a Python function around them: a read of the wall clock is part of every key lookup.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    # Where the system has no such clock (macOS), monotonic is the closest there is.
    boottime_ns = staticmethod(
        partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
    )

    def boot_id(self) -> str:
        """See `Clock`."""
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except (OSError, ValueError):
            return ""

    def in_doubt(self) -> bool:
        """See `Clock`: nobody compares it with anything."""
        return False

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that moves only when told to: for tests, and for exact expiry in the conformance kit.

    Reading it is safe from any thread; `advance` and `sleep` belong to one event loop.
    """

    def __init__(self, wall_ns: int = 1_700_000_000 * _SECOND, *, boot_id: str = "") -> None:
        """Start at a fixed moment, so that failures are repeatable."""
        self._wall_ns, self._boot_id = wall_ns, boot_id
        self._monotonic_ns = 0
        self._boottime_ns = 0
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def wall_ns(self) -> int:
        """See `Clock`."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """See `Clock`."""
        return self._monotonic_ns

    def boottime_ns(self) -> int:
        """See `Clock`."""
        return self._boottime_ns

    def boot_id(self) -> str:
        """See `Clock`."""
        return self._boot_id

    def in_doubt(self) -> bool:
        """See `Clock`."""
        return False

    def advance(self, seconds: float = 0, *, ns: int = 0) -> None:
        """Let time pass on all three clocks and wake those who slept long enough."""
        step = round(seconds * _SECOND) + ns
        self._wall_ns += step
        self._monotonic_ns += step
        self._boottime_ns += step
        self._wake()

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP does."""
        self._wall_ns += round(seconds * _SECOND)

    def suspend(self, seconds: float) -> None:
        """Close the laptop: wall and boottime go on, monotonic does not."""
        self._wall_ns += round(seconds * _SECOND)
        self._boottime_ns += round(seconds * _SECOND)

    def reboot(self, boot_id: str, *, seconds: float = 0) -> None:
        """Switch the machine off for ``seconds``, and on again."""
        self._wall_ns += round(seconds * _SECOND)
        self._monotonic_ns = self._boottime_ns = 0
        self._boot_id = boot_id

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock far enough; without a wait, let other tasks run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic_ns + round(seconds * _SECOND), future))
        await future

    def _wake(self) -> None:
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic_ns]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic_ns]
        for _, future in sorted(due, key=itemgetter(0)):  # in the order of their deadlines, as real time would do it
            if not future.done():
                future.set_result(None)
