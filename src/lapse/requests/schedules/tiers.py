"""Tiers: which runs of a schedule stay. Pure.

The newest run of each of the last so many hours, days, weeks and months *that have one*, in the zone of the schedule,
and the last so many runs, whatever their time. Time alone pushes nothing out: a night without a run, or a schedule that
rests for a year, costs no artifact. A run may have places in several tiers; one that has none is superseded.

Only runs whose artifact is ready may be handed in: what failed takes no place. Guaranteed: the newest run always stays.
Of several runs for the same time the first one made counts, so that nobody pushes others out by repeating one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from lapse.core.clock import UnixNs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from zoneinfo import ZoneInfo

    from lapse.requests.api.kinds import KeepSpec

_NS: Final = 1_000_000_000


class Tier(StrEnum):
    """Why a run stays."""

    LAST = "last"
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"


class ReadyRun(Struct, frozen=True, gc=False):
    """A run whose artifact is ready."""

    uid: str
    scheduled: UnixNs
    made: UnixNs
    """When what keeps it was made; 0 when that cannot be read."""


def places(runs: Iterable[ReadyRun], keep: KeepSpec, zone: ZoneInfo) -> dict[str, tuple[Tier, ...]]:
    """Return the tiers in which each run has a place, by its uid; nothing for those that have none."""
    first: dict[UnixNs, ReadyRun] = {}
    for run in sorted(runs, key=lambda one: (one.scheduled, one.made, one.uid)):
        first.setdefault(run.scheduled, run)
    newest_first = [first[scheduled] for scheduled in sorted(first, reverse=True)]
    found: dict[str, list[Tier]] = {}
    for tier in Tier:
        wanted, taken = getattr(keep, tier) or 0, set[object]()
        for run in newest_first:
            if len(taken) >= wanted:
                break
            period = _period(tier, run.scheduled, zone)
            if period not in taken:
                taken.add(period)
                found.setdefault(run.uid, []).append(tier)
    for run in newest_first[:1]:  # also where nothing is to be kept, which no document that was checked says
        found.setdefault(run.uid, [Tier.LAST])
    return {uid: tuple(tiers) for uid, tiers in found.items()}


def _period(tier: Tier, scheduled: UnixNs, zone: ZoneInfo) -> Hashable:
    """Return the hour, day, week or month of a run; for the last ones, the run itself."""
    local = datetime.fromtimestamp(scheduled // _NS, zone)
    match tier:
        case Tier.LAST:
            return scheduled
        case Tier.HOURLY:
            return local.date(), local.hour
        case Tier.DAILY:
            return local.date()
        case Tier.WEEKLY:
            return local.isocalendar()[:2]
        case Tier.MONTHLY:
            return local.year, local.month
