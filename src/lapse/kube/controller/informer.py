"""Informer: a copy of all objects of one kind, kept current by list and watch, with indexes over it.

It lists in pages, then watches from the listed version. A watch that ends is resumed from the last version seen, which
bookmarks move as well. When the store no longer has the changes in between (`GoneError`), it lists again and finds out
by itself what appeared, changed and went away. Every failure is followed by a wait that grows and is spread by chance;
it shrinks again only when a watch brings changes or holds for a while, because a list that works proves little: the
watch may still be refused, and listing 100 000 objects in a tight loop would be our own attack on the store. The one
list that a resumed watch asks for is made at once.

Guarantees, for readers and subscribers.

- After `Informer.synced` everything that existed at the first list is here, or was and is gone.
- Each handler sees, for each object, one gapless chain: appeared, changed, ..., gone. ``old`` and ``new`` of one call
  are the same object (uid); an object that was replaced by another of its name is gone first.
- Within one watch the order of the store is trusted; a repeated event is no change, and the deletion of an earlier
  object of the same name does not touch its successor. Over a relist, the list wins. Versions are never compared.
- A handler or an index that raises harms nobody else: logged, reported to ``on_error``.
- An `Index` finds objects by a value, such as the uid of an owner. A change costs the values of the object that
  changed, a lookup what it returns, whatever the number of objects.

Not guaranteed: that the copy is current, or that all of it shows one moment. A copy may be late, so it can say that
something exists but must not be asked to prove that it does not; decisions read the store again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar

from lapse.core.errors import LapseError
from lapse.core.jitter import Chance, backoff, chance
from lapse.core.log import get_logger
from lapse.kube.errors import GoneError, ObjectError, asked_to_wait
from lapse.kube.resources import Event, EventType, Kind, Object, ObjectKey, Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from lapse.core.clock import Clock

T = TypeVar("T", bound=Object)


class Index(Generic[T]):
    """``of`` returns the values of an object and must depend on nothing but the object."""

    def __init__(self, of: Callable[[T], Iterable[str]]) -> None:
        """Begin empty."""
        self._of = of
        self._found: dict[str, T | dict[ObjectKey, T]] = {}

    def __len__(self) -> int:
        """Count the values that some object has."""
        return len(self._found)

    def find(self, value: str) -> list[T]:
        """Return the objects that have ``value``."""
        having = self._found.get(value)
        if having is None:
            return []
        return list(having.values()) if isinstance(having, dict) else [having]

    def replace(self, old: T | None, new: T | None) -> None:
        """Take ``old`` out and ``new`` in; an object for which ``of`` raises is not in the index."""
        if old is not None:
            for value in self._values_before(old):
                self._take_out(value, old)
        if new is not None:
            for value in tuple(self._of(new)):  # complete before anything is stored
                self._put_in(value, new)

    def _values_before(self, old: T) -> Iterable[str]:
        try:
            return tuple(self._of(old))
        except Exception:  # noqa: BLE001 - raised when it came in, too
            return ()

    def _put_in(self, value: str, new: T) -> None:
        having = self._found.get(value)
        key = new.metadata.key
        if isinstance(having, dict):
            having[key] = new
        elif having is None or having.metadata.key == key:
            self._found[value] = new
        else:
            self._found[value] = {having.metadata.key: having, key: new}

    def _take_out(self, value: str, old: T) -> None:
        having = self._found.get(value)
        if isinstance(having, dict):
            having.pop(old.metadata.key, None)
            if not having:
                del self._found[value]
        elif having is old or (having is not None and having.metadata.key == old.metadata.key):
            del self._found[value]


Handler: TypeAlias = "Callable[[T | None, T | None], None]"

PAGE_SIZE: Final = 500
"""Objects per page: what Kubernetes' own clients ask for, a few megabytes at most."""
_STEADY_SECONDS: Final = 1.0
"""A watch that lasted so long was a good one, also when nothing happened."""
_FAILURES_BEFORE_RELIST: Final = 10
"""Then the version itself may be what is wrong: a store that was restored from a backup has never heard of it."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.kube.controller.informer")


class EmptyEventError(LapseError):
    """The watch reported {type} without an object."""


class WatchInterruptedError(LapseError):
    """Something that the informer waited for was cancelled."""


class ListWatch(Protocol):
    """What an informer needs of a store; `lapse.objects.port.ObjectStore` says what the two mean."""

    async def list(
        self, kind: Kind[T], *, namespace: str | None = None, limit: int | None = None, after: str | None = None
    ) -> Page[T]:
        """Return one page."""
        ...

    def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        """Report changes after ``since``."""
        ...


class Informer(Generic[T]):
    """See the module. Belongs to one event loop; everything but `run` answers at once.

    ``on_error`` is told of every failed round, handler and index: for metrics. It must not raise.
    """

    def __init__(
        self,
        store: ListWatch,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        clock: Clock,
        chance: Chance = chance,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Begin empty; nothing is read before `run`."""
        self.kind = kind
        self.synced = asyncio.Event()
        """Set after the first complete list, and never cleared."""
        self._store, self._namespace, self._clock, self._chance = store, namespace, clock, chance
        self._on_error = on_error
        self._objects: dict[ObjectKey, T] = {}
        self._indices: dict[str, Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self._told: tuple[Handler[T], ...] = ()  # the indices, then the handlers
        self._version: str | None = None  # None: list before the next watch
        self._failures = 0

    def __len__(self) -> int:
        """Count the objects."""
        return len(self._objects)

    def get(self, key: ObjectKey) -> T | None:
        """Return the object of that name if it is here."""
        return self._objects.get(key)

    def items(self) -> Iterable[T]:
        """Return all objects as they are now; safe to iterate while things change."""
        return tuple(self._objects.values())

    def index(self, name: str, of: Callable[[T], Iterable[str]]) -> None:
        """Find objects by what ``of`` returns for them, which must depend on nothing but the object."""
        index = self._indices[name] = Index(of)
        for obj in self._objects.values():
            self._tell([index.replace], None, obj)
        self._arrange()

    def indexed(self, name: str, value: str) -> list[T]:
        """Return the objects for which the index ``name`` has ``value``; costs what is returned."""
        return self._indices[name].find(value)

    def subscribe(self, handler: Callable[[T | None, T | None], None]) -> None:
        """Call ``handler(old, new)`` for what exists now, as appeared, and then for every change.

        ``old`` is None for an object that appeared, ``new`` for one that is gone. The copy shows the new state already.
        """
        for obj in self.items():
            self._tell([handler], None, obj)
        self._handlers.append(handler)
        self._arrange()

    async def run(self) -> None:
        """Keep the copy current until cancelled. May be run again afterwards, and goes on where it was."""
        while True:
            leave_alone, resuming = 0.0, self._version is not None
            try:
                await self._follow()
            except GoneError:
                _log.info("watch_expired", kind=self.kind.kind)
                self._version = None
                if resuming:
                    continue  # the store is back: it was away for long enough, and nothing is gained by another wait
            except ObjectError as error:
                leave_alone = asked_to_wait(error)
                self._report(error, "watch_failed", exc_info=False)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._distrust(WatchInterruptedError())  # not we were cancelled, but something inside the store
            except Exception as error:  # noqa: BLE001 - a copy that silently stops is worse than one that is late
                self._distrust(error)
            await self._pause(leave_alone)

    async def _follow(self) -> None:
        """List if need be, then watch until the watch ends."""
        version = self._version = await self._list() if self._version is None else self._version
        started_ns = self._clock.monotonic_ns()
        try:
            async with aclosing(self._store.watch(self.kind, namespace=self._namespace, since=version)) as events:
                async for event in events:
                    self._take(event)
        finally:
            if self._clock.monotonic_ns() - started_ns >= _STEADY_SECONDS * _NS:
                self._failures = 0

    async def _pause(self, at_least: float) -> None:
        """Wait after a round, however it ended: a store that closes every watch at once must not be hammered."""
        wait = backoff(self._failures, chance=self._chance)
        self._failures += 1
        if self._failures % _FAILURES_BEFORE_RELIST == 0:
            self._version = None
        await self._clock.sleep(max(wait, at_least))

    async def _list(self) -> str:
        """Bring the copy to the state of one complete list; return its version.

        Pages are taken over as they come, so that a relist does not hold everything twice.
        """
        seen: set[ObjectKey] = set()
        version, after = None, None
        while True:
            page = await self._store.list(self.kind, namespace=self._namespace, limit=PAGE_SIZE, after=after)
            version = page.resource_version if version is None else version
            for obj in page.items:
                seen.add(obj.metadata.key)
                self._put(obj)
            if page.next is None:
                break
            after = page.next
            await self._clock.sleep(0)  # a store in this process may answer at once: others have their turn
        for key in [key for key in self._objects if key not in seen]:
            self._remove(key)
        self.synced.set()
        _log.debug("listed", kind=self.kind.kind, objects=len(seen))
        return version

    def _take(self, event: Event[T]) -> None:
        obj = event.object
        if event.type is not EventType.BOOKMARK:
            if obj is None:
                raise EmptyEventError(type=event.type)
            self._failures = 0
            if event.type is EventType.DELETED:
                self._remove(obj.metadata.key, uid=obj.metadata.uid)
            else:
                self._put(obj)
        self._version = event.resource_version

    def _put(self, obj: T) -> None:
        key = obj.metadata.key
        old = self._objects.get(key)
        if old is not None:
            if old.metadata.uid != obj.metadata.uid:
                self._remove(key)
                old = None
            elif old.metadata.resource_version == obj.metadata.resource_version:
                return
        self._objects[key] = obj
        self._tell(self._told, old, obj)

    def _remove(self, key: ObjectKey, *, uid: str | None = None) -> None:
        old = self._objects.get(key)
        if old is not None and uid in {None, old.metadata.uid}:
            del self._objects[key]
            self._tell(self._told, old, None)

    def _arrange(self) -> None:
        # A new tuple: whoever subscribes while others are told of a change has seen the new state already.
        self._told = (*(index.replace for index in self._indices.values()), *self._handlers)

    def _tell(self, whom: Iterable[Handler[T]], old: T | None, new: T | None) -> None:
        for call in whom:
            try:
                call(old, new)
            except Exception as error:  # noqa: BLE001 - one bad handler must not end the copy for all
                self._report(error, "handler_failed")

    def _distrust(self, error: Exception) -> None:
        """Report what should not have happened, and begin with a list: the same event would only fail again."""
        self._version = None
        self._report(error, "informer_failed")

    def _report(self, error: Exception, event: str, *, exc_info: bool = True) -> None:
        details = error if exc_info else None
        _log.warning(event, kind=self.kind.kind, error=type(error).__name__, reason=str(error), exc_info=details)
        if self._on_error is not None:
            self._on_error(error)
