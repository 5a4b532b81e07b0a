"""The activity port: whether users are connected to a workspace, as a `Signal`.

A connection is a *lease*: its holder renews it by heartbeat, and a proxy that crashed stops counting when its
leases are over. A plain counter would pin a workspace for ever. When the last connection closes, an idle timer runs;
when one opens, the timer goes.

**Unknown is not idle.** Silence is believed only of a store that has been there, without a break, for two lease
periods: long enough for every living connection to have announced itself again. Before that everything is
`ActivityUnknown`, and so is, at any time, a workspace whose own entries cannot be read. A store that does not answer is
an `ActivityUnavailableError`, never `Quiet`.

Guarantees: each call but `renew` and `read` of many is one atomic step, and every call may be repeated: a caller that
got no answer calls again. Times are those of one clock, the store's own. Not guaranteed: that a signal is still true
when it arrives. A caller that acts on one compares, in the same step, what a connection writes to the database first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType, Protocol

from lapse.core.decision import Reason
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lapse.workspaces.model import WorkspaceId

ConnectionId = NewType("ConnectionId", str)
"""One connection through one proxy. Never used again: two with one id would end as one."""

DEFAULT_LEASE_SECONDS: Final = 30.0
BATCH: Final = 1000
"""How many workspaces or connections one step on a server looks at: that takes milliseconds, and others wait."""
_LONGEST_SECONDS: Final = 10 * 365 * 86_400


# --- signals ----------------------------------------------------------------------------------------------------------


class ActivityDoubt(Reason):
    """Why it is not known whether somebody is there; the values are metric labels."""

    EPOCH_ABSENT = "activity_epoch_absent"
    """The store lost everything, or is new."""
    EPOCH_YOUNG = "activity_epoch_young"
    """The store began less than two lease periods ago."""
    UNREADABLE = "activity_unreadable"
    """An entry of this workspace is not what it should be."""
    UNREACHABLE = "activity_unreachable"
    """The store did not answer; what a caller makes of an `ActivityUnavailableError`."""
    ELSEWHERE = "activity_elsewhere"
    """Another process counts it, and answers for it: a running Lapse."""
    PROBE_FAILED = "probe_failed"
    """The workspace has a probe, and its program did not answer it, or not as expected."""
    PROBE_UNANSWERED = "probe_unanswered"
    """The workspace has a probe that was not answered lately: nobody asked, or nobody wrote it down."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Somebody is there, with so many connections."""

    count: int


@dataclass(frozen=True, slots=True)
class Timer:
    """The last connection closed a short while ago; ``seconds_left`` is more than 0."""

    seconds_left: float


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nobody is there, for certain, and no timer runs."""


@dataclass(frozen=True, slots=True)
class ActivityUnknown:
    """It is not known whether somebody is there."""

    reason: ActivityDoubt


Signal = Connected | Timer | Quiet | ActivityUnknown


# --- errors -----------------------------------------------------------------------------------------------------------


class ActivityUnavailableError(LapseError):
    """The activity store {backend} cannot be used now: {problem}. No workspace counts as idle until it can."""

    status = 503


class ActivityClosedError(ActivityUnavailableError):
    """The activity store is closed; open it again."""


class ActivityURLError(UsageError, ValueError):
    """The activity URL {url} cannot be used: {problem}."""


class InvalidPeriodError(UsageError, ValueError):
    """The {what} is {given} seconds; expected {expected}."""


# --- the port ---------------------------------------------------------------------------------------------------------


class Activity(Protocol):
    """See the module. Every call may raise `ActivityUnavailableError`; then it may or may not have been done."""

    @property
    def lease_seconds(self) -> float:
        """The longest lease that anybody takes here; twice as long nobody is believed to be absent."""
        ...

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        """Count a connection until its lease is over, remove the idle timer, and say whether nobody else is there.

        The same connection again is one connection, with a new lease, and gets the same answer: so a caller that
        got none calls again and still learns that it is the first, whose duty it is to write the database.
        """
        ...

    async def renew(self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float) -> set[ConnectionId]:
        """Give connections a new lease, and return those that had none any more.

        A lost one is not counted again by this: the workspace may have been stopped meanwhile, so a proxy that still
        holds it connects anew, with all that belongs to it. A lease is never shortened.
        """
        ...

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        """Count a connection no longer, and say whether nobody is left; then the idle timer starts anew.

        One that was not counted any more is no error, and leaves the same behind. 0 seconds: no timer.
        """
        ...

    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        """Return the signal of each; one that nobody ever connected to is quiet. Batches are read one after another."""
        ...

    async def check(self) -> None:
        """Raise what would stop the other calls."""
        ...

    async def close(self) -> None:
        """Release what is held. Connections stay counted until their leases are over. Idempotent."""
        ...


# --- rules ------------------------------------------------------------------------------------------------------------


def milliseconds_of_lease(seconds: float, longest: float) -> int:
    """Return a lease in whole milliseconds, rounded up; raises unless it is positive and at most the longest."""
    if not 0 < seconds <= longest:  # a NaN is neither
        expected = f"more than 0 and at most {longest:g}, the longest lease that this store was opened for"
        raise InvalidPeriodError(what="lease", given=seconds, expected=expected)
    return _rounded_up(seconds)


def milliseconds_of_timer(seconds: float) -> int:
    """Return the time of an idle timer in whole milliseconds, rounded up; 0 is none."""
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise InvalidPeriodError(what="idle timer", given=seconds, expected=f"0 (none) to {_LONGEST_SECONDS}")
    return _rounded_up(seconds)


def settling_milliseconds(lease_seconds: float) -> int:
    """Return how long a store that has just begun is not believed: two lease periods."""
    if not 0 < lease_seconds <= _LONGEST_SECONDS:
        expected = f"more than 0 and at most {_LONGEST_SECONDS}"
        raise InvalidPeriodError(what="longest lease", given=lease_seconds, expected=expected)
    return 2 * _rounded_up(lease_seconds)


def _rounded_up(seconds: float) -> int:
    return -int(-seconds * 1000 // 1)
