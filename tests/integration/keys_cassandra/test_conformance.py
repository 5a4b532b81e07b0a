"""The whole conformance kit on Cassandra: plain, in buckets, and behind the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import Kind, Outcome, Target, run_conformance
from tests.integration.keys_cassandra.conftest import init

if TYPE_CHECKING:
    from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NO_OCCASION = (
    "a server's clock cannot be moved",
    "the server cleans up in its own time",
    "this takes a new store",  # the run in buckets shows it
)
"""Why a case may not apply."""


@pytest.mark.parametrize("options", ["buckets=1", "buckets=8", "cache=1000&cache_max_age=200ms"])
def test_every_rule_holds(shared_cassandra: Server, options: str) -> None:
    buckets = "buckets=8" if "buckets=8" in options else "buckets=1"
    url = shared_cassandra.keys_url(f"lapse_kit_{os.getpid()}_{buckets[-1]}")
    init(f"{url}?{buckets}&gc_grace=0s")

    results = list(run_conformance(Target.from_url(f"{url}?{options}")))

    assert [result for result in results if result.outcome is Outcome.VIOLATED] == []
    not_applicable = [result for result in results if result.outcome is Outcome.NOT_APPLICABLE]
    assert [result for result in not_applicable if not result.detail.startswith(NO_OCCASION)] == []
    races = [result.detail for result in results if result.case.kind is Kind.RACE]
    assert races
    assert all("4 processes with 4 threads each" in detail for detail in races)
