"""The counting of a forecast: the steps of a window, how much lapses in each, and the nearest things. Pure.

A *window* is cut into steps of the same length. A thing is counted in the step in which its time is over: at the
instant of its beginning and after that, and before its end; the last step has its end as well. What is over already is
*overdue*, what is held is counted apart, and neither is in a step.

The nearest things are chosen while all are counted, in the order of their times and addresses, and only so many are
kept as a page has: a forecast of any number of things takes the memory of one page.

Guarantees: each thing is counted once, and pages that follow each other have each thing once while nothing changes.
Not guaranteed: that a thing whose time changes between two pages is in one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from lapse.core.clock import UnixNs
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from lapse.core.decision import Decision
    from lapse.engine.domain import Candidate
    from lapse.engine.explanation import HoldFacts

_LATEST: Final = 2**63 - 1
_ROOM: Final = 1_024
"""How many more than a page are gathered before the farthest are dropped: sorting seldom costs less."""
_SECOND: Final = 1_000_000_000
_MOST_DIGITS: Final = 20


class ForecastPlaceError(UsageError):
    """This is not the next of a forecast. Expected what the page before has as next."""


class Window(NamedTuple):
    """The time from now until a moment, in steps."""

    now: UnixNs
    until: UnixNs
    steps: int

    @property
    def step_seconds(self) -> float:
        """How long a step is."""
        return (self.until - self.now) / self.steps / _SECOND

    def step_of(self, moment: int) -> int:
        """Return the step in which a moment is; the first for one before the window, the last for one behind it."""
        now, until, steps = self
        if moment >= until:
            return steps - 1 if until > now else 0
        return (moment - now) * steps // (until - now) if moment > now else 0

    def edges(self) -> list[UnixNs]:
        """Return the first instant of each step but the first one."""
        length = self.until - self.now
        return [UnixNs(self.now - (-length * step // self.steps)) for step in range(1, self.steps)]


class ForecastPlace(NamedTuple):
    """Where a thing stands among all: by its time, its address and its domain."""

    due_at: int
    address: str
    domain: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `__str__` has written; raises `ForecastPlaceError`."""
        due_at, domain, address = (*text.split(" "), "", "")[:3]
        is_number = due_at.isascii() and due_at.isdigit() and len(due_at) <= _MOST_DIGITS
        if not (is_number and domain and address) or text.count(" ") != 2:  # noqa: PLR2004 - three parts
            raise ForecastPlaceError
        return cls(int(due_at), address, domain)

    def __str__(self) -> str:
        """Print it as one of a page's fields; an address has no spaces, and neither has the name of a domain."""
        return f"{self.due_at} {self.domain} {self.address}"


class Foreseen(NamedTuple):
    """A thing that lapses by the end of the window, as it is decided; ``due``: its time is over now."""

    candidate: Candidate[Any]
    decision: Decision
    due: bool
    due_at: UnixNs
    hold: HoldFacts | None = None


class StepCounts:
    """How many things of a domain lapse in which step."""

    def __init__(self, window: Window) -> None:
        """Count from nothing."""
        self._window = window
        self.overdue = self.held = 0
        self.counts = [0] * window.steps

    def add(self, one: Foreseen) -> None:
        """Count a thing."""
        if one.hold is not None:
            self.held += 1
        elif one.due:
            self.overdue += 1
        else:
            self.counts[self._window.step_of(one.due_at)] += 1


class Nearest:
    """The first ``limit`` things behind a place, of all that were seen, and whether there are more."""

    def __init__(self, limit: int, after: ForecastPlace | None) -> None:
        """Begin behind ``after``; None: at the first one."""
        self._limit, self._after = limit, after
        self._found: list[tuple[ForecastPlace, Foreseen]] = []
        self._last = _LATEST if limit else -1
        self._earliest = 0 if after is None else after.due_at

    def add(self, domain: str, one: Foreseen) -> None:
        """Keep a thing while it may be one of the first."""
        if not self._earliest <= one.due_at <= self._last:
            return
        place = ForecastPlace(one.due_at, str(one.candidate.address), domain)
        if self._after is None or place > self._after:
            self._found.append((place, one))
        if len(self._found) > self._limit + _ROOM:
            self._sort()

    def beside(self) -> Nearest:
        """Return one that looks for the same, and has nothing yet."""
        return Nearest(self._limit, self._after)

    def merge(self, other: Nearest) -> None:
        """Add what another one has."""
        self._found += other._found

    def page(self) -> tuple[list[tuple[ForecastPlace, Foreseen]], ForecastPlace | None]:
        """Return the first ones, and the place behind which the next page begins; None where there is none."""
        self._sort()
        found = self._found[: self._limit]
        return found, found[-1][0] if found and len(self._found) > self._limit else None

    def _sort(self) -> None:
        self._found.sort(key=lambda one: one[0])
        del self._found[self._limit + 1 :]
        if len(self._found) > self._limit:
            self._last = self._found[-1][0].due_at
