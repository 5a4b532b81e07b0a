from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from itertools import chain

import pytest

from lapse.core.clock import UnixNs
from lapse.core.decision import Due, DueReason, Keep, KeepReason, Reason, Unknown, UnknownReason, Verdict

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

    with pytest.raises(FrozenInstanceError):
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
        "no_limit",
        "ttl_expired",
        "missing_anchor",
        "unreadable_signal",
        "invalid_ttl",
        "clock_jumped",
        "leadership_lost",
    ]
