"""The registry of the cases of the journal contract, with the world they are given and a few helpers.

A case is a plain coroutine function that takes a `World` and asserts; `case` puts it into the registry. Its world is
empty and its own. It states what holds in every journal.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from lapse.core.decision import DueReason
from lapse.engine.journal.port import BEGINNING, Entry, Outcome

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from lapse.engine.journal.port import Journal, RowPosition

ENTRY: Final = Entry(
    time_ns=1_700_000_000_000_000_000,
    domain="requests",
    address="vcr/default/nightly",
    uid="uid-1",
    version="41",
    verdict="due",
    reason=DueReason.TTL_EXPIRED,
    anchor_ns=1_699_999_000_000_000_000,
    policy="a1b2c3",
    actor="requests-ttl",
    outcome=Outcome.ENDED,
    details={"handle": "vol-7", "size": 3, "имя": "том"},
    tick="tick-1",
)
_MOST_PAGES: Final = 100
"""More than any case has: one that is wrong must end, too."""
UNKNOWN: Final = replace(ENTRY, verdict="unknown", reason="missing_anchor", outcome=Outcome.NOTED)
HELD: Final = replace(ENTRY, verdict="keep", reason="held", outcome=Outcome.HELD)


class World(Protocol):
    """A journal to try, and what a case may ask of its surroundings."""

    @property
    def journal(self) -> Any:  # noqa: ANN401 - a journal of a database, or one that stands in front of it
        """What is tried."""
        ...

    async def another(self) -> Any:  # noqa: ANN401
        """Open the same journal once more, as another process would, or this one after a restart."""
        ...

    def uncommitted(self, entry: Entry) -> AbstractAsyncContextManager[None]:
        """Write a row in a transaction of another process that is committed when the block ends."""
        ...


Case = Callable[[World], Coroutine[Any, Any, None]]
CASES: Final[dict[str, Case]] = {}
"""Every case by its name."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    assert function.__name__ not in CASES, f"two cases are called {function.__name__}"
    CASES[function.__name__] = function
    return function


def keeper(number: int, **changes: Any) -> Entry:  # noqa: ANN401
    """Return a row about one of many."""
    return replace(ENTRY, address=f"keeper/{number}", uid=f"uid-{number}", **changes)


async def names(journal: Journal, **how: Any) -> list[str]:  # noqa: ANN401
    """Return the addresses of rows in the order in which they come."""
    return [row.address for row in await journal.entries(**how)]


async def follow(journal: Journal, after: RowPosition = BEGINNING, *, page: int = 3) -> tuple[list[str], RowPosition]:
    """Read all there is behind a place, in pages; return the addresses and the place to go on from."""
    seen: list[str] = []
    for _ in range(_MOST_PAGES):
        rows = await journal.entries(after=after, limit=page)
        if not rows:
            break
        seen += [row.address for row in rows]
        after = rows[-1].place
    return seen, after
