"""The whole conformance kit on DynamoDB, in one bucket and in eight, with four processes racing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.keys.conformance import CaseResult, Kind, Outcome, Target, list_cases, run_conformance
from tests.integration.keys_dynamodb.conftest import init, new_table, url_of

if TYPE_CHECKING:
    from tests.servers import Server

NOT_APPLICABLE = frozenset(
    colour + case
    for colour in ("", "async-")
    for case in (
        # The clock that decides is the real one: the bracketed cases show the instant.
        *("alive-until-the-last-nanosecond", "gone-at-the-instant-of-expiry", "written-between-two-milliseconds"),
        "query-ttl-rounds-up",
        # The server cleans up: test_cleanup looks into the table.
        *("expired-records-are-removed", "sweeps-come-in-slices", "deleted-records-are-removed"),
        # Nobody may make tables just to look at them: the kit runs on eight buckets as well.
        "buckets-are-not-seen",
    )
)


@pytest.fixture(scope="module", params=[1, 8], ids=["in-one-bucket", "in-8-buckets"])
def results(request: pytest.FixtureRequest, shared_dynamodb: Server) -> dict[str, CaseResult]:
    """The kit's results, played once for all tests that look at them.

    A small max_skew is a small bound for lateness: all clients here share a clock.
    """
    url = url_of(shared_dynamodb.url, new_table(), f"buckets={request.param}", "max_skew=100ms", "timeout=20s")
    init(url)
    return {result.case.id: result for result in run_conformance(Target.from_url(url))}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case_id", [case.id for case in list_cases()])
def test_the_rule_holds(case_id: str, results: dict[str, CaseResult]) -> None:
    result = results[case_id]

    wanted = Outcome.NOT_APPLICABLE if case_id in NOT_APPLICABLE else Outcome.HOLDS
    assert result.outcome is wanted, f"{result.case.title}: {result.detail}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_raced(results: dict[str, CaseResult]) -> None:
    racers = "4 processes with 4 threads each"

    assert all(racers in result.detail for result in results.values() if result.case.kind is Kind.RACE)
