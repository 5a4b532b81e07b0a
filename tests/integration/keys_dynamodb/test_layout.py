"""What lies in the table, seen by the driver alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.backends.layout import bucket_of
from tests.integration.keys_dynamodb.conftest import Raw, init, new_table, url_of

if TYPE_CHECKING:
    from lapse.keys.store import Keys
    from tests.servers import Server


def test_a_record_lies_where_the_layout_says_and_as_it_is(keys: Keys, table: str, raw: Raw) -> None:
    before_ms = SystemClock().wall_ns() // 1_000_000
    keys.app(7).put("a\0é", "\0 value ", 60)
    after_ms = SystemClock().wall_ns() // 1_000_000 + 1

    (item,) = raw.items(table)

    assert item["pk"] == {"B": struct.pack(">II", 4, 7)}
    assert item["sk"] == {"B": "a\0é".encode()}
    assert item["val"] == {"B": b"\0 value "}
    assert before_ms + 60_000 <= int(item["expires_ms"]["N"]) <= after_ms + 60_000


def test_the_native_ttl_is_in_seconds_and_later_than_any_clock_that_is_allowed(
    shared_dynamodb: Server, table: str, raw: Raw
) -> None:
    with lapse.open_keys(url_of(shared_dynamodb.url, table, "max_skew=4s")) as keys:
        keys.app(7).put("k", "v", 60)
        keys.app(7).touch("k", 120)

    (item,) = raw.items(table)

    expires = int(item["expires_ms"]["N"]) / 1000
    assert expires + 4 + 1 <= int(item["expires_s"]["N"]) < expires + 4 + 1 + 1


def test_an_empty_value_is_stored(keys: Keys, table: str, raw: Raw) -> None:
    app = keys.app(7)

    assert app.insert_if_not_exists("k", "", 60)

    assert app.ttl_get("k") == ""
    assert raw.items(table)[0]["val"] == {"B": b""}
    assert app.compare_and_swap("k", "", "v", 60)
    assert app.compare_and_swap("k", "v", "", 60)
    assert app.compare_and_delete("k", "")


def test_buckets_spread_the_partition_key(shared_dynamodb: Server, raw: Raw) -> None:
    table = new_table()
    url = url_of(shared_dynamodb.url, table, "buckets=8")
    init(url)
    names = [f"key-{number}" for number in range(40)]
    with lapse.open_keys(url) as keys:
        keys.app(7).insert_many([(name, "v", 60) for name in names])

    found = {item["sk"]["B"].decode(): item["pk"]["B"] for item in raw.items(table)}

    assert found == {name: struct.pack(">IIH", 4, 7, bucket_of(name, 8)) for name in names}
    assert len(set(found.values())) == 8
