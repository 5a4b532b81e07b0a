"""Numbers of keys: of those that are stored for the metrics, and of those that have expired for the journal.

Stored: one number for all applications: their ids are unbounded, and so would be the series. Embedded stores only;
servers do not count the keys of an application without reading everything.

Expired: by application and without names, in at most one row of the journal a minute, and none where nothing went.
Not guaranteed: that a process which ends before the minute is over has told of the last ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from lapse.core.decision import DueReason
from lapse.engine.journal.audit import tell
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.metrics import GaugeLoop
from lapse.keys.backends.base import EmbeddedBackend
from lapse.keys.backends.layout import Prefix
from lapse.keys.registration import KEYS
from lapse.keys.sweeper import CleanupLoop

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.keys.aio import AsyncKeys
    from lapse.keys.port import CleanupReport

INTERVAL_SECONDS: Final = 60.0
"""A file is read through for it: 0.3 s for a million keys, in a thread. Memory knows the number."""

_ROW_EVERY_NS: Final = 60_000_000_000
_APPS_NAMED: Final = 100


def count_loops(keys: AsyncKeys, metrics: Metrics) -> list[GaugeLoop]:
    """Return the loop that counts, or nothing for a store that cannot."""
    backend = keys.backend
    if not isinstance(backend, EmbeddedBackend):
        return []

    def count() -> int:
        return sum(number for prefix, _, number in backend.counts() if prefix is Prefix.APPLICATION_TTL)

    async def read() -> None:
        metrics.keys_stored(await asyncio.to_thread(count))

    metrics.keys_stored(0)
    return [GaugeLoop("keys-count", read, domain=KEYS.name, interval=INTERVAL_SECONDS)]


class ExpiredCounts:
    """How many keys of each application have expired since the last row about them. See the module."""

    def __init__(self, journal: Journal, *, clock: Clock, metrics: Metrics) -> None:
        """Write to ``journal``; there are none yet."""
        self._journal, self._clock, self._metrics = journal, clock, metrics
        self._apps: Counter[int] = Counter()
        self._next_ns = 0

    async def add(self, report: CleanupReport) -> None:
        """Count what was removed, and write the row where it is time for one, which is never amid a sweep of slices."""
        now = self._clock.wall_ns()
        self._apps.update(report.apps)
        due = now >= self._next_ns or self._next_ns - now > _ROW_EVERY_NS  # a clock that was set back
        if not self._apps or report.more or not due:
            return
        row = Entry(
            time_ns=now,
            domain=KEYS.name,
            address="",
            uid="",
            version="",
            verdict="due",
            reason=DueReason.TTL_EXPIRED,
            anchor_ns=None,
            policy="",
            actor=CleanupLoop.name,
            outcome=Outcome.ENDED,
            details=_details(self._apps),
        )
        self._next_ns = now + _ROW_EVERY_NS
        if await tell(self._journal, row, domain=KEYS.name, metrics=self._metrics):
            self._apps.clear()


def _details(apps: Counter[int]) -> dict[str, Any]:
    """Return the counts for a row, of bounded size: the applications with the most, and the others together."""
    named = dict(apps.most_common(_APPS_NAMED))
    told: dict[str, Any] = {"count": apps.total(), "apps": {str(app): named[app] for app in sorted(named)}}
    others = apps.total() - sum(named.values())
    return {**told, "others": others} if others else told
