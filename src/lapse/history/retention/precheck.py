"""The precheck of a pass: whether anything can be due at all, by how many objects have which labels, and since when.

Most passes find nothing to do. Where a store can count (`Summarising`) and all that policies want to know stands in
labels, namespaces and creation times, that is known without reading any object. A precheck never ends anything: when
it cannot rule out that something is due, everything is listed. What it rules out is exact, and so are the numbers that
it reports.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from lapse.history.policy.policy import CREATED
from lapse.history.records import is_about_records, is_labelled
from lapse.kube.resources import ObjectMeta, PartialObject
from lapse.objects.port import Summarising

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.clock import UnixNs
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.listing import Listing
    from lapse.history.retention.rules import RetainedObject, RetentionLimits

_MOST: Final = 50_000
"""Of more than so many different labels a summary would be as long as a list."""


def is_decided_by_labels(policy: Policy) -> bool:
    """Whether objects of the same namespace and labels are all the same to a policy, but for their creation."""
    conditions = policy.only_when if policy.keep_where is None else (*policy.only_when, policy.keep_where)
    paths = (*policy.group_by, *(one.path for one in conditions))
    return policy.age_from == CREATED and all(
        path.steps == ("metadata", "namespace") or (path.steps[:2] == ("metadata", "labels") and len(path.steps) == 3)  # noqa: PLR2004 - a label
        for path in paths
    )


async def precheck(listing: Listing, limits: Sequence[RetentionLimits], now: UnixNs) -> list[int] | None:
    """Return how many objects each policy is about, if none of them can be due; None when that is not known."""
    direct: Any = listing.direct
    if not isinstance(direct, Summarising) or not all(map(is_decided_by_labels, listing.policies)):
        return None
    reading, labels = listing.reading(), listing.asked_labels()
    counts = [_Count(one, now) for one in limits]
    for namespace in listing.namespaces():
        found = await direct.summary(listing.kind, namespace=namespace, labels=labels, at_most=_MOST)
        if found is None:
            return None
        for summary in found:
            if is_about_records(listing.policies) and not is_labelled(dict(summary.labels)):
                return None  # which group they are of is not in their labels
            oldest = ObjectMeta(
                namespace=summary.namespace, labels=dict(summary.labels), creation_timestamp=summary.oldest
            )
            for count, entry in zip(counts, reading.views(PartialObject(metadata=oldest)), strict=True):
                if entry is not None:
                    count.add(entry, summary.how_many)
    return None if any(one.may_be_due for one in counts) else [one.matched for one in counts]


class _Count:
    """The number of objects that one policy is about, and whether one of them may be due."""

    def __init__(self, limits: RetentionLimits, now: UnixNs) -> None:
        self.matched = 0
        self.may_be_due = False
        self._limits, self._now = limits, now
        self._groups: Counter[int] = Counter()

    def add(self, oldest: RetainedObject, how_many: int) -> None:
        """Take some objects that are alike, none of them older than this one."""
        limits = self._limits
        self.matched += how_many
        if oldest.group is not None:
            self._groups[hash(oldest.group)] += how_many
            too_many = limits.max_count is not None and self._groups[hash(oldest.group)] > limits.max_count
            self.may_be_due = self.may_be_due or too_many
        too_old = oldest.anchor is None or limits.is_expired(oldest.anchor, self._now)
        self.may_be_due = self.may_be_due or too_old
