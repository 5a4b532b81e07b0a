"""The whole conformance kit on every real server: plain, in buckets, and behind the cache, with processes racing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from lapse.core.clock import SystemClock
from lapse.keys.conformance import CaseKind, CaseOutcome, CaseResult, StoreTarget, list_cases, run_conformance
from lapse.keys.conformance.fixture import with_option
from lapse.keys.url import init_store

if TYPE_CHECKING:
    from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NO_OCCASION = frozenset(
    {
        # a server's clock cannot be moved
        *("alive-until-the-last-nanosecond", "async-alive-until-the-last-nanosecond"),
        *("gone-at-the-instant-of-expiry", "async-gone-at-the-instant-of-expiry"),
        *("written-between-two-milliseconds", "async-written-between-two-milliseconds"),
        "query-ttl-is-never-zero-nor-more-than-the-ttl",
        "async-query-ttl-is-never-zero-nor-more-than-the-ttl",
        # the server cleans up in its own time; the tests of each backend look at that from inside
        *("expired-records-are-removed", "sweeps-come-in-slices", "deleted-records-are-removed"),
        # no server has an order by expiry that could be asked for
        *("expiring-is-counted-to-the-instant", "expired-records-are-not-counted", "deleted-records-are-not-counted"),
        *("renewed-records-are-counted-once-at-their-new-expiry", "expiries-near-and-far-are-counted"),
        "expiring-is-counted-apart-between-edges",
        "counting-changes-nothing",
        "buckets-are-not-seen",  # takes a new store; the run in buckets shows it
    }
)


class Store(NamedTuple):
    """A store of its own on a shared server."""

    server: str
    options: dict[str, object]

    @property
    def name(self) -> str:
        return "-".join((self.server, *(f"{name}={value}" for name, value in self.options.items())))


BUCKETS: dict[str, object] = {"buckets": 8}
FEW_BUCKETS: dict[str, object] = {"buckets": 3}
"""For servers that take their time: a scan asks each bucket, and the kit scans thousands of times."""
CACHE: dict[str, object] = {"cache": 1000, "cache_max_age": "200ms"}
SKEW: dict[str, object] = {"max_skew": "100ms"}
"""Clients of one machine can be held to a small skew, which makes the kit quick."""
STORES = [
    Store("redis", {}),
    Store("redis", CACHE),
    Store("valkey", {}),
    Store("valkey", BUCKETS | CACHE),
    Store("cassandra", {}),
    Store("cassandra", FEW_BUCKETS | CACHE),
    Store("dynamodb", SKEW),
    Store("dynamodb", SKEW | FEW_BUCKETS | CACHE),
]


# The rules are what is tested here, not how quickly a machine that does other things as well can answer.
PATIENCE: dict[str, object] = {"timeout": "20s", "connect_timeout": "20s"}


def space(store: Store) -> str:
    """Name a database, keyspace or table of its own."""
    number = 1 + STORES.index(store)
    return str(number) if store.server in {"redis", "valkey"} else f"lapse_kit_{number}"


def results_of(target: StoreTarget) -> dict[str, CaseResult]:
    """Run the kit; what a busy machine left without a clear answer is run once more, and must be clear then."""
    results = {result.case.id: result for result in run_conformance(target)}
    if again := unclear(results):
        results |= {result.case.id: result for result in run_conformance(target, only=again)}
    return results


def unclear(results: dict[str, CaseResult]) -> list[str]:
    skipped = [case for case, result in results.items() if result.outcome is CaseOutcome.NOT_APPLICABLE]
    return [case for case in skipped if case not in NO_OCCASION]


@pytest.mark.parametrize(
    ("store", "shared_server"),
    [pytest.param(store, store.server, marks=pytest.mark.server(store.server), id=store.name) for store in STORES],
    indirect=["shared_server"],
)
def test_every_rule_holds(store: Store, shared_server: Server) -> None:
    url = shared_server.keys_url(space(store))
    for name, value in {**PATIENCE, **store.options}.items():
        url = with_option(url, name, value)
    init_store(url, SystemClock())

    results = results_of(StoreTarget.from_url(url))

    assert {case: result.detail for case, result in results.items() if result.outcome is CaseOutcome.VIOLATED} == {}
    assert {case: results[case].detail for case in unclear(results)} == {}
    assert set(results) == {case.id for case in list_cases()}
    races = [result.detail for result in results.values() if result.case.kind is CaseKind.RACE]
    assert races
    assert all("4 processes with 4 threads each" in detail for detail in races)
