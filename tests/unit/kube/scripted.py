"""Objects and a store for tests of the machinery: the store injects the faults that a real one has on bad days only."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.kube.resources import Event, EventType, Kind, ObjectMeta, Page, Struct

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from lapse.core.clock import VirtualClock
    from lapse.kube.controller.informer import Informer

NS = 1_000_000_000


class Thing(Struct, frozen=True):
    metadata: ObjectMeta
    owner: str = ""


THING = Kind("example.dev/v1", "Thing", "things", Thing)


def thing(name: str, version: int, *, uid: str = "", owner: str = "") -> Thing:
    metadata = ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}", resource_version=str(version))
    return Thing(metadata=metadata, owner=owner)


def page(*items: Thing, version: int, following: str | None = None) -> Page[Thing]:
    return Page(items, str(version), following)


def added(obj: Thing) -> Event[Thing]:
    return Event(EventType.ADDED, obj, obj.metadata.resource_version)


def modified(obj: Thing) -> Event[Thing]:
    return Event(EventType.MODIFIED, obj, obj.metadata.resource_version)


def deleted(obj: Thing) -> Event[Thing]:
    return Event(EventType.DELETED, obj, obj.metadata.resource_version)


def bookmark(version: int) -> Event[Thing]:
    return Event(EventType.BOOKMARK, None, str(version))


async def settle(clock: VirtualClock, rounds: int = 100) -> None:
    """Let every task run as far as it can without time passing."""
    for _ in range(rounds):
        await clock.sleep(0)


async def pass_time(clock: VirtualClock, seconds: float, step: float = 1.0) -> None:
    await settle(clock, 20)
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await settle(clock, 20)


Step = Event[Thing] | BaseException | float | None
"""Of a watch: report, raise, stay silent for seconds, or end."""
END = None


@dataclass
class ScriptedStore:
    """Answers each list and each watch with the next line of its script; a watch without an END stays open."""

    clock: VirtualClock
    lists: deque[Page[Thing] | BaseException] = field(default_factory=deque)
    watches: deque[list[Step]] = field(default_factory=deque)
    asked: list[str] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)
    open: int = 0

    def _note(self, question: str) -> None:
        self.asked.append(question)
        self.asked_at.append(self.clock.monotonic_ns() / NS)

    async def list(
        self, kind: Kind[Any], *, namespace: str | None = None, limit: int | None = None, after: str | None = None
    ) -> Page[Any]:
        self._note("list" if after is None else f"list after {after}")
        await self.clock.sleep(0)
        assert limit, "a list without pages does not scale"
        answer = self.lists.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def watch(
        self, kind: Kind[Any], *, namespace: str | None = None, since: str
    ) -> AsyncGenerator[Event[Any], None]:
        self._note(f"watch {since}")
        self.open += 1
        try:
            for step in self.watches.popleft() if self.watches else []:
                await self.clock.sleep(step if isinstance(step, float) else 0)
                if isinstance(step, BaseException):
                    raise step
                if step is END:
                    return
                if isinstance(step, Event):
                    yield step
            await asyncio.get_running_loop().create_future()
        finally:
            self.open -= 1


@dataclass
class View:
    """What a subscriber knows who believes every word: fails when the words do not fit together."""

    objects: dict[tuple[str | None, str], Thing] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, old: Thing | None, new: Thing | None) -> None:
        about = new or old
        assert about is not None
        assert self.objects.get(about.metadata.key) is old, "the chain of an object has a gap"
        if old and new:
            assert old.metadata.uid == new.metadata.uid, "two objects in one change"
            assert old.metadata.resource_version != new.metadata.resource_version, "no change"
        if new is None:
            del self.objects[about.metadata.key]
        else:
            self.objects[about.metadata.key] = new
        self.calls.append(("appeared" if old is None else "gone" if new is None else "changed", about.metadata.name))


@asynccontextmanager
async def running(informer: Informer[Any], clock: VirtualClock) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(informer.run())
    await settle(clock)
    try:
        yield task
        assert not task.done(), "an informer never ends by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(objects: Iterable[Thing]) -> list[str]:
    return sorted(obj.metadata.name for obj in objects)
