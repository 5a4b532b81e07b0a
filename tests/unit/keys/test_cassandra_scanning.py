from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.backends.cassandra.backend import MAX_CHUNK, BucketReader, merged, share_of
from lapse.keys.port import Item

if TYPE_CHECKING:
    from collections.abc import Sequence


class Table:
    """Buckets of rows, some of them over; counts what is read."""

    def __init__(self, buckets: list[dict[bytes, bool]]) -> None:
        self.buckets = [dict(sorted(bucket.items())) for bucket in buckets]
        self.rows_read = 0
        self.longest_answer = 0

    async def read(
        self, partition: bytes, first: bytes, count: int
    ) -> tuple[Sequence[tuple[bytes, Item]], bytes | None]:
        rows = [(key, live) for key, live in self.buckets[partition[0]].items() if key >= first][:count]
        self.rows_read += len(rows)
        self.longest_answer = max(self.longest_answer, len(rows))
        live_rows = [(key, Item(key.decode(), "v", 1)) for key, live in rows if live]
        return live_rows, rows[-1][0] + b"\0" if len(rows) == count else None

    def scan(self, limit: int, start: bytes = b"") -> list[str]:
        readers = [BucketReader(bytes([number]), start, self.read) for number in range(len(self.buckets))]
        return [item.key for item in asyncio.run(merged(readers, limit))]


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3).map(str.encode)


@given(
    buckets=st.lists(st.dictionaries(NAMES, st.booleans(), max_size=12), min_size=1, max_size=4),
    limit=st.integers(1, 15),
    start=st.just(b"") | NAMES,
)
def test_a_page_is_the_first_live_keys_of_all_buckets_in_order(
    buckets: list[dict[bytes, bool]], limit: int, start: bytes
) -> None:
    seen: set[bytes] = set()
    for bucket in buckets:  # a key lives in one bucket only
        for key in list(bucket):
            if key in seen:
                del bucket[key]
            seen.add(key)
    live = sorted(key for bucket in buckets for key, is_live in bucket.items() if is_live and key >= start)

    assert Table(buckets).scan(limit, start) == [key.decode() for key in live[:limit]]


def test_one_bucket_is_asked_for_no_more_than_the_page() -> None:
    table = Table([{f"{number:04}".encode(): True for number in range(1000)}])

    assert len(table.scan(100)) == 100
    assert table.rows_read == 100


def test_several_buckets_are_asked_for_little_more_than_the_page() -> None:
    table = Table([{f"{number:04}".encode(): True for number in range(bucket, 4000, 16)} for bucket in range(16)])

    assert len(table.scan(800)) == 800
    assert table.rows_read <= 1.4 * 800


def test_a_page_of_many_is_read_in_chunks() -> None:
    table = Table([{f"{number:05}".encode(): True for number in range(3000)}])

    assert len(table.scan(2000)) == 2000
    assert table.longest_answer == MAX_CHUNK


def test_a_share_is_never_nothing() -> None:
    assert [share_of(1, buckets) for buckets in (1, 2, 65_536)] == [1, 2, 1]
