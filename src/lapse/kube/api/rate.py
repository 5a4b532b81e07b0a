"""Rate limit: so many a second, and so many at once after a rest.

Slots are given out in the order of asking. A caller that is cancelled while it waits keeps its slot: it was counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapse.core.clock import Clock

_NS: Final = 1_000_000_000


class RateLimit:
    """See the module. Belongs to one event loop."""

    def __init__(self, per_second: float, *, burst: int | None = None, clock: Clock) -> None:
        """Allow ``burst`` at once, by default what a second allows."""
        allowed = max(1, round(per_second)) if burst is None else burst
        if per_second <= 0 or allowed < 1:
            message = "a rate and its burst must be above zero"
            raise ValueError(message)
        self._step_ns = _NS / per_second
        self._slack_ns = (allowed - 1) * self._step_ns
        self._clock = clock
        self._next_ns = float(clock.monotonic_ns()) - self._slack_ns

    async def wait(self) -> None:
        """Return when it is the caller's turn."""
        now_ns = self._clock.monotonic_ns()
        mine_ns = max(self._next_ns, now_ns - self._slack_ns)
        self._next_ns = mine_ns + self._step_ns
        if mine_ns > now_ns:
            await self._clock.sleep((mine_ns - now_ns) / _NS)
