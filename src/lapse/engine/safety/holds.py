"""Holds: nothing lapses while somebody holds it.

A hold stands in the annotations of the object that it keeps, so it survives any process of ours and moves with the
object. Reading one is pure, and in doubt it holds: an end that cannot be read is no end.

A hold reaches beyond its object. What an object owns, or what follows it, is held with it; and its owners, up the
chain, are kept, because garbage collection would take the held object along with them. That is also so when it has a
second owner, which would save it: two owners may be ended at the same moment, each for the sake of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.objects.port import Deletion

HOLD: Final = "lapse.dev/hold"
"""Any value holds, except an empty one and ``false``."""
HOLD_REASON: Final = "lapse.dev/hold-reason"
HOLD_UNTIL: Final = "lapse.dev/hold-until"
"""RFC 3339."""
HELD_DEPENDENTS: Final = "lapse.dev/held-dependents"
"""A note on an owner: the uids of held objects that it owns, directly or not, of kinds that may not be watched."""
_RELEASED: Final = frozenset({"", "false"})


class HeldError(LapseError):
    """{address} is held{reason}, so it is not deleted."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why something is held, and until when (None: until it is released)."""

    reason: str
    until: UnixNs | None

    def active(self, now: UnixNs) -> bool:
        """Whether it still holds at ``now``."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class HoldDoubt:
    """Why it is not known whether something is held; it is kept then."""

    problem: str


@runtime_checkable
class HoldLookup(Protocol):
    """Finds what holds objects, wherever the hold stands: see the module."""

    async def holds_over(self, deletions: Sequence[Deletion], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """Return for each a hold that is active at ``now``; None when there is none.

        Looked at are its own annotations, those of its owners and of what it follows, up the chain, and those of its
        dependants, down the chain.
        """
        ...


def held_error(address: object, hold: Hold) -> HeldError:
    """Return what tells that an object is held, with its hold."""
    return HeldError(address=address, reason=f" ({hold.reason})" if hold.reason else "", hold=hold)


def hold_of(annotations: Mapping[str, str]) -> Hold | None:
    """Return the hold that keeps an object with these annotations, over or not: its own, or that of a dependant."""
    noted = annotations.get(HELD_DEPENDENTS, "").strip()
    return Hold(f"it owns objects that are held: {noted}", None) if noted else own_hold_of(annotations)


def own_hold_of(annotations: Mapping[str, str]) -> Hold | None:
    """Return the hold that was placed on an object itself, over or not, which also covers what it owns."""
    if annotations.get(HOLD, "") in _RELEASED:
        return None
    until = annotations.get(HOLD_UNTIL)
    return Hold(annotations.get(HOLD_REASON, ""), None if until is None else from_timestamp(until))
