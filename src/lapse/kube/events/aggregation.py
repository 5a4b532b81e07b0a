"""Tallies: many things that happen to one object, told together.

The first item opens a tally, which is told some seconds later with all that came meanwhile; after that the same tally
is told once in a longer while at the most. So the number of tellings depends on time and on the number of objects, and
not on how many items there are. With too many objects at a time, new ones are counted together, under no object.

Nothing here waits or calls anybody: whoever tells asks for what is ripe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lapse.kube.events.event import Report, Times

if TYPE_CHECKING:
    from lapse.core.clock import Clock

_NS: Final = 1_000_000_000
_NAMED: Final = 5
"""Items that are named; the others are counted."""


@dataclass
class _Tally:
    due_ns: int
    first_ns: int
    last_ns: int
    count: int = 0
    named: list[str] = field(default_factory=list)


class Tallies:
    """See the module. ``places`` is how many objects are counted apart at a time."""

    def __init__(self, clock: Clock, *, gather_seconds: float, quiet_seconds: float, places: int) -> None:
        """Count nothing yet."""
        self._clock, self._places = clock, places
        self._gather_ns, self._quiet_ns = round(gather_seconds * _NS), round(quiet_seconds * _NS)
        self._open: dict[Report, _Tally] = {}
        self._told: dict[Report, int] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, report: Report, item: str) -> bool:
        """Count an item; return whether that opened a tally."""
        found, opens = self._open.get(report), False
        if found is None:
            if len(self._open) >= self._places and report.regarding is not None:
                return self.add(replace(report, regarding=None), item)
            found, opens = self._begin(report), True
            self._open[report] = found
        found.count += 1
        found.last_ns = self._clock.wall_ns()
        if len(found.named) < _NAMED:
            found.named.append(item)
        return opens

    def _begin(self, report: Report) -> _Tally:
        due_ns = self._clock.monotonic_ns() + self._gather_ns
        told_ns = self._told.get(report)
        if told_ns is not None:
            due_ns = max(due_ns, told_ns + self._quiet_ns)
        now = self._clock.wall_ns()
        return _Tally(due_ns, now, now)

    def seconds_left(self) -> float | None:
        """Return how long until something is ripe; None when nothing is open."""
        if not self._open:
            return None
        return max(0.0, (min(tally.due_ns for tally in self._open.values()) - self._clock.monotonic_ns()) / _NS)

    def ripe(self, *, everything: bool = False) -> list[tuple[Report, Times]]:
        """Close the tallies whose time has come, and return what is to be told."""
        now_ns = self._clock.monotonic_ns()
        self._told = {report: told for report, told in self._told.items() if now_ns - told < self._quiet_ns}
        due = [report for report, tally in self._open.items() if everything or tally.due_ns <= now_ns]
        self._told |= dict.fromkeys(due, now_ns)
        return [_summary(report, self._open.pop(report)) for report in due]

    def clear(self) -> None:
        """Forget what is open."""
        self._open.clear()


def _summary(report: Report, tally: _Tally) -> tuple[Report, Times]:
    more = ", ..." if tally.count > len(tally.named) else ""
    note = f"{report.note}: {tally.count} ({', '.join(tally.named)}{more})"
    return replace(report, note=note), Times(tally.first_ns, tally.last_ns)
