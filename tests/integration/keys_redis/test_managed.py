"""Keys on a server in the verbs of every domain: explained and extended by its clock, and not counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.core.address import Address
from lapse.core.clock import SystemClock, UnixNs
from lapse.core.decision import Keep
from lapse.engine.domain import decided
from lapse.keys.managed import ManagedKeys

if TYPE_CHECKING:
    from tests.servers import Server

SECOND = 10**9
ADDRESS = Address("key", "7", "alpha:ABC123")


class SlowClock(SystemClock):
    """A machine's clock that is an hour behind."""

    @staticmethod
    def wall_ns() -> int:
        return SystemClock.wall_ns() - 3600 * SECOND


@pytest.mark.server("redis")
@pytest.mark.parametrize("options", ["", "&cache=100&cache_max_age=1s"])
async def test_a_key_on_a_server_is_explained_and_extended_and_not_counted(
    shared_redis: Server, namespace: str, options: str
) -> None:
    url = f"{shared_redis.url}?namespace={namespace}{options}"
    async with lapse.open_keys_async(url, clock=SlowClock()) as keys:
        app, domain = keys.app(7), ManagedKeys(keys)
        await app.put(ADDRESS.name, "device:XYZ789", 600)
        found = await domain.find(ADDRESS)
        assert found is not None

        said = decided(domain, found, UnixNs(found.state - 1))
        grounds = domain.explain(found, said, UnixNs(found.state - 1))
        assert isinstance(said.verdict, Keep)
        assert grounds.facts == {"clock": "the server's"}

        until = UnixNs(found.state + 60 * SECOND)
        await domain.extend(found, until, by="ann")
        after = await domain.find(ADDRESS)
        assert after is not None
        assert until <= after.state < until + 60 * SECOND, "by the clock of the server, not by ours"
        assert await app.ttl_get(ADDRESS.name) == "device:XYZ789"

        assert await domain.counts(UnixNs(until + 10**15)) is None, "nobody can tell"
