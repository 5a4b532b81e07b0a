"""One command and one round trip per operation, by the server's own counters and by those of a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lapse
from tests.servers import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from lapse.keys.store import AppKeys
    from tests.integration.keys_redis.conftest import Raw, Start

HUNDRED = [f"key-{number}" for number in range(100)]

OPERATIONS: dict[str, tuple[str, Callable[[AppKeys], Any]]] = {
    # operation: the command that the client sends, and how it is called
    "ttl_get": ("get", lambda app: app.ttl_get("k")),
    "get_item": ("evalsha", lambda app: app.get_item("k")),
    "query_ttl": ("pttl", lambda app: app.query_ttl("k")),
    "insert_if_not_exists": ("evalsha", lambda app: app.insert_if_not_exists("new", "v", 60)),
    "put": ("evalsha", lambda app: app.put("k", "v", 60)),
    "compare_and_swap": ("evalsha", lambda app: app.compare_and_swap("k", "v", "v", 60)),
    "touch": ("evalsha", lambda app: app.touch("k", 60)),
    "compare_and_delete": ("evalsha", lambda app: app.compare_and_delete("k", "v")),
    "delete": ("evalsha", lambda app: app.delete("new")),
    "insert_many": ("evalsha", lambda app: app.insert_many([(key, "v", 60) for key in HUNDRED])),
    "get_many": ("mget", lambda app: app.get_many(HUNDRED)),
    "scan": ("evalsha", lambda app: app.scan()),
}


def calls(client: Redis) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()}


def test_each_operation_is_one_command_and_one_round_trip(start: Start, raw: Raw) -> None:
    with start() as server, Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        app, client = keys.app(7), raw(server)
        app.put("k", "v", 60)
        for name, (_, call) in OPERATIONS.items():  # once before, so that the server knows the scripts
            call(app)
            if name == "compare_and_delete":
                app.put("k", "v", 60)
        for name, (command, call) in OPERATIONS.items():
            before, turns = calls(client), relay.counts.requests
            call(app)
            after = calls(client)

            seen = {other: after[other] - before.get(other, 0) for other in after}
            # What scripts do inside counts as well, but no script sends these.
            outside = {other: seen.get(other, 0) for other in ("evalsha", "eval", "mget", "pttl", "select", "hello")}
            assert outside == {other: int(other == command) for other in outside}, name
            if command == "get":
                assert seen["get"] == 1
            assert relay.counts.requests - turns == 1, name


def test_with_buckets_many_keys_are_still_one_round_trip_with_one_command_per_partition(start: Start, raw: Raw) -> None:
    with (
        start() as server,
        Relay(server.port) as relay,
        lapse.open_keys(f"{server.keys_url(port=relay.port)}?buckets=8") as keys,
    ):
        app, client = keys.app(7), raw(server)
        app.insert_many([("warm", "v", 60)])
        app.scan()
        for command, call in (
            ("evalsha", lambda: app.insert_many([(key, "v", 60) for key in HUNDRED])),
            ("mget", lambda: app.get_many(HUNDRED)),
            ("evalsha", lambda: app.scan(limit=50)),
        ):
            before, turns = calls(client).get(command, 0), relay.counts.requests
            assert len(call()) >= 50
            assert calls(client)[command] - before == 8
            assert relay.counts.requests - turns == 1


def test_a_page_larger_than_a_megabyte_comes_in_several_round_trips(start: Start) -> None:
    with start() as server, Relay(server.port) as relay, lapse.open_keys(server.keys_url(port=relay.port)) as keys:
        app = keys.app(7)
        names = [f"key-{number:02}" for number in range(50)]
        app.insert_many([(name, "x" * 65_536, 60) for name in names])
        turns = relay.counts.requests

        assert [item.key for item in app.scan()] == names
        assert 3 <= relay.counts.requests - turns <= 4


def test_large_requests_are_cut_so_that_no_command_keeps_the_server_from_others_for_long(
    start: Start, raw: Raw
) -> None:
    names = [f"key-{number:05}" for number in range(10_000)]
    with start() as server, lapse.open_keys(server.keys_url()) as keys:
        app, client = keys.app(7), raw(server)
        app.scan()
        before = calls(client)
        assert all(app.insert_many([(name, "v", 900) for name in names]))
        written = calls(client)
        assert [item.key for item in app.scan(limit=10_000)] == names
        scanned = calls(client)
        assert len(app.get_many(names)) == len(names)

        # By numbers, not by the clock: 100 inserts, 1000 records or 256 reads take the server a millisecond or two.
        sent = [counts["evalsha"] + counts["eval"] for counts in (before, written, scanned)]
        assert sent[1] - sent[0] >= len(names) / 100
        assert sent[2] - sent[1] >= len(names) / 1000
        assert calls(client)["mget"] >= len(names) / 256
