"""Physical cleanup, seen in the server itself: expired records go, and so do their names in the scan index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.engine.running.metrics import Metrics
from lapse.keys.counts import count_loops
from tests.servers import wait_until
from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from lapse.keys.store import AppKeys
    from tests.integration.keys_redis.conftest import Raw, Start
    from tests.servers import Server

BOTH = pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)


def sizes(client: Redis, namespace: str, partition: str = "0000000400000007") -> tuple[int, int]:
    names, ends = (f"{namespace}:{{{partition}}}#{index}" for index in ("names", "ends"))
    return client.zcard(names), client.zcard(ends)


def test_an_abandoned_store_leaves_nothing_but_its_number_of_buckets(start: Start, raw: Raw) -> None:
    with start() as server, lapse.open_keys(f"{server.keys_url()}?buckets=4") as keys:
        client = raw(server)
        keys.app(7).insert_many([(f"key-{number}", "v", 1) for number in range(500)])
        with keys.app(8).lock("name", 1):
            pass
        assert client.dbsize() > 500

        fence = 3  # the number of the lock's last holder stays, and the two indexes that list it
        wait_until(lambda: client.dbsize() == 1 + fence, seconds=20, what="all but the number of buckets to go")


@BOTH
def test_names_of_expired_records_are_pruned_by_later_writes(shared_server: Server, raw: Raw, namespace: str) -> None:
    client = raw(shared_server)
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        app.insert_many([(f"short-{number}", "v", 1) for number in range(150)])
        app.put("long", "v", 900)
        assert sizes(client, namespace) == (151, 151)
        wait_until(lambda: not app.get_many([f"short-{number}" for number in range(150)]))

        for _ in range(10):  # 16 names each
            app.put("long", "v", 900)

        assert sizes(client, namespace) == (1, 1)


@BOTH
def test_names_of_expired_records_are_pruned_by_scans(shared_server: Server, raw: Raw, namespace: str) -> None:
    client = raw(shared_server)
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        app.insert_many([*((f"short-{number}", "v", 1) for number in range(150)), ("long", "v", 900)])
        wait_until(lambda: not app.get_many([f"short-{number}" for number in range(150)]))

        assert [item.key for item in app.scan()] == ["long"]
        assert sizes(client, namespace) == (1, 1)


SHORTEN: list[Callable[[AppKeys], object]] = [
    lambda app: app.delete("long"),
    lambda app: app.compare_and_delete("long", "v"),
    lambda app: app.touch("long", 1),
    lambda app: app.put("long", "w", 1),
    lambda app: app.compare_and_swap("long", "v", "w", 1),
]


@BOTH
def test_the_index_ends_with_its_last_record_when_a_longer_one_was_deleted_or_shortened(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    client = raw(shared_server)
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        for app_id, shorten in enumerate(SHORTEN):
            app, index = keys.app(app_id), f"{namespace}:{{00000004{app_id:08x}}}#names"
            app.insert_many([("long", "v", 31_536_000), ("short", "v", 60)])
            before = client.pttl(index)
            shorten(app)

            assert before > 31_000_000_000
            assert 55_000 < client.pttl(index) <= 61_000


@BOTH
def test_deleted_records_leave_the_index_at_once(shared_server: Server, raw: Raw, namespace: str) -> None:
    client = raw(shared_server)
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        app.insert_many([("a", "v", 900), ("b", "v", 900)])
        app.delete("a")
        app.compare_and_delete("b", "v")

        assert sizes(client, namespace) == (0, 0)
        assert client.keys(f"{namespace}:{{*") == []


@BOTH
def test_a_name_whose_record_was_removed_by_hand_is_skipped(shared_server: Server, raw: Raw, namespace: str) -> None:
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        app.insert_many([(name, "v", 900) for name in "abcdef"])
        raw(shared_server).delete(*(f"{namespace}:{{0000000400000007}}:{name}" for name in "abd"))

        assert [item.key for item in app.scan(limit=2)] == ["c", "e"]
        assert [item.key for item in app.scan(after="e", limit=2)] == ["f"]


@BOTH
async def test_keys_on_a_server_are_not_counted_for_the_metrics(shared_server: Server, namespace: str) -> None:
    metrics = Metrics("test")
    async with lapse.open_keys_async(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        assert count_loops(keys, metrics) == []

    assert b"lapse_keys_stored" not in metrics.exposition()
