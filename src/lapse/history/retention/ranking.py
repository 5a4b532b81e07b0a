"""Who is among the newest of its group, found in one look at each object, and remembered without the objects.

Of each group there stay the places of the newest that count and of the last that are kept, which is all that is needed
to tell of any object on which side it is; and eight bytes for each of the others, to tell since when.

In doubt it keeps. Whatever was not shown to it makes it count fewer newer ones and take more for the last ones, so that
a part of a group never ends what the whole group would not.

A survey: what one look at each object tells, in any order, with a number per group as its only memory.

It judges what can be judged by an object's own fields, and says of which groups the members have to be compared. What
it says about numbers is a hint, never a reason to end anything: the pages it looked at may show different moments.

Groups are remembered by their hash: two that share one are both compared, and nothing else happens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from enum import Enum, auto
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.history.retention.rules import DELETE, LimitReason, expired, judge_alone, judgement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.history.retention.rules import Group, Judgement, RetainedObject, RetentionLimits


class Unjudged(Enum):
    """What a look at an object tells when there is nothing to judge."""

    STAYS = auto()
    """It is not due, and no other object can change that."""
    OPEN = auto()
    """Its group may matter: as one too many, or as one of the last."""


class Survey:
    """See the module; for one policy."""

    def __init__(self, limits: RetentionLimits, now: UnixNs) -> None:
        """Nothing was looked at yet."""
        self._limits, self._now = limits, now
        self._counts: Counter[int] = Counter()
        self._asked: set[int] = set()

    def look(self, entry: RetainedObject) -> Judgement | Unjudged:
        """Return what the object itself is enough for, and remember that it was there.

        What comes back as due was judged by its own fields alone, which an act that compares its version covers.
        """
        found = self.alone(entry)
        if found is Unjudged.OPEN:
            assert entry.anchor is not None  # noqa: S101 - without one it is unknown, not open
            if self._limits.is_expired(entry.anchor, self._now):
                self.ask(entry)
            elif self._limits.max_count is not None:
                # What is expired is older than all that is not, so it takes none of the places that count.
                self._counts[hash(entry.group)] += 1
        return found

    def alone(self, entry: RetainedObject) -> Judgement | Unjudged:
        """Return the same, and remember nothing."""
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, self._now)
        if entry.is_kept:
            return Unjudged.OPEN
        due = expired(entry.anchor, limits, self._now)
        if due is None:
            return Unjudged.STAYS if limits.max_count is None else Unjudged.OPEN
        return judgement(entry, due, limits, now=self._now)

    def ask(self, entry: RetainedObject) -> None:
        """Have the group of an object compared, whatever its number."""
        self._asked.add(hash(entry.group))

    def concerns(self, entry: RetainedObject) -> bool:
        """Whether an object is open, and its group is one of those that are to be compared.

        Those that are not open take no place that counts among those that are.
        """
        if self.alone(entry) is not Unjudged.OPEN:
            return False
        found, most = hash(entry.group), self._limits.max_count
        return found in self._asked or (most is not None and self._counts[found] > most)

    @property
    def is_clear(self) -> bool:
        """Whether there is no group to compare."""
        most = self._limits.max_count
        return not self._asked and (most is None or max(self._counts.values(), default=0) <= most)


Place = tuple[int, str, str]
"""Anchor, namespace and name: the greater one is the newer one."""
_FARTHEST: Final = 2**63 - 1


class Ranking:
    """See the module; for one policy."""

    def __init__(self, limits: RetentionLimits, now: UnixNs) -> None:
        """Nobody has a place yet."""
        self._limits, self._now = limits, now
        self._groups: dict[Group, _Standing] = {}

    def take(self, entry: RetainedObject) -> None:
        """Let an object have its place among those of its group. Each object is shown once."""
        if entry.anchor is None or entry.group is None:
            return
        standing = self._groups.get(entry.group)
        if standing is None:
            standing = self._groups[entry.group] = _Standing()
        limits, place = self._limits, place_of(entry, entry.anchor)
        # What is expired is older than all that is not, so it takes none of the places that count.
        if limits.max_count is not None and not limits.is_expired(entry.anchor, self._now):
            _insert(standing.newest, place, limits.max_count)
            standing.anchors.append(_fitting(entry.anchor))
        if entry.is_kept:
            _insert(standing.kept, place, limits.keep_last)

    def judge(self, entry: RetainedObject) -> Judgement:
        """Judge an object by its own fields and by those that were shown of its group."""
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, self._now)
        standing, place = self._groups.get(entry.group, _NOBODY), place_of(entry, entry.anchor)
        due = expired(entry.anchor, limits, self._now)
        most = limits.max_count
        if due is None and most is not None and len(standing.newest) == most and place < standing.newest[0]:
            due = Due(DELETE, LimitReason.RETENTION_LIMIT, standing.over_since(entry.anchor, most))
        protected = entry.is_kept and (len(standing.kept) < limits.keep_last or place >= standing.kept[0])
        return judgement(entry, due, limits, now=self._now, protected=protected)


def judge(entries: Iterable[RetainedObject], limits: RetentionLimits, now: UnixNs) -> list[Judgement]:
    """Judge objects that fit in memory; of every group that occurs, all objects must be there."""
    ranking, found = Ranking(limits, now), list(entries)
    for entry in found:
        ranking.take(entry)
    return [ranking.judge(entry) for entry in found]


def place_of(entry: RetainedObject, anchor: UnixNs) -> Place:
    """Return where an object stands among those of its group."""
    return anchor, entry.namespace or "", entry.name


class _Standing:
    """Those of one group that count."""

    __slots__ = ("_is_sorted", "anchors", "kept", "newest")

    def __init__(self) -> None:
        self.newest: list[Place] = []
        """A heap: the first is the oldest of them."""
        self.kept: list[Place] = []
        self.anchors = array("q")
        self._is_sorted = -1

    def over_since(self, anchor: UnixNs, most: int) -> UnixNs:
        """Return when the oldest of the ``most`` next newer ones came.

        Of objects with the same anchor each is taken for the newest: it is never told to be due for longer than it is.
        """
        if self._is_sorted != len(self.anchors):
            self.anchors = array("q", sorted(self.anchors))
            self._is_sorted = len(self.anchors)
        at = bisect_right(self.anchors, _fitting(anchor)) - 1
        return UnixNs(self.anchors[min(at + most, self._is_sorted - 1)])


_NOBODY: Final = _Standing()


def _insert(newest: list[Place], place: Place, most: int) -> None:
    if len(newest) < most:
        heappush(newest, place)
    elif place > newest[0]:
        heapreplace(newest, place)


def _fitting(anchor: int) -> int:
    """Return an anchor that fits in eight bytes: those of years beyond 2262 are written as well."""
    return max(-_FARTHEST, min(_FARTHEST, anchor))
