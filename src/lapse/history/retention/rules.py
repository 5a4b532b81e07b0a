"""The rules of retention: whether an object goes, by its age, by the number of its group, or not at all. Pure.

- Age: due when ``now - anchor > max_age``.
- Count: due when ``max_count`` or more of its group are newer. Of objects with the same anchor (creation times have
  whole seconds) the one with the greater name is the newer one, so that everybody who looks decides the same.
- An object that violates both is due by age: each is counted once.
- ``keep_last``: the newest N of a group that match stay, whatever the limits say.
- What is held stays, and takes no place in its group: it is counted neither among the newest nor among the last. So a
  hold of one object never has another one ended, and those that are not held are judged as if it were not there. That
  goes for holds on the object itself, which are read with it; what another object holds is found where it would be
  ended, and counts as any other.
- What is extended stays until then, and counts as any other.

Doubt means keep. What has no readable anchor is `Unknown`; it takes no place among the newest, because then it would
push out one that can be judged. What has no readable group is in no group: no count ends it, and where ``keep_last`` is
in force nothing does, as it may be the last good one of its group.

This module judges one object, and weighs what several policies say about it; `lapse.history.retention.grouping`
compares the members of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.decision import (
    Decision,
    Due,
    DueReason,
    Keep,
    KeepReason,
    Reason,
    Unknown,
    UnknownReason,
    Verdict,
    with_extension,
)
from lapse.engine.safety.holds import Hold
from lapse.kube.resources import OwnerReference

if TYPE_CHECKING:
    from collections.abc import Sequence

Group = tuple[str, ...]
DELETE: Final = "delete"
_LATEST: Final = 2**63
_BY_A_PERSON: Final = frozenset({KeepReason.HELD, KeepReason.EXTENDED})


class LimitReason(Reason):
    """Reasons for which an object is due, beside its age."""

    RETENTION_LIMIT = "retention_limit"


class RetainReason(Reason):
    """Reasons for which an object stays that would be due."""

    KEEP_LAST = "keep_last"


class DoubtReason(Reason):
    """Reasons for which an object cannot be judged, beside an anchor that cannot be read."""

    UNKNOWN_GROUP = "unknown_group"


class Protection(IntEnum):
    """Whether an object is one of the last that a policy keeps, due or not: another policy may want it gone."""

    NONE = 0
    POSSIBLE = 1
    """It cannot be known."""
    CERTAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """The limits of a policy: the greatest age, the greatest number, how many stay nevertheless; None and 0 are off."""

    max_age: int | None = None
    """Nanoseconds."""
    max_count: int | None = None
    keep_last: int = 0

    def __post_init__(self) -> None:
        """Refuse what would end everything: None is for off."""
        if (self.max_age is not None and self.max_age <= 0) or (self.max_count is not None and self.max_count <= 0):
            raise ValueError(f"{self}: expected limits above zero, None for none")
        if self.keep_last < 0:
            raise ValueError(f"{self}: expected keep_last of 0 or more")

    def is_expired(self, anchor: int, now: int) -> bool:
        """Whether the age alone is against something."""
        return self.max_age is not None and now - anchor > self.max_age


class RetainedObject(msgspec.Struct, frozen=True, gc=False):
    """One object, as far as it is needed to decide about it and to end it."""

    namespace: str | None
    name: str
    uid: str
    version: str
    anchor: UnixNs | None
    """What its age is counted from; None when there is nothing, or nothing that can be read."""
    group: Group | None = ()
    """None when a field that the group is made of is not there."""
    is_kept: bool = False
    """Whether it is of those of which the last ones stay; never where none do."""
    hold: Hold | None = None
    owners: tuple[OwnerReference, ...] | None = None
    """None when they were not read."""
    extended: UnixNs | None = None
    """Until when a person has extended it."""
    is_unlabelled: bool = False
    """Whether it is a record that another operator wrote, without our labels: it was read whole."""

    def is_held(self, now: UnixNs) -> bool:
        """Whether a hold on the object itself, or a note on it, keeps it at ``now``."""
        return self.hold is not None and self.hold.active(now)


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """The judgement of one policy on one object."""

    entry: RetainedObject
    verdict: Verdict
    protection: Protection = Protection.NONE


class Standing(msgspec.Struct, frozen=True, gc=False):
    """All that one policy decides on about one object: its fields, the limits, and its rank in its group."""

    entry: RetainedObject
    limits: RetentionLimits
    over_since: UnixNs | None = None
    """Since when there are more newer ones than the greatest number; None when there are not, or none counts them."""
    is_last: bool = False
    """Whether it is one of the last that are kept."""
    dry_run: bool = False
    """Whether the policy only tells what it would do."""
    policy: str = ""
    """The name of the policy."""

    def judge(self, now: UnixNs) -> Judgement:
        """Judge by that and by nothing else."""
        entry, limits = self.entry, self.limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, now)
        due = expired(entry.anchor, limits, now)
        if due is None and self.over_since is not None:
            # The newer ones may bear times to come, and be newer all the same: too many are there now.
            due = Due(DELETE, LimitReason.RETENTION_LIMIT, min(self.over_since, now))
        return judgement(entry, due, limits, now=now, protected=self.is_last)


def judge_alone(entry: RetainedObject, limits: RetentionLimits, now: UnixNs) -> Judgement:
    """Judge an object that no group is known of: by its age, or not at all."""
    if entry.anchor is None:
        doubt = entry.is_kept and limits.keep_last > 0
        verdict = Unknown(UnknownReason.MISSING_ANCHOR)
        return Judgement(entry, verdict, Protection.POSSIBLE if doubt else Protection.NONE)
    due = expired(entry.anchor, limits, now)
    if limits.keep_last == 0:
        return judgement(entry, due, limits, now=now)
    if due is None:
        return Judgement(entry, _not_due(entry.anchor, limits), Protection.POSSIBLE)
    return Judgement(entry, Unknown(DoubtReason.UNKNOWN_GROUP), Protection.POSSIBLE)


def expired(anchor: UnixNs, limits: RetentionLimits, now: UnixNs) -> Due | None:
    """Return what the age alone says; None when it is not too much."""
    if limits.max_age is None or not limits.is_expired(anchor, now):
        return None
    return Due(DELETE, DueReason.TTL_EXPIRED, UnixNs(anchor + limits.max_age))


def _not_due(anchor: UnixNs, limits: RetentionLimits) -> Keep:
    if limits.max_age is None:
        return Keep(KeepReason.NO_LIMIT if limits.max_count is None else KeepReason.NOT_YET)
    return Keep(KeepReason.NOT_YET, UnixNs(anchor + limits.max_age + 1))


def judgement(
    entry: RetainedObject, due: Due | None, limits: RetentionLimits, *, now: UnixNs, protected: bool = False
) -> Judgement:
    """Weigh what is against an object with what saves it."""
    protection = Protection.CERTAIN if protected else Protection.NONE
    if due is None:
        assert entry.anchor is not None  # noqa: S101 - what has none is unknown, and was never here
        return Judgement(entry, _not_due(entry.anchor, limits), protection)
    if entry.hold is not None and entry.hold.active(now):
        return Judgement(entry, Keep(KeepReason.HELD, entry.hold.until), protection)
    if protected:
        return Judgement(entry, Keep(RetainReason.KEEP_LAST), protection)
    return Judgement(entry, with_extension(Decision(due, entry.anchor), entry.extended, now).verdict, protection)


def combine(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement that wins, of those of several policies on the same object.

    A hold, an extension or a ``keep_last`` wins over any deletion, and so does doubt about one; otherwise any limit
    deletes, age before count. What is merely unknown to one policy does not stop another one.
    """
    return max(judgements, key=_weight)


def weigh(judged: Sequence[tuple[Standing, Judgement]]) -> Judgement:
    """Return the judgement that wins; of deletions, one of a policy that is no dry run, if there is one."""
    if len(judged) == 1:  # nearly always, and for each of many objects
        return judged[0][1]
    winner = combine([said for _, said in judged])
    if not isinstance(winner.verdict, Due):
        return winner
    wanting = [(one, said) for one, said in judged if isinstance(said.verdict, Due)]
    return combine([said for one, said in wanting if not one.dry_run] or [said for _, said in wanting])


def decide(standings: Sequence[Standing], now: UnixNs) -> Judgement:
    """Return what several policies say about one object."""
    if len(standings) == 1:
        return standings[0].judge(now)
    return weigh([(one, one.judge(now)) for one in standings])


def _weight(judgement: Judgement) -> tuple[int, int]:
    """Return how strong a judgement is; among equals, what became or becomes due first is told."""
    verdict = judgement.verdict
    if isinstance(verdict, Keep) and verdict.reason in _BY_A_PERSON:
        return 6, 0
    if judgement.protection is not Protection.NONE:
        # Among those, the one that says that it saved something tells most.
        return (5 if isinstance(verdict, Keep) and verdict.reason == RetainReason.KEEP_LAST else 4), 0
    if isinstance(verdict, Due):
        return (3 if verdict.reason == DueReason.TTL_EXPIRED else 2), -verdict.since
    if isinstance(verdict, Unknown):
        return 1, 0
    return 0, -(_LATEST if verdict.next_check is None else verdict.next_check)
