"""The cache against each way a cache goes wrong, with a backend whose answers can be held back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.keys.aio import AsyncKeys
from lapse.keys.backends.base import NetworkBackend
from lapse.keys.backends.cache import Cache, CachedBackend, CacheEntry
from lapse.keys.backends.layout import CACHE, Prefix
from lapse.keys.backends.memory import MemoryBackend
from lapse.keys.errors import KeysURLError, OutcomeUnknownError
from lapse.keys.store import Keys

if TYPE_CHECKING:
    from lapse.keys.aio import AsyncAppKeys

MAX_AGE = Duration.parse("500ms")


class Remote(NetworkBackend):
    """A memory store behind a wire: each request is applied when it arrives, its answer may be held back or lost."""

    capabilities = MemoryBackend.capabilities

    def __init__(self, clock: VirtualClock) -> None:
        self.store = MemoryBackend(clock=clock)
        self.requests: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.lose_answers = False

    def async_space(self, prefix: Prefix, app_id: int) -> Any:  # noqa: ANN401
        return RemoteSpace(self, self.store.space(prefix, app_id))

    async def async_check(self) -> None:
        pass

    async def async_close(self) -> None:
        pass

    def hold(self, operation: str) -> asyncio.Event:
        """Hold back the answers of an operation until the event is set."""
        self.gates[operation] = asyncio.Event()
        return self.gates[operation]


class RemoteSpace:
    def __init__(self, remote: Remote, space: object) -> None:
        self._remote = remote
        self._space = space

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for every operation
        async def call(*args: object) -> object:
            self._remote.requests.append(name)
            answer = getattr(self._space, name)(*args)
            if name in self._remote.gates:
                await self._remote.gates[name].wait()
            if self._remote.lose_answers:
                raise OutcomeUnknownError(backend="test", problem="lost")
            return answer

        return call


class World:
    def __init__(self, size: int = 100) -> None:
        self.clock = VirtualClock()
        self.remote = Remote(self.clock)
        backend = CachedBackend(self.remote, size=size, max_age=MAX_AGE, clock=self.clock)
        self.backend = backend
        self.app: AsyncAppKeys = AsyncKeys(backend, clock=self.clock, sweep=False).app(1)
        self.other = self.remote.store.space(Prefix.APPLICATION_TTL, 1)  # another process, past the cache

    def cached(self) -> int:
        return len(self.backend._cache)

    async def start(self, coroutine: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = asyncio.create_task(coroutine)
        for _ in range(5):
            await asyncio.sleep(0)  # noqa: TID251 - yields, does not wait
        return task


async def test_a_known_value_costs_no_request() -> None:
    world = World()
    world.other.put("k", "v", 100)
    assert await world.app.ttl_get("k") == "v"
    assert await world.app.ttl_get("k") == "v"
    assert world.remote.requests == ["find"]


async def test_a_cached_record_dies_with_its_own_expiry() -> None:
    world = World()
    world.other.put("k", "v", 1)
    world.clock.advance(0.8)
    assert await world.app.ttl_get("k") == "v"
    world.clock.advance(0.199)
    assert await world.app.ttl_get("k") == "v"
    assert world.remote.requests == ["find"]
    world.clock.advance(0.001)
    assert await world.app.ttl_get("k") is None


async def test_a_written_record_dies_with_its_own_expiry() -> None:
    world = World()
    await world.app.put("k", "v", 1)
    for _ in range(3):
        world.clock.advance(0.3)
        assert await world.app.ttl_get("k") == "v"
    world.clock.advance(0.1)
    assert await world.app.ttl_get("k") is None


async def test_what_was_found_absent_is_looked_up_again() -> None:
    world = World()
    assert await world.app.ttl_get("k") is None
    world.other.put("k", "v", 100)
    world.clock.advance(0.499)
    assert await world.app.ttl_get("k") is None, "the negative entry was of no use"
    world.clock.advance(0.001)
    assert await world.app.ttl_get("k") == "v"


async def test_another_process_is_heard_within_the_maximal_age() -> None:
    world = World()
    await world.app.put("k", "ours", 100)
    world.other.put("k", "theirs", 100)
    world.clock.advance(0.5)
    assert await world.app.ttl_get("k") == "theirs"


@pytest.mark.parametrize("size", [1, 65_536])
async def test_the_old_value_is_never_served_after_a_swap(size: int) -> None:
    world = World()
    await world.app.put("k", "old", 100)
    assert await world.app.compare_and_swap("k", "old", "n" * size, 100)
    assert await world.app.ttl_get("k") == "n" * size


async def test_a_refused_swap_and_a_refused_delete_forget_what_was_known() -> None:
    for refused in ("swap", "delete"):
        world = World()
        await world.app.put("k", "ours", 100)
        world.other.put("k", "theirs", 100)
        if refused == "swap":
            assert not await world.app.compare_and_swap("k", "ours", "new", 100)
        else:
            assert not await world.app.compare_and_delete("k", "ours")
        assert await world.app.ttl_get("k") == "theirs"


async def test_a_refused_insert_forgets_that_the_key_was_absent() -> None:
    world = World()
    assert await world.app.ttl_get("k") is None
    world.other.put("k", "theirs", 100)
    assert not await world.app.insert_if_not_exists("k", "ours", 100)
    assert await world.app.ttl_get("k") == "theirs"


async def test_touch_and_delete_are_seen_at_once() -> None:
    world = World()
    await world.app.put("k", "v", 1)
    assert await world.app.touch("k", 100)
    world.clock.advance(1)
    assert await world.app.ttl_get("k") == "v"
    assert await world.app.delete("k")
    assert await world.app.ttl_get("k") is None


async def test_a_slow_read_does_not_bring_the_old_value_back() -> None:
    world = World()
    world.other.put("k", "old", 100)
    gate = world.remote.hold("find")
    reading = await world.start(world.app.ttl_get("k"))
    assert await world.app.compare_and_swap("k", "old", "new", 100)
    gate.set()
    assert await reading == "old", "the read started before the write, so either answer is right"
    assert await world.app.ttl_get("k") == "new"


async def test_a_read_that_starts_during_a_write_does_not_fill_what_it_saw() -> None:
    world = World()
    world.other.put("k", "old", 100)
    answer, found = world.remote.hold("put"), world.remote.hold("find")
    writing = await world.start(world.app.put("k", "new", 100))
    world.other.put("k", "old", 100)  # the read sees the state before the write
    reading = await world.start(world.app.ttl_get("k"))
    world.other.put("k", "new", 100)
    answer.set()
    await writing
    found.set()
    await reading
    assert await world.app.ttl_get("k") == "new"


async def test_the_slower_of_two_writes_does_not_cover_the_later_one() -> None:
    world = World()
    gate = world.remote.hold("insert")
    slow = await world.start(world.app.insert_if_not_exists("k", "first", 100))
    await world.app.put("k", "second", 100)
    gate.set()
    assert await slow
    assert await world.app.ttl_get("k") == "second"


async def test_an_unknown_outcome_forgets() -> None:
    world = World()
    await world.app.put("k", "old", 100)
    world.remote.lose_answers = True
    with pytest.raises(OutcomeUnknownError):
        await world.app.put("k", "new", 100)
    world.remote.lose_answers = False
    assert await world.app.ttl_get("k") == "new"


async def test_keys_that_look_alike_when_concatenated_are_two_keys() -> None:
    world = World()
    keys = AsyncKeys(world.backend, clock=world.clock, sweep=False)
    await keys.app(0x0000_0131).put("2", "a", 100)
    await keys.app(0x0000_0132).put("2", "b", 100)
    await keys.app(0x0000_0131).put("12", "c", 100)
    assert await keys.app(0x0000_0131).ttl_get("2") == "a"
    assert await keys.app(0x0000_0132).ttl_get("2") == "b"


async def test_get_many_asks_only_for_what_is_unknown() -> None:
    world = World()
    await world.app.put("a", "1", 100)
    assert await world.app.ttl_get("absent") is None
    world.other.put("b", "2", 100)
    world.remote.requests.clear()
    assert await world.app.get_many(["a", "absent", "b", "gone"]) == {"a": "1", "b": "2"}
    assert await world.app.get_many(["a", "absent"]) == {"a": "1"}
    assert world.remote.requests == ["get_many"]


async def test_the_least_recently_used_entry_makes_room() -> None:
    world = World(size=2)
    for key in "abc":
        await world.app.put(key, key, 100)
        await world.app.ttl_get("a")
    assert world.cached() == 2
    world.remote.requests.clear()
    await world.app.ttl_get("c")
    await world.app.ttl_get("b")
    assert world.remote.requests == ["find"]


async def test_elections_are_never_cached() -> None:
    world = World()
    space = world.backend.async_space(Prefix.LEADER_ELECTION, 1)
    await space.put("k", "v", 100)
    await space.get("k")
    assert world.cached() == 0


async def test_a_jump_of_the_wall_clock_makes_nothing_live_longer() -> None:
    world = World()
    await world.app.put("k", "v", 100)
    world.clock.jump_wall(-3600)
    world.other.delete("k")
    world.clock.advance(0.5)
    assert await world.app.ttl_get("k") is None


def test_the_blocking_face_reads_through_the_same_cache() -> None:
    clock = VirtualClock()
    remote = Remote(clock)
    with Keys(CachedBackend(remote, size=10, max_age=MAX_AGE, clock=clock), clock=clock, sweep=False) as keys:
        app = keys.app(1)
        app.put("k", "v", 100)
        assert [app.ttl_get("k") for _ in range(3)] == ["v"] * 3
        assert remote.requests == ["put"]


def test_nothing_is_left_of_reads_and_writes_that_are_over() -> None:
    cache = Cache(size=10, max_age=MAX_AGE, clock=VirtualClock())
    for number in range(100):
        place = (b"p", str(number))
        read = cache.announce(place)
        write = cache.begin_write(place)
        cache.end_write(place, write, CacheEntry("v", 1))
        cache.end_read(place, read, CacheEntry("old", 1))
    assert not cache._announced
    assert len(cache) == 10


@pytest.mark.parametrize("text", ["never", "0s", "-1s", "500"])
def test_the_maximal_age_is_a_positive_duration(text: str) -> None:
    with pytest.raises((KeysURLError, ValueError)):
        CACHE["cache_max_age"].parse(text)


class Overlaps(RuleBasedStateMachine):
    """Reads and writes of one key that overlap in any way: after a write was answered nobody reads what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(size=10, max_age=MAX_AGE, clock=VirtualClock())
        self.stored = 0
        self.answered = 0
        self.reads: list[tuple[object, int]] = []
        self.writes: list[tuple[object, int]] = []
        self.newest = 0

    place = (b"p", "k")

    @rule()
    def read_is_sent_and_seen(self) -> None:
        self.reads.append((self.cache.announce(self.place), self.stored))

    @rule(data=st.data())
    def read_comes_back(self, data: st.DataObject) -> None:
        if self.reads:
            read, seen = self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1)))
            self.cache.end_read(self.place, read, CacheEntry(str(seen), 10**30))

    @rule()
    def write_is_sent_and_applied(self) -> None:
        self.newest += 1
        self.writes.append((self.cache.begin_write(self.place), self.newest))
        self.stored = self.newest

    @rule(data=st.data())
    def write_is_answered(self, data: st.DataObject) -> None:
        if self.writes:
            write, value = self.writes.pop(data.draw(st.integers(0, len(self.writes) - 1)))
            self.cache.end_write(self.place, write, CacheEntry(str(value), 10**30))
            self.answered = max(self.answered, value)

    @rule()
    def look(self) -> None:
        known = self.cache.look(self.place)
        if isinstance(known, str):
            assert int(known) >= self.answered, "an answered write is hidden by an older value"


TestOverlaps = Overlaps.TestCase
