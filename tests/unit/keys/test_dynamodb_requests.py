from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.backends.dynamodb.items import RequestFactory, live_expiry, place
from lapse.keys.backends.dynamodb.space import Bounds
from lapse.keys.backends.layout import end_of_prefix

MS = 1_000_000
MOMENT = st.integers(1_700_000_000 * 10**9, 4_000_000_000 * 10**9)
TTL = st.integers(1, 31_536_000)
KEY = st.text(st.sampled_from("\0aé\x7f\uffff\U0010ffff"), min_size=1, max_size=6).map(str.encode)


@given(now_ns=MOMENT, ttl=TTL, margin=st.integers(0, 10))
def test_the_server_may_remove_an_item_only_after_its_expiry_and_the_margin(now_ns: int, ttl: int, margin: int) -> None:
    item = RequestFactory("t", margin_seconds=margin).put(place(b"p", b"k"), b"v", ttl, now_ns)["Item"]

    expires_ms, expires_s = int(item["expires_ms"]["N"]), int(item["expires_s"]["N"])
    assert expires_ms * MS >= now_ns + ttl * 10**9
    assert expires_ms / 1000 + margin <= expires_s < expires_ms / 1000 + margin + 1


@given(now_ns=MOMENT, ttl=TTL, later_ns=st.integers(-10 * MS, 10 * MS))
def test_the_condition_and_the_reader_agree_about_the_instant(now_ns: int, ttl: int, later_ns: int) -> None:
    requests = RequestFactory("t", margin_seconds=0)
    item = requests.put(place(b"p", b"k"), b"v", ttl, now_ns)["Item"]
    expires_ms = int(item["expires_ms"]["N"])
    then_ns = expires_ms * MS + later_ns

    shown = int(requests.delete(place(b"p", b"k"), then_ns)["ExpressionAttributeValues"][":now"]["N"])

    assert (expires_ms > shown) == (live_expiry(item, then_ns) is not None) == (later_ns < 0)


def server_says(bounds: Bounds, key: bytes) -> bool:
    """What a Query with the bounds' condition lets pass."""
    condition, values = bounds.condition(b"p")
    given = {name: value["B"] for name, value in values.items() if name != ":pk"}
    assert all(0 < len(bound) <= 1024 for bound in given.values())
    assert ("BETWEEN" in condition) == (len(given) == 2)
    return given.get(":start", b"") <= key and (":stop" not in given or key <= given[":stop"])


@given(start=KEY, stop=KEY, key=KEY, padding=st.sampled_from([0, 1000, 1018, 1019, 1020, 1021, 1022, 1023]))
def test_no_key_within_the_bounds_is_held_back_by_the_condition(
    start: bytes, stop: bytes, key: bytes, padding: int
) -> None:
    start, stop, key = (b"p" * padding + text for text in (start, stop, key))
    bounds = Bounds(start, stop)

    if bounds.hold(key[:1024]):
        assert not bounds.are_empty
        assert server_says(bounds, key[:1024])


def test_a_page_after_a_key_of_1024_bytes_begins_behind_it() -> None:
    longest = b"k" * 1024
    bounds = Bounds(longest + b"\0", None)

    assert server_says(bounds, longest)
    assert not bounds.hold(longest)
    assert bounds.hold(b"k" * 1023 + b"l")


def test_a_right_bound_that_is_longer_than_a_key_keeps_the_keys_before_it() -> None:
    prefix = "k" * 1023 + "\x7f"
    stop = end_of_prefix(prefix)
    assert stop is not None
    bounds = Bounds(prefix.encode(), stop.encode())
    assert len(stop.encode()) == 1025

    assert server_says(bounds, prefix.encode())
    assert bounds.hold(prefix.encode())


def test_no_bounds_are_no_condition_on_the_sort_key() -> None:
    assert Bounds(b"", None).condition(b"p") == ("pk = :pk", {":pk": {"B": b"p"}})
    assert Bounds(b"b", b"b").are_empty
    assert Bounds(b"c", b"b").are_empty
