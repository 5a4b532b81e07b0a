"""Access times on their way to the store: late perhaps, lost never."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.workspaces.activity.access import AccessTimes
from lapse.workspaces.errors import WorkspaceStoreUnavailableError
from lapse.workspaces.model import Ms, NewWorkspace, WorkspaceId
from lapse.workspaces.store.sqlite import open_sqlite_store
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from pathlib import Path

T = TypeVar("T")
A, B, C = (WorkspaceId(name) for name in "abc")


class Store:
    """Takes the greatest, as every store does, and fails on request: before, after or in the middle of a write."""

    def __init__(self) -> None:
        self.times: dict[WorkspaceId, Ms] = {}
        self.batches: list[dict[WorkspaceId, Ms]] = []
        self.faults: list[float | None] = []
        """For each call to come, the part of it that is written before it fails; None: it does not fail."""
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens elsewhere while it writes."""

    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        self.batches.append(dict(times))
        fault = self.faults.pop(0) if self.faults else None
        part = len(times) if fault is None else int(len(times) * fault)
        await asyncio.sleep(0)  # noqa: TID251 - a moment of the loop, no time
        self.meanwhile()
        for workspace, moment in list(times.items())[:part]:
            self.times[workspace] = max(moment, self.times.get(workspace, moment))
        if fault is not None:
            raise WorkspaceStoreUnavailableError(problem="as the test wants it")


class Fixture:
    """Access times of a store on virtual time."""

    def __init__(self, *, throttle_seconds: float = 5, batch: int = 1000) -> None:
        self.store, self.clock = Store(), VirtualClock()
        self.access = AccessTimes(self.store, self.clock, throttle_seconds=throttle_seconds, batch=batch)

    def note(self, *pairs: tuple[WorkspaceId, int]) -> None:
        for workspace, moment in pairs:
            self.access.note(workspace, Ms(moment))


async def test_what_is_noted_is_written_once() -> None:
    f = Fixture()
    f.note((A, 10), (B, 20))
    assert await f.access.flush() == 2
    assert f.store.times == {A: 10, B: 20}
    f.clock.advance(60)
    assert await f.access.flush() == 0
    assert f.store.batches == [{A: 10, B: 20}], "there was nothing more to write"


async def test_of_many_accesses_the_latest_is_written_in_whatever_order_they_come() -> None:
    f = Fixture()
    f.note((A, 10), (A, 30), (A, 20))
    await f.access.flush()
    assert f.store.batches == [{A: 30}]


async def test_a_workspace_is_written_once_per_throttle_and_what_came_meanwhile_is_late_not_lost() -> None:
    f = Fixture(throttle_seconds=5)
    f.note((A, 10))
    await f.access.flush()
    f.note((A, 20), (B, 20))
    f.clock.advance(4.999)
    assert await f.access.flush() == 1, "another workspace need not wait"
    assert f.store.times == {A: 10, B: 20}
    f.clock.advance(0.001)
    assert await f.access.flush() == 1
    assert f.store.times == {A: 20, B: 20}


async def test_before_an_end_everything_is_written_whatever_the_throttle_says() -> None:
    f = Fixture()
    f.note((A, 10))
    await f.access.flush()
    f.note((A, 20))
    assert await f.access.flush(everything=True) == 1
    assert f.store.times == {A: 20}
    assert len(f.access) == 0


async def test_who_was_written_again_early_does_not_delay_the_others() -> None:
    f = Fixture(throttle_seconds=5)
    f.note((A, 10))
    await f.access.flush()
    f.clock.advance(1)
    f.note((B, 10))
    await f.access.flush()
    f.clock.advance(1)
    f.note((A, 20))
    await f.access.flush(everything=True)
    f.clock.advance(4)
    f.note((A, 30), (B, 30))
    await f.access.flush()
    assert f.store.times == {A: 20, B: 30}


async def test_batches_are_no_larger_than_allowed() -> None:
    f = Fixture(batch=1000)
    names = [WorkspaceId(f"w{number}") for number in range(2500)]
    f.note(*((name, 7) for name in names))
    assert await f.access.flush() == 2500
    assert [len(batch) for batch in f.store.batches] == [1000, 1000, 500]
    assert f.store.times == dict.fromkeys(names, 7)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["nothing", "half", "all"])
async def test_a_flush_that_fails_loses_nothing_however_much_of_it_was_written(part: float) -> None:
    f = Fixture()
    f.note((A, 10), (B, 20))
    f.store.faults = [part]
    with pytest.raises(WorkspaceStoreUnavailableError):
        await f.access.flush()
    assert len(f.access) == 2
    f.note((A, 5), (B, 30))
    assert await f.access.flush() == 2, "nothing was throttled by a write that failed"
    assert f.store.times == {A: 10, B: 30}


async def test_one_failing_batch_does_not_stop_the_others_and_goes_last_next_time() -> None:
    f = Fixture(batch=1)
    f.note((A, 10), (B, 20), (C, 30))
    f.store.faults = [0.0]
    with pytest.raises(WorkspaceStoreUnavailableError):
        await f.access.flush()
    assert f.store.times == {B: 20, C: 30}
    f.note((WorkspaceId("d"), 40))
    f.store.batches.clear()
    await f.access.flush()
    assert f.store.batches == [{A: 10}, {WorkspaceId("d"): 40}]
    assert len(f.access) == 0


async def test_failures_with_a_success_between_them_stop_nothing() -> None:
    f = Fixture(batch=1)
    f.note(*((WorkspaceId(f"w{number}"), 7) for number in range(6)))
    f.store.faults = [0.0, None, 0.0, None, 0.0, None]
    with pytest.raises(WorkspaceStoreUnavailableError):
        await f.access.flush()
    assert len(f.store.times) == len(f.access) == 3


async def test_a_store_that_is_down_is_not_asked_for_every_batch() -> None:
    f = Fixture(batch=1)
    f.note(*((WorkspaceId(f"w{number}"), 7) for number in range(100)))
    f.store.faults = [0.0] * 100
    with pytest.raises(WorkspaceStoreUnavailableError):
        await f.access.flush()
    assert len(f.store.batches) == 2
    assert len(f.access) == 100


async def test_batches_that_always_fail_do_not_keep_the_others_waiting_for_ever() -> None:
    f = Fixture(batch=1)
    poison = {WorkspaceId(f"poison{number}") for number in range(4)}
    good = {WorkspaceId(f"good{number}") for number in range(4)}
    f.note(*((name, 7) for name in [*sorted(poison), *sorted(good)]))
    original = f.store.flush_access

    async def refuse_poison(times: Mapping[WorkspaceId, Ms]) -> None:
        if poison & times.keys():
            raise WorkspaceStoreUnavailableError(problem="of this one")
        await original(times)

    f.store.flush_access = refuse_poison  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(WorkspaceStoreUnavailableError):
            await f.access.flush()
    assert f.store.times.keys() == good
    assert len(f.access) == 4


async def test_what_is_noted_during_a_flush_is_written_by_the_next_one() -> None:
    f = Fixture()
    f.note((A, 10))
    f.store.meanwhile = lambda: f.note((A, 11), (B, 12))
    await f.access.flush()
    assert f.store.times == {A: 10}
    f.store.meanwhile = lambda: None
    f.clock.advance(5)
    assert await f.access.flush() == 2
    assert f.store.times == {A: 11, B: 12}


async def test_an_older_time_during_a_flush_changes_nothing() -> None:
    f = Fixture()
    f.note((A, 10))
    f.store.meanwhile = lambda: f.note((A, 9))
    await f.access.flush()
    assert len(f.access) == 0
    assert f.store.times == {A: 10}


async def test_a_flush_that_is_cancelled_loses_nothing() -> None:
    f = Fixture()
    f.note((A, 10))
    task = asyncio.create_task(f.access.flush())
    f.store.meanwhile = task.cancel
    with pytest.raises(asyncio.CancelledError):
        await asyncio.gather(task, asyncio.sleep(0))  # noqa: TID251 - a moment of the loop, no time
    f.store.meanwhile = lambda: None
    await f.access.flush(everything=True)
    assert f.store.times == {A: 10}


async def test_two_flushes_at_once_write_nothing_twice() -> None:
    f = Fixture()
    f.note((A, 10), (B, 20))
    assert sorted(await asyncio.gather(f.access.flush(), f.access.flush())) == [0, 2]
    assert f.store.batches == [{A: 10, B: 20}]


async def test_what_was_written_long_ago_takes_no_memory() -> None:
    f = Fixture(throttle_seconds=5)
    for round_ in range(10):
        f.note(*((WorkspaceId(f"w{round_}-{number}"), 7) for number in range(100)))
        await f.access.flush()
        f.clock.advance(5)
    await f.access.flush()
    assert len(f.access._waiting) + len(f.access._written) == 0


async def test_a_real_store_takes_them_and_never_goes_back(tmp_path: Path) -> None:
    store = open_sqlite_store(tmp_path / "workspaces.db", synchronous=Synchronous.NORMAL)
    new = NewWorkspace(name="notes", owner="ada", command=("true",), port=8000)
    workspace = await store.create(new, now=Ms(1_000))
    access = AccessTimes(store, VirtualClock())
    access.note(workspace.id, Ms(5_000))
    access.note(WorkspaceId("gone"), Ms(5_000))
    assert await access.flush(everything=True) == 2
    access.note(workspace.id, Ms(4_000))
    await access.flush(everything=True)
    found = await store.get(workspace.id)
    await store.close()
    assert (found.last_access_at, found.version) == (5_000, workspace.version)


# --- any order of anything --------------------------------------------------------------------------------------------

names = st.sampled_from([WorkspaceId(name) for name in "abcdef"])
notes = st.lists(st.tuples(names, st.integers(0, 50)), max_size=4)
faults = st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), max_size=6)
THROTTLE = 5


def run(work: Coroutine[Any, Any, T]) -> T:
    with closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(work)


class Accesses(RuleBasedStateMachine):
    """Notes, flushes, faults and time, against the plain truth: the latest access of each workspace."""

    @initialize(batch=st.integers(1, 4))
    def begin(self, batch: int) -> None:
        self.f = Fixture(throttle_seconds=THROTTLE, batch=batch)
        self.batch = batch
        self.truth: dict[WorkspaceId, int] = {}
        self.seen: dict[WorkspaceId, Ms] = {}
        self.quiet_since: dict[WorkspaceId, int] = {}

    @rule(pairs=notes)
    def note(self, pairs: Iterable[tuple[WorkspaceId, int]]) -> None:
        for workspace, moment in pairs:
            self.truth[workspace] = max(moment, self.truth.get(workspace, moment))
            self.f.access.note(workspace, Ms(moment))

    @rule(seconds=st.sampled_from([0.5, 2.5, 5, 20]))
    def wait(self, seconds: float) -> None:
        self.f.clock.advance(seconds)

    @rule(faults=faults, meanwhile=st.lists(notes, max_size=3), everything=st.booleans())
    def flush(
        self,
        faults: list[float | None],
        meanwhile: list[list[tuple[WorkspaceId, int]]],
        everything: bool,  # noqa: FBT001
    ) -> None:
        self.f.store.faults, self.f.store.batches = faults, []
        self.f.store.meanwhile = lambda: self.note(meanwhile.pop()) if meanwhile else None
        waiting = dict(self.f.access._waiting)
        try:
            written = run(self.f.access.flush(everything=everything))
        except WorkspaceStoreUnavailableError:
            return
        finally:
            self.f.store.meanwhile = lambda: None
            self.check_throttle(everything=everything)
        asked = {workspace for batch in self.f.store.batches for workspace in batch}
        assert written == len(asked)
        assert asked == waiting.keys() if everything else asked <= waiting.keys()

    def check_throttle(self, *, everything: bool) -> None:
        now = self.f.clock.monotonic_ns()
        for batch in self.f.store.batches:
            assert 1 <= len(batch) <= self.batch
            for workspace in batch:
                last = self.quiet_since.get(workspace)
                assert everything or last is None or now - last >= THROTTLE * 1_000_000_000
        for workspace in self.f.access._written:
            self.quiet_since[workspace] = self.f.access._written[workspace]

    @rule()
    def end(self) -> None:
        """With a store that works and nobody who comes, one flush brings everything home."""
        self.f.store.faults = []
        run(self.f.access.flush(everything=True))
        assert len(self.f.access) == 0
        assert self.f.store.times == self.truth

    @invariant()
    def nothing_is_lost_and_nothing_goes_back(self) -> None:
        if not hasattr(self, "f"):
            return
        waiting, stored = self.f.access._waiting, self.f.store.times
        for workspace, latest in self.truth.items():
            assert max(waiting.get(workspace, -1), stored.get(workspace, -1)) == latest
        for workspace, moment in self.seen.items():
            assert stored[workspace] >= moment
        self.seen = dict(stored)


TestAccesses = Accesses.TestCase
TestAccesses.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
