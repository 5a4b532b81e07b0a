from __future__ import annotations

import re
from itertools import chain

import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import (
    UNREADABLE_EXTENSION,
    Decision,
    Due,
    DueReason,
    Keep,
    KeepReason,
    Reason,
    Unknown,
    UnknownReason,
    Verdict,
    decide_by_ttl,
    with_extension,
    without_unset_anchor,
)
from lapse.core.duration import Duration
from lapse.core.timestamps import EARLIEST

NOW = UnixNs(1_700_000_000_000_000_000)
REASONS = list(chain(KeepReason, DueReason, UnknownReason))


def describe(verdict: Verdict) -> str:
    match verdict:
        case Keep(reason, next_check):
            return f"keep {reason} {next_check}"
        case Due(action, reason, since):
            return f"{action} {reason} {since}"
        case Unknown(reason, next_check):
            return f"unknown {reason} {next_check}"


@pytest.mark.parametrize(
    ("verdict", "described"),
    [
        (Keep(KeepReason.NOT_YET, NOW), f"keep not_yet {NOW}"),
        (Keep(KeepReason.NO_LIMIT), "keep no_limit None"),
        (Due("delete", DueReason.TTL_EXPIRED, NOW), f"delete ttl_expired {NOW}"),
        (Unknown(UnknownReason.MISSING_ANCHOR), "unknown missing_anchor None"),
    ],
)
def test_every_verdict_can_be_taken_apart(verdict: Verdict, described: str) -> None:
    assert describe(verdict) == described


def test_only_due_has_something_to_do() -> None:
    assert not hasattr(Keep(KeepReason.HELD), "action")
    assert not hasattr(Unknown(UnknownReason.CLOCK_JUMPED), "action")


def test_keep_and_unknown_are_never_equal_whatever_their_reason() -> None:
    keep: Verdict = Keep(KeepReason.NOT_YET)
    unknown: Verdict = Unknown(KeepReason.NOT_YET)

    assert keep != unknown


def test_a_verdict_cannot_be_changed() -> None:
    verdict = Keep(KeepReason.NOT_YET)

    with pytest.raises(AttributeError, match="immutable"):
        verdict.reason = KeepReason.HELD  # type: ignore[misc]


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_a_metric_label(reason: Reason) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", reason)


def test_no_two_reasons_share_a_label() -> None:
    assert len(set(map(str, REASONS))) == len(REASONS)


def test_labels_are_what_dashboards_and_alerts_were_built_on() -> None:
    assert list(map(str, REASONS)) == [
        "not_yet",
        "held",
        "extended",
        "no_limit",
        "ttl_expired",
        "missing_anchor",
        "unreadable_signal",
        "invalid_ttl",
        "clock_jumped",
        "leadership_lost",
    ]


HOUR = Duration.parse("1h")
LAST = 2**63 - 1
NO_ANCHOR = Unknown(UnknownReason.MISSING_ANCHOR)
EXPIRED = Due("delete", DueReason.TTL_EXPIRED, UnixNs(EARLIEST + 3_600 * 10**9))


@pytest.mark.parametrize(
    ("anchor", "verdict"),
    [
        (None, NO_ANCHOR),
        (-62_135_596_800 * 10**9, NO_ANCHOR),  # the year 1, the zero of Go
        (-1, NO_ANCHOR),
        (0, NO_ANCHOR),
        (1_700_000_000, NO_ANCHOR),  # seconds, milliseconds and microseconds since 1970 that were taken for nanoseconds
        (1_700_000_000_000, NO_ANCHOR),
        (1_700_000_000_000_000, NO_ANCHOR),
        (EARLIEST - 1, NO_ANCHOR),
        (EARLIEST, EXPIRED),
        (LAST, Keep(KeepReason.NOT_YET, UnixNs(LAST + 3_600 * 10**9 + 1))),
        (LAST + 1, NO_ANCHOR),
        (10**30, NO_ANCHOR),
    ],
)
def test_a_ttl_counts_from_no_time_that_means_not_set(anchor: int | None, verdict: Verdict) -> None:
    found = decide_by_ttl(None if anchor is None else UnixNs(anchor), HOUR, NOW, action="delete")

    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("verdict", "anchor", "believed"),
    [
        (EXPIRED, 0, Decision(NO_ANCHOR)),
        (EXPIRED, -1, Decision(NO_ANCHOR)),
        (EXPIRED, LAST + 1, Decision(NO_ANCHOR)),
        (EXPIRED, EARLIEST, Decision(EXPIRED, UnixNs(EARLIEST))),
        (EXPIRED, None, Decision(EXPIRED)),
        (Keep(KeepReason.HELD), LAST + 1, Decision(Keep(KeepReason.HELD))),
        (Keep(KeepReason.HELD), EARLIEST, Decision(Keep(KeepReason.HELD), UnixNs(EARLIEST))),
    ],
)
def test_the_engine_believes_nothing_that_was_counted_from_one(
    verdict: Verdict, anchor: int | None, believed: Decision
) -> None:
    assert without_unset_anchor(Decision(verdict, None if anchor is None else UnixNs(anchor))) == believed


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (None, Decision(EXPIRED, NOW, NOW)),
        (UnixNs(NOW - 1), Decision(Due("delete", DueReason.TTL_EXPIRED, UnixNs(NOW - 1)), NOW, NOW)),
        (NOW, Decision(Keep(KeepReason.EXTENDED, UnixNs(NOW + 1)), NOW, NOW)),
        (UnixNs(NOW + 5), Decision(Keep(KeepReason.EXTENDED, UnixNs(NOW + 6)), NOW, UnixNs(NOW + 5))),
        (UNREADABLE_EXTENSION, Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL), NOW)),
    ],
)
def test_what_is_due_stays_until_its_extension_is_over(until: UnixNs | None, expected: Decision) -> None:
    assert with_extension(Decision(EXPIRED, NOW, NOW), until, NOW) == expected


def test_an_extension_moves_a_deadline_to_later_and_never_to_earlier() -> None:
    keep = Decision(Keep(KeepReason.NOT_YET), NOW, UnixNs(NOW + 10))

    assert with_extension(keep, UnixNs(NOW + 20), NOW).deadline == NOW + 20
    assert with_extension(keep, UnixNs(NOW + 5), NOW).deadline == NOW + 10
    assert with_extension(Decision(Keep(KeepReason.NO_LIMIT)), UnixNs(NOW + 5), NOW).deadline is None
