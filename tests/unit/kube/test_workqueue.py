from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.clock import VirtualClock
from lapse.kube.controller.workqueue import QueueClosedError, WorkQueue
from tests.unit.kube.scripted import pass_time, settle


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def queue(clock: VirtualClock) -> WorkQueue[str]:
    return WorkQueue(clock, chance=lambda: 0.0)


async def take_all(queue: WorkQueue[str], clock: VirtualClock) -> list[str]:
    """Take what is ready now, and finish it."""
    taken = []
    await settle(clock, 5)
    while len(queue):
        taken.append(await queue.get())
        queue.done(taken[-1])
    return taken


async def assert_ready_after(seconds: float, queue: WorkQueue[str], clock: VirtualClock) -> None:
    """Check that there is work in so many seconds, and not a millisecond before."""
    await pass_time(clock, seconds - 0.001, step=seconds - 0.001)
    assert await take_all(queue, clock) == []
    await pass_time(clock, 0.001, step=0.001)
    assert len(await take_all(queue, clock)) == 1


async def test_keys_come_out_in_the_order_they_came_in(queue: WorkQueue[str], clock: VirtualClock) -> None:
    for key in "abc":
        queue.add(key)

    assert await take_all(queue, clock) == ["a", "b", "c"]


async def test_a_key_that_is_added_again_before_it_is_taken_is_taken_once(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    for key in "abaab":
        queue.add(key)

    assert len(queue) == 2
    assert await take_all(queue, clock) == ["a", "b"]


async def test_who_asks_before_there_is_work_gets_it_when_it_comes(queue: WorkQueue[str], clock: VirtualClock) -> None:
    asking = asyncio.create_task(queue.get())
    await settle(clock)
    queue.add("a")

    assert await asking == "a"


async def test_a_key_that_is_added_while_it_is_worked_on_waits_for_that_worker(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add("a")
    first = await queue.get()
    queue.add("a")
    queue.add("a")
    other = asyncio.create_task(queue.get())
    await settle(clock)
    assert not other.done()

    queue.done(first)
    assert await other == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_worker_that_is_cancelled_while_it_waits_loses_no_key(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await settle(clock)
    queue.add("a")  # the first waiter's, had it not been cancelled before it could run
    waiting[0].cancel()
    await settle(clock)

    assert waiting[0].cancelled()
    assert await waiting[1] == "a"


async def test_a_delayed_key_comes_at_its_time_and_not_before(queue: WorkQueue[str], clock: VirtualClock) -> None:
    queue.add_after("a", 10)

    await pass_time(clock, 9)
    assert await take_all(queue, clock) == []
    assert queue.delayed == 1
    await pass_time(clock, 1)
    assert await take_all(queue, clock) == ["a"]
    assert queue.delayed == 0


@pytest.mark.parametrize("delays", [(10, 3), (3, 10), (3, 3)])
async def test_of_several_delays_the_earliest_counts_and_the_key_comes_once(
    queue: WorkQueue[str], clock: VirtualClock, delays: tuple[int, int]
) -> None:
    for delay in delays:
        queue.add_after("a", delay)

    await pass_time(clock, 3)
    assert await take_all(queue, clock) == ["a"]
    await pass_time(clock, 20)
    assert await take_all(queue, clock) == []


async def test_delayed_keys_come_in_the_order_of_their_times(queue: WorkQueue[str], clock: VirtualClock) -> None:
    for key, delay in [("c", 3.0), ("a", 1.0), ("d", 4.0), ("b", 2.0)]:
        queue.add_after(key, delay)
    clock.advance(10)

    assert await take_all(queue, clock) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("delay", [0, -1])
async def test_a_delay_of_nothing_is_none(queue: WorkQueue[str], clock: VirtualClock, delay: float) -> None:
    queue.add_after("a", delay)

    assert await take_all(queue, clock) == ["a"]


async def test_a_delay_that_ends_while_the_key_is_worked_on_brings_it_back_afterwards(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 1)
    await pass_time(clock, 1)
    queue.done(key)

    assert await take_all(queue, clock) == ["a"]


async def test_any_number_of_delayed_keys_needs_one_timer(queue: WorkQueue[str], clock: VirtualClock) -> None:
    before = len(asyncio.all_tasks())
    for number in range(10_000):
        queue.add_after(str(number), 10_000 - number)
    await settle(clock)

    assert len(asyncio.all_tasks()) == before + 1
    clock.advance(10_000)
    assert len(await take_all(queue, clock)) == 10_000
    await settle(clock)
    assert len(asyncio.all_tasks()) == before


async def test_a_key_that_is_moved_forward_again_and_again_leaves_nothing_behind(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("other", 5_000)
    for _ in range(1_000):
        queue.add_after("a", 3_600)
        queue.add_after("a", 1)
        await pass_time(clock, 1)
        assert await take_all(queue, clock) == ["a"]

    assert len(queue._heap) < 100
    await pass_time(clock, 4_000, step=1_000)
    assert await take_all(queue, clock) == ["other"]


async def test_a_machine_that_slept_does_not_stretch_a_delay(queue: WorkQueue[str], clock: VirtualClock) -> None:
    queue.add_after("a", 3_600)
    await settle(clock)
    clock.suspend(3_600)

    await pass_time(clock, 60)
    assert await take_all(queue, clock) == ["a"]


@pytest.mark.parametrize(
    ("chance", "expected"),
    [
        (0.0, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]),
        (1.0, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]),
    ],
)
async def test_retries_come_later_each_time_between_a_twentieth_of_a_second_and_a_minute(
    clock: VirtualClock, chance: float, expected: list[float]
) -> None:
    queue: WorkQueue[str] = WorkQueue(clock, chance=lambda: chance)
    for wait in expected:
        queue.retry("a")
        await assert_ready_after(wait, queue, clock)


async def test_a_key_that_is_forgotten_begins_anew_and_others_do_not(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    for _ in range(5):
        for key in "ab":
            queue.retry(key)
        await pass_time(clock, 60)
        assert sorted(await take_all(queue, clock)) == ["a", "b"]
    queue.forget("a")

    queue.retry("a")
    await assert_ready_after(0.05, queue, clock)
    queue.retry("b")
    await assert_ready_after(1.6, queue, clock)


async def test_a_closed_queue_hands_out_what_is_ready_and_drops_what_is_delayed(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add("a")
    queue.add("b")
    queue.add_after("later", 1)
    queue.close()
    queue.close()
    queue.add("late")
    queue.add_after("late", 1)
    queue.retry("late")
    await pass_time(clock, 5)

    assert await take_all(queue, clock) == ["a", "b"]
    for _ in range(3):
        with pytest.raises(QueueClosedError):
            await queue.get()


async def test_all_who_wait_are_told_that_the_queue_is_closed(queue: WorkQueue[str], clock: VirtualClock) -> None:
    before = asyncio.all_tasks()
    queue.add_after("later", 1)
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle(clock)
    queue.close()

    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [QueueClosedError] * 3
    assert asyncio.all_tasks() == before, "the timer has ended, too"


async def test_a_key_that_was_added_again_before_closing_is_still_worked_on_again(queue: WorkQueue[str]) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.close()
    queue.done(key)

    assert await queue.get() == "a"


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc")),
    st.tuples(st.just("add_after"), st.sampled_from("abc"), st.integers(1, 5)),
    st.tuples(st.just("take")),
    st.tuples(st.just("done"), st.sampled_from("abc")),
    st.tuples(st.just("pass"), st.integers(1, 3)),
)


@given(st.lists(STEPS, max_size=40))
async def test_whatever_happens_every_wish_is_met_once_and_by_one_worker(
    steps: list[tuple[str] | tuple[str, str | int] | tuple[str, str, int]],
) -> None:
    clock = VirtualClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    wanted: set[str] = set()
    working: set[str] = set()
    delayed: dict[str, int] = {}
    now = 0
    for step in steps:
        match step:
            case ("add", str(key)):
                queue.add(key)
                wanted.add(key)
            case ("add_after", str(key), int(delay)):
                queue.add_after(key, delay)
                delayed[key] = min(delayed.get(key, now + delay), now + delay)
            case ("take",) if wanted - working:
                key = await asyncio.wait_for(queue.get(), 1)
                assert key in wanted - working
                wanted.remove(key)
                working.add(key)
            case ("done", str(key)) if key in working:
                queue.done(key)
                working.remove(key)
            case ("pass", int(seconds)):
                now += seconds
                clock.advance(seconds)
                await settle(clock, 3)
                wanted |= {key for key, when in delayed.items() if when <= now}
                delayed = {key: when for key, when in delayed.items() if when > now}
        assert (len(queue), queue.delayed) == (len(wanted), len(delayed))
    for key in working:
        queue.done(key)
    assert sorted(await take_all(queue, clock)) == sorted(wanted)
    queue.close()
