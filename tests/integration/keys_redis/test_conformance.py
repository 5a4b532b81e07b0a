"""The whole conformance kit on Redis and Valkey, plain and behind the cache, with several processes racing."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lapse.keys.conformance import Kind, Outcome, Target, list_cases, run_conformance
from tests.integration.keys_redis.conftest import STARTERS
from tests.integration.keys_redis.test_permissions import allow, listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.keys_redis.conftest import Raw
    from tests.servers import Server

NO_OCCASION = (
    "a server's clock cannot be moved",
    "this takes a new store",  # the whole kit runs in buckets below
    "the server cleans up in its own time",  # test_cleanup looks at it
)


def _plain(server: Server, raw: Raw) -> str:
    return server.keys_url()


def _behind_a_cache(server: Server, raw: Raw) -> str:
    return f"{server.keys_url()}?cache=1000&cache_max_age=200ms"


def _behind_a_cache_in_buckets(server: Server, raw: Raw) -> str:
    return f"{_behind_a_cache(server, raw)}&buckets=8"


def _as_limited_user_in_buckets(server: Server, raw: Raw) -> str:
    allow(raw(server), listed())
    return f"redis://lapse:s3cret@127.0.0.1:{server.port}/0?buckets=8"


STORES: dict[str, tuple[str, dict[str, Any], Callable[[Server, Raw], str]]] = {
    "redis": ("redis", {}, _plain),
    "redis behind a cache": ("redis", {}, _behind_a_cache),
    "redis as a cluster of one node, as a user with the listed permissions, in 8 buckets": (
        "redis",
        {"cluster": True, "requirepass": "of-the-owner"},
        _as_limited_user_in_buckets,
    ),
    "valkey": ("valkey", {}, _plain),
    "valkey behind a cache, in 8 buckets": ("valkey", {}, _behind_a_cache_in_buckets),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "store", [pytest.param(name, marks=pytest.mark.server(kind, private=True)) for name, (kind, *_) in STORES.items()]
)
def test_every_rule_holds(store: str, raw: Raw) -> None:
    kind, options, url = STORES[store]
    with ExitStack() as stack:
        server = stack.enter_context(STARTERS[kind](**options))
        results = list(run_conformance(Target.from_url(url(server, raw))))

    assert {result.case.id: result.detail for result in results if result.outcome is Outcome.VIOLATED} == {}
    skipped = {result.case.id: result.detail for result in results if result.outcome is Outcome.NOT_APPLICABLE}
    assert {name: detail for name, detail in skipped.items() if not detail.startswith(NO_OCCASION)} == {}
    assert {result.case.id for result in results} == {case.id for case in list_cases()}
    races = [result.detail for result in results if result.case.kind is Kind.RACE]
    assert races
    assert all("4 processes with 4 threads each" in detail for detail in races)
