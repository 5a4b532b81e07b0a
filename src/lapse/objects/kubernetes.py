"""The object-store port on a Kubernetes cluster.

The API server does nearly all that the port promises. What is added here: kinds by name (those we know are typed, all
others are asked for), and a patch of the status under a uid, which the API does not have: the object is read, its uid
compared and the patch made conditional on the version that was read, again and again as long as others write.

There is no database of ours beside the objects, so nothing can be written together with a deletion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from lapse.core.jitter import backoff
from lapse.kube.api.discovery import Discovery
from lapse.kube.errors import ConflictError, NoSuchKindError, ObjectError, UnknownKindError
from lapse.kube.resources import NO_LABELS, Event, Json, Kind, Object, ObjectKey, Page, by_word, metadata_only, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from lapse.kube.api.client import KubeClient
    from lapse.objects.port import ObjectStore

T = TypeVar("T", bound=Object)
_ATTEMPTS: Final = 20
"""With waits that double up to a second: who cannot get a write in for so long must be told."""


class NoDatabaseError(ObjectError):
    """Objects in a Kubernetes cluster have no database beside them: write to the journal before and after instead."""


class KubernetesStore:
    """See the module. Belongs to one event loop, and closes the client with itself."""

    database: Final = None

    def __init__(self, client: KubeClient, *, kinds: Iterable[Kind[Any]] = ()) -> None:
        """Use ``client``; ``kinds`` are those that `resolve` returns typed."""
        self.client = client
        self._kinds = {(kind.api_version, kind.kind): kind for kind in kinds}
        self._discovery = Discovery(client)

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """See `Reader`."""
        return await self.client.get(kind, key)

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """See `Reader`."""
        return await self.client.list(kind, namespace=namespace, labels=labels, limit=limit, after=after)

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        """See `Reader`."""
        known = self._kinds.get((api_version, kind))
        return await self._discovery.find(api_version, kind) if known is None else known

    async def resolve_word(self, word: str) -> Kind[Any]:
        """See `ObjectStore`."""
        found = by_word(self._kinds.values(), word)
        try:
            return found or await self._discovery.find_preferred(word)
        except UnknownKindError as error:
            known = f"{', '.join(words_of(self._kinds.values()))}, or a Kind.group that kubectl api-resources lists"
            raise NoSuchKindError(given=word, place="this cluster", known=known) from error

    def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        """See `ObjectStore`."""
        return self.client.watch(kind, namespace=namespace, since=since)

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        """See `ObjectStore`."""
        return await self.client.create(kind, obj)

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """See `ObjectStore`."""
        return await self.client.patch(kind, key, changes, uid=uid, version=version)

    async def patch_status(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """See `ObjectStore`. A version belongs to one object only, so beside one the uid need not be asked for."""
        if uid is None or version is not None:
            return await self.client.patch_status(kind, key, changes, version=version)
        for attempt in range(_ATTEMPTS):
            seen = await self._version_of(kind, key, uid)
            try:
                return await self.client.patch_status(kind, key, changes, version=seen)
            except ConflictError:
                await self.client.clock.sleep(backoff(attempt, first=0.005, longest=1.0))
        raise ConflictError(kind=kind.kind, name=key, problem=f"other clients changed it {_ATTEMPTS} times in a row")

    async def _version_of(self, kind: Kind[Any], key: ObjectKey, uid: str) -> str:
        found = (await self.client.get(metadata_only(kind), key)).metadata
        if found.uid != uid:
            raise ConflictError(kind=kind.kind, name=key, problem=f"its uid is {found.uid}, not {uid}")
        return found.resource_version

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        version: str | None = None,
        also: Callable[[Any], object] | None = None,
    ) -> None:
        """See `ObjectStore`. ``also`` is refused: there is no `database`."""
        if also is not None:
            raise NoDatabaseError
        await self.client.delete(kind, key, uid=uid, version=version)

    async def check(self) -> None:
        """See `ObjectStore`."""
        await self.client.check()

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self.client.close()


if TYPE_CHECKING:
    _conforms: type[ObjectStore] = KubernetesStore
