from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.backends import ordered
from lapse.keys.backends.ordered import OrderedKeys

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(first=st.sets(texts), later=st.sets(texts), removed=st.sets(texts), start=texts)
def test_pages_are_in_byte_order_whatever_was_added_and_removed(
    first: set[str], later: set[str], removed: set[str], start: str
) -> None:
    present = dict.fromkeys(first)
    keys = OrderedKeys(present)
    list(keys.from_key("", present))
    for key in later - first:
        present[key] = None
        keys.add(key)
    for key in removed & set(present):
        del present[key]
    seen = [key for key in keys.from_key(start, present) if key in present]
    assert seen == sorted((k for k in present if k.encode() >= start.encode()), key=str.encode)


def test_a_page_of_many_keys_looks_only_at_its_own_chunks() -> None:
    present = {f"{i * 7919 % 100_000:06d}": None for i in range(100_000)}
    keys = OrderedKeys(present)
    page = list(islice(keys.from_key("050000", present), 1000))
    assert page == [f"{i:06d}" for i in range(50_000, 51_000)]
    still_unsorted = len(keys._dirty)
    assert still_unsorted > 0.8 * 100_000 / ordered._CHUNK, "a page sorted far more than it needed"


def test_a_key_that_went_and_came_back_is_shown_once() -> None:
    present = dict.fromkeys("abc")
    keys = OrderedKeys(present)
    list(keys.from_key("", present))
    for _ in range(3):
        del present["b"]
        present["b"] = None
        keys.add("b")
    assert [key for key in keys.from_key("", present) if key in present] == ["a", "b", "c"]
    assert keys.entries == 3


def test_growing_chunks_are_split() -> None:
    present: dict[str, None] = {}
    keys = OrderedKeys(present)
    for i in range(5 * ordered._CHUNK):
        key = f"{i:08d}"
        present[key] = None
        keys.add(key)
    assert list(keys.from_key("", present)) == sorted(present)
    assert max(map(len, keys._chunks)) <= ordered._CHUNK
