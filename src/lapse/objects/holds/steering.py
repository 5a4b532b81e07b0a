"""Steering of objects by people: hold, release and extend, the same on the embedded store and on Kubernetes.

A hold is written in several steps, because no two objects of a cluster change together. Their order leaves more held
than was asked for, and never less, wherever it is cut off; the same call again repairs what is missing.

1. A note on every owner, up the chain and of any kind, the topmost first: where nobody watches a kind, whoever ends an
   owner finds the note (`lapse.engine.safety.holds.HELD_DEPENDENTS`).
2. The hold on the object itself, at the version whose owners have the note.
3. The hold on its keeper, so that it outlives a request; a legal one on all that both own (`passed_holds`).

A release goes the other way round. Each write compares the version that it was made for, and is made again on what
others have written: holds of siblings on one owner do not lose each other. Both look again at what they wrote first, so
that a hold and a release of one object at the same moment leave a held one with its notes.

Raises what `demand_placeable` and `demand_releasable` raise, and what the store answers. An owner that cannot be read
or written (a missing right) refuses a hold: what is not noted would not be kept. A keeper or an artifact that the
caller may not write is left to the process that runs there, which has the right (`hold_upkeep`, and the controller of
keepers).

Not guaranteed: notes on owners that are given to a held object, or to one of its owners, afterwards. On kinds that are
watched those are found without a note.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.decision import UNREADABLE_EXTENSION
from lapse.core.errors import LapseError, UsageError
from lapse.core.jitter import backoff
from lapse.core.timestamps import to_timestamp
from lapse.engine.safety.extensions import EXTENDED_UNTIL, extension_of
from lapse.engine.safety.holds import (
    HELD_DEPENDENTS,
    AnotherHoldError,
    HeldDependent,
    LegalReleaseError,
    SecondPersonError,
    UnnamedPersonError,
    demand_placeable,
    demand_releasable,
    held_dependents,
    hold_annotations,
    hold_of,
    note_text,
    own_hold_of,
)
from lapse.kube.errors import ConflictError, ForbiddenError, NotFoundError, UnknownKindError
from lapse.kube.resources import Document, ObjectKey, metadata_only
from lapse.objects.holds.cluster import references
from lapse.objects.holds.passed_on import MARK_NAMES, PASSED_ON, REPLACED, hold_marks, passed_on, source_of
from lapse.objects.trash.rules import first_uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.safety.holds import Hold
    from lapse.kube.resources import Kind, Object
    from lapse.objects.holds.cluster import Dependants, Reference
    from lapse.objects.port import ObjectStore

    Changes = Mapping[str, str | None]
    Followers = Callable[[Kind[Any], Object], Awaitable[Sequence["ObjectPlace"]]]
    """Finds what follows an object and outlives it: the keeper of a request."""

_ATTEMPTS: Final = 20
"""With waits that double up to a second: who cannot get a write in for so long must be told."""


class PassedOnHoldError(UsageError):
    """{address} is held because {source} is, and would be held again at once. Release {source} instead."""

    status = 409


class DependantsHeldError(UsageError):
    """{address} itself is not held, and is kept because {reason}. Release these instead."""

    status = 409


class ObjectPlace(NamedTuple):
    """Where an object is, and which one is meant there."""

    kind: Kind[Any]
    key: ObjectKey
    uid: str

    def __str__(self) -> str:
        """Return its address."""
        return str(self.kind.address(self.key))

    @property
    def path(self) -> str:
        """Where it is, as a note has it: apiVersion, kind, namespace and name."""
        return f"{self.kind.api_version}/{self.kind.kind}/{self.key.namespace or ''}/{self.key.name}"


def read_path(path: str) -> tuple[str, str, ObjectKey] | None:
    """Return the apiVersion, the kind and the key of `Place.path`; None for a text that is none."""
    parts = path.rsplit("/", 3)
    if len(parts) != 4 or not all((parts[0], parts[1], parts[3])):  # noqa: PLR2004 - see there
        return None
    return parts[0], parts[1], ObjectKey(parts[2] or None, parts[3])


class Steering:
    """See the module."""

    def __init__(self, store: ObjectStore, *, dependants: Dependants, followers: Followers, clock: Clock) -> None:
        """Change what is in ``store``; ``dependants`` and ``followers`` know what a hold is passed on to."""
        self._store, self._clock = store, clock
        self.dependants, self._followers = dependants, followers

    async def hold(self, place: ObjectPlace, hold: Hold, *, replace: bool = False) -> Hold | None:
        """Hold an object; return the hold that was there, over or not. ``replace`` allows a weaker one."""

        def wanted(found: Object) -> Changes:
            there = own_hold_of(found.metadata.annotations)
            demand_placeable(place, hold, there, UnixNs(self._clock.wall_ns()), replace=replace)
            return {**hold_annotations(hold), PASSED_ON: None, REPLACED: None}

        entry = _entry(place, hold)
        before = await self._read(place)
        wanted(before)  # nothing is written for a hold that is refused
        for attempt in range(_ATTEMPTS):
            owners = [one async for one in self._owners(place, before)]
            for owner in reversed(owners):
                await self._note(owner, lambda entries: _with(entries, entry, longest=True))
            try:
                held = await self._patch(place, before, wanted(before))
                break
            except ConflictError:
                await self._clock.sleep(backoff(attempt, first=0.005, longest=1.0))
                before = await self._read(place)
        else:
            raise _busy(place)
        for owner in owners:  # somebody who released it at the same moment may have taken the note away
            await self._note(owner, lambda entries: _with(entries, entry))
        await self._pass_on(place, held, is_legal=hold.is_legal)
        return own_hold_of(before.metadata.annotations)

    async def release(self, place: ObjectPlace, *, by: str, legal: bool = True, only: str | None = None) -> Hold | None:
        """End the hold that was placed on an object, and return it; None when there was none.

        Raises `PassedOnHoldError` for a hold that stands there for the sake of another object that is still held.
        ``legal`` is whether a legal hold is meant, ``only`` the hash of the one that is. Whether it may be released is
        asked before anything is written, and again of what the write compares with: a legal hold that comes in between
        stays, or one with another hash, and what was taken back by then is written again for it.
        """
        found = await self._read(place)
        hold = own_hold_of(found.metadata.annotations)
        demand_releasable(place, hold, by=by, legal=legal, only=only)
        await self._demand_own(place, found)
        await self._take_back(place, found)

        def released(fresh: Object) -> Changes:
            nonlocal hold
            hold = own_hold_of(fresh.metadata.annotations)
            demand_releasable(place, hold, by=by, legal=legal, only=only)
            there = fresh.metadata.annotations
            return {name: None for name in MARK_NAMES if name in there}

        try:
            found = await self._change(place, released)
        except (AnotherHoldError, LegalReleaseError, SecondPersonError, UnnamedPersonError):
            if hold is not None:
                with suppress(LapseError):  # otherwise `hold_upkeep` does it
                    await self.hold(place, hold)
            raise
        await self._forget(place, found)
        if hold is None:
            self._demand_free(place, found)
        return hold

    def _demand_free(self, place: ObjectPlace, found: Object) -> None:
        """Say what keeps an object that has no hold to release."""
        noted = hold_of(found.metadata.annotations)
        if noted is not None and noted.active(UnixNs(self._clock.wall_ns())):
            raise DependantsHeldError(address=place, reason=noted.reason)

    async def extend(self, place: ObjectPlace, until: UnixNs) -> UnixNs:
        """Give an object time until then, never until an earlier moment; return until when it has it now."""
        last = until

        def later(found: Object) -> Changes:
            nonlocal last
            last = UnixNs(max(until, _known(extension_of(found.metadata.annotations))))
            return {EXTENDED_UNTIL: to_timestamp(last)}

        await self._change(place, later)
        return last

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def remove_ended(self, place: ObjectPlace, now: UnixNs) -> None:
        """Remove a hold whose end has passed, if there is one; its notes end by themselves, and go with it."""

        def ended(found: Object) -> Changes:
            there = found.metadata.annotations
            hold = own_hold_of(there)
            if hold is None or hold.active(now):
                return {}
            return {name: None for name in MARK_NAMES if name in there}

        found = await self._change(place, ended)
        if own_hold_of(found.metadata.annotations) is None:
            await self._forget(place, found)

    async def complete(self, place: ObjectPlace) -> Sequence[ObjectPlace]:
        """Pass a hold on to what follows the object, and a legal one to what it owns; return what that is by now."""
        found = await self._read(place)
        hold = own_hold_of(found.metadata.annotations)
        return [] if hold is None else await self._pass_on(place, found, is_legal=hold.is_legal)

    async def take_back(self, place: ObjectPlace) -> None:
        """Remove a hold that was passed on to an object, if nothing above it has that hold any more."""
        found = await self._read(place)
        uid = source_of(found.metadata.annotations)
        if uid is not None and await self._source(place, found) is None:
            await self._change(place, lambda told: passed_on(told.metadata.annotations, {}, uid=uid))

    async def forget_dependents(self, place: ObjectPlace, uids: Collection[str]) -> None:
        """Take entries from the note on an owner: their objects are gone, or not held any more."""
        await self._note(place, lambda entries: [one for one in entries if one.uid not in uids])

    # --- passing on ---------------------------------------------------------------------------------------------------

    async def _pass_on(self, place: ObjectPlace, held: Object, *, is_legal: bool) -> list[ObjectPlace]:
        marks, uid = hold_marks(held.metadata.annotations), source_of(held.metadata.annotations) or place.uid
        beyond = await self._beyond(place, held, is_owned_too=is_legal)
        for one in beyond:
            await self._change_if_allowed(one, lambda told: passed_on(told.metadata.annotations, marks, uid=uid))
        return beyond

    async def _take_back(self, place: ObjectPlace, found: Object) -> None:
        """Remove what was passed on from here, or from where this hold came from; what is farthest first."""
        sources = {place.uid, source_of(found.metadata.annotations)}

        def taken_back(told: Object) -> Changes:
            annotations = told.metadata.annotations
            source = source_of(annotations)
            return {} if source is None or source not in sources else passed_on(annotations, {}, uid=source)

        for one in reversed(await self._beyond(place, found, is_owned_too=True)):
            await self._change_if_allowed(one, taken_back)

    async def _beyond(self, place: ObjectPlace, obj: Object, *, is_owned_too: bool) -> list[ObjectPlace]:
        """Return what a hold is passed on to: what follows the object, and all that both own."""
        try:
            found = list(await self._followers(place.kind, obj))
        except ForbiddenError:
            found = []
        if not is_owned_too:
            return found
        uids, seen = [place, *found], {place.uid, *(one.uid for one in found)}
        while uids:
            owner = uids.pop(0)
            with suppress(ForbiddenError):
                await self.dependants.prepare(owner.kind)
            for kind, cached in self.dependants.owned_by(owner.uid):
                meta = cached.metadata
                if meta.uid not in seen:
                    seen.add(meta.uid)
                    uids.append(ObjectPlace(kind, meta.key, meta.uid))
                    found.append(uids[-1])
        return found

    async def _demand_own(self, place: ObjectPlace, found: Object) -> None:
        """Refuse to release what is held for the sake of another object that still is."""
        source = await self._source(place, found)
        if source is not None:
            raise PassedOnHoldError(address=place, source=source)

    async def _source(self, place: ObjectPlace, found: Object) -> ObjectPlace | None:
        """Return the object above that has the hold which was passed on to this one; None when there is none."""
        source = source_of(found.metadata.annotations)
        if source is None:
            return None
        async for one, above in self._above(place, found, also_followed=True):
            annotations = above.metadata.annotations
            is_source = one.uid == source or source_of(annotations) == source
            if is_source and own_hold_of(annotations) is not None:
                return one
        return None

    # --- owners -------------------------------------------------------------------------------------------------------

    async def _owners(self, place: ObjectPlace, found: Object) -> AsyncIterator[ObjectPlace]:
        async for one, _ in self._above(place, found):
            yield one

    async def _above(
        self, place: ObjectPlace, found: Object, *, also_followed: bool = False
    ) -> AsyncIterator[tuple[ObjectPlace, Object]]:
        """Yield the owners of an object up the chain, the nearest first; what is gone is left out."""
        queue, seen = list(self._referred(place.kind, found, also_followed)), {place.uid}
        while queue:
            one = queue.pop(0)
            if one.uid in seen:
                continue
            seen.add(one.uid)
            above = await self._referred_object(one)
            if above is not None:
                yield above
                queue += self._referred(above[0].kind, above[1], also_followed)

    def _referred(self, kind: Kind[Any], found: Object, also_followed: bool) -> list[Reference]:  # noqa: FBT001 - passed through
        return list(references(found, kind if also_followed else replace(kind, follows=())))

    async def _referred_object(self, reference: Reference) -> tuple[ObjectPlace, Object] | None:
        """Return an owner; None when there is none: its kind is unknown, its name is another one's, or it is gone."""
        try:
            kind = await self._store.resolve(reference.api_version, reference.kind)
        except UnknownKindError:
            return None  # then there are no objects of it
        if kind.namespaced and reference.namespace is None:
            return None  # what belongs to no namespace cannot have an owner in one
        place = ObjectPlace(
            kind, ObjectKey(reference.namespace if kind.namespaced else None, reference.name), reference.uid
        )
        try:
            return place, await self._read(place)
        except _AnotherError:
            return await self._brought_back(place)
        except NotFoundError:
            return None

    async def _brought_back(self, place: ObjectPlace) -> tuple[ObjectPlace, Object] | None:
        """Return what came back from the trash in the place of an object; None when it is another one."""
        found = await self._store.get(metadata_only(place.kind), place.key)
        if first_uid(found.metadata) != place.uid:
            return None
        return place._replace(uid=found.metadata.uid), found

    async def _forget(self, place: ObjectPlace, found: Object) -> None:
        """Take the notes of an object from its owners, and give them back if somebody has held it meanwhile."""
        async for owner in self._owners(place, found):
            await self._note(owner, lambda entries: _without(entries, place.uid))
        fresh = await self._read(place)
        if (hold := own_hold_of(fresh.metadata.annotations)) is not None:
            entry = _entry(place, hold)
            async for owner in self._owners(place, fresh):
                await self._note(owner, lambda entries: _with(entries, entry))

    async def _note(
        self, owner: ObjectPlace, changed: Callable[[Sequence[HeldDependent]], Sequence[HeldDependent]]
    ) -> None:
        """Change the note on an owner."""

        def annotations(found: Object) -> Changes:
            entries = held_dependents(found.metadata.annotations)
            after = changed(entries)
            return {} if list(after) == list(entries) else {HELD_DEPENDENTS: note_text(after)}

        await self._change_if_there(owner, annotations)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _change_if_there(self, place: ObjectPlace, wanted: Callable[[Object], Changes]) -> None:
        with suppress(NotFoundError):  # what is gone needs no mark
            await self._change(place, wanted)

    async def _change_if_allowed(self, place: ObjectPlace, wanted: Callable[[Object], Changes]) -> None:
        with suppress(ForbiddenError):  # the process that runs there may
            await self._change_if_there(place, wanted)

    async def _change(self, place: ObjectPlace, wanted: Callable[[Object], Changes]) -> Object:
        """Change annotations as they are wanted, again and again as long as others write; raises `NotFoundError`."""
        for attempt in range(_ATTEMPTS):
            try:
                found = await self._read(place)
                return await self._patch(place, found, wanted(found))
            except ConflictError as error:
                if isinstance(error, _AnotherError):
                    raise NotFoundError(kind=place.kind.kind, name=place.key) from error
                await self._clock.sleep(backoff(attempt, first=0.005, longest=1.0))
        raise _busy(place)

    async def _patch(self, place: ObjectPlace, found: Object, changes: Changes) -> Object:
        if not changes:
            return found
        body = {"metadata": {"annotations": dict(changes)}}
        version = found.metadata.resource_version
        return await self._store.patch(metadata_only(place.kind), place.key, body, uid=place.uid, version=version)

    async def _read(self, place: ObjectPlace) -> Object:
        """Return the object that is meant; raises `NotFoundError`, and `ConflictError` for another of its name."""
        kind = place.kind
        read_as: Kind[Any] = replace(kind, type=Document) if kind.follows else metadata_only(kind)
        found: Object = await self._store.get(read_as, place.key)
        if found.metadata.uid != place.uid:
            problem = f"its uid is {found.metadata.uid}, expected {place.uid}"
            raise _AnotherError(kind=kind.kind, name=place.key, problem=problem)
        return found


class _AnotherError(ConflictError):
    """The {kind} {name} is not the one that was read: {problem}. Read it again and decide again."""

    code = ConflictError.code


def _busy(place: ObjectPlace) -> ConflictError:
    problem = f"other clients changed it {_ATTEMPTS} times in a row"
    return ConflictError(kind=place.kind.kind, name=place.key, problem=problem)


def _entry(place: ObjectPlace, hold: Hold) -> HeldDependent:
    until = "" if hold.until is None else to_timestamp(hold.until)
    return HeldDependent(place.uid, place.path, until, str(place))


def _with(entries: Sequence[HeldDependent], entry: HeldDependent, *, longest: bool = False) -> Sequence[HeldDependent]:
    """Return the entries with one more, in place of that of its object; ``longest`` keeps the later end of both."""
    for one in entries:
        is_longer = one.uid == entry.uid and (not one.until or (entry.until and one.until > entry.until))
        if one == entry or (longest and is_longer):
            return entries
    return sorted([*_without(entries, entry.uid), entry], key=lambda one: one.uid)


def _without(entries: Sequence[HeldDependent], uid: str) -> Sequence[HeldDependent]:
    return [one for one in entries if one.uid != uid]


def _known(extended: UnixNs | None) -> int:
    """Return an extension to compare with; one that cannot be read is replaced."""
    return 0 if extended is None or extended == UNREADABLE_EXTENSION else extended
