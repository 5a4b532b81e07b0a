"""What stands in the server: plain values under cluster-safe names, with the server's own expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.crc import key_slot

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.errors import BackendMisfitError
from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from tests.integration.keys_redis.conftest import Raw
    from tests.servers import Server

pytestmark = pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)

ODD = "nul \0, brace }{, line \n, é, \U0001f511"


def test_the_raw_value_is_the_value_and_its_expiry_is_the_servers(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        app.insert_if_not_exists(ODD, "válue", 900)
        item = app.get_item(ODD)

    record = f"{namespace}:{{0000000400000007}}:{ODD}"
    assert item is not None
    assert raw(shared_server).get(record) == "válue".encode()
    assert raw(shared_server).pexpiretime(record) == item.expires_ms


def test_all_keys_of_a_partition_are_in_one_slot_of_a_cluster(shared_server: Server, raw: Raw, namespace: str) -> None:
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        keys.app(7).insert_many([(name, "v", 900) for name in ("a", "}{", "{x}", ODD)])

    stored: list[Any] = raw(shared_server).keys(f"{namespace}:{{*")
    assert len(stored) == 6  # four records, the names in order, and the names by expiry
    assert len({key_slot(name) for name in stored}) == 1


def test_the_number_of_buckets_is_recorded_when_a_store_is_first_opened(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    url = f"{shared_server.keys_url()}?namespace={namespace}"
    with lapse.open_keys(f"{url}&buckets=8") as keys:
        keys.app(7).put("k", "v", 900)

    assert raw(shared_server).get(f"{namespace}:buckets") == b"8"
    with pytest.raises(BackendMisfitError, match=r"made with buckets=8 and is opened with buckets=1; .*\?buckets=8"):
        lapse.open_keys(url)
    with lapse.open_keys(f"{url}&buckets=8") as keys:
        assert keys.app(7).ttl_get("k") == "v"


def test_a_clients_clock_that_is_five_minutes_off_does_not_matter(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    seconds, microseconds = raw(shared_server).time()
    url = f"{shared_server.keys_url()}?namespace={namespace}"
    for minutes in (-5, 5):
        clock = VirtualClock((seconds + 60 * minutes) * 1_000_000_000)
        with lapse.open_keys(url, clock=clock) as keys:
            app = keys.app(7)
            app.put("k", "v", 60)
            item = app.get_item("k")
            assert item is not None
            assert 0 < item.expires_ms - (seconds * 1000 + microseconds // 1000) - 60_000 < 30_000
            assert app.query_ttl("k") == pytest.approx(60, abs=30)
            assert [found.key for found in app.scan()] == ["k"]


def test_what_somebody_else_wrote_under_the_namespace_is_a_misfit(
    shared_server: Server, raw: Raw, namespace: str
) -> None:
    with lapse.open_keys(f"{shared_server.keys_url()}?namespace={namespace}") as keys:
        app = keys.app(7)
        raw(shared_server).set(f"{namespace}:{{0000000400000007}}:binary", b"\xff", ex=60)
        raw(shared_server).lpush(f"{namespace}:{{0000000400000007}}:list", "x")
        for name in ("binary", "list"):
            with pytest.raises(BackendMisfitError, match=r"namespace"):
                app.ttl_get(name)
