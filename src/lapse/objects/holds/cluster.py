"""Holds on a Kubernetes cluster: owners are read from the API server, dependants are found in caches.

Owners and what an object follows are read directly, up the chain, their metadata only. Dependants are found by an
owner-uid index over the kinds that are watched, and those that are found are read directly as well, so that a hold
counts that the cache has not seen yet. What cannot be read (no right, no answer, a kind that the server does not know)
is a doubt, and keeps.

Not guaranteed: no two objects of a cluster can be changed together, so a hold that is placed between the look and the
deletion comes too late, unless it stands on the deleted object itself, whose version is compared. A dependant that the
cache has not seen yet, or of a kind that is not watched, is not found; the note on its owners
(`lapse.engine.safety.holds.HELD_DEPENDENTS`) is for those.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from lapse.core.errors import LapseError
from lapse.engine.safety.holds import HoldDoubt, hold_of, own_hold_of
from lapse.kube.errors import ForbiddenError, NotFoundError, UnknownKindError
from lapse.kube.resources import Document, ObjectKey, metadata_only
from lapse.objects.port import HoldLookup
from lapse.objects.trash.rules import first_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lapse.core.clock import Clock, UnixNs
    from lapse.engine.safety.holds import Hold
    from lapse.kube.resources import Kind, Object, OwnerReference
    from lapse.objects.port import Deletion, ObjectStore, Reader

_PAGE: Final = 500
_FRESH_NS: Final = 60_000_000_000
"""How long a list counts."""


@runtime_checkable
class Dependants(Protocol):
    """Knows what is owned by what, among the kinds that it looks at."""

    async def prepare(self, kind: Kind[Any]) -> None:
        """Return when it can tell what objects of ``kind`` own; raises a `LapseError` when it cannot."""
        ...

    def owned_by(self, uid: str) -> Sequence[tuple[Kind[Any], Any]]:
        """Return what an object owns, with the kind of each."""
        ...

    def owning(self, uids: Sequence[str]) -> set[str]:
        """Return which of these objects own something."""
        ...


class ClusterHolds:
    """See the module."""

    def __init__(self, direct: Reader, dependants: Dependants, *, otherwise: Reader | None = None) -> None:
        """Read by ``direct``, and what it may not read by ``otherwise``; ask ``dependants`` what is owned by what."""
        self._direct, self._dependants, self._otherwise = direct, dependants, otherwise

    def reading_also(self, otherwise: Reader) -> ClusterHolds:
        """Return the same with the rights of another account beside its own."""
        return ClusterHolds(self._direct, self._dependants, otherwise=otherwise)

    async def holds_over(self, deletions: Sequence[Deletion], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """See `HoldLookup`. Costs one read for each owner and each dependant; none where there are neither."""
        look = _Look(self._direct, self._dependants, now, otherwise=self._otherwise)
        return await asyncio.gather(*[look.at(one) for one in deletions])


async def goes_with(dependants: Dependants, kind: Kind[Any], uid: str) -> list[tuple[Kind[Any], Any]]:
    """Return what goes with an object of ``kind``: what it owns, down the chain, unless something else owns it, too."""
    await dependants.prepare(kind)
    gone, queue = {uid}, [uid]
    found: list[tuple[Kind[Any], Any]] = []
    while queue:
        for one, owned in dependants.owned_by(queue.pop(0)):
            meta = owned.metadata
            if meta.uid not in gone and all(owner.uid in gone for owner in meta.owner_references):
                gone.add(meta.uid)
                queue.append(meta.uid)
                found.append((one, owned))
    return found


class ListedDependants:
    """What one command knows: each kind is listed when it is first needed, and only what has owners is kept.

    A command may wait for hours before it ends something, so a list that is a minute old is made again.
    """

    def __init__(self, direct: Reader, kinds: Iterable[Kind[Any]], *, clock: Clock) -> None:
        """List nothing yet. ``kinds`` are looked at for what other objects own."""
        self._direct, self._kinds, self._clock = direct, tuple(kinds), clock
        self._listed: dict[Kind[Any], int] = {}
        self._owned: dict[Kind[Any], Mapping[str, Sequence[Any]]] = {}
        self._turn = asyncio.Lock()

    async def prepare(self, kind: Kind[Any]) -> None:
        """See `Dependants`."""
        async with self._turn:
            for one in self._kinds:
                # What belongs to no namespace cannot have an owner in one.
                if (one.namespaced or not kind.namespaced) and not self._is_fresh(one):
                    begun = self._clock.boottime_ns()
                    self._owned[one] = await self._list(one)
                    self._listed[one] = begun

    def _is_fresh(self, kind: Kind[Any]) -> bool:
        listed = self._listed.get(kind)
        return listed is not None and self._clock.boottime_ns() - listed < _FRESH_NS

    async def _list(self, kind: Kind[Any]) -> Mapping[str, Sequence[Any]]:
        """Return what is owned, by the uids of owners."""
        after, owned = None, defaultdict[str, list[Any]](list)
        with suppress(UnknownKindError):  # then there are no objects of it
            while True:
                page = await self._direct.list(metadata_only(kind), limit=_PAGE, after=after)
                for one in page.items:
                    for owner in one.metadata.owner_references:
                        owned[owner.uid].append(one)
                after = page.next
                if after is None:
                    break
        return owned

    def owned_by(self, uid: str) -> Sequence[tuple[Kind[Any], Any]]:
        """See `Dependants`."""
        return [(kind, one) for kind, owned in self._owned.items() for one in owned.get(uid, ())]

    def owning(self, uids: Sequence[str]) -> set[str]:
        """See `Dependants`."""
        return {uid for uid in uids if any(uid in owned for owned in self._owned.values())}


def listed_holds(store: ObjectStore, dependants: Dependants) -> HoldLookup:
    """Return what finds holds for one command: the store itself if it can, else with the help of ``dependants``."""
    return store if isinstance(store, HoldLookup) else ClusterHolds(store, dependants)


class Reference(NamedTuple):
    """One object, as another one refers to it."""

    api_version: str
    kind: str
    namespace: str | None
    name: str
    uid: str


class _Look:
    """One look at several objects, which reads an owner that they share once."""

    def __init__(self, direct: Reader, dependants: Dependants, now: UnixNs, *, otherwise: Reader | None) -> None:
        self._direct, self._dependants, self._now, self._otherwise = direct, dependants, now, otherwise
        self._reads: dict[Reference, asyncio.Task[Object | None]] = {}

    async def at(self, deletion: Deletion) -> Hold | HoldDoubt | None:
        """Return what holds one object."""
        try:
            return await self._above(deletion) or await self._below(deletion)
        except LapseError as error:
            return HoldDoubt(str(error).rstrip("."))

    def _active(self, hold: Hold | None) -> Hold | None:
        return hold if hold is not None and hold.active(self._now) else None

    async def _above(self, deletion: Deletion) -> Hold | None:
        above = await self._references_of(deletion)
        seen = {deletion.uid}
        while above:
            one = above.pop()
            if one.uid in seen:
                continue
            seen.add(one.uid)
            if one not in self._reads:
                self._reads[one] = asyncio.ensure_future(self._read(one))
            found = await self._reads[one]
            if found is not None:
                if hold := self._active(own_hold_of(found.metadata.annotations)):
                    return hold
                above += references(found, await self._kind(one))
        return None

    async def _references_of(self, deletion: Deletion) -> list[Reference]:
        namespace = deletion.key.namespace
        if deletion.owners is not None and not deletion.kind.follows:
            return [_owner(one, namespace) for one in deletion.owners]
        kind = deletion.kind
        found = await self._read(Reference(kind.api_version, kind.kind, namespace, deletion.key.name, deletion.uid))
        return [] if found is None else list(references(found, kind))

    async def _kind(self, reference: Reference) -> Kind[Any]:
        return await self._direct.resolve(reference.api_version, reference.kind)

    async def _read(self, reference: Reference) -> Object | None:
        """Return an object that is referred to; None when it is not there, or another one has its name.

        What came back from the trash in its place counts as the same one.
        """
        kind = await self._kind(reference)
        if kind.namespaced and reference.namespace is None:
            return None  # what belongs to no namespace cannot have an owner in one
        key = ObjectKey(reference.namespace if kind.namespaced else None, reference.name)
        read_as = replace(kind, type=Document) if kind.follows else metadata_only(kind)
        return await self._get(read_as, key, reference.uid)

    async def _get(self, kind: Kind[Any], key: ObjectKey, uid: str) -> Object | None:
        try:
            found: Object = await self._read_as_allowed(kind, key)
        except NotFoundError:
            return None
        return found if uid in {found.metadata.uid, first_uid(found.metadata)} else None

    async def _read_as_allowed(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - as the kind says
        try:
            return await self._direct.get(kind, key)
        except ForbiddenError:
            if self._otherwise is None:
                raise
            return await self._otherwise.get(kind, key)

    async def _below(self, deletion: Deletion) -> Hold | None:
        await self._dependants.prepare(deletion.kind)
        uids, seen = [deletion.uid], {deletion.uid}
        while uids:
            for kind, cached in self._dependants.owned_by(uids.pop()):
                meta = cached.metadata
                if meta.uid in seen:
                    continue
                seen.add(meta.uid)
                uids.append(meta.uid)
                if hold := self._active(hold_of(meta.annotations)):
                    return hold
                fresh = await self._get(metadata_only(kind), meta.key, meta.uid)
                if fresh is not None and (hold := self._active(hold_of(fresh.metadata.annotations))):
                    return hold
        return None


def _owner(owner: OwnerReference, namespace: str | None) -> Reference:
    return Reference(owner.api_version, owner.kind, namespace, owner.name, owner.uid)


def references(found: Object, kind: Kind[Any]) -> Iterator[Reference]:
    """Yield the owners of an object and, if it follows another one, that one."""
    for owner in found.metadata.owner_references:
        yield _owner(owner, found.metadata.namespace)
    if kind.follows and isinstance(found, Document):
        at: Any = found.body
        for step in kind.follows:
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict) and at.get("uid"):
            yield Reference(
                str(at.get("apiVersion")), str(at.get("kind")), at.get("namespace"), str(at.get("name")), at["uid"]
            )


if TYPE_CHECKING:
    _conforms: type[HoldLookup] = ClusterHolds
