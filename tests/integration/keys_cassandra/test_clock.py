"""The client's clock decides about expiry, so a wrong one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.backends.cassandra.backend import MEASURE_EVERY_NS
from lapse.keys.errors import BackendUnavailableError
from tests.integration.keys_cassandra.conftest import ShiftedClock
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys

FIVE_MINUTES = 300


def test_a_clock_five_minutes_ahead_is_refused_and_buries_nothing(auth: AppKeys, keyspace_url: str) -> None:
    auth.put("k", "v", 60)

    with pytest.raises(
        BackendUnavailableError, match=r"the clock of this machine is (300|299)\.\d s ahead of the server's"
    ):
        lapse.open_keys(keyspace_url, clock=ShiftedClock(FIVE_MINUTES))
    assert auth.ttl_get("k") == "v"


def test_a_clock_five_minutes_behind_is_refused(keyspace_url: str) -> None:
    with pytest.raises(
        BackendUnavailableError, match=r"(300|299)\.\d s behind the server's, and max_skew allows 0.5 s"
    ):
        lapse.open_keys(keyspace_url, clock=ShiftedClock(-FIVE_MINUTES))


def test_a_clock_that_jumps_while_a_store_is_open_is_refused_until_it_is_right_again(
    auth: AppKeys, keyspace_url: str, app_id: int
) -> None:
    auth.put("live", "v", 60)
    clock = ShiftedClock()
    with lapse.open_keys(keyspace_url, clock=clock) as keys:
        jumpy = keys.app(app_id)
        assert jumpy.ttl_get("live") == "v"

        clock.ahead_ns = FIVE_MINUTES * 1_000_000_000
        refused: list[Callable[[], object]] = [
            lambda: jumpy.ttl_get("live"),
            lambda: jumpy.insert_if_not_exists("new", "v", 60),
            lambda: jumpy.put("live", "w", 60),
            lambda: jumpy.compare_and_swap("live", "v", "w", 60),
            lambda: jumpy.delete("live"),
            lambda: jumpy.insert_many([("new", "v", 60)]),
            jumpy.scan,
        ]
        for operation in refused:
            with pytest.raises(BackendUnavailableError, match="s ahead of the server's"):
                operation()
        assert [item.key for item in auth.scan()] == ["live"]

        clock.ahead_ns = 0
        assert jumpy.ttl_get("live") == "v"


def test_a_clock_that_creeps_away_is_found_by_the_next_measurement(keyspace_url: str, app_id: int) -> None:
    clock = ShiftedClock()
    with lapse.open_keys(keyspace_url, clock=clock) as keys:
        creeping = keys.app(app_id)
        creeping.put("k", "v", 600)
        # Both clocks have run too fast, which no comparison of the two can show.
        clock.ahead_ns = clock.monotonic_ahead_ns = MEASURE_EVERY_NS

        assert creeping.ttl_get("k") == "v"  # starts the measurement, and does not wait for it
        watch = keys.backend.watch  # type: ignore[attr-defined]
        wait_until(lambda: watch.refusal is not None, what="the refusal")

        with pytest.raises(BackendUnavailableError, match=r"(30|29)\.\d s ahead"):
            creeping.ttl_get("k")


def test_a_wider_bound_admits_a_wrong_clock(keyspace_url: str, app_id: int) -> None:
    with lapse.open_keys(keyspace_url + "?max_skew=5s", clock=ShiftedClock(3)) as keys:
        assert keys.app(app_id).insert_if_not_exists("k", "v", 60) is True
        assert keys.backend.capabilities.late_by_seconds == 10
