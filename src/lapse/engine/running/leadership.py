"""Leadership: what the engine asks of whatever decides which process leads.

The engine says what it is; `lapse.keys.election` and, on Kubernetes, a Lease provide it; where there is one process
only, `SoleLeader` does. A leader's work is a coroutine that runs while this process leads and is *cancelled before
leadership can move*, so that two leaders never work at the same time. It must therefore stop promptly when it is
cancelled; work that cannot (a blocking call in a thread) checks its term before each effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any


class Term(Protocol):
    """One period of leadership."""

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier term of anybody: for stores that can refuse smaller ones."""
        ...

    @property
    def lost(self) -> bool:
        """Whether this process no longer leads, or can no longer know that it does."""
        ...


class Leadership(Protocol):
    """Decides who leads. One object per process and name."""

    @property
    def leading(self) -> bool:
        """Whether this process leads now."""
        ...

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        """Try to lead, for ever; run ``work`` during each term, and release when cancelled.

        Work that returns by itself ends the election; its error is raised.
        """
        ...


@dataclass(slots=True)
class _SoleTerm:
    fence: int
    lost: bool = False


_CLOCK: Final = SystemClock()


class SoleLeader:
    """Leadership where nobody else is: leads at once, until it is cancelled.

    Does not find out whether somebody else is there: that a state folder is used by one process is its user's word.
    """

    def __init__(self, clock: Clock = _CLOCK) -> None:
        """Take fences from ``clock``, so that they grow over restarts as well as the wall clock does."""
        self._clock = clock
        self._term: _SoleTerm | None = None

    @property
    def leading(self) -> bool:
        """See `Leadership`."""
        return self._term is not None

    async def campaign(self, work: Callable[[Term], Coroutine[Any, Any, None]]) -> None:
        """See `Leadership`."""
        self._term = term = _SoleTerm(fence=self._clock.wall_ns())
        try:
            await work(term)
        finally:
            term.lost, self._term = True, None
