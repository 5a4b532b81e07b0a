"""The layout of records that all stored backends share: partition keys, buckets, and the URL options about both.

The partition key is 8 bytes, big-endian: ``[uint32 prefix][uint32 application id]``; with more than one bucket, for
partitions that would grow too large, a uint16 bucket number follows. The clustering column is the key's UTF-8 bytes, as
they are: no normalisation, no prefix.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

from lapse.core.duration import Duration
from lapse.db.urls import Option, finite_duration, positive_duration, whole_number
from lapse.keys.validation import MAX_BUCKETS

_MOST_ENTRIES: Final = 100_000_000

_LAST_CHARACTER: Final = 0x10FFFF
_BEFORE_SURROGATES: Final = 0xD7FF
_AFTER_SURROGATES: Final = 0xE000


class Prefix(IntEnum):
    """The owner of a range of partitions. The numbers are on disk; they never change."""

    NULL = 0
    LEADER_ELECTION = 1
    SEQUENCER_PARTITION = 2  # reserved
    SEQUENCER_WORKSPACE = 3  # reserved
    APPLICATION_TTL = 4
    WORKSPACE_TICKETS = 5


def partition_keys(prefix: Prefix, app_id: int, buckets: int = 1) -> list[bytes]:
    """Return the partition keys of one application, in bucket order; one of exactly 8 bytes when ``buckets`` is 1."""
    base = struct.pack(">II", prefix, app_id)
    if buckets == 1:
        return [base]
    return [base + struct.pack(">H", bucket) for bucket in range(buckets)]


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of a key: stable across processes, versions and machines, which Python's `hash` is not."""
    return zlib.crc32(key.encode()) % buckets


def end_of_prefix(prefix: str) -> str | None:
    """Return the smallest text greater than every text that starts with ``prefix``; None when there is no bound.

    Code point order and UTF-8 byte order are the same, so this works on text. The successor of a character skips the
    surrogates, which are no characters.
    """
    for end in range(len(prefix), 0, -1):
        last = ord(prefix[end - 1])
        if last < _LAST_CHARACTER:
            following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else last + 1
            return prefix[: end - 1] + chr(following)
    return None


BUCKETS: Final = Option(whole_number(1, MAX_BUCKETS), 1, f"a whole number from 1 to {MAX_BUCKETS}")
SWEEP_INTERVAL: Final = Option(positive_duration, Duration.of_seconds(1), "a duration such as 1s, or never")
CACHE: Final = {
    "cache": Option(whole_number(0, _MOST_ENTRIES), 0, "a whole number of entries, 0 for none"),
    "cache_max_age": Option(finite_duration, Duration.parse("500ms"), "a duration such as 500ms"),
}
"""Options of every network backend: a cache in front of it, see `lapse.keys.backends.cache`."""


def interval_seconds(duration: Duration) -> float | None:
    """Turn a ``sweep_interval`` into seconds; None for never."""
    return None if duration.is_never else duration.seconds
