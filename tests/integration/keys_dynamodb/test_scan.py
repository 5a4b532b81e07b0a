"""Scans: bounds at the limit of a sort key, large pages, and deserts of expired items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.core.clock import SystemClock
from tests.integration.keys_dynamodb.conftest import Raw, init, new_table, url_of

if TYPE_CHECKING:
    from lapse.keys.store import AppKeys, Keys
    from tests.integration.keys_dynamodb.injector import Injector
    from tests.servers import Server

LONGEST = "k" * 1024


def pages(app: AppKeys, prefix: str, limit: int) -> list[str]:
    found: list[str] = []
    while page := app.scan(prefix, found[-1] if found else None, limit):
        found += [item.key for item in page]
        if len(page) < limit:
            break
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_go_on_after_a_key_of_1024_bytes(keys: Keys, limit: int) -> None:
    app = keys.app(7)
    names = sorted(["a", "k" * 1023, LONGEST, "k" * 1023 + "l", "k" * 1022 + "é", "l", "z"], key=str.encode)
    app.insert_many([(name, "v", 600) for name in names])

    assert pages(app, "", limit) == names


def test_a_key_of_1024_bytes_is_not_seen_after_itself(keys: Keys) -> None:
    app = keys.app(7)
    app.put(LONGEST, "v", 600)

    assert [item.key for item in app.scan()] == [LONGEST]
    assert [item.key for item in app.scan(LONGEST)] == [LONGEST]
    assert app.scan(after=LONGEST) == []
    assert app.scan(LONGEST, after=LONGEST) == []


@pytest.mark.parametrize("last", ["\x7f", "\u07ff", "\uffff", "\U0010ffff"])
def test_a_prefix_whose_right_bound_is_longer_than_a_sort_key(keys: Keys, last: str) -> None:
    app = keys.app(7)
    prefix = "p" * (1024 - len(last.encode())) + last
    beyond = "p" * (1024 - len(last.encode()) - 1) + "q"
    app.insert_many([(name, "v", 600) for name in (prefix, beyond, "p")])

    assert [item.key for item in app.scan(prefix)] == [prefix]


def test_more_than_a_megabyte_is_scanned_in_one_call(keys: Keys, injector: Injector) -> None:
    app = keys.app(7)
    names = [f"{number:02}" for number in range(40)]
    app.insert_many([(name, "x" * 65_536, 600) for name in names])

    assert [item.key for item in app.scan()] == names


def expired_items(table: str, names: list[str]) -> list[dict[str, object]]:
    """Records that are over, and that the server's cleanup will not take away while a test looks."""
    now = SystemClock().wall_ns() // 1_000_000_000
    return [
        {
            "pk": {"B": b"\0\0\0\4\0\0\0\7"},
            "sk": {"B": name.encode()},
            "val": {"B": b"dead"},
            "expires_ms": {"N": str((now - 1) * 1000)},
            "expires_s": {"N": str(now + 3600)},
        }
        for name in names
    ]


def test_a_page_is_full_of_live_records_however_many_have_expired(
    shared_dynamodb: Server, table: str, raw: Raw, injector: Injector
) -> None:
    dead = expired_items(table, [f"dead-{number:03}" for number in range(300)])
    for at in range(0, len(dead), 25):
        requests = [{"PutRequest": {"Item": item}} for item in dead[at : at + 25]]
        raw.call("batch_write_item", RequestItems={table: requests})
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        app = keys.app(7)
        app.insert_many([("a", "v", 600), ("b", "v", 600), ("x", "v", 600), ("y", "v", 600)])
        injector.forget()

        assert [item.key for item in app.scan(limit=3)] == ["a", "b", "x"]

        assert injector.requests["Query"] <= 10  # not one for each item that is over
        assert app.get_many(["a", "dead-000", "y"]) == {"a": "v", "y": "v"}


def test_a_scan_of_one_page_is_one_request_per_bucket(shared_dynamodb: Server, injector: Injector) -> None:
    url = url_of(injector.endpoint, new_table(), "buckets=8")
    init(url)
    names = [f"{number:03}" for number in range(200)]
    with lapse.open_keys(url) as keys:
        app = keys.app(7)
        app.insert_many([(name, "v", 600) for name in names])
        injector.forget()

        assert [item.key for item in app.scan(limit=100)] == names[:100]

        assert injector.requests == {"Query": 8}
