"""Holds: nothing lapses while somebody holds it.

A hold stands in the annotations of the object that it keeps, so it survives any process of ours and moves with the
object. Reading one is pure, and in doubt it holds: an end that cannot be read is no end.

A hold reaches beyond its object. What an object owns, or what follows it, is held with it; and its owners, up the
chain, are kept, because garbage collection would take the held object along with them. That is also so when it has a
second owner, which would save it: two owners may be ended at the same moment, each for the sake of the other.

A *legal* hold has no end, and is released only by another person than who placed it. A hold is never weakened in
silence: see `demand_placeable` and `demand_releasable`, which every place that keeps holds asks before it writes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError, UsageError
from lapse.core.timestamps import from_timestamp, to_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.domain import Action, Also, Result, Target

HOLD: Final = "lapse.dev/hold"
"""Any value holds, except an empty one and ``false``; `LEGAL` is a legal hold."""
HOLD_REASON: Final = "lapse.dev/hold-reason"
HOLD_UNTIL: Final = "lapse.dev/hold-until"
"""RFC 3339; a legal hold has none."""
HOLD_BY: Final = "lapse.dev/hold-by"
"""The person who placed it."""
HELD_DEPENDENTS: Final = "lapse.dev/held-dependents"
"""A note on an owner: the held objects that it owns, directly or not, of kinds that may not be watched."""
LEGAL: Final = "legal"
HOLD_NAMES: Final = (HOLD, HOLD_REASON, HOLD_UNTIL, HOLD_BY)
"""All that a hold on an object itself is written in."""
_PLAIN: Final = "true"
_RELEASED: Final = frozenset({"", "false"})


LONGEST_REASON: Final = 1_024
_HASH_DIGITS: Final = 12


class ReasonError(UsageError):
    """The reason of {what} is for others to read: expected {expected}."""


class HeldError(LapseError):
    """{address} is held{reason}, so it is not deleted. To let it go: {release}."""

    status = 409


class WeakerHoldError(UsageError):
    """{address} is held already{reason}, {end}: a hold {asked} would be weaker. Expected a later end, or none.

    To have it nevertheless, replace the hold: --replace.
    """

    status = 409


class LegalHoldError(UsageError):
    """{address} is under a legal hold of {by}{reason}. It has no end, and no other hold takes its place.

    Another person than {by} can release it.
    """

    status = 409


class SecondPersonError(UsageError):
    """{address} is under a legal hold that {by} has placed: another person must release it."""

    status = 403


class LegalReleaseError(UsageError):
    """{address} is under a legal hold. To release it, say that it is meant: --legal."""


class AnotherHoldError(LapseError):
    """{address} is under another hold now: {reason}, by {by}, {end}. Nothing was released.

    If that one is to end, name its hash, which is {hash}.
    """

    status = 412


class UnnamedPersonError(UsageError):
    """A legal hold needs the name of a person, because another one must release it. Expected a named token or user."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why something is held, until when (None: until it is released), and by whom."""

    reason: str
    until: UnixNs | None
    by: str = ""
    """The person who placed it; empty where that is not known."""
    is_legal: bool = False
    """Whether it has no end, and is released only by another person than the one who placed it."""

    def active(self, now: UnixNs) -> bool:
        """Whether it still holds at ``now``."""
        return self.until is None or now < self.until

    @property
    def hash(self) -> str:
        """A short hash of all that people see of it, by which they say which hold they mean."""
        until = None if self.until is None else to_timestamp(self.until)
        told = msgspec.json.encode((self.reason, until, self.by, self.is_legal))
        return sha256(told).hexdigest()[:_HASH_DIGITS]

    def lasts_as_long_as(self, other: Hold) -> bool:
        """Whether it keeps at least as long as another one."""
        return self.until is None or (other.until is not None and self.until >= other.until)


@dataclass(frozen=True, slots=True)
class HoldDoubt:
    """Why it is not known whether something is held; it is kept then."""

    problem: str


# --- what may be written ----------------------------------------------------------------------------------------------

REASON_FORM: Final = f"1 to {LONGEST_REASON} printable characters in one line, and not spaces alone"


def is_reason(text: str) -> bool:
    """Whether a text can be the reason of a hold or a freeze: what every table, message, log and annotation can show.

    Of any script; control characters, line breaks, marks that turn the direction of a line and halves of characters
    are no part of it.
    """
    return len(text) <= LONGEST_REASON and text.isprintable() and bool(text.strip())


def demand_reason(text: str, what: str) -> None:
    """Raise `ReasonError`, which does not repeat the text, unless it can be the reason of ``what``."""
    if not is_reason(text):
        raise ReasonError(what=what, expected=REASON_FORM)


def demand_placeable(address: object, wanted: Hold, found: Hold | None, now: UnixNs, *, replace: bool) -> None:
    """Refuse a hold that would weaken the one that is there; ``replace`` allows that, but of a legal one.

    The same legal hold may be placed again, which repairs one that was placed in part.
    """
    if wanted.is_legal and not wanted.by.strip():
        raise UnnamedPersonError
    if found is None or not found.active(now):
        return
    if found.is_legal:
        if not wanted.is_legal or wanted.by != found.by:
            raise LegalHoldError(address=address, by=found.by or "a person who is not known", reason=_because(found))
    elif not (wanted.is_legal or wanted.lasts_as_long_as(found) or replace):
        raise WeakerHoldError(address=address, reason=_because(found), end=_end(found), asked=_end(wanted))


def demand_releasable(
    address: object, found: Hold | None, *, by: str, legal: bool = True, only: str | None = None
) -> None:
    """Refuse the release of a legal hold by the person who placed it, or by nobody with a name.

    ``legal`` is whether a legal hold is meant: who may release holds may not release these. ``only`` is the hash of the
    hold that is meant; None: whichever is there. Every store asks on what it compares with when it writes, so a hold
    that was replaced meanwhile is not released for the one that was seen.
    """
    if found is None:
        return
    if found.is_legal and not legal:
        raise LegalReleaseError(address=address)
    if only not in {None, found.hash}:
        told = {"reason": found.reason or "no reason is told", "by": found.by or "a person who is not known"}
        raise AnotherHoldError(address=address, end=_end(found), hash=found.hash, **told)
    if not found.is_legal:
        return
    if not by.strip():
        raise UnnamedPersonError
    if not found.by or found.by == by:  # without a name nobody is known to be another person
        raise SecondPersonError(address=address, by=found.by or "a person who is not known")


def _because(hold: Hold) -> str:
    return f" ({hold.reason})" if hold.reason else ""


def _end(hold: Hold) -> str:
    return "without an end" if hold.until is None else f"until {to_timestamp(hold.until)}"


# --- holds that the engine keeps --------------------------------------------------------------------------------------


class PlacedHold(NamedTuple):
    """A hold on one thing of a domain that has no place for it."""

    domain: str
    uid: str
    address: str
    """For people who look into the record; the uid is what counts."""
    hold: Hold
    since: UnixNs


class PlacedExtension(NamedTuple):
    """A later deadline of one thing of a domain that has no place for it."""

    domain: str
    uid: str
    address: str
    """As in `PlacedHold`."""
    until: UnixNs
    since: UnixNs
    by: str


class HoldStore(Protocol):
    """Keeps holds and extensions by domain and uid, for domains that have no place for them.

    Each change compares and writes in one transaction.
    """

    async def held(self, domain: str, uids: Sequence[str]) -> Mapping[str, Hold]:
        """Return the holds there are, over or not, by uid; raises when they cannot be read."""
        ...

    async def hold(self, placed: PlacedHold, *, replace: bool = False) -> Hold | None:
        """Hold a thing; return the hold that was there. Raises as `demand_placeable`."""
        ...

    async def release(
        self,
        domain: str,
        uid: str,
        *,
        by: str,
        legal: bool = True,
        only: str | None = None,
        address: str | None = None,
    ) -> Hold | None:
        """Remove a hold, and return it; None when there was none. Raises as `demand_releasable`.

        ``address`` is what errors call the thing; without it, its uid.
        """
        ...

    async def extended(self, domain: str, uids: Sequence[str]) -> Mapping[str, UnixNs]:
        """Return until when things are extended, by uid; raises when that cannot be read."""
        ...

    async def extend(self, placed: PlacedExtension) -> UnixNs:
        """Extend a thing, never to an earlier time than before; return until when it is extended now."""
        ...


class HeldTarget:
    """A `Target` whose things are also kept by the holds and extensions in a store; all else is the inner target's.

    They are read when holds are looked for, and again right before the act, but not in its transaction: one that is
    placed while the act is under way is too late. Where they cannot be read, everything is kept.
    """

    def __init__(self, target: Target, holds: HoldStore, *, clock: Clock) -> None:
        """Keep what ``holds`` has, beside what the target itself finds held."""
        self._target, self._holds, self._clock = target, holds, clock
        self.batch, self.database = target.batch, target.database

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `lapse.engine.domain.Target`: an extension is no hold; decisions look at it, and `apply` does again."""
        found = await self._target.holds_over(actions, now)
        held = await self._held(actions, now)
        return [held.get(action.uid, over) for action, over in zip(actions, found, strict=True)]

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """See `lapse.engine.domain.Target`."""
        kept = await self._kept(actions, UnixNs(self._clock.wall_ns()))
        if not kept:
            return await self._target.apply(actions, also=also)
        free = [place for place, one in enumerate(actions) if one.uid not in kept]
        beside = None if also is None else _of_places(also, free)
        done = iter(await self._target.apply([actions[place] for place in free], also=beside) if free else ())
        return [_held_result(one, kept[one.uid]) if one.uid in kept else next(done) for one in actions]

    async def _kept(self, actions: Sequence[Action], now: UnixNs) -> dict[str, Hold]:
        """Return by uid what the store says against acts on them."""
        if not actions:
            return {}
        domain, uids = actions[0].domain, [one.uid for one in actions]
        # A person may delete what is extended: only what a policy ends has to wait.
        extended = {} if actions[0].actor is not None else await self._holds.extended(domain, uids)
        kept = {uid: Hold("it was extended", until) for uid, until in extended.items() if now <= until}
        return kept | await self._held(actions, now)

    async def _held(self, actions: Sequence[Action], now: UnixNs) -> dict[str, Hold]:
        """Return by uid the holds of the store that are active at ``now``."""
        if not actions:
            return {}
        found = await self._holds.held(actions[0].domain, [one.uid for one in actions])
        return {uid: hold for uid, hold in found.items() if hold.active(now)}

    async def is_in_doubt(self, error: Exception) -> bool:
        """See `lapse.engine.domain.Target`."""
        return await self._target.is_in_doubt(error)


def _of_places(also: Also, places: Sequence[int]) -> Also:
    """Return what writes beside a part of a batch, and is told places in that part."""
    return lambda cursor, which: also(cursor, [places[one] for one in which])


def _held_result(action: Action, hold: Hold) -> Result:
    from lapse.engine.domain import Result  # which imports this module
    from lapse.engine.journal.port import Outcome

    return Result(Outcome.HELD, held_error(action.address, hold))


def held_error(address: object, hold: Hold) -> HeldError:
    """Return what tells that an object is held, with its hold."""
    release = f"lapse release {address}{' --legal' if hold.is_legal else ''}"
    return HeldError(address=address, reason=_because(hold), hold=hold, release=release)


# --- annotations ------------------------------------------------------------------------------------------------------


def hold_of(annotations: Mapping[str, str]) -> Hold | None:
    """Return the hold that keeps an object with these annotations, over or not: its own, or that of a dependant."""
    own, noted = own_hold_of(annotations), _noted_hold(annotations)
    if own is None or noted is None:
        return own or noted
    return own if own.lasts_as_long_as(noted) else noted


def own_hold_of(annotations: Mapping[str, str]) -> Hold | None:
    """Return the hold that was placed on an object itself, over or not, which also covers what it owns."""
    value = annotations.get(HOLD, "")
    if value in _RELEASED:
        return None
    reason, by = annotations.get(HOLD_REASON, ""), annotations.get(HOLD_BY, "")
    if value == LEGAL:
        return Hold(reason, None, by, is_legal=True)
    until = annotations.get(HOLD_UNTIL)
    return Hold(reason, None if until is None else from_timestamp(until), by)


def hold_annotations(hold: Hold | None) -> dict[str, str | None]:
    """Return the annotations of a hold, as a change of those that are there; None for no hold."""
    if hold is None:
        return dict.fromkeys(HOLD_NAMES)
    return {
        HOLD: LEGAL if hold.is_legal else _PLAIN,
        HOLD_REASON: hold.reason or None,
        HOLD_UNTIL: None if hold.until is None else to_timestamp(hold.until),
        HOLD_BY: hold.by or None,
    }


class HeldDependent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the note on an owner: an object that it owns, directly or not, and that is held."""

    uid: str
    object: str = ""
    """Where it is, in the words of its store; empty in a note that was written by hand."""
    until: str = ""
    """RFC 3339; empty for a hold without an end."""
    address: str = ""
    """Its address, for people."""

    def end(self) -> UnixNs | None:
        """Return when its hold ends; None: not by itself, as where what stands for it is no time."""
        return from_timestamp(self.until) if self.until else None


def held_dependents(annotations: Mapping[str, str]) -> tuple[HeldDependent, ...]:
    """Return the entries of a note; of a text that is none of ours, each word is taken for a uid."""
    text = annotations.get(HELD_DEPENDENTS, "").strip()
    with suppress(msgspec.MsgspecError):
        return _decode(text)
    return tuple(HeldDependent(word) for word in text.replace(",", " ").split())


def note_text(entries: Iterable[HeldDependent]) -> str | None:
    """Return the note with these entries; None for no note."""
    found = sorted(entries, key=lambda one: one.uid)
    return msgspec.json.encode(found).decode() if found else None


_decode: Final = msgspec.json.Decoder(tuple[HeldDependent, ...]).decode


def _noted_hold(annotations: Mapping[str, str]) -> Hold | None:
    if not annotations.get(HELD_DEPENDENTS, "").strip():
        return None
    entries = held_dependents(annotations)
    ends = [one.end() for one in entries]
    known = [end for end in ends if end is not None]
    named = ", ".join(one.address or one.object or one.uid for one in entries) or annotations[HELD_DEPENDENTS]
    until = max(known) if known and len(known) == len(ends) else None
    return Hold(f"it owns objects that are held: {named}", until)
