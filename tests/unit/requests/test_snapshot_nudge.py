from __future__ import annotations

from lapse.core.clock import UnixNs
from lapse.requests.controllers.capture import next_note

NS = 1_000_000_000
DELETED = UnixNs(1_000_000 * NS)


def after(seconds: float) -> UnixNs:
    return UnixNs(DELETED + round(seconds * NS))


def test_the_first_note_comes_five_seconds_after_the_deletion() -> None:
    assert next_note(DELETED, None) == after(5)


def test_each_further_note_comes_after_twice_as_long() -> None:
    assert [next_note(DELETED, after(seconds)) for seconds in (5, 10, 20, 40)] == [
        after(seconds) for seconds in (10, 20, 40, 80)
    ]


def test_no_two_notes_are_further_apart_than_the_resync_of_the_snapshotter() -> None:
    assert next_note(DELETED, after(100_000)) == after(100_000 + 900)


def test_a_note_from_before_the_deletion_does_not_count() -> None:
    assert next_note(DELETED, after(-3600)) == after(5)
