"""Decisions: what the engine may conclude about one thing that could lapse.

A decision is a pure function of anchor, policy, signals, holds and ``now``. It holds one of three verdicts, each with a
reason from an enum, which is also the label of the metric. **Doubt means keep**: `Unknown` never leads to an action.

A time that means 'not set' (see `lapse.core.timestamps`) is a missing anchor, wherever it comes from: `decide_by_ttl`
counts from none, and the engine acts on no decision that was counted from one (`without_unset_anchor`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from lapse.core.clock import UnixNs
from lapse.core.timestamps import LATEST, is_moment

if TYPE_CHECKING:
    from lapse.core.duration import Duration


class Reason(StrEnum):
    """Base of all reasons. A domain derives its own enums; the values are metric labels, so they never change."""


class KeepReason(Reason):
    """Why something is kept, in any domain."""

    NOT_YET = "not_yet"
    HELD = "held"
    EXTENDED = "extended"
    """Its time is over, and a person has given it more."""
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


class Keep(Struct, frozen=True, gc=False):
    """It stays; look again at ``next_check`` (None: only when something changes)."""

    reason: Reason
    next_check: UnixNs | None = None


class Due(Struct, frozen=True, gc=False):
    """Its time is over since ``since``; ``action`` says what is to be done."""

    action: str
    reason: Reason
    since: UnixNs


class Unknown(Struct, frozen=True, gc=False):
    """There is doubt, so it stays; look again at ``next_check``."""

    reason: Reason
    next_check: UnixNs | None = None


Verdict = Keep | Due | Unknown


class Decision(Struct, frozen=True, gc=False):
    """A verdict, and what it was made on."""

    verdict: Verdict
    anchor: UnixNs | None = None
    """What the time is counted from; None when it is missing, or plays no part."""
    deadline: UnixNs | None = None
    """The moment after which the thing is due, unless something changes; None when none is known."""


UNREADABLE_EXTENSION: Final = UnixNs(LATEST)
"""Stands for an extension that is there and cannot be read."""
_NO_ANCHOR: Final = Decision(Unknown(UnknownReason.MISSING_ANCHOR))


def decide_by_ttl(anchor: UnixNs | None, ttl: Duration | None, now: UnixNs, *, action: str) -> Decision:
    """Decide by a time to live: due strictly after anchor plus TTL, and never in doubt. None: it cannot be read."""
    if anchor is None or not is_moment(anchor):
        return _NO_ANCHOR
    if ttl is None:
        return Decision(Unknown(UnknownReason.INVALID_TTL), anchor)
    if ttl.nanoseconds is None:
        return Decision(Keep(KeepReason.NO_LIMIT), anchor)
    deadline = UnixNs(anchor + ttl.nanoseconds)
    if now <= deadline:
        return Decision(Keep(KeepReason.NOT_YET, next_check=UnixNs(deadline + 1)), anchor, deadline)
    return Decision(Due(action, DueReason.TTL_EXPIRED, since=deadline), anchor, deadline)


def without_unset_anchor(decision: Decision) -> Decision:
    """Return a decision as the engine believes it: a time that means 'not set' is no anchor, and nothing is due by it.

    What is due without any anchor stays as it is: not everything is counted from a time.
    """
    if decision.anchor is None or is_moment(decision.anchor):
        return decision
    return _NO_ANCHOR if isinstance(decision.verdict, Due) else Decision(decision.verdict, None, decision.deadline)


def with_extension(decision: Decision, until: UnixNs | None, now: UnixNs) -> Decision:
    """Return a decision about something that a person has given time ``until`` then; None: nobody has.

    The later of both counts: a deadline never comes earlier by it, and what is due by any rule stays until then. While
    the extension cannot be read (`UNREADABLE_EXTENSION`), nothing is due.
    """
    if until is None:
        return decision
    if until == UNREADABLE_EXTENSION:
        is_due = isinstance(decision.verdict, Due)
        return Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL), decision.anchor) if is_due else decision
    verdict, deadline = decision.verdict, decision.deadline
    deadline = deadline if deadline is None else max(deadline, until)
    if not isinstance(verdict, Due):
        return Decision(verdict, decision.anchor, deadline)
    if now <= until:
        return Decision(Keep(KeepReason.EXTENDED, next_check=UnixNs(until + 1)), decision.anchor, deadline or until)
    return Decision(Due(verdict.action, verdict.reason, max(verdict.since, until)), decision.anchor, deadline)
