from __future__ import annotations

from lapse.core.decision import DueReason
from lapse.engine.running.metrics import ErrorKind, Metrics


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


def test_a_process_that_has_not_been_elected_does_not_lead() -> None:
    metrics = Metrics("1")
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
