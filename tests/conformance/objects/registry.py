"""The registry of the cases of the object-store contract, with the world they are given, their kinds, and helpers.

A case is a plain coroutine function that takes a `World` and asserts; `case` puts it into the registry. It names
objects by `World.namespace` and `World.name` only, so that it can run on a server that others use at the same time. It
states what holds on every backend: where Kubernetes and the embedded store may differ, no case looks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from lapse.core.clock import SystemClock
from lapse.core.identity import secret_bytes
from lapse.kube.resources import (
    Document,
    Event,
    EventType,
    Json,
    Kind,
    Object,
    ObjectKey,
    ObjectMeta,
    Page,
    Struct,
    untyped,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping

    from lapse.objects.port import ObjectStore

T = TypeVar("T", bound=Object)

POLL_SECONDS: Final = 0.01
LAST: Final = "zz-last"
GROUP: Final = "test.lapse.dev/v1"


class WidgetSpec(Struct, frozen=True):
    """The one field that a narrow reader knows."""

    size: int = 0


class Widget(Struct, frozen=True):
    """A widget as a narrow reader sees it: no status, and one field of the spec."""

    metadata: ObjectMeta
    spec: WidgetSpec = WidgetSpec()


NARROW: Final = Kind(GROUP, "Widget", "widgets", Widget)
"""Widgets as the store was told of them."""
WIDGET: Final = untyped(GROUP, "Widget", "widgets")
"""The same widgets, read as they are."""
CLUSTER_WIDGET: Final = untyped(GROUP, "ClusterWidget", "clusterwidgets", namespaced=False)
UNKNOWN: Final = untyped(GROUP, "Gadget", "gadgets")
"""A kind that no store knows."""
KINDS: Final[tuple[Kind[Any], ...]] = (NARROW, CLUSTER_WIDGET)
"""What a store is told."""


class World(Protocol):
    """A store to try, and what a case may ask of its surroundings."""

    @property
    def store(self) -> ObjectStore:
        """What is tried."""
        ...

    @property
    def patience(self) -> float:
        """How many seconds a case waits for what must come."""
        ...

    async def namespace(self) -> str:
        """Return a namespace of the case's own, empty."""
        ...

    async def age_version(self, version: str) -> str:
        """Return a version from so long ago that the changes since are no longer kept; may be ``version`` itself."""
        ...

    async def age_page(self, token: str) -> str:
        """Return ``token``, a `Page.next`, as it would be if it had been handed out as long ago."""
        ...


Case = Callable[[World], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}
"""Every case by its name."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    assert function.__name__ not in REGISTRY, f"two cases are called {function.__name__}"
    REGISTRY[function.__name__] = function
    return function


# --- objects ----------------------------------------------------------------------------------------------------------


def unique(stem: str = "x") -> str:
    """Return a name that nobody else uses."""
    return f"{stem}-{secret_bytes(5).hex()}"


def widget(namespace: str | None, name: str, /, *, labels: Mapping[str, str] | None = None, **spec: object) -> Json:
    """Describe a new widget, or without a namespace a cluster widget."""
    metadata: Json = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {"metadata": metadata, "spec": spec}


async def make(world: World, namespace: str, name: str = "a", **spec: object) -> Document:
    """Create a widget."""
    return await world.store.create(WIDGET, {**widget(namespace, name), "spec": spec})


def key_of(obj: Object) -> ObjectKey:
    """Where an object is."""
    return obj.metadata.key


def version_of(obj: Object) -> str:
    """Which state of it this is."""
    return obj.metadata.resource_version


def names(page: Page[Any]) -> list[str]:
    """The names on a page, in its order."""
    return [item.metadata.name for item in page.items]


async def every_page(world: World, kind: Kind[T], limit: int, **how: Any) -> list[Page[T]]:  # noqa: ANN401
    """List in pages, to the end."""
    pages = [await world.store.list(kind, limit=limit, **how)]
    while pages[-1].next is not None:
        pages.append(await world.store.list(kind, limit=limit, after=pages[-1].next, **how))
        assert len(pages) < 1000, "the pages do not end"
    return pages


# --- expectations -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def refused(*errors: type[Exception]) -> Iterator[None]:
    """Demand that the block raises one of these."""
    try:
        yield
    except errors:
        return
    raise AssertionError(f"expected {' or '.join(error.__name__ for error in errors)}, and nothing was raised")


@contextlib.asynccontextmanager
async def patiently(world: World) -> AsyncIterator[None]:
    """Demand that the block ends in reasonable time."""
    try:
        async with asyncio.timeout(world.patience):
            yield
    except TimeoutError:
        raise AssertionError(f"nothing happened in {world.patience:g} s") from None


async def outcomes(*attempts: Awaitable[object]) -> list[object]:
    """Run attempts at the same time; an error is an outcome."""
    return list(await asyncio.gather(*attempts, return_exceptions=True))


async def eventually(world: World, check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until ``check`` says yes."""
    clock = SystemClock()
    end = clock.monotonic_ns() + int(world.patience * 1_000_000_000)
    while not await check():
        assert clock.monotonic_ns() < end, f"not in {world.patience:g} s: {what}"
        await clock.sleep(POLL_SECONDS)


# --- watching ---------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """An event that is no bookmark, and so has an object."""

    type: EventType
    object: Any
    resource_version: str


def change(event: Event[Any]) -> Change:
    """See `Change`."""
    return Change(event.type, event.object, event.resource_version)


class Watch:
    """Follows widgets, however often the watch ends by itself, and waits for no event longer than is reasonable."""

    def __init__(self, world: World, since: str, *, namespace: str | None, kind: Kind[Any] = WIDGET) -> None:
        """Start after the version ``since``."""
        self._world, self._kind, self._namespace = world, kind, namespace
        self.last = since
        """The version to resume from."""
        self._events = self._open()

    def _open(self) -> AsyncGenerator[Event[Any], None]:
        return self._world.store.watch(self._kind, namespace=self._namespace, since=self.last)

    async def any_event(self) -> Event[Any]:
        """Return the next event, bookmarks included."""
        async with patiently(self._world):
            while True:
                try:
                    event = await anext(self._events)
                except StopAsyncIteration:
                    self._events = self._open()
                else:
                    self.last = event.resource_version
                    return event

    async def next(self) -> Change:
        """Return the next event that is a change."""
        while (event := await self.any_event()).type is EventType.BOOKMARK:
            pass
        return change(event)

    async def until(self, name: str) -> list[Change]:
        """Return the changes before the first one of the object ``name``."""
        found: list[Change] = []
        while (event := await self.next()).object.metadata.name != name:
            found.append(event)
        return found

    async def close(self) -> None:
        """Want no more."""
        await self._events.aclose()


@contextlib.asynccontextmanager
async def watching(
    world: World, since: str, *, namespace: str | None, kind: Kind[Any] = WIDGET
) -> AsyncIterator[Watch]:
    """Watch in a block."""
    watch = Watch(world, since, namespace=namespace, kind=kind)
    try:
        yield watch
    finally:
        await watch.close()


async def changes_since(world: World, since: str, namespace: str) -> list[Change]:
    """Return all changes of widgets since a version: a last object is made, and what comes before it is the answer."""
    last = unique(LAST)
    await make(world, namespace, last)
    async with watching(world, since, namespace=namespace) as watch:
        found = await watch.until(last)
    return [event for event in found if not event.object.metadata.name.startswith(LAST)]


def told(events: list[Change]) -> list[tuple[str, str]]:
    """Shorten events to what happened to whom."""
    return [(event.type.value, event.object.metadata.name) for event in events]
