"""The object-store port: the part of the Kubernetes API that controllers rely on, and nothing more.

Writes are creations, JSON merge patches and deletions; there is no replacement of a whole object, so fields that a
reader does not know survive. A patch or a deletion may name the uid and the resource version that the caller's decision
was made on; if the object is another one or has changed, nothing happens and `ConflictError` is raised.

Guarantees, of every backend.

- One write is atomic. It gives the object a new resource version, unless it changed nothing.
- ``patch`` never touches status, ``patch_status`` touches nothing else (on kinds with `Kind.status`). A change of
  anything but metadata and status raises ``generation`` by one; what the store fills in cannot be set by callers.
- ``list`` shows one moment, also over several pages. ``watch`` from that moment reports every change after it, in
  order, each once; `GoneError` when these are no longer kept.
- An object whose owners are all gone is removed some time later, and so on down the chain; an object with another
  living owner stays. An owner is gone when no object has its uid. (The embedded store keeps what is held; a cluster
  does so where the admission policy of `deploy/` is installed.)

Not guaranteed: that resource versions can be compared or counted; that two kinds are read at the same moment; how soon
garbage goes; in which order the namespaces of a list come. What an owner in another namespace means is not the same
everywhere (Kubernetes takes it for gone), so an owner is of the whole cluster or of the dependent's own namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from lapse.kube.resources import NO_LABELS, Event, Json, Kind, Object, ObjectKey, Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.core.errors import LapseError
    from lapse.engine.safety.holds import Hold, HoldDoubt
    from lapse.kube.resources import OwnerReference

T = TypeVar("T", bound=Object)


class Reader(Protocol):
    """Reads straight from the store, never from a cache."""

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """Return one object; raises `NotFoundError`."""
        ...

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """Return the objects that have all of ``labels``; all namespaces, one after the other, unless one is named.

        Within a namespace they are in the order of their names.

        ``limit`` asks for pages, ``after`` is `Page.next`. A page that comes too late raises `GoneError`.
        """
        ...

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        """Return the kind of that name, typed if the store was told its type; raises `UnknownKindError`."""
        ...


class LabelSummary(NamedTuple):
    """Objects of one namespace (None: of the whole cluster) that have the same labels."""

    namespace: str | None
    labels: Mapping[str, str]
    how_many: int
    oldest: str
    """The earliest creationTimestamp among them."""


@runtime_checkable
class Summarising(Protocol):
    """A reader that can tell what there is much faster than it can list it. Not every store can."""

    async def summary(
        self, kind: Kind[Any], *, namespace: str | None = None, labels: Mapping[str, str] = NO_LABELS, at_most: int
    ) -> Sequence[LabelSummary] | None:
        """Count the objects that `Reader.list` would return; None when there are more than ``at_most`` summaries."""
        ...

    async def list_created_before(
        self,
        kind: Kind[T],
        moment: str,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """Return what `Reader.list` would return, of what was created before a moment, and read nothing else."""
        ...


class ObjectStore(Reader, Protocol):
    """See the module."""

    @property
    def database(self) -> object | None:
        """The database that the objects live in, when it is one of ours: its owner can write beside a deletion."""
        ...

    async def resolve_word(self, word: str) -> Kind[Any]:
        """Return the kind whose addresses begin with ``word``: one of ours, or ``KIND.GROUP`` in the usual version.

        Raises `NoSuchKindError`, which names those that there are: the word is somebody's who typed it.
        """
        ...

    def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        """Report what happens after the version ``since``, with bookmarks in between, until it is closed.

        May end by itself at any time; a caller that goes on watches again from the last version seen. Raises
        `GoneError` when ``since`` is too old.
        """
        ...

    async def create(self, kind: Kind[T], obj: T | Json) -> T:
        """Store a new object; raises `AlreadyExistsError` or `InvalidError`. Its status is not stored.

        ``uid``, ``resourceVersion``, ``generation`` and ``creationTimestamp`` are the store's.
        """
        ...

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """Merge ``changes`` (RFC 7386: null removes) into metadata and spec; return the new state."""
        ...

    async def patch_status(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """Merge ``changes``, which are those of the status itself, into the status; return the new state."""
        ...

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        version: str | None = None,
        also: Callable[[Any], object] | None = None,
    ) -> None:
        """Remove an object; raises `NotFoundError`, or `ConflictError` when a precondition fails.

        ``also`` is written in the same transaction, and only if the object was removed: for stores with a `database`.
        Domains do not call this: what lapses is ended by `lapse.engine.executor`, what a person deletes by a command.
        """
        ...

    async def check(self) -> None:
        """Raise `StoreUnavailableError` unless the store answers."""
        ...

    async def close(self) -> None:
        """Release everything. Idempotent."""
        ...


class Deletion(NamedTuple):
    """Which object is to be removed, and in which state."""

    kind: Kind[Any]
    key: ObjectKey
    uid: str
    version: str
    owners: Sequence[OwnerReference] | None = None
    """Its owners in that state; None when they are not known."""
    instead: Json | None = None
    """A merge patch that ends it in place of its removal: it is given to the trash."""


@runtime_checkable
class HoldLookup(Protocol):
    """Finds what holds objects, wherever the hold stands: see `lapse.engine.safety.holds`."""

    async def holds_over(self, deletions: Sequence[Deletion], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        """Return for each a hold that is active at ``now``; None when there is none.

        Looked at are its own annotations, those of its owners and of what it follows, up the chain, and those of its
        dependants, down the chain.
        """
        ...


class TransactionalStore(ObjectStore, Protocol):
    """A store with a `database`, in which several deletions can be one transaction."""

    async def delete_all(
        self, deletions: Sequence[Deletion], *, also: Callable[[Any, Sequence[int]], object]
    ) -> Sequence[LapseError | None]:
        """Remove what is as expected and not held, or patch it instead; return for each what was against it.

        That is what `delete` would have raised, or a `HeldError` with its ``hold``: holds are looked for in the
        transaction itself, wherever they stand, so that one that was placed a moment before still counts.

        ``also`` is written in the same transaction; it is told the places of those that were removed.
        """
        ...
