"""Physical cleanup, seen in the table itself.

DynamoDB Local takes seconds for it, and minutes when it has many tables, hence a server of our own; AWS takes hours to
days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import lapse
from tests.integration.keys_dynamodb.conftest import Raw, init, new_table, url_of
from tests.servers import Server, dynamodb_server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lapse.keys.store import AppKeys, Keys


@pytest.fixture
def private_server() -> Iterator[Server]:
    with dynamodb_server() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.server("dynamodb", private=True)
def test_the_server_removes_what_is_over_and_leaves_what_was_renewed(private_server: Server) -> None:
    table = new_table()
    url = url_of(private_server.url, table)
    init(url)
    with Raw(private_server.url) as raw, lapse.open_keys(url) as keys:
        watch_the_cleanup(keys.app(7), lambda: raw.items(table))


def watch_the_cleanup(app: AppKeys, stored: Callable[[], list[dict[str, Any]]]) -> None:
    app.insert_many([(f"short-{number}", "v", 1) for number in range(20)])
    for renewed in ("touched", "swapped", "put"):
        app.put(renewed, "v", 1)
    app.touch("touched", 600)
    app.compare_and_swap("swapped", "v", "w", 600)
    app.put("put", "w", 600)
    assert len(stored()) == 23

    wait_until(lambda: len(stored()) <= 3, seconds=180, what="the server's cleanup")

    assert sorted(item["sk"]["B"] for item in stored()) == [b"put", b"swapped", b"touched"]
    assert app.get_many(["touched", "swapped", "put"]) == {"touched": "v", "swapped": "w", "put": "w"}


def test_a_delete_removes_the_item(keys: Keys, table: str, raw: Raw) -> None:
    app = keys.app(7)
    app.insert_many([("a", "v", 600), ("b", "v", 600)])

    assert app.delete("a")
    assert app.compare_and_delete("b", "v")

    assert raw.items(table) == []
