"""Verdicts: what the engine may conclude about one thing that could lapse.

A decision is a pure function of anchor, policy, signals, holds and ``now``. It returns one of three verdicts, each with
a reason from an enum, which is also the label of the metric. **Doubt means keep**: `Unknown` never leads to an action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapse.core.clock import UnixNs


class Reason(StrEnum):
    """Base of all reasons. A domain derives its own enums; the values are metric labels, so they never change."""


class KeepReason(Reason):
    """Why something is kept, in any domain."""

    NOT_YET = "not_yet"
    HELD = "held"
    NO_LIMIT = "no_limit"


class DueReason(Reason):
    """Why something is due, in any domain."""

    TTL_EXPIRED = "ttl_expired"


class UnknownReason(Reason):
    """Why nothing can be said, in any domain; all of these keep."""

    MISSING_ANCHOR = "missing_anchor"
    UNREADABLE_SIGNAL = "unreadable_signal"
    INVALID_TTL = "invalid_ttl"
    CLOCK_JUMPED = "clock_jumped"
    LEADERSHIP_LOST = "leadership_lost"


@dataclass(frozen=True, slots=True)
class Keep:
    """It stays; look again at ``next_check`` (None: only when something changes)."""

    reason: Reason
    next_check: UnixNs | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """Its time is over since ``since``; ``action`` says what is to be done."""

    action: str
    reason: Reason
    since: UnixNs


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is doubt, so it stays; look again at ``next_check``."""

    reason: Reason
    next_check: UnixNs | None = None


Verdict = Keep | Due | Unknown
