"""Election of a leader by any keys store: one candidate for a lease that is kept in two of its records.

Not guaranteed, beyond what `lapse.engine.running.election` does not guarantee: a backend that forgets an acknowledged
write (failover of an asynchronous Redis replica, a Cassandra keyspace with replication factor 1 that loses its node)
may elect a second leader, and fencing numbers may then repeat. The TTL is counted by the store and the deadline by this
machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.engine.running.election import LeaseElection
from lapse.keys.aio import AsyncAppKeys, AsyncKeys
from lapse.keys.backends.layout import Prefix
from lapse.keys.lease import Lease

if TYPE_CHECKING:
    from lapse.core.clock import Clock


class Election(LeaseElection):
    """One candidate for one name."""

    def __init__(self, keys: AsyncKeys, name: str, *, ttl_seconds: int, clock: Clock, app_id: int = 0) -> None:
        """Validate; nothing is touched before `campaign`."""
        space = keys.backend.async_space(Prefix.LEADER_ELECTION, app_id)
        records = AsyncAppKeys(app_id, space, backend=keys.backend, clock=clock)
        lease = Lease(records, name, ttl_seconds=ttl_seconds, clock=clock, ends_orphans=True)
        super().__init__(lease, clock=clock)
