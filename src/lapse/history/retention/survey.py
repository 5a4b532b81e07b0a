"""A survey: what one look at each object tells, in any order, with a number per group as its only memory.

It judges what can be judged by an object's own fields, and says of which groups the members have to be compared. What
it says about numbers is a hint, never a reason to end anything: the pages it looked at may show different moments.

Groups are remembered by their hash: two that share one are both compared, and nothing else happens.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING

from lapse.history.retention.rules import expired, judge_alone, judgement

if TYPE_CHECKING:
    from lapse.core.clock import UnixNs
    from lapse.history.retention.rules import Entry, Judgement, Limits


class Look(Enum):
    """What a look at an object tells when there is nothing to judge."""

    STAYS = auto()
    """It is not due, and no other object can change that."""
    OPEN = auto()
    """Its group may matter: as one too many, or as one of the last."""


class Survey:
    """See the module; for one policy."""

    def __init__(self, limits: Limits, now: UnixNs) -> None:
        """Nothing was looked at yet."""
        self._limits, self._now = limits, now
        self._counts: Counter[int] = Counter()
        self._asked: set[int] = set()

    def look(self, entry: Entry) -> Judgement | Look:
        """Return what the object itself is enough for, and remember that it was there.

        What comes back as due was judged by its own fields alone, which an act that compares its version covers.
        """
        found = self.alone(entry)
        if found is Look.OPEN:
            assert entry.anchor is not None  # noqa: S101 - without one it is unknown, not open
            if self._limits.is_expired(entry.anchor, self._now):
                self.ask(entry)
            elif self._limits.max_count is not None:
                # What is expired is older than all that is not, so it takes none of the places that count.
                self._counts[hash(entry.group)] += 1
        return found

    def alone(self, entry: Entry) -> Judgement | Look:
        """Return the same, and remember nothing."""
        limits = self._limits
        if entry.anchor is None or entry.group is None:
            return judge_alone(entry, limits, self._now)
        if entry.is_kept:
            return Look.OPEN
        due = expired(entry.anchor, limits, self._now)
        if due is None:
            return Look.STAYS if limits.max_count is None else Look.OPEN
        return judgement(entry, due, limits, now=self._now)

    def ask(self, entry: Entry) -> None:
        """Have the group of an object compared, whatever its number."""
        self._asked.add(hash(entry.group))

    def concerns(self, entry: Entry) -> bool:
        """Whether an object is open, and its group is one of those that are to be compared.

        Those that are not open take no place that counts among those that are.
        """
        if self.alone(entry) is not Look.OPEN:
            return False
        found, most = hash(entry.group), self._limits.max_count
        return found in self._asked or (most is not None and self._counts[found] > most)

    @property
    def is_clear(self) -> bool:
        """Whether there is no group to compare."""
        most = self._limits.max_count
        return not self._asked and (most is None or max(self._counts.values(), default=0) <= most)
