from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.keys.backends.layout import Prefix, bucket_of, end_of_prefix, partition_keys

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@pytest.mark.parametrize(
    ("prefix", "app_id", "expected"),
    [
        (Prefix.APPLICATION_TTL, 7, "00000004 00000007"),
        (Prefix.APPLICATION_TTL, 0, "00000004 00000000"),
        (Prefix.APPLICATION_TTL, 0x01020304, "00000004 01020304"),
        (Prefix.APPLICATION_TTL, 2**32 - 1, "00000004 ffffffff"),
        (Prefix.LEADER_ELECTION, 7, "00000001 00000007"),
    ],
)
def test_one_bucket_is_exactly_the_eight_bytes(prefix: Prefix, app_id: int, expected: str) -> None:
    assert partition_keys(prefix, app_id) == [bytes.fromhex(expected)]
    assert partition_keys(prefix, app_id, 1) == [bytes.fromhex(expected)]


def test_more_buckets_append_their_number_in_two_bytes() -> None:
    assert partition_keys(Prefix.APPLICATION_TTL, 7, 3) == [
        bytes.fromhex("00000004 00000007 0000"),
        bytes.fromhex("00000004 00000007 0001"),
        bytes.fromhex("00000004 00000007 0002"),
    ]


def test_the_largest_number_of_buckets_still_fits() -> None:
    partitions = partition_keys(Prefix.APPLICATION_TTL, 7, 65_536)

    assert len(set(partitions)) == 65_536
    assert partitions[-1] == bytes.fromhex("00000004 00000007 ffff")


def test_the_registered_prefixes_never_change() -> None:
    assert {prefix.name: prefix.value for prefix in Prefix} == {
        "NULL": 0,
        "LEADER_ELECTION": 1,
        "SEQUENCER_PARTITION": 2,
        "SEQUENCER_WORKSPACE": 3,
        "APPLICATION_TTL": 4,
        "WORKSPACE_TICKETS": 5,
    }


@pytest.mark.parametrize(
    ("key", "of_2", "of_16", "of_65536"),
    [("a", 1, 3, 48_707), ("alpha:ABC123", 1, 9, 33_049), ("é", 0, 14, 36_158), ("🔑", 0, 10, 55_994)],
)
def test_the_bucket_of_a_key_is_the_same_on_every_machine_and_in_every_version(
    key: str, of_2: int, of_16: int, of_65536: int
) -> None:
    assert (bucket_of(key, 2), bucket_of(key, 16), bucket_of(key, 65_536)) == (of_2, of_16, of_65536)


@given(texts, st.integers(1, 65_536))
def test_a_bucket_is_one_of_those_there_are(key: str, buckets: int) -> None:
    assert 0 <= bucket_of(key, buckets) < buckets


def test_buckets_are_filled_evenly() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[bucket_of(f"device:{number}", 16)] += 1

    assert min(counts) > 800
    assert max(counts) < 1200


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("", None),
        ("a", "b"),
        ("ab", "ac"),
        ("a\x7f", "a\x80"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff", None),
        ("\U0010ffff\U0010ffff", None),
        ("\ud7ff", "\ue000"),
        ("\uffff", "\U00010000"),
        ("\0", "\x01"),
    ],
)
def test_the_end_of_a_prefix_is_its_last_character_plus_one(prefix: str, end: str | None) -> None:
    assert end_of_prefix(prefix) == end


@given(texts, texts)
def test_a_text_starts_with_a_prefix_exactly_when_it_lies_between_its_ends(prefix: str, text: str) -> None:
    end = end_of_prefix(prefix)

    for candidate in (text, prefix + text):
        assert candidate.startswith(prefix) == (prefix <= candidate and (end is None or candidate < end))


@given(texts)
def test_the_end_of_a_prefix_can_be_stored(prefix: str) -> None:
    (end_of_prefix(prefix) or "").encode()


@given(texts, texts)
def test_text_order_is_byte_order(one: str, other: str) -> None:
    assert (one < other) == (one.encode() < other.encode())
