"""The whole conformance kit with nothing but the listed permissions, on a cluster of one node, in buckets.

The other stores of the kit on servers are in ``tests/conformance/keys``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import CaseOutcome, StoreTarget
from tests.conformance.keys.test_kit_on_servers import results_of, unclear
from tests.integration.keys_redis.test_permissions import allow, listed
from tests.servers import redis_server

if TYPE_CHECKING:
    from tests.integration.keys_redis.conftest import Raw


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.server("redis", private=True)
def test_every_rule_holds_with_the_listed_permissions_on_a_cluster_node(raw: Raw) -> None:
    with redis_server(cluster=True, requirepass="of-the-owner") as server:
        allow(raw(server), listed())
        results = results_of(StoreTarget.from_url(f"redis://lapse:s3cret@127.0.0.1:{server.port}/0?buckets=8"))

    assert {case: result.detail for case, result in results.items() if result.outcome is CaseOutcome.VIOLATED} == {}
    assert unclear(results) == []
