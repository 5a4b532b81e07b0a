"""What is particular to Cassandra in the operations; what every backend must do is the conformance kit's."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

import lapse
from lapse.keys.backends.layout import Prefix, partition_keys
from tests.integration.keys_cassandra.conftest import APP_IDS, ShiftedClock, init

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.store import AppKeys, Keys
    from tests.integration.keys_cassandra.conftest import Raw
    from tests.servers import Server


def rows(raw: Raw, keyspace_url: str, app_id: int) -> list[Any]:
    keyspace = keyspace_url.rpartition("/")[2]
    [partition] = partition_keys(Prefix.APPLICATION_TTL, app_id)
    return raw(
        f"SELECT key, value, expires_ms, TTL(value), TTL(expires_ms) FROM {keyspace}.lapse_keys WHERE partition = %s",  # noqa: S608
        partition,
    )


@pytest.fixture
def later(keyspace_url: str, app_id: int) -> Iterator[AppKeys]:
    """The same application, seen by a client whose clock is a little ahead: a record's last moments are over for it."""
    with lapse.open_keys(keyspace_url + "?max_skew=5s", clock=ShiftedClock(1.5)) as keys:
        yield keys.app(app_id)


def test_a_row_lies_where_the_layout_says_and_outlives_its_ttl_by_a_second(
    auth: AppKeys, raw: Raw, keyspace_url: str
) -> None:
    auth.put("schlüssel", "wert", 600)

    [(key, value, expires_ms, *server_ttls)] = rows(raw, keyspace_url, auth.app_id)
    item = auth.get_item("schlüssel")
    assert item is not None
    assert (key, value, expires_ms) == ("schlüssel".encode(), "wert", item.expires_ms)
    assert all(598 <= ttl <= 601 for ttl in server_ttls)


def test_a_record_that_is_over_and_still_there_is_absent_for_every_operation(auth: AppKeys, later: AppKeys) -> None:
    auth.put("k", "v", 1)  # over for `later` at once, and there for the server for more than a second

    assert later.ttl_get("k") is None
    assert later.get_item("k") is None
    assert later.query_ttl("k") is None
    assert later.get_many(["k"]) == {}
    assert later.scan() == []
    assert later.compare_and_swap("k", "v", "w", 5) is False
    assert later.compare_and_delete("k", "v") is False
    assert later.delete("k") is False
    assert later.touch("k", 5) is False


def test_an_insert_takes_the_place_of_a_record_that_is_over_and_still_there(auth: AppKeys, later: AppKeys) -> None:
    auth.put("k", "v", 1)

    assert later.insert_if_not_exists("k", "w", 60) is True
    assert auth.ttl_get("k") == "w"


def test_many_inserts_take_the_places_of_records_that_are_over_and_leave_live_ones(
    auth: AppKeys, later: AppKeys
) -> None:
    auth.insert_many([("over", "v", 1), ("live", "v", 60)])

    inserted = later.insert_many([("over", "w", 60), ("live", "w", 60), ("new", "w", 60), ("new", "x", 60)])

    assert inserted == [True, False, True, False]
    assert auth.get_many(["over", "live", "new"]) == {"over": "w", "live": "v", "new": "w"}


def test_an_insert_is_possible_when_a_long_life_was_swapped_for_a_short_one(auth: AppKeys) -> None:
    auth.insert_if_not_exists("k", "v", 600)
    auth.compare_and_swap("k", "v", "w", 1)
    threading.Event().wait(2.1)  # until the server has removed it as well

    assert auth.insert_if_not_exists("k", "again", 60) is True


def test_a_row_is_gone_for_a_plain_select_when_it_has_expired_or_was_deleted(
    auth: AppKeys, raw: Raw, keyspace_url: str
) -> None:
    auth.insert_many([(f"k{number}", "v", 1) for number in range(10)])
    auth.put("deleted", "v", 600)
    auth.delete("deleted")
    threading.Event().wait(2.1)

    assert rows(raw, keyspace_url, auth.app_id) == []


def test_insert_many_of_large_values_is_cut_into_pieces(auth: AppKeys) -> None:
    items = [(f"k{number}", chr(97 + number) * 65_536, 60) for number in range(12)]

    assert auth.insert_many(items) == [True] * 12
    assert auth.get_many([key for key, _, _ in items]) == {key: value for key, value, _ in items}


async def test_answers_do_not_mix_when_some_inserts_win_and_others_lose(keyspace_url: str, app_id: int) -> None:
    async with lapse.open_keys_async(keyspace_url) as keys:
        auth = keys.app(app_id)
        await auth.insert_many([(f"k{number}", f"first {number}", 60) for number in range(0, 60, 2)])
        won = await asyncio.gather(
            *(auth.insert_if_not_exists(f"k{number}", f"second {number}", 60) for number in range(60))
        )
        values = await asyncio.gather(*(auth.ttl_get(f"k{number}") for number in range(60)))

    assert won == [number % 2 == 1 for number in range(60)]
    assert values == [f"{'second' if number % 2 else 'first'} {number}" for number in range(60)]


async def test_a_touch_renews_whatever_value_others_have_written_meanwhile(keyspace_url: str, app_id: int) -> None:
    async with lapse.open_keys_async(keyspace_url) as keys:
        auth = keys.app(app_id)
        await auth.put("k", "0", 60)

        async def write() -> None:
            for number in range(10):
                await auth.put("k", str(number), 60)

        _, *touched = await asyncio.gather(write(), *(auth.touch("k", 600) for _ in range(5)))

        assert touched == [True] * 5
        assert await auth.ttl_get("k") == "9"


def test_one_store_serves_several_loops_and_threads(keys: Keys, keyspace_url: str, app_id: int) -> None:
    space = keys.backend.async_space(Prefix.APPLICATION_TTL, app_id)

    async def use(number: int) -> object:
        await space.insert(f"k{number}", str(number), 60)  # type: ignore[misc]  # a coroutine, on the async side
        return await space.get(f"k{number}")  # type: ignore[misc]

    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda number=number: found.update({number: asyncio.run(use(number))}))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: str(number) for number in range(4)}


def test_a_scan_over_buckets_is_in_order_and_reads_little_more_than_its_page(shared_cassandra: Server) -> None:
    url = shared_cassandra.keys_url(f"lapse_buckets_{os.getpid()}") + "?buckets=8"
    init(url)
    with lapse.open_keys(url) as keys:
        auth = keys.app(next(APP_IDS))
        names = sorted(f"{number:04}é" for number in range(400))
        auth.insert_many([(name, name, 600) for name in names])
        client = keys.backend.client  # type: ignore[attr-defined]
        read, returned = client.read, []

        async def counting(name: str, values: Any = ()) -> Any:  # noqa: ANN401
            found = await read(name, values)
            returned.append(len(found))
            return found

        client.read = counting
        page = auth.scan(limit=100)
        seen_of_the_page = sum(returned)
        rest = auth.scan(after=page[-1].key, limit=1000)

    assert [item.key for item in page + rest] == names
    assert [item.value for item in page + rest] == names
    assert seen_of_the_page < 200
