"""The sweep of keys as a loop of the coordinator: removes expired records physically, slice by slice.

This is cleanup of what is already gone (an expired key is absent whether or not it was swept), so it needs no
verdict, no recheck and no leader: several processes may sweep one store, and each record is removed and counted by
one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.decision import DueReason

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.keys.aio import AsyncKeys

DOMAIN: Final = "keys"
_PAUSE_SECONDS: Final = 0.001  # between slices: lets waiting readers and writers run


class SweepLoop:
    """A `lapse.engine.running.coordinator.Loop` over one opened store, which its opener closes."""

    name: Final = "keys-sweep"
    domain: Final = DOMAIN
    leader_only: Final = False

    def __init__(self, keys: AsyncKeys, *, interval: float, metrics: Metrics, clock: Clock | None = None) -> None:
        """Sweep ``keys`` every ``interval`` seconds, and without delay while there is more to do.

        Nothing is removed while ``clock`` is in doubt: keys that a clock ahead of its time hides come back with it.
        """
        self.interval, self._clock = interval, clock
        self._keys = keys
        self._metrics = metrics
        metrics.expect_domain(DOMAIN, reasons=[DueReason.TTL_EXPIRED])

    async def tick(self) -> float | None:
        """Remove one slice, in a thread."""
        if self._clock is not None and self._clock.in_doubt():
            return None
        report = await self._keys.sweep()
        lags = [] if report.lag_seconds is None else [report.lag_seconds]
        self._metrics.deleted(DOMAIN, DueReason.TTL_EXPIRED, count=report.removed, lags=lags)
        return _PAUSE_SECONDS if report.more else None
