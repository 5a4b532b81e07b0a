"""The clock guard: a domain is frozen when the wall clock jumps, because then nobody knows what is over.

Between two looks the wall clock and the time since boot, which goes on while a machine sleeps, must have moved alike.
If they have not, something set the clock, and a year too much would end everything at once. A *second source*, such as
the time of the database, decides where there is one: if it agrees with the wall clock now, the clock was put right.
Otherwise the domain is frozen, with a row in the journal, until somebody runs ``lapse resume``; from then on the clock
is believed as it is.

With a second source a clock that is wrong from the start is noticed, too. Without one it is not, nor is a clock that
creeps, or jumps by less than the limit. A machine that was paused from outside, which its own clocks do not notice,
looks like one whose clock was set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.duration import short
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.verdict import UnknownReason
from lapse.engine.brakes import Brake, Grant
from lapse.engine.freeze import FreezeReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.core.clock import Clock
    from lapse.core.verdict import Reason
    from lapse.engine.brakes import Brakes

LIMIT_SECONDS: Final = 600.0
"""Above what clocks are corrected by in good order, below what a TTL of a day would mind."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.engine.clock_guard")


class ClockGuard:
    """See the module: `Brakes` that look at the clock before they allow anything."""

    def __init__(
        self,
        brakes: Brakes,
        *,
        clock: Clock,
        second: Callable[[], Awaitable[int]] | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """Believe the clock as it is now, unless ``second``, which returns Unix nanoseconds, says otherwise."""
        self._brakes, self._clock, self._second = brakes, clock, second
        self._limit_ns = round(limit_seconds * _NS)
        self._first = self._distance()
        self._believed: dict[str, int] = {}
        """By domain: how far the wall clock was from the time since boot when all was well."""

    async def allow(self, domain: str, count: int = 1) -> Grant:
        """See `Brake`."""
        against = await self._doubt(domain)
        return await self._brakes.allow(domain, count) if against is None else Grant(0, against)

    def done(self, grant: Grant, *, ended: int) -> None:
        """See `Brake`."""
        self._brakes.done(grant, ended=ended)

    async def objection(self, domain: str) -> Reason | None:
        """See `Brake`."""
        return await self._doubt(domain) or await self._brakes.objection(domain)

    def pause(self, domain: str) -> float | None:
        """See `Brake`."""
        return self._brakes.pause(domain)

    async def _doubt(self, domain: str) -> Reason | None:
        """Return what speaks against believing the clock; None when nothing does."""
        distance = self._distance()
        jump = distance - self._believed.get(domain, self._first)
        new = domain not in self._believed
        if abs(jump) <= self._limit_ns and not (new and self._second is not None):
            self._believed[domain] = distance
            return None
        off = await self._off_by(jump)
        if off is None:
            return UnknownReason.CLOCK_JUMPED
        if abs(off) <= self._limit_ns:
            self._believed[domain] = distance
            return None
        against = await self._frozen(domain, off)
        if against in {FreezeReason.FROZEN, FreezeReason.CLOCK_JUMPED}:  # written down: a person has the word now
            self._believed[domain] = distance
        return against

    async def _off_by(self, jump: int) -> int | None:
        """Return how wrong the wall clock is, as far as anybody can tell; None while the second source is silent."""
        if self._second is None:
            return jump
        try:
            return self._clock.wall_ns() - await self._second()
        except LapseError as error:
            _log.warning("clock_in_doubt", effect="nothing is ended", problem=str(error))
            return None

    async def _frozen(self, domain: str, off: int) -> Reason:
        against = await self._brakes.objection(domain)
        if against is not None:
            return against
        way = "ahead" if off > 0 else "behind"
        why = f"the clock is {short(abs(off))} {way} of what was expected; set it right, then resume"
        try:
            await self._brakes.freeze(domain, why, reason=FreezeReason.CLOCK_JUMPED)
        except LapseError as error:
            _log.warning("clock_in_doubt", effect="nothing is ended", problem=str(error))
            return UnknownReason.CLOCK_JUMPED
        return FreezeReason.CLOCK_JUMPED

    def _distance(self) -> int:
        return self._clock.wall_ns() - self._clock.boottime_ns()


if TYPE_CHECKING:
    _conforms: type[Brake] = ClockGuard
