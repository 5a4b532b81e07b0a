from __future__ import annotations

from pathlib import Path

from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import VirtualClock
from lapse.core.decision import DueReason
from lapse.engine.running.coordinator import Coordinator
from lapse.engine.running.election import SoleLeader
from lapse.engine.running.metrics import OTHER, UNMATCHED, ErrorKind, Metrics, UpstreamFailure


def series(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_every_label_stands_at_zero_before_anything_happens() -> None:
    metrics = Metrics("1.2.3")
    metrics.expect_domain("keys", reasons=[DueReason.TTL_EXPIRED])
    metrics.expect_loops({"keys-sweep": 1.0})
    found = series(metrics)

    assert found['lapse_deletions_total{domain="keys",reason="ttl_expired"}'] == 0
    assert found['lapse_expiry_lag_seconds_count{domain="keys"}'] == 0
    assert found['lapse_loop_duration_seconds_count{loop="keys-sweep"}'] == 0
    assert found['lapse_loop_last_success_timestamp_seconds{loop="keys-sweep"}'] == 0
    for kind in ErrorKind:
        assert found[f'lapse_errors_total{{domain="keys",kind="{kind}"}}'] == 0


def test_the_version_is_told() -> None:
    assert any('version="1.2.3"' in name for name in series(Metrics("1.2.3")))


def test_what_happened_is_counted() -> None:
    metrics = Metrics("1")
    metrics.deleted("keys", DueReason.TTL_EXPIRED, count=3, lags=[0.7])
    metrics.deleted("keys", DueReason.TTL_EXPIRED, count=0)
    metrics.failed("keys", ErrorKind.TICK)
    metrics.ticked("keys-sweep", seconds=0.002, succeeded_at=1_700_000_000)
    metrics.ticked("keys-sweep", seconds=0.002, succeeded_at=None)
    found = series(metrics)

    assert found['lapse_deletions_total{domain="keys",reason="ttl_expired"}'] == 3
    assert found['lapse_expiry_lag_seconds_count{domain="keys"}'] == 1
    assert found['lapse_expiry_lag_seconds_bucket{domain="keys",le="0.5"}'] == 0
    assert found['lapse_expiry_lag_seconds_bucket{domain="keys",le="1.0"}'] == 1
    assert found['lapse_errors_total{domain="keys",kind="tick"}'] == 1
    assert found['lapse_loop_duration_seconds_count{loop="keys-sweep"}'] == 2
    assert found['lapse_loop_last_success_timestamp_seconds{loop="keys-sweep"}'] == 1_700_000_000


def test_two_processes_worth_of_metrics_do_not_share_anything() -> None:
    one, other = Metrics("1"), Metrics("1")
    one.failed("keys", ErrorKind.TICK)

    assert 'lapse_errors_total{domain="keys",kind="tick"}' not in series(other)


async def test_a_process_that_has_not_been_elected_does_not_lead_and_one_without_an_election_says_nothing() -> None:
    metrics, clock = Metrics("1"), VirtualClock()
    Coordinator(clock=clock, metrics=metrics)
    assert "lapse_leader" not in series(metrics)

    Coordinator(clock=clock, metrics=metrics, leadership=SoleLeader(clock))
    assert series(metrics)["lapse_leader"] == 0

    metrics.leading(leads=True)
    assert series(metrics)["lapse_leader"] == 1


def test_the_next_expiry_is_zero_when_there_is_none() -> None:
    metrics = Metrics("1")
    name = 'lapse_next_expiry_timestamp_seconds{domain="requests"}'
    metrics.expecting("requests", 1_700_000_000)
    assert series(metrics)[name] == 1_700_000_000

    metrics.expecting("requests", None)
    assert series(metrics)[name] == 0


def test_what_a_person_deletes_has_a_series_in_every_domain_that_decides_item_by_item() -> None:
    metrics = Metrics("1")
    metrics.expect_passes("history", reasons=[DueReason.TTL_EXPIRED])

    assert series(metrics)['lapse_deletions_total{domain="history",reason="deleted_by_person"}'] == 0


def test_no_series_tells_when_a_counter_began() -> None:
    assert not [name for name in series(Metrics("1")) if "_created" in name]


def test_the_process_itself_is_measured_where_there_is_a_proc() -> None:
    found = {name for name in series(Metrics("1")) if name.startswith("process_")}

    memory = {"process_resident_memory_bytes", "process_virtual_memory_bytes"}
    rest = {"process_cpu_seconds_total", "process_max_fds", "process_open_fds", "process_start_time_seconds"}
    assert found == (memory | rest if Path("/proc/self/stat").exists() else set())


def test_a_clock_is_asked_at_each_scrape() -> None:
    metrics, machine = Metrics("1"), VirtualClock()
    assert "lapse_clock_in_doubt" not in series(metrics)
    clock = BelievedClock(machine, limit_seconds=600)
    metrics.watch_clock(clock.in_doubt)
    assert series(metrics)["lapse_clock_in_doubt"] == 0

    machine.jump_wall(600)
    assert series(metrics)["lapse_clock_in_doubt"] == 0
    machine.jump_wall(1)
    assert series(metrics)["lapse_clock_in_doubt"] == 0  # small corrections are followed, one after the other
    machine.jump_wall(601)
    assert series(metrics)["lapse_clock_in_doubt"] == 1

    clock.believe()
    assert series(metrics)["lapse_clock_in_doubt"] == 0


# --- HTTP and the proxy -----------------------------------------------------------------------------------------------

ROUTES = [("GET", "/things/{name}"), ("DELETE", "/things/{name}")]


def test_every_route_and_every_class_of_status_stands_at_zero() -> None:
    metrics = Metrics("1")
    metrics.http(ROUTES)
    found = series(metrics)

    for status in ("2xx", "3xx", "4xx", "5xx"):
        for method, route in [*ROUTES, ("GET", UNMATCHED), (OTHER, UNMATCHED)]:
            labels = f'method="{method}",route="{route}"'
            assert found[f'lapse_http_requests_total{{{labels},status="{status}"}}'] == 0
            assert found[f"lapse_http_request_duration_seconds_count{{{labels}}}"] == 0


def test_whatever_is_asked_for_adds_no_series() -> None:
    metrics = Metrics("1")
    http = metrics.http(ROUTES)
    before = series(metrics).keys()
    for number in range(1_000):
        http.answered(f"METHOD{number}", f"/odd/{number}", 404, seconds=0.001)
        http.answered("PUT", "/things/{name}", 405, seconds=0.001)

    found = series(metrics)
    assert found.keys() == before
    assert found[f'lapse_http_requests_total{{method="{OTHER}",route="{UNMATCHED}",status="4xx"}}'] == 1_000
    assert found[f'lapse_http_requests_total{{method="PUT",route="{UNMATCHED}",status="4xx"}}'] == 1_000


def test_answers_of_the_proxy_are_counted_by_class_and_odd_ones_as_failures() -> None:
    metrics = Metrics("1")
    assert "lapse_proxy_websockets" not in series(metrics)
    for status in (101, 200, 204, 304, 404, 502, 999):
        metrics.proxy.answered(status)
    for failure in UpstreamFailure:
        metrics.proxy.failed(failure)
    found = series(metrics)

    expected = {"1xx": 1, "2xx": 2, "3xx": 1, "4xx": 1, "5xx": 2}
    assert {status: found[f'lapse_proxy_requests_total{{status="{status}"}}'] for status in expected} == expected
    assert {found[f'lapse_proxy_upstream_failures_total{{reason="{one}"}}'] for one in UpstreamFailure} == {1}
    assert found["lapse_proxy_websockets"] == 0
