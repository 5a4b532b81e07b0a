"""Who is among the newest of its group, found in one look at each object, and remembered without the objects.

Of each group there stay the places of the newest that count and of the last that are kept, which is all that is needed
to tell of any object on which side it is; and eight bytes for each of the others, to tell since when.

In doubt it keeps. Whatever was not shown to it makes it count fewer newer ones and take more for the last ones, so that
a part of a group never ends what the whole group would not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.history.retention.rules import DELETE, LimitReason, expired, judge_alone, judgement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.history.retention.rules import Entry, Group, Judgement, Limits

Place = tuple[int, str, str]
"""Anchor, namespace and name: the greater one is the newer one."""
_FARTHEST: Final = 2**63 - 1


class Ranking:
    """See the module; for one policy."""

    def __init__(self, limits: Limits, now: UnixNs) -> None:
        """Nobody has a place yet."""
        self._limits, self._now = limits, now
        self._groups: dict[Group, _Standing] = {}

    def take(self, entry: Entry) -> None:
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

    def judge(self, entry: Entry) -> Judgement:
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


def judge(entries: Iterable[Entry], limits: Limits, now: UnixNs) -> list[Judgement]:
    """Judge objects that fit in memory; of every group that occurs, all objects must be there."""
    ranking, found = Ranking(limits, now), list(entries)
    for entry in found:
        ranking.take(entry)
    return [ranking.judge(entry) for entry in found]


def place_of(entry: Entry, anchor: UnixNs) -> Place:
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
