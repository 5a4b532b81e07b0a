"""Holds: nothing lapses while somebody holds it.

A hold stands in the annotations of the object that it keeps, so it survives any process of ours and moves with the
object. Reading one is pure, and in doubt it holds: an end that cannot be read is no end.

A hold reaches beyond its object. What an object owns, or what follows it, is held with it; and its owners, up the
chain, are kept, because garbage collection would take the held object along with them. That is also so when it has a
second owner, which would save it: two owners may be ended at the same moment, each for the sake of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lapse.core.errors import LapseError
from lapse.core.timestamps import from_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action, Also, Result, Target

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

    status = 409


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


class PlacedHold(NamedTuple):
    """A hold on one thing of a domain that has no place for it."""

    domain: str
    uid: str
    address: str
    """For people who look into the record; the uid is what counts."""
    hold: Hold
    since: int
    by: str


class HoldStore(Protocol):
    """Keeps holds by domain and uid, for domains that have no place for them."""

    async def held(self, domain: str, uids: Sequence[str]) -> Mapping[str, Hold]:
        """Return the holds there are, over or not, by uid; raises when they cannot be read."""
        ...

    async def hold(self, placed: PlacedHold) -> None:
        """Hold a thing; an earlier hold on it is replaced."""
        ...

    async def release(self, domain: str, uid: str) -> Hold | None:
        """Remove a hold, and return it; None when there was none."""
        ...


class HeldTarget:
    """A `Target` whose things are also kept by the holds in a store; everything else is the inner target's.

    Holds are read before the act and not in its transaction: one that is placed while the act is under way is too late.
    Where they cannot be read, everything is kept.
    """

    def __init__(self, target: Target, holds: HoldStore) -> None:
        """Keep what ``holds`` has, beside what the target itself finds held."""
        self._target, self._holds = target, holds
        self.batch, self.database = target.batch, target.database

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `lapse.engine.domain.Target`."""
        found = await self._target.holds_over(actions, now)
        if not actions:
            return found
        kept = await self._holds.held(actions[0].domain, [one.uid for one in actions])
        active = {uid: hold for uid, hold in kept.items() if hold.active(now)}
        return [active.get(action.uid, over) for action, over in zip(actions, found, strict=True)]

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `lapse.engine.domain.Target`."""
        return await self._target.apply(actions, also=also)

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `lapse.engine.domain.Target`."""
        return await self._target.is_in_doubt(error)


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
