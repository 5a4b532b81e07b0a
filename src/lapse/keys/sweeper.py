"""Background cleanup for programs that use keys as a library: a daemon thread that removes expired records in slices.

Expired keys are absent whether or not this runs; it only returns memory and disk. It holds its backend weakly, so a
store that a program forgot to close can still be collected. `lapse up` does not use it: there the coordinator runs the
sweep as one of its loops.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from lapse.core.log import get_logger
from lapse.keys.errors import BackendError

if TYPE_CHECKING:
    from lapse.keys.port import Backend

_log = get_logger("lapse.keys.sweep")
SWEEP_SLICE: Final = 1_000
"""Records removed in one go: a few milliseconds of work, so that nobody waits longer for the lock."""
_PAUSE_SECONDS: Final = 0.001  # between slices: lets waiting readers and writers run


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
