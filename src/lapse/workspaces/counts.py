"""Number of workspaces by status, and the next time to look at one, for the metrics.

Asked at an interval, and not at each scrape, because the table is read through for it. Every process that has the store
asks, leader or not, and all of them tell the same, within an interval: so take the maximum over processes, not the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.engine.running.metrics import GaugeLoop
from lapse.workspaces.model import DOMAIN, Ms, ObservedStatus

if TYPE_CHECKING:
    from lapse.engine.running.metrics import Metrics
    from lapse.workspaces.store.port import WorkspaceStore

INTERVAL_SECONDS: Final = 60.0
"""A count takes a tenth of a second for 100 000 workspaces, beside the event loop."""
_MS_PER_SECOND: Final = 1_000
_EVER: Final = Ms(2**63 - 1)


def count_loop(store: WorkspaceStore, metrics: Metrics) -> GaugeLoop:
    """Return the loop that counts."""

    async def read() -> None:
        metrics.workspaces((await store.count_by_status()).items())
        first = [*await store.standby_candidates(_EVER, limit=1), *await store.archive_candidates(_EVER, limit=1)]
        next_check = min((one.check_after for one in first), default=None)
        metrics.expecting(DOMAIN, None if next_check is None else next_check / _MS_PER_SECOND)

    metrics.workspaces((status, 0) for status in ObservedStatus)
    metrics.expecting(DOMAIN, None)
    return GaugeLoop("workspaces-count", read, domain=DOMAIN, interval=INTERVAL_SECONDS)
