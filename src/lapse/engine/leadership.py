"""Leadership: what the engine asks of whatever decides which process leads.

The engine says what it is; `lapse.keys.election` and, on Kubernetes, a Lease provide it. A leader's work is a coroutine
that runs while this process leads and is *cancelled before leadership can move*, so that two leaders never work at the
same time. It must therefore stop promptly when it is cancelled; work that cannot (a blocking call in a thread) checks
its term before each effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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

        Work that returns by itself ends the campaign; its error is raised.
        """
        ...
