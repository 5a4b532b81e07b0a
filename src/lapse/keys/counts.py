"""Number of stored keys, for the metrics.

One number for all applications: their ids are unbounded, and so would be the series. Embedded stores only; servers do
not count the keys of an application without reading everything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lapse.engine.running.metrics import GaugeLoop
from lapse.keys.backends.base import EmbeddedBackend
from lapse.keys.backends.layout import Prefix
from lapse.keys.registration import KEYS

if TYPE_CHECKING:
    from lapse.engine.running.metrics import Metrics
    from lapse.keys.aio import AsyncKeys

INTERVAL_SECONDS: Final = 60.0
"""A file is read through for it: 0.3 s for a million keys, in a thread. Memory knows the number."""


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
