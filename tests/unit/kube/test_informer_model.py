"""Whatever a store and its connection do, the copy and every subscriber end where the store is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.clock import VirtualClock
from lapse.kube.controller.informer import Informer
from lapse.kube.errors import ForbiddenError, GoneError, StoreUnavailableError
from lapse.kube.resources import Event, Kind, Page
from tests.examples import examples
from tests.unit.kube.scripted import THING, Thing, View, added, bookmark, deleted, modified, running, settle, thing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PAGE = 2
FAULTS: dict[str, BaseException | None] = {
    "cut": None,
    "unavailable": StoreUnavailableError(problem="restarting"),
    "forbidden": ForbiddenError(problem="not now"),
    "unreadable": ValueError("not JSON"),
}


@dataclass
class FaultySource:
    """A store of which every list and watch is correct until a fault is ordered; pages and changes may be forgotten."""

    clock: VirtualClock
    objects: dict[str, Thing] = field(default_factory=dict)
    changes: list[Event[Thing]] = field(default_factory=list)
    version: int = 0
    oldest: int = 0
    """Watches from before this version are refused."""
    lists: dict[str, tuple[int, list[Thing]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    repeat: bool = False
    asked: int = 0

    def write(self, name: str, owner: str) -> None:
        self.version += 1
        old = self.objects.get(name)
        uid = old.metadata.uid if old else f"uid-{self.version}"
        self.objects[name] = new = thing(name, self.version, uid=uid, owner=owner)
        self.changes.append(modified(new) if old else added(new))

    def remove(self, name: str) -> None:
        if name in self.objects:
            self.version += 1
            old = self.objects.pop(name)
            self.changes.append(deleted(thing(name, self.version, uid=old.metadata.uid, owner=old.owner)))

    def forget_changes(self) -> None:
        self.oldest = self.version
        self.lists.clear()

    async def list(
        self, kind: Kind[Any], *, namespace: str | None = None, limit: int | None = None, after: str | None = None
    ) -> Page[Any]:
        await self.clock.sleep(0)
        self._fail("list")
        if after is None:
            version, rest = self.version, sorted(self.objects.values(), key=lambda obj: obj.metadata.name)
        elif after in self.lists:
            version, rest = self.lists[after]
        else:
            note("page forgotten during list")
            raise GoneError(version=after)
        self.asked += 1
        token = f"{self.asked}"
        self.lists[token] = (version, rest[PAGE:])
        return Page(tuple(rest[:PAGE]), str(version), token if rest[PAGE:] else None)

    async def watch(
        self, kind: Kind[Any], *, namespace: str | None = None, since: str
    ) -> AsyncGenerator[Event[Any], None]:
        position = int(since)
        while True:
            await self.clock.sleep(0)
            if self._fail("watch"):
                return
            if position < self.oldest:
                note("changes forgotten during watch")
                raise GoneError(version=since)
            for change in self.changes:
                if int(change.resource_version) > position:
                    yield change
                    position = int(change.resource_version)
                    if self.repeat:
                        yield change
                    break
            else:
                if self.repeat:
                    yield bookmark(self.version)
                    position = self.version
                await self.clock.sleep(0.01)

    def _fail(self, where: str) -> bool:
        """Raise the next fault; True for the end of a watch."""
        if not self.faults:
            return False
        fault = self.faults.pop(0)
        note(f"{fault} during {where}")
        error = FAULTS[fault]
        if error is not None:
            raise error
        return where == "watch"


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("abcde"), st.sampled_from("xyz")),
    st.tuples(st.just("remove"), st.sampled_from("abcde")),
    st.tuples(st.just("fault"), st.sampled_from(sorted(FAULTS))),
    st.tuples(st.just("forget")),
    st.tuples(st.just("repeat"), st.booleans()),
    st.tuples(st.just("subscribe")),
    st.tuples(st.just("pass"), st.sampled_from([0.01, 0.1, 2.0])),
)
STEPS = st.tuples(ACTIONS, st.integers(0, 8))
"""What happens, and how far the informer comes before the next thing happens."""


async def play(
    step: tuple[tuple[Any, ...], int], source: FaultySource, informer: Informer[Thing], views: list[View]
) -> None:
    action, rounds = step
    match action:
        case ("write", name, owner):
            source.write(name, owner)
        case ("remove", name):
            source.remove(name)
        case ("fault", fault):
            source.faults.append(fault)
        case ("forget",):
            source.forget_changes()
        case ("repeat", repeat):
            source.repeat = repeat
        case ("subscribe",):
            views.append(View())
            informer.subscribe(views[-1])
        case ("pass", seconds):
            source.clock.advance(seconds)
    await settle(source.clock, rounds)


async def come_to_rest(source: FaultySource) -> None:
    """Let the longest back-off pass, then what comes after it."""
    source.faults.clear()
    for _ in range(5):
        source.clock.advance(31)
        await settle(source.clock, 60)


@settings(max_examples=examples(200))
@given(before=st.lists(STEPS, max_size=8), steps=st.lists(STEPS, min_size=5, max_size=40))
async def test_the_copy_its_index_and_every_subscriber_end_where_the_store_is(
    before: list[tuple[tuple[Any, ...], int]], steps: list[tuple[tuple[Any, ...], int]]
) -> None:
    clock = VirtualClock()
    source = FaultySource(clock)
    complaints: list[Exception] = []
    informer = Informer(source, THING, clock=clock, on_error=complaints.append)
    informer.index("owner", lambda obj: [obj.owner])
    views = [View()]
    informer.subscribe(views[0])
    for step in before:
        await play(step, source, informer, views)
    async with running(informer, clock):
        for step in steps:
            await play(step, source, informer, views)
        await come_to_rest(source)

        truth = {obj.metadata.key: obj for obj in source.objects.values()}
        assert {obj.metadata.key: obj for obj in informer.items()} == truth
        assert all(view.objects == truth for view in views)
        for owner in "xyz":
            indexed = {obj.metadata.key: obj for obj in informer.indexed("owner", owner)}
            assert indexed == {key: obj for key, obj in truth.items() if obj.owner == owner}
        assert informer.synced.is_set()
        assert not [error for error in complaints if isinstance(error, AssertionError)], "a view found a gap"
