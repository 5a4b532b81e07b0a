"""The whole conformance kit on DynamoDB: plain, in buckets, and behind the cache, with four processes racing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import Kind, Outcome, Target, list_cases, run_conformance
from tests.integration.keys_dynamodb.conftest import init, new_table, url_of

if TYPE_CHECKING:
    from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NO_OCCASION = {
    *("alive-until-the-last-nanosecond", "async-alive-until-the-last-nanosecond"),
    *("gone-at-the-instant-of-expiry", "async-gone-at-the-instant-of-expiry"),
    *("written-between-two-milliseconds", "async-written-between-two-milliseconds"),
    *("query-ttl-is-never-zero-nor-more-than-the-ttl", "async-query-ttl-is-never-zero-nor-more-than-the-ttl"),
    *("expired-records-are-removed", "sweeps-come-in-slices", "deleted-records-are-removed"),
    "buckets-are-not-seen",  # takes a new store; the run in buckets shows it
}
"""Cases for clocks that can be moved, and for cleanup that can be called: test_clock and test_cleanup look at those."""


@pytest.mark.parametrize("options", ["buckets=1", "buckets=8", "cache=1000&cache_max_age=200ms"])
def test_every_rule_holds(shared_dynamodb: Server, options: str) -> None:
    # A small max_skew is a small bound for lateness: all clients here share a clock. The patience is for busy machines.
    url = url_of(shared_dynamodb.url, new_table(), options, "max_skew=100ms", "timeout=20s")
    init(url)

    results = list(run_conformance(Target.from_url(url)))

    assert {result.case.id: result.detail for result in results if result.outcome is Outcome.VIOLATED} == {}
    unclear = {result.case.id: result.detail for result in results if result.outcome is Outcome.NOT_APPLICABLE}
    assert {case: detail for case, detail in unclear.items() if case not in NO_OCCASION} == {}
    assert {result.case.id for result in results} == {case.id for case in list_cases()}
    races = [result.detail for result in results if result.case.kind is Kind.RACE]
    assert races
    assert all("4 processes with 4 threads each" in detail for detail in races)
