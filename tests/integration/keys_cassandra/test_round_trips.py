"""Round trips, counted by a relay that reads the protocol between the driver and the server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from cassandra.cluster import Cluster

import lapse
from lapse.keys.backends.cassandra import driver
from tests.integration.keys_cassandra.conftest import APP_IDS, ShiftedClock
from tests.servers import Relay, Server
from tests.servers.relay import CassandraFrames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lapse.keys.store import AppKeys


class Counted:
    """An application behind a relay."""

    def __init__(self, relay: Relay, keys: AppKeys) -> None:
        self._relay = relay
        self._keys = keys

    def trips(self, work: Callable[[AppKeys], object]) -> tuple[object, int]:
        """The answer, and how many requests it took."""
        before = self._requests()
        answer = work(self._keys)
        return answer, self._requests() - before

    def _requests(self) -> int:
        by_name = self._relay.counts.by_name
        return sum(by_name.get(name, 0) for name in ("EXECUTE", "BATCH", "QUERY", "PREPARE"))


@pytest.fixture
def relayed(
    shared_cassandra: Server, keyspace_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Counted]]:
    # Version 5 wraps requests into checked segments; the relay reads those of version 4.
    monkeypatch.setattr(driver, "Cluster", partial(Cluster, protocol_version=4))
    with Relay(shared_cassandra.port, reader=CassandraFrames) as relay:
        url = keyspace_url.replace(f":{shared_cassandra.port}/", f":{relay.port}/") + "?max_skew=5s"
        opened = []

        def open_with_clock(clock: ShiftedClock | None = None) -> Counted:
            keys = lapse.open_keys(url, clock=clock)
            opened.append(keys)
            return Counted(relay, keys.app(next(APP_IDS)))

        yield open_with_clock
        for keys in opened:
            keys.close()


OPERATIONS: dict[str, tuple[Callable[[AppKeys], object], object, int]] = {
    "insert": (lambda keys: keys.insert_if_not_exists("new", "v", 60), True, 1),
    "a refused insert": (lambda keys: keys.insert_if_not_exists("k", "w", 60), False, 1),
    "ttl_get": (lambda keys: keys.ttl_get("k"), "v", 1),
    "ttl_get of nothing": (lambda keys: keys.ttl_get("none"), None, 1),
    "compare_and_swap": (lambda keys: keys.compare_and_swap("k", "v", "v", 60), True, 1),
    "a refused compare_and_swap": (lambda keys: keys.compare_and_swap("k", "x", "w", 60), False, 1),
    "a refused compare_and_delete": (lambda keys: keys.compare_and_delete("k", "x"), False, 1),
    "compare_and_delete": (lambda keys: keys.compare_and_delete("other", "v"), True, 1),
    "put": (lambda keys: keys.put("k", "v", 60), None, 1),
    "delete": (lambda keys: keys.delete("third"), True, 1),
    "touch": (lambda keys: keys.touch("k", 60), True, 2),
    "scan": (lambda keys: [item.key for item in keys.scan(limit=2)], ["k", "new"], 1),
    "get_many of 100": (lambda keys: keys.get_many(["k", *map(str, range(99))]), {"k": "v"}, 1),
    "insert_many of 50": (lambda keys: keys.insert_many([(str(n), "v", 60) for n in range(50)]), [True] * 50, 1),
    "insert_many with one in the way": (
        lambda keys: keys.insert_many([(f"again {n}" if n else "k", "v", 60) for n in range(50)]),
        [False] + [True] * 49,
        2,
    ),
}


def test_each_operation_is_one_round_trip_and_touch_is_two(relayed: Callable[..., Counted]) -> None:
    counted = relayed()
    counted.trips(lambda keys: keys.insert_many([(name, "v", 60) for name in ("k", "other", "third")]))

    seen = {name: counted.trips(work) for name, (work, _, _) in OPERATIONS.items()}

    assert seen == {name: (answer, trips) for name, (_, answer, trips) in OPERATIONS.items()}


def test_an_insert_takes_a_second_round_trip_only_in_the_second_after_an_expiry(
    relayed: Callable[..., Counted],
) -> None:
    clock = ShiftedClock()
    counted = relayed(clock)
    counted.trips(lambda keys: keys.put("k", "v", 1))
    clock.ahead_ns = 1_100_000_000  # over by this clock, and kept by the server for another second

    in_the_overlap = counted.trips(lambda keys: keys.insert_if_not_exists("k", "w", 60))
    when_live = counted.trips(lambda keys: keys.insert_if_not_exists("k", "x", 60))

    assert in_the_overlap == (True, 2)
    assert when_live == (False, 1)
