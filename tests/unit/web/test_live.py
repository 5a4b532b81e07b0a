"""Live changes: what is told to whom, on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.errors import LapseError
from lapse.db.sqlite.writes import Writes
from lapse.web.api.errors import StoppingError, TooManyStreamsError
from lapse.web.live import (
    CHECK_SECONDS,
    MOST_PER_HOLDER,
    MOST_SUBSCRIBERS,
    TICK_SECONDS,
    LiveChanges,
    Source,
    Subscription,
)
from lapse.workspaces.activity.in_process import InProcessActivity
from lapse.workspaces.activity.port import ConnectionId
from lapse.workspaces.model import WorkspaceId

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path


class Store:
    """A store whose version is what the test says."""

    def __init__(self) -> None:
        self.number: Hashable = 0
        self.looks = 0
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def version(self) -> Hashable:
        self.looks += 1
        if not self.answers.is_set():
            await self.answers.wait()
        if self.error is not None:
            raise self.error
        return self.number


class AwayError(LapseError):
    """It is away."""


async def settle() -> None:
    for _ in range(20):
        await SystemClock().sleep(0)


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    await settle()  # who has just begun sleeps from now on
    for _ in range(round(seconds / TICK_SECONDS)):
        clock.advance(TICK_SECONDS)
        await settle()


def pending(subscription: Subscription) -> set[str] | None:
    """Return what a subscriber would be told now; None: it would wait."""
    step = subscription.__anext__()
    try:
        step.send(None)
    except StopIteration as told:
        return set(told.value)
    step.close()
    return None


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_a_change_is_told_to_every_subscriber_within_a_tick_and_once(clock: VirtualClock) -> None:
    objects, keys = Store(), Store()
    live = LiveChanges([Source("objects", objects.version), Source("keys", keys.version)], clock=clock)
    async with live.subscribe() as one, live.subscribe() as two:
        await pass_time(clock, TICK_SECONDS)
        assert (pending(one), pending(two)) == (None, None)
        objects.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert (pending(one), pending(two)) == ({"objects"}, {"objects"})
        assert pending(one) is None


async def test_what_is_not_taken_is_one_set_of_topics(clock: VirtualClock) -> None:
    objects, keys = Store(), Store()
    live = LiveChanges([Source("objects", objects.version), Source("keys", keys.version)], clock=clock)
    async with live.subscribe() as one:
        for number in range(1, 9):
            objects.number = keys.number = number
            await pass_time(clock, TICK_SECONDS)
        assert pending(one) == {"objects", "keys"}
        assert pending(one) is None


async def test_looks_are_the_same_for_one_subscriber_and_for_many_and_none_without(clock: VirtualClock) -> None:
    store = Store()
    live = LiveChanges([Source("objects", store.version)], clock=clock)
    await pass_time(clock, 5)
    assert store.looks == 0
    async with live.subscribe():
        before = store.looks
        await pass_time(clock, 1)
        alone = store.looks - before
    async with AsyncExitStack() as stack:
        for number in range(50):
            await stack.enter_async_context(live.subscribe(str(number)))
        before = store.looks
        await pass_time(clock, 1)
        assert store.looks - before == alone == round(1 / TICK_SECONDS)
    before = store.looks
    await pass_time(clock, 5)
    assert store.looks == before


async def test_a_source_is_asked_no_more_often_than_it_says(clock: VirtualClock) -> None:
    store = Store()
    live = LiveChanges([Source("keys", store.version, seconds=2.0)], clock=clock)
    async with live.subscribe():
        before = store.looks
        await pass_time(clock, 10)
        assert store.looks - before == 5


async def test_a_source_that_fails_is_asked_less_and_less_and_keeps_nobody_from_the_others(clock: VirtualClock) -> None:
    away, there = Store(), Store()
    live = LiveChanges([Source("keys", away.version), Source("objects", there.version)], clock=clock)
    async with live.subscribe() as one:
        away.error = AwayError()
        before = away.looks
        await pass_time(clock, 60)
        assert 3 <= away.looks - before <= 12
        there.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert "objects" in (pending(one) or set())
        away.error, away.number = None, 1
        await pass_time(clock, 31)
        assert "keys" in (pending(one) or set())


async def test_a_slow_source_keeps_no_other_waiting(clock: VirtualClock) -> None:
    slow, quick = Store(), Store()
    live = LiveChanges([Source("keys", slow.version, is_slow=True), Source("objects", quick.version)], clock=clock)
    slow.answers.clear()
    async with live.subscribe() as one:
        quick.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert pending(one) == {"objects"}
        slow.answers.set()
        await pass_time(clock, TICK_SECONDS)
        slow.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert pending(one) == {"keys"}


async def test_a_subscriber_is_reminded_although_nothing_changes(clock: VirtualClock) -> None:
    live = LiveChanges([Source("objects", Store().version)], clock=clock)
    async with live.subscribe() as one:
        await pass_time(clock, CHECK_SECONDS)
        assert pending(one) == set()


async def test_numbers_of_topics_go_up_with_changes_also_while_nobody_subscribes(clock: VirtualClock) -> None:
    store = Store()
    live = LiveChanges([Source("objects", store.version)], clock=clock)
    first = dict(await live.seen())
    clock.advance(1)
    assert dict(await live.seen()) == first
    store.number = 1
    assert dict(await live.seen()) == first  # it was looked at in this moment already
    clock.advance(1)
    assert (await live.seen())["objects"] > first["objects"]
    clock.advance(1)
    assert LiveChanges([Source("objects", store.version)], clock=clock).versions["objects"] != live.versions["objects"]


class Gate:
    """Something cheap that tells whether anything was written."""

    def __init__(self) -> None:
        self.number = self.reads = 0

    def read(self) -> Hashable:
        self.reads += 1
        return self.number


async def test_sources_of_one_gate_are_looked_at_only_after_it_has_changed_and_it_is_read_once(
    clock: VirtualClock,
) -> None:
    first, second, gate = Store(), Store(), Gate()
    sources = [Source("journal", first.version, gate=gate.read), Source("objects", second.version, gate=gate.read)]
    live = LiveChanges(sources, clock=clock)
    async with live.subscribe() as one:
        await pass_time(clock, 4 * TICK_SECONDS)
        assert (first.looks, second.looks, gate.reads) == (1, 1, 5)
        gate.number = first.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert pending(one) == {"journal"}
        assert (first.looks, second.looks) == (2, 2)


async def test_a_change_that_a_gate_has_told_is_not_lost_with_a_look_that_failed_or_was_given_up(
    clock: VirtualClock,
) -> None:
    store, gate = Store(), Gate()
    live = LiveChanges([Source("objects", store.version, gate=gate.read, is_slow=True)], clock=clock)
    async with live.subscribe():
        await settle()
        gate.number = store.number = 1
        store.answers.clear()
        await pass_time(clock, TICK_SECONDS)
    before = live.versions["objects"]
    store.answers.set()
    store.error = AwayError()
    async with live.subscribe() as one:
        await pass_time(clock, TICK_SECONDS)
        store.error = None
        await pass_time(clock, 4)
        assert pending(one) == {"objects"}
    assert live.versions["objects"] > before


async def test_a_look_that_is_given_up_before_it_begins_is_made_again(clock: VirtualClock) -> None:
    store = Store()
    live = LiveChanges([Source("keys", store.version, is_slow=True)], clock=clock)
    async with live.subscribe():
        pass
    assert store.looks == 0
    async with live.subscribe() as one:
        await pass_time(clock, TICK_SECONDS)
        store.number = 1
        await pass_time(clock, TICK_SECONDS)
        assert pending(one) == {"keys"}


async def test_a_topic_is_not_seen_before_all_its_sources_are(clock: VirtualClock) -> None:
    fast, slow = Store(), Store()
    slow.answers.clear()
    sources = [
        Source("objects", fast.version),
        Source("journal", fast.version),
        Source("journal", slow.version, is_slow=True),
    ]
    live = LiveChanges(sources, clock=clock)
    assert (await live.seen()).keys() == {"objects"}
    slow.answers.set()
    await settle()
    assert (await live.seen()).keys() == {"objects", "journal"}
    live.tell("forecast")
    first = (await live.seen())["forecast"]
    live.tell("forecast")
    assert (await live.seen())["forecast"] > first
    await live.close()


async def test_there_is_a_limit_in_all_and_for_each_holder(clock: VirtualClock) -> None:
    live = LiveChanges([], clock=clock)
    async with AsyncExitStack() as stack:
        for _ in range(MOST_PER_HOLDER):
            await stack.enter_async_context(live.subscribe("one"))
        with pytest.raises(TooManyStreamsError):
            await stack.enter_async_context(live.subscribe("one"))
        for number in range(MOST_SUBSCRIBERS - MOST_PER_HOLDER):
            await stack.enter_async_context(live.subscribe(str(number)))
        assert live.subscribers == MOST_SUBSCRIBERS
    async with live.subscribe("one"):
        assert live.subscribers == 1


async def test_where_there_are_too_many_the_youngest_ends_of_whoever_has_the_most(clock: VirtualClock) -> None:
    live = LiveChanges([], clock=clock)
    greedy = [str(number) for number in range(MOST_SUBSCRIBERS // MOST_PER_HOLDER)]
    async with AsyncExitStack() as stack:
        open_ones = {
            name: [await stack.enter_async_context(live.subscribe(name)) for _ in range(MOST_PER_HOLDER)]
            for name in greedy
        }
        for _ in range(3):
            await stack.enter_async_context(live.subscribe("owner"))
        assert live.subscribers == MOST_SUBSCRIBERS
        assert [sum(one.closed for one in some) for some in open_ones.values()] == [1, 1, 1]
        assert all(some[-1].closed for some in open_ones.values())
        with pytest.raises(TooManyStreamsError):  # who comes back takes nobody else's
            await stack.enter_async_context(live.subscribe(greedy[0]))


async def test_where_all_have_as_many_nobody_makes_room_for_one_more(clock: VirtualClock) -> None:
    live = LiveChanges([], clock=clock)
    async with AsyncExitStack() as stack:
        for number in range(MOST_SUBSCRIBERS):
            await stack.enter_async_context(live.subscribe(str(number)))
        with pytest.raises(TooManyStreamsError):
            await stack.enter_async_context(live.subscribe("other"))


async def test_subscriptions_end_at_once_when_the_process_stops(clock: VirtualClock) -> None:
    live, stopping = LiveChanges([Source("objects", Store().version)], clock=clock), asyncio.Event()
    running = asyncio.create_task(live.run(stopping))
    async with live.subscribe() as one:
        waiting = asyncio.create_task(anext(one, None))
        await settle()
        stopping.set()
        await running
        assert await waiting is None
        with pytest.raises(StoppingError):
            await live.subscribe().__aenter__()


async def test_who_comes_and_goes_is_a_change_and_that_it_becomes_known_who_is_there(clock: VirtualClock) -> None:
    activity = InProcessActivity(clock, lease_seconds=30)
    lab, first = WorkspaceId("lab"), ConnectionId("c1")
    seen = [activity.fingerprint()]
    await activity.connect(lab, first, lease_seconds=30)
    seen.append(activity.fingerprint())
    await activity.renew({first: lab}, 30)
    assert activity.fingerprint() == seen[-1], "to stay is no change"
    clock.advance(120)
    seen.append(activity.fingerprint())
    await activity.disconnect(lab, first, idle_seconds=0)
    seen.append(activity.fingerprint())
    assert len({*seen}) == len(seen)


class Gated(Store):
    """A store behind a gate, as a file is behind its version."""

    def gate(self) -> Hashable:
        return self.number


async def test_what_was_written_just_after_a_look_is_told_within_a_tick_although_nothing_more_is_written(
    clock: VirtualClock, tmp_path: Path
) -> None:
    file = tmp_path / "objects.db"
    file.touch()
    store, writes = Gated(), Writes([file])
    live = LiveChanges([Source("objects", store.version, gate=store.gate)], clock=clock, writes=writes)
    async with live.subscribe() as one:
        await pass_time(clock, 3)
        assert pending(one) is None
        clock.advance(TICK_SECONDS / 2)
        await settle()
        await live.seen()  # a page that is asked for between two looks
        store.number = 1
        file.write_text("a")
        await pass_time(clock, 2 * TICK_SECONDS)
        assert pending(one) == {"objects"}
    await live.close()
