"""What the benchmark says when something is missing: it must not look like a claim that holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import claims, page, servers
from tests.servers import Server, ServerMissingError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pytest


def nowhere() -> AbstractContextManager[Server]:
    """A server that cannot be had."""
    raise ServerMissingError("redis", "there is no registry")


def outcome() -> servers.Outcome:
    part = servers.Part("Redis", nowhere, Server.keys_url, raw="bench.keys_redis:Driver", raw_url=Server.keys_url)
    return servers.run(part, servers.Plan(rounds=1, operations=2, warm_up=1, many_calls=1))


def test_a_server_that_cannot_be_had_is_told_on_screen_and_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    results = {"redis": outcome()}

    assert "Redis is NOT measured: redis cannot be had here: there is no registry" in capsys.readouterr().out
    assert "**Redis was not measured**: redis cannot be had here: there is no registry." in page.servers_ratios(results)
    assert "No server could be had." in page.servers_figures(results)


def test_a_claim_that_was_not_measured_neither_holds_nor_fails() -> None:
    checked = claims.of_servers({"redis": outcome()})

    assert [(claim.verdict, claim.failing) for claim in checked] == [("not measured", [])] * 2


def test_a_claim_holds_only_if_it_holds_in_every_case() -> None:
    claim = claims.Claim("redis: against the plain driver", ">=", 0.9, {"get": 1.2, "swap": 0.89})

    assert claim.verdict == "no (swap)"


def test_a_ratio_is_the_median_of_the_rounds_so_one_busy_moment_does_not_count() -> None:
    duel = servers.duel([100, 10, 100, 110, 90], [100, 100, 100, 100, 100])

    assert (duel.ours, duel.raw, duel.ratio) == (100, 100, 1.0)
    assert duel.middle == (0.9, 1.0)
