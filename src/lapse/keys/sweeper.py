"""Physical cleanup of expired keys: a loop of the coordinator, and a daemon thread for programs that use keys directly.

An expired key is absent whether or not it was swept, so cleanup only returns memory and disk. It needs no verdict, no
recheck and no leader: several processes may sweep one store, and each record is removed and counted by one of them.

`CleanupLoop` runs in `lapse up`, and has what it removed counted (`lapse.keys.counts`).

`Sweeper` is started by `lapse.keys.store.open_keys`; it holds its backend weakly, so a store that a program forgot to
close can still be collected. It has no journal.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from lapse.core.decision import DueReason
from lapse.core.log import get_logger
from lapse.keys.errors import BackendError
from lapse.keys.registration import KEYS

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.running.metrics import Metrics
    from lapse.keys.aio import AsyncKeys
    from lapse.keys.counts import ExpiredCounts
    from lapse.keys.port import Backend

DOMAIN: Final = KEYS.name
SWEEP_SLICE: Final = 1_000
"""Records removed in one go: a few milliseconds of work, so that nobody waits longer for the lock."""
_log = get_logger("lapse.keys.sweep")
_PAUSE_SECONDS: Final = 0.001  # between slices: lets waiting readers and writers run


class CleanupLoop:
    """A `lapse.engine.running.coordinator.Loop` over one opened store, which its opener closes."""

    name: Final = "keys-sweep"
    domain: Final = DOMAIN
    leader_only: Final = False

    def __init__(
        self,
        keys: AsyncKeys,
        *,
        interval: float,
        metrics: Metrics,
        clock: Clock | None = None,
        expired: ExpiredCounts | None = None,
    ) -> None:
        """Sweep ``keys`` every ``interval`` seconds, and without delay while there is more to do.

        Nothing is removed while ``clock`` is in doubt: keys that a clock ahead of its time hides come back with it.
        ``expired`` counts what goes, for the journal.
        """
        self.interval, self._clock = interval, clock
        self._keys = keys
        self._metrics, self._expired = metrics, expired
        KEYS.expect_series(metrics)

    async def tick(self) -> float | None:
        """Remove one slice, in a thread."""
        if self._clock is not None and self._clock.in_doubt():
            return None
        report = await self._keys.sweep()
        lags = [] if report.lag_seconds is None else [report.lag_seconds]
        self._metrics.deleted(DOMAIN, DueReason.TTL_EXPIRED, count=report.removed, lags=lags)
        if self._expired is not None:
            await self._expired.add(report)
        return _PAUSE_SECONDS if report.more else None


class Sweeper:
    """One thread per opened store."""

    def __init__(self, backend: Backend, interval_seconds: float) -> None:
        """Prepare; `start` runs it."""
        self._backend = weakref.ref(backend)
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lapse-keys-sweep", daemon=True)

    @classmethod
    def start(cls, backend: Backend) -> Sweeper | None:
        """Start sweeping, unless the backend's server cleans up by itself or its URL says never."""
        if backend.sweep_interval is None:
            return None
        sweeper = cls(backend, backend.sweep_interval)
        sweeper._thread.start()
        return sweeper

    def stop(self) -> None:
        """Stop after the slice at hand and wait for that. In a forked child there is nothing to stop."""
        if not self._thread.is_alive():
            return
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        wait = self._interval
        while not self._stop.wait(wait):
            backend = self._backend()
            if backend is None:
                return
            try:
                wait = _PAUSE_SECONDS if backend.sweep(SWEEP_SLICE).more else self._interval
            except BackendError as error:
                # Nothing is lost when cleanup fails; the next round tries again.
                _log.warning("sweep_failed", error=type(error).__name__)
                wait = self._interval
            del backend  # not kept alive while waiting
