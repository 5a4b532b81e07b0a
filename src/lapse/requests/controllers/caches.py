"""The watch-fed caches of everything that moves, and the rule for using them: a cache can only say yes.

That something is there and as it should be, a cache may say. That it is missing, that another object has its name, or
that it is in a state for which a request would be refused, may only mean that the cache is behind, so it is asked again
straight from the store before anybody concludes anything.

Configuration (StorageClass, VolumeSnapshotClass) is not here: it is read directly, never watched.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lapse.core.errors import LapseError
from lapse.engine.domain import SignalUnavailableError
from lapse.kube.controller.informer import Informer
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Kind, Object, ObjectKey, metadata_only
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    CHUNK_METADATA,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lapse.core.clock import Clock
    from lapse.objects.port import ObjectStore

T = TypeVar("T", bound=Object)

WATCHED: Final[tuple[Kind[Any], ...]] = (
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    MANIFEST_CAPTURE_REQUEST,
    CAPTURE_SCHEDULE,
    OBJECT_KEEPER,
    MANIFEST_CHECKPOINT,
    CHUNK_METADATA,
    VOLUME_SNAPSHOT_CONTENT,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
)
OWNER: Final = "owner uid"
"""The index of a cache that finds what an object owns."""
_SYNC_SECONDS: Final = 30.0
"""How long an act waits for caches that are being filled, before it is put off."""


def watched_kinds(hold_kinds: Iterable[Kind[Any]], *, also: Iterable[Kind[Any]] = ()) -> tuple[Kind[Any], ...]:
    """Return the kinds whose holds keep what owns them, whoever ends that: an operator or a command.

    They are those that move, ``also`` some more, and ``hold_kinds``, whose metadata is enough.
    """
    watched = (*WATCHED, *also)
    known = {(kind.api_version, kind.kind) for kind in watched}
    return (*watched, *[metadata_only(kind) for kind in hold_kinds if (kind.api_version, kind.kind) not in known])


class NotFilledError(LapseError):
    """The caches of {kinds} are not filled yet, so it is not known whether an object of these kinds is held."""


class Caches:
    """One informer per kind. `run` fills them; a lookup before that is answered by the store."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        also: Collection[Kind[Any]] = (),
        hold_kinds: Collection[Kind[Any]] = (),
    ) -> None:
        """Prepare the caches, also of more kinds; nothing is read yet.

        Of ``hold_kinds`` only the metadata is kept, for their holds.
        """
        self._store, self._clock = store, clock
        self._first = watched_kinds(hold_kinds, also=also)
        self._informers: dict[Kind[Any], Informer[Any]] = {}
        self._running: asyncio.TaskGroup | None = None
        self._handlers: list[Callable[[Kind[Any], Any, Any], None]] = []
        for kind in self._first:
            self.of(kind)

    def of(self, kind: Kind[T]) -> Informer[T]:
        """Return the cache of a kind; one that nobody has asked for so far is started."""
        if kind not in self._informers:
            informer: Informer[T] = Informer(self._store, kind, clock=self._clock)
            informer.index(OWNER, lambda obj: (owner.uid for owner in obj.metadata.owner_references))
            self._informers[kind] = informer
            for handler in self._handlers:
                informer.subscribe(partial(handler, kind))
            if self._running is not None:
                self._running.create_task(informer.run(), name=f"lapse-cache-{kind.plural}")
        return self._informers[kind]

    def subscribe_all(self, handler: Callable[[Kind[Any], Any, Any], None]) -> None:
        """Call ``handler`` with kind, old and new for every change of any kind, also of those that come later."""
        self._handlers.append(handler)
        for kind, informer in self._informers.items():
            informer.subscribe(partial(handler, kind))

    async def run(self) -> None:
        """Fill the caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._running = group
            try:
                for kind, informer in self._informers.items():
                    group.create_task(informer.run(), name=f"lapse-cache-{kind.plural}")
                await asyncio.Event().wait()
            finally:
                self._running = None

    def demand_synced(self) -> None:
        """Raise `SignalUnavailableError` unless the caches know everything."""
        if not self.synced:
            raise SignalUnavailableError(problem="the caches of the object store are still being filled")

    async def wait_until_synced(self) -> None:
        """Return when every cache of the start has seen everything once."""
        for kind in self._first:
            await self._informers[kind].synced.wait()

    @property
    def synced(self) -> bool:
        """Whether every cache of the start has seen everything once."""
        return not self._missing

    @property
    def _missing(self) -> list[str]:
        return [kind.kind for kind in self._first if not self._informers[kind].synced.is_set()]

    async def prepare(self, _kind: Kind[Any]) -> None:
        """See `lapse.objects.holds.cluster.Dependants`: wait for a while until every cache of the start is filled."""
        if not self.synced:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SYNC_SECONDS):
                    await self.wait_until_synced()
        if missing := self._missing:
            raise NotFilledError(kinds=", ".join(missing))

    def owned_by(self, uid: str) -> list[tuple[Kind[Any], Any]]:
        """Return what an object owns, as far as the caches know."""
        return [(kind, obj) for kind, cache in self._informers.items() for obj in cache.indexed(OWNER, uid)]

    def owners_of(self, obj: Object) -> list[tuple[Kind[Any], Any]]:
        """Return the owners of an object, as far as the caches know."""
        found = []
        for owner in obj.metadata.owner_references:
            for kind, cache in self._informers.items():
                if (kind.api_version, kind.kind) == (owner.api_version, owner.kind):
                    one = cache.get(ObjectKey(obj.metadata.namespace if kind.namespaced else None, owner.name))
                    found += [(kind, one)] if one is not None and one.metadata.uid == owner.uid else []
        return found

    def owning(self, uids: Sequence[str]) -> set[str]:
        """Return which of these objects own something, as far as the caches know."""
        return {uid for uid in uids if any(cache.indexed(OWNER, uid) for cache in self._informers.values())}

    async def find(
        self, kind: Kind[T], key: ObjectKey, *, uid: str | None = None, suits: Callable[[T], bool] = lambda _obj: True
    ) -> T | None:
        """Return an object, from the cache if that has the right one, else from the store; None when it is not there.

        With ``uid``, an object of another uid is not the one. ``suits`` is asked about the cached object: what
        would be refused must be seen as it is now. Other errors than NotFound are raised: they say nothing.
        """
        cached = self.of(kind).get(key)
        if cached is not None and uid in {None, cached.metadata.uid} and suits(cached):
            return cached
        found = await self.read(kind, key)
        return found if found is None or uid in {None, found.metadata.uid} else None

    async def read(self, kind: Kind[T], key: ObjectKey) -> T | None:
        """Return an object straight from the store; None when it is not there."""
        try:
            return await self._store.get(kind, key)
        except NotFoundError:
            return None
