"""The groups of objects that one policy counts: which of them have to be compared, and the places of their members.

Two looks, each with little memory. `GroupCounts` judges what can be judged by an object's own fields and, with a number
per group, says of which groups the members have to be compared. What it says about numbers is a hint, never a reason to
end anything: the pages it looked at may show different moments. Groups are remembered by their hash: two that share one
are both compared, and nothing else happens.

`GroupRanking` is shown the members of those groups once each, and remembers the places of the newest that count and of
the last that are kept, which is all that is needed to tell of any object on which side it is; and eight bytes for each
of the others, to tell since when. In doubt it keeps: whatever was not shown to it makes it count fewer newer ones and
take more for the last ones, so that a part of a group never ends what the whole group would not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from enum import Enum, auto
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.history.retention.rules import Standing, judge_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.history.retention.rules import Group, Judgement, RetainedObject, RetentionLimits


class Unjudged(Enum):
    """Results of a look at an object that cannot be judged by its own fields."""

    STAYS = auto()
    """It is not due, and no other object can change that."""
    OPEN = auto()
    """Its group may matter: as one too many, or as one of the last."""


class GroupCounts:
    """Numbers of the groups of one policy, and judgements by an object's own fields; see the module."""

    def __init__(self, limits: RetentionLimits, now: UnixNs) -> None:
        """Begin without any object."""
        self._limits, self._now = limits, now
        self._counts: Counter[int] = Counter()
        self._compared: set[int] = set()

    def look(self, entry: RetainedObject) -> Judgement | Unjudged:
        """Return what the object itself is enough for, and remember that it was there.

        What comes back as due was judged by its own fields alone, which an act that compares its version covers.
        """
        found = self.judge_alone(entry)
        if found is Unjudged.OPEN:
            assert entry.anchor is not None  # noqa: S101 - without one it is unknown, not open
            if self._limits.is_expired(entry.anchor, self._now):
                self.mark(entry)
            elif self._limits.max_count is not None:
                # What is expired is older than all that is not, so it takes none of the places that count.
                self._counts[hash(entry.group)] += 1
        return found

    def judge_alone(self, entry: RetainedObject) -> Judgement | Unjudged:
        """Return the same, and remember nothing."""
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, self._now)
        if entry.is_kept:
            return Unjudged.OPEN
        if not limits.is_expired(entry.anchor, self._now):
            return Unjudged.STAYS if limits.max_count is None else Unjudged.OPEN
        return Standing(entry, limits).judge(self._now)

    def mark(self, entry: RetainedObject) -> None:
        """Have the group of an object compared, whatever its number."""
        self._compared.add(hash(entry.group))

    def concerns(self, entry: RetainedObject) -> bool:
        """Whether an object is open, and its group is one of those that are to be compared.

        Those that are not open take no place that counts among those that are.
        """
        if self.judge_alone(entry) is not Unjudged.OPEN:
            return False
        found, most = hash(entry.group), self._limits.max_count
        return found in self._compared or (most is not None and self._counts[found] > most)

    @property
    def is_settled(self) -> bool:
        """Whether there is no group to compare."""
        most = self._limits.max_count
        return not self._compared and (most is None or max(self._counts.values(), default=0) <= most)


Place = tuple[int, str, str]
"""Anchor, namespace and name: the greater one is the newer one."""
_FARTHEST: Final = 2**63 - 1


class GroupRanking:
    """The newest and the last good ones of each group of a policy; see the module."""

    def __init__(self, limits: RetentionLimits, now: UnixNs, *, dry_run: bool = False, policy: str = "") -> None:
        """Begin without any object; ``dry_run`` is that of the policy, and ``policy`` its name."""
        self._limits, self._now, self._dry_run, self._policy = limits, now, dry_run, policy
        self._groups: dict[Group, _RankedGroup] = {}

    def add(self, entry: RetainedObject) -> None:
        """Let an object have its place among those of its group; what is held takes none. Each object is shown once."""
        if entry.anchor is None or entry.group is None or entry.is_held(self._now):
            return
        group = self._groups.get(entry.group)
        if group is None:
            group = self._groups[entry.group] = _RankedGroup()
        limits, place = self._limits, place_of(entry, entry.anchor)
        # What is expired is older than all that is not, so it takes none of the places that count.
        if limits.max_count is not None and not limits.is_expired(entry.anchor, self._now):
            _insert(group.newest, place, limits.max_count)
            group.anchors.append(_fitting(entry.anchor))
        if entry.is_kept:
            _insert(group.kept, place, limits.keep_last)

    def standing(self, entry: RetainedObject) -> Standing:
        """Return an object with its rank among those that were shown of its group."""
        limits, most = self._limits, self._limits.max_count
        if entry.anchor is None or entry.group is None:
            return Standing(entry, limits, dry_run=self._dry_run, policy=self._policy)
        group, place = self._groups.get(entry.group, _EMPTY), place_of(entry, entry.anchor)
        over_since = None
        if most is not None and len(group.newest) == most and place < group.newest[0]:
            over_since = group.over_since(entry.anchor, most)
        is_last = entry.is_kept and (len(group.kept) < limits.keep_last or place >= group.kept[0])
        return Standing(entry, limits, over_since, is_last, self._dry_run, self._policy)


def judge(entries: Iterable[RetainedObject], limits: RetentionLimits, now: UnixNs) -> list[Judgement]:
    """Judge objects that fit in memory; of every group that occurs, all objects must be there."""
    ranking, found = GroupRanking(limits, now), list(entries)
    for entry in found:
        ranking.add(entry)
    return [ranking.standing(entry).judge(now) for entry in found]


def place_of(entry: RetainedObject, anchor: UnixNs) -> Place:
    """Return where an object stands among those of its group."""
    return anchor, entry.namespace or "", entry.name


class _RankedGroup:
    """The members of one group that count."""

    __slots__ = ("_is_sorted", "anchors", "kept", "newest")

    def __init__(self) -> None:
        self.newest: list[Place] = []
        """A heap: the first is the oldest of them."""
        self.kept: list[Place] = []
        self.anchors = array("q")
        self._is_sorted = -1

    def over_since(self, anchor: UnixNs, most: int) -> UnixNs:
        """Return when the oldest of the ``most`` next newer ones came.

        Of objects with the same anchor each is taken for the newest: it never seems to be due for longer than it is.
        """
        if self._is_sorted != len(self.anchors):
            self.anchors = array("q", sorted(self.anchors))
            self._is_sorted = len(self.anchors)
        at = bisect_right(self.anchors, _fitting(anchor)) - 1
        return UnixNs(self.anchors[min(at + most, self._is_sorted - 1)])


_EMPTY: Final = _RankedGroup()


def _insert(newest: list[Place], place: Place, most: int) -> None:
    if len(newest) < most:
        heappush(newest, place)
    elif place > newest[0]:
        heapreplace(newest, place)


def _fitting(anchor: int) -> int:
    """Return an anchor that fits in eight bytes: those of years beyond 2262 are written as well."""
    return max(-_FARTHEST, min(_FARTHEST, anchor))
