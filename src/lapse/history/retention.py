"""Retention: which of many objects go, by their age, by their number, or not at all. Pure; takes ``now``.

The rules.

- Age: due when ``now - anchor > max_age``.
- Count: due when ``max_count`` or more of its group are newer. Of objects with the same anchor (creation times have
  whole seconds) the one with the greater name is the newer one, so that everybody who looks decides the same.
- Who violates both is due by age: each is counted once.
- ``keep_last``: the newest N of a group that match stay, whatever the limits say. So does what is held. Neither changes
  anything for the others: a place among the newest is taken by who is among the newest, held or not; who stays for
  another reason stays in addition. (The alternative, that only what could be deleted is counted, would let a hold of
  one object decide about another one.)

Doubt means keep. What has no readable anchor is `Unknown`; it takes no place among the newest, because then it would
push out one that can be judged. What has no readable group is in no group: no count ends it, and where ``keep_last`` is
in force nothing does, as it may be the last good one of its group.

`judge` needs all objects of the groups that it is asked about, each a small `Entry`. `Survey` needs none of them: it
looks at one entry after the other, remembers a number per group, and says which groups `judge` must be asked about.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.verdict import Due, DueReason, Keep, KeepReason, Reason, Unknown, UnknownReason, Verdict
from lapse.engine.holds import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Group = tuple[str, ...]
DELETE: Final = "delete"
_LATEST: Final = 2**63


class LimitReason(Reason):
    """Why an object is due, beside its age."""

    RETENTION_LIMIT = "retention_limit"


class RetainReason(Reason):
    """What saved an object that would be due."""

    KEEP_LAST = "keep_last"


class DoubtReason(Reason):
    """Why nothing can be said about an object, beside an anchor that cannot be read."""

    UNKNOWN_GROUP = "unknown_group"


class Protection(IntEnum):
    """Whether an object is one of the last that a policy keeps, due or not: another policy may want it gone."""

    NONE = 0
    POSSIBLE = 1
    """It cannot be told."""
    CERTAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is too old, what is too many, and how many matching ones stay nevertheless; None and 0 are off."""

    max_age: int | None = None
    """Nanoseconds."""
    max_count: int | None = None
    keep_last: int = 0

    def __post_init__(self) -> None:
        """Refuse what would end everything: whoever means off says None."""
        if (self.max_age is not None and self.max_age <= 0) or (self.max_count is not None and self.max_count <= 0):
            raise ValueError(f"{self}: expected limits above zero, None for none")
        if self.keep_last < 0:
            raise ValueError(f"{self}: expected keep_last of 0 or more")

    def is_expired(self, anchor: int, now: int) -> bool:
        """Whether the age alone is against something."""
        return self.max_age is not None and now - anchor > self.max_age


class Entry(msgspec.Struct, frozen=True, gc=False):
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
    """Whether it is of those of which the last ones stay."""
    hold: Hold | None = None


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """What one policy says about one object."""

    entry: Entry
    verdict: Verdict
    protection: Protection = Protection.NONE


def judge(entries: Iterable[Entry], limits: Limits, now: UnixNs) -> list[Judgement]:
    """Judge objects, newest first; of every group that occurs, all objects must be there."""
    found, ordered = [], []
    for entry in entries:
        if entry.anchor is None or entry.group is None:
            found.append(judge_alone(entry, limits, now))
        else:
            ordered.append((entry.anchor, entry.namespace or "", entry.name, entry))
    ordered.sort(key=itemgetter(0, 1, 2), reverse=True)
    ranks: dict[Group, _Rank] = {}
    for anchor, _, _, entry in ordered:
        assert entry.group is not None  # noqa: S101 - sorted out above
        rank = ranks.get(entry.group)
        if rank is None:
            rank = ranks[entry.group] = _Rank(limits)
        over_since, protected = rank.take(UnixNs(anchor), is_kept=entry.is_kept)
        due = _expired(UnixNs(anchor), limits, now)
        if due is None and over_since is not None:
            due = Due(DELETE, LimitReason.RETENTION_LIMIT, over_since)
        found.append(_judgement(entry, due, limits, now=now, protected=protected))
    return found


def judge_alone(entry: Entry, limits: Limits, now: UnixNs) -> Judgement:
    """Judge an object that no group is known of: by its age, or not at all."""
    if entry.anchor is None:
        doubt = entry.is_kept and limits.keep_last > 0
        verdict = Unknown(UnknownReason.MISSING_ANCHOR)
        return Judgement(entry, verdict, Protection.POSSIBLE if doubt else Protection.NONE)
    due = _expired(entry.anchor, limits, now)
    if limits.keep_last == 0:
        return _judgement(entry, due, limits, now=now)
    if due is None:
        return Judgement(entry, _not_due(entry.anchor, limits), Protection.POSSIBLE)
    return Judgement(entry, Unknown(DoubtReason.UNKNOWN_GROUP), Protection.POSSIBLE)


class _Rank:
    """How far the newest-first walk through one group has come."""

    __slots__ = ("_keep", "_most", "_newer")

    def __init__(self, limits: Limits) -> None:
        self._keep, self._most = limits.keep_last, limits.max_count
        self._newer: deque[UnixNs] = deque(maxlen=self._most or 0)

    def take(self, anchor: UnixNs, *, is_kept: bool) -> tuple[UnixNs | None, bool]:
        """Return since when the next one is one too many (None: it is not), and whether it is one of the last."""
        # It became one too many when the oldest of the ``max_count`` next newer ones came.
        over_since = self._newer[0] if self._most is not None and len(self._newer) == self._most else None
        self._newer.append(anchor)
        protected = is_kept and self._keep > 0
        self._keep -= protected
        return over_since, protected


def _expired(anchor: UnixNs, limits: Limits, now: UnixNs) -> Due | None:
    if limits.max_age is None or not limits.is_expired(anchor, now):
        return None
    return Due(DELETE, DueReason.TTL_EXPIRED, UnixNs(anchor + limits.max_age))


def _not_due(anchor: UnixNs, limits: Limits) -> Keep:
    if limits.max_age is None:
        return Keep(KeepReason.NO_LIMIT if limits.max_count is None else KeepReason.NOT_YET)
    return Keep(KeepReason.NOT_YET, UnixNs(anchor + limits.max_age + 1))


def _judgement(entry: Entry, due: Due | None, limits: Limits, *, now: UnixNs, protected: bool = False) -> Judgement:
    protection = Protection.CERTAIN if protected else Protection.NONE
    if due is None:
        assert entry.anchor is not None  # noqa: S101 - what has none is unknown, and was never here
        return Judgement(entry, _not_due(entry.anchor, limits), protection)
    if entry.hold is not None and entry.hold.active(now):
        return Judgement(entry, Keep(KeepReason.HELD, entry.hold.until), protection)
    return Judgement(entry, Keep(RetainReason.KEEP_LAST) if protected else due, protection)


def combine(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement that wins, of those of several policies on the same object.

    A hold or a ``keep_last`` wins over any deletion, and so does doubt about one; otherwise any limit deletes, age
    before count. What is merely unknown to one policy does not stop another one.
    """
    return max(judgements, key=_weight)


def _weight(judgement: Judgement) -> tuple[int, int]:
    """Return how strong a judgement is; among equals, what became or becomes due first is told."""
    verdict = judgement.verdict
    if isinstance(verdict, Keep) and verdict.reason == KeepReason.HELD:
        return 6, 0
    if judgement.protection is not Protection.NONE:
        # Among those, the one that says that it saved something tells most.
        return (5 if isinstance(verdict, Keep) and verdict.reason == RetainReason.KEEP_LAST else 4), 0
    if isinstance(verdict, Due):
        return (3 if verdict.reason == DueReason.TTL_EXPIRED else 2), -verdict.since
    if isinstance(verdict, Unknown):
        return 1, 0
    return 0, -(_LATEST if verdict.next_check is None else verdict.next_check)


class Survey:
    """What one look at each object tells, in any order, with a number per group as its only memory.

    Groups are remembered by their hash: two that share one are both read again, and nothing else happens.
    """

    def __init__(self, limits: Limits, now: UnixNs) -> None:
        """Nothing was looked at yet."""
        self._limits, self._now = limits, now
        self._counts: Counter[int] = Counter()
        self._asked: set[int] = set()

    def look(self, entry: Entry) -> Judgement | None:
        """Return the judgement, where the object itself is enough for it; None where its group may matter.

        What comes back as due was judged by its own fields alone, which an act that compares its version covers.
        """
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, self._now)
        due = _expired(entry.anchor, limits, self._now)
        if due is None:
            # What is expired is older than all that is not, so it takes none of the places that count.
            if limits.max_count is not None:
                self._counts[hash(entry.group)] += 1
            return None
        if entry.is_kept and limits.keep_last > 0:
            self._asked.add(hash(entry.group))
            return None
        return _judgement(entry, due, limits, now=self._now)

    def concerns(self, entry: Entry) -> bool:
        """Whether an object, of a second listing, is to be judged with its group.

        No object is both judged by `look` and concerned; and those that are judged by `look` take no place that counts
        among those that are concerned.
        """
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return False
        if limits.is_expired(entry.anchor, self._now) and not (entry.is_kept and limits.keep_last > 0):
            return False
        found = hash(entry.group)
        return found in self._asked or (limits.max_count is not None and self._counts[found] > limits.max_count)

    @property
    def is_clear(self) -> bool:
        """Whether no group has to be read again."""
        most = self._limits.max_count
        return not self._asked and (most is None or max(self._counts.values(), default=0) <= most)
