"""One HTTP request per operation, counted on the way to the real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import lapse
from tests.integration.keys_dynamodb.conftest import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.store import AppKeys
    from tests.servers import Relay

Operation = Callable[["AppKeys"], object]

ONE: dict[str, tuple[Operation, object]] = {
    "ttl_get of a live key": (lambda app: app.ttl_get("k"), "v"),
    "ttl_get of an absent key": (lambda app: app.ttl_get("none"), None),
    "insert that wins": (lambda app: app.insert_if_not_exists("new", "v", 600), True),
    "insert that loses": (lambda app: app.insert_if_not_exists("k", "v", 600), False),
    "put": (lambda app: app.put("k", "v", 600), None),
    "swap that wins": (lambda app: app.compare_and_swap("k", "v", "w", 600), True),
    "swap that loses": (lambda app: app.compare_and_swap("k", "other", "w", 600), False),
    "compare_and_delete that wins": (lambda app: app.compare_and_delete("k", "v"), True),
    "compare_and_delete that loses": (lambda app: app.compare_and_delete("k", "other"), False),
    "delete of a live key": (lambda app: app.delete("k"), True),
    "delete of an absent key": (lambda app: app.delete("none"), False),
    "touch of a live key": (lambda app: app.touch("k", 600), True),
    "touch of an absent key": (lambda app: app.touch("none", 600), False),
    "query_ttl of an absent key": (lambda app: app.query_ttl("none"), None),
    "get_many of 100": (lambda app: app.get_many(f"{number}" for number in range(100)), {}),
    "scan": (lambda app: len(app.scan()), 1),
}


@pytest.fixture
def app(relay: Relay, table: str) -> Iterator[AppKeys]:
    with lapse.open_keys(url_of(f"http://{relay.host}:{relay.port}", table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        yield app


@pytest.mark.parametrize("name", ONE)
def test_an_operation_is_one_request(name: str, app: AppKeys, relay: Relay) -> None:
    operation, answer = ONE[name]
    before = relay.counts.requests

    assert operation(app) == answer

    assert relay.counts.requests - before == 1


def test_opening_is_one_request(relay: Relay, table: str) -> None:
    lapse.open_keys(url_of(f"http://{relay.host}:{relay.port}", table)).close()

    assert relay.counts.requests == 1


def test_insert_many_is_one_request_per_item(app: AppKeys, relay: Relay) -> None:
    before = relay.counts.requests

    assert app.insert_many([(f"item-{number}", "v", 600) for number in range(70)]) == [True] * 70

    assert relay.counts.requests - before == 70


def test_connections_are_kept(app: AppKeys, relay: Relay) -> None:
    before = relay.counts.connections

    for number in range(10):
        app.put(f"{number}", "v", 600)

    assert relay.counts.connections == before
