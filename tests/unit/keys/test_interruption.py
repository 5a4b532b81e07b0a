"""Locks and elections under interruption: cancelled at every wait, interrupted by signals, collected, forked.

What must hold afterwards: nothing is held that nobody holds, nobody hangs, and no cancellation is swallowed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.backends.background import background_loop
from lapse.keys.backends.layout import Prefix
from lapse.keys.election import Election
from lapse.keys.errors import BackendUnavailableError, LockEnteredError, LockHeldError, LockLostError
from tests.interruption import alarm, cancel_everywhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from pathlib import Path

    from lapse.engine.running.election import Term
    from lapse.keys.aio import AsyncKeys
    from lapse.keys.store import Keys

TTL = 60
SECONDS = 10


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"file://{tmp_path}/keys.db?sync=normal"


@asynccontextmanager
async def opened(url: str, clock: VirtualClock | None = None) -> AsyncIterator[AsyncKeys]:
    async with lapse.open_keys_async(url, clock=clock, sweep=False) as keys:
        yield keys


def holder(keys: AsyncKeys | Keys, app_id: int = 1, name: str = "job") -> Any:  # noqa: ANN401 - the record's value
    return keys.backend.space(Prefix.LEADER_ELECTION, app_id).get(f"lock:{name}")


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)  # noqa: TID251 - yields, does not wait


# --- cancellation at every wait --------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [None, 1, 2, 3])
async def test_an_acquire_that_is_cancelled_at_any_wait_leaves_nothing_held(url: str, again: int | None) -> None:
    async with opened(url) as keys:

        async def check(when: str) -> None:
            await asyncio.sleep(0.02)  # noqa: TID251 - what was cancelled twice gives back in the background
            assert holder(keys) is None, when

        waits = await cancel_everywhere(lambda: keys.app(1).lock("job", TTL).__aenter__(), check, again=again)
        assert waits
        assert holder(keys) is not None


@pytest.mark.parametrize("again", [None, 1])
async def test_a_block_that_is_cancelled_at_any_wait_is_left_and_the_cancellation_is_raised(
    url: str, again: int | None
) -> None:
    async with opened(url) as keys:

        async def use() -> None:
            async with keys.app(1).lock("job", TTL):
                await asyncio.sleep(0)  # noqa: TID251 - a place to be cancelled at

        async def check(when: str) -> None:
            await asyncio.sleep(0.02)  # noqa: TID251 - the same
            assert holder(keys) is None, when
            assert [task for task in asyncio.all_tasks() if "renewal" in task.get_name()] == [], when

        assert await cancel_everywhere(use, check, again=again) > 2


async def test_a_waiter_that_is_cancelled_does_not_take_the_lock_later(url: str) -> None:
    async with opened(url) as keys:
        held = keys.app(1).lock("job", TTL)
        await held.__aenter__()
        waiting = asyncio.create_task(keys.app(1).lock("job", TTL, wait_seconds=30).__aenter__())
        await asyncio.sleep(0.05)  # noqa: TID251 - until it waits
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await held.__aexit__(None, None, None)
        await asyncio.sleep(0.5)  # noqa: TID251 - longer than a waiter pauses
        assert holder(keys) is None


@pytest.mark.parametrize("again", [None, 1, 2, 4])
async def test_an_election_that_is_cancelled_at_any_wait_gives_its_lease_back(again: int | None) -> None:
    clock = VirtualClock()
    async with opened("memory://", clock) as keys:
        steps = 0

        async def work(_: Term) -> None:
            for _step in range(3):
                await asyncio.sleep(0)  # noqa: TID251 - places to be cancelled at

        async def check(when: str) -> None:
            nonlocal steps
            steps += 1
            for _ in range(3 * TTL):  # longer than any grace; a renewal that nobody stopped would go on
                clock.advance(1)
                await settle()
            assert holder(keys, 0, "scanner") is None, when
            assert asyncio.all_tasks() == {asyncio.current_task()}, when

        def election() -> Any:  # noqa: ANN401 - a coroutine
            return Election(keys, "scanner", ttl_seconds=TTL, clock=clock).campaign(work)

        assert await cancel_everywhere(election, check, again=again) > 1
        assert steps


async def test_a_program_that_ends_gives_back_what_it_was_about_to_acquire(url: str) -> None:
    """asyncio.run() cancels every task at its end, also those that give something back."""

    def program() -> None:
        async def main() -> None:
            task = asyncio.create_task(keys.app(1).lock("job", TTL).__aenter__())
            await asyncio.sleep(0)  # noqa: TID251 - the task begins
            await asyncio.sleep(0)  # noqa: TID251 - and what it began
            assert not task.done()

        asyncio.run(main())

    async with opened(url) as keys:
        await asyncio.to_thread(program)
        await asyncio.sleep(0.05)  # noqa: TID251 - a commit that was under way
        assert holder(keys) is None


# --- one entry at a time ---------------------------------------------------------------------------------------------


async def test_a_second_entry_is_an_error_that_leaves_the_first_alone(url: str) -> None:
    async with opened(url) as keys:
        lock = keys.app(1).lock("job", TTL)
        async with lock:
            fence, record = lock.fence, holder(keys)
            with pytest.raises(LockEnteredError, match="once for each block"):
                async with lock:
                    pytest.fail("entered twice")
            assert (lock.fence, holder(keys), lock.lost) == (fence, record, False)
        assert holder(keys) is None
        async with lock:
            assert lock.fence > fence


# --- signals ---------------------------------------------------------------------------------------------------------


def is_free(keys: Keys, seconds: float = SECONDS) -> bool:
    """Whether another caller gets the lock within the time."""
    try:
        with keys.app(1).lock("job", TTL, wait_seconds=seconds):
            return True
    except LockHeldError:
        return False


@pytest.mark.timeout(120, method="thread")  # the other method needs the signal that is used here
def test_a_waiter_that_is_interrupted_does_not_take_the_lock_later(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        held = keys.app(1).lock("job", TTL)
        waiter = keys.app(1).lock("job", TTL, wait_seconds=30)
        with held, alarm() as interruption:
            interruption.call(waiter.__enter__, 0.1)
            assert interruption.raised
        threading.Event().wait(0.5)  # longer than a waiter pauses
        assert holder(keys) is None
        with waiter:
            assert not waiter.lost, "the lock object cannot be used again"


@pytest.mark.process
@pytest.mark.parametrize(("kind", "interruptions"), [("memory", 10_000), ("file", 10_000), ("lock", 2_000)])
def test_thousands_of_interruptions_hang_nobody_and_leave_nothing_held(
    kind: str, interruptions: int, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.interrupted_stores",
        kind,
        str(tmp_path),
        str(interruptions),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["interrupted"] >= interruptions
    assert (found["missed"], found["errors"]) == ([], [])
    assert all(found.get("answers", [1])), "a thread was never answered"


# --- finalisers and forks --------------------------------------------------------------------------------------------


def holding(keys: Keys) -> Generator[None, None, None]:
    with keys.app(1).lock("job", TTL):
        yield


def test_a_generator_that_is_collected_on_the_background_thread_gives_its_lock_back(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        generators = [holding(keys)]
        next(generators[0])

        async def collect() -> None:
            generators.clear()
            gc.collect()

        asyncio.run_coroutine_threadsafe(collect(), background_loop()).result(SECONDS)
        assert is_free(keys)


def test_a_generator_that_is_collected_while_its_thread_holds_the_store_hangs_nobody() -> None:
    with lapse.open_keys("memory://", sweep=False) as keys:
        generator = holding(keys)
        next(generator)
        with keys.backend.lock:  # type: ignore[attr-defined]  # as when the collector runs inside an insert
            del generator
        assert is_free(keys)


async def test_a_coroutine_that_is_collected_gives_its_lock_back(url: str) -> None:
    async with opened(url) as keys:

        async def use() -> None:
            async with keys.app(1).lock("job", TTL):
                await asyncio.get_running_loop().create_future()

        coroutine = use()
        steps = coroutine.__await__()
        future = next(steps)
        while holder(keys) is None or future is not None:
            future._asyncio_future_blocking = False
            done, _ = await asyncio.wait({future}, timeout=0.05)
            if not done:
                break
            future = next(steps)
        assert holder(keys) is not None
        del future
        steps.close()
        coroutine.close()
        await asyncio.sleep(0.05)  # noqa: TID251 - given back in the background
        assert holder(keys) is None


def in_child(work: Any) -> int:  # noqa: ANN401 - a function that returns an exit code
    """Run ``work`` in a forked child, for some seconds at most; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            threading.Timer(SECONDS, lambda: os._exit(98)).start()
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_is_lost_in_a_forked_child_and_stays_the_parents(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        lock = keys.app(1).lock("job", TTL)

        def leave() -> int:
            try:
                lock.__exit__(None, None, None)
            except LockLostError as error:
                return 0 if lock.lost and "forked" in str(error) else 2
            return 1

        with lock:
            assert in_child(leave) == 0
            lock.check()
            assert holder(keys) is not None


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_that_was_opened_before_a_fork_refuses_in_the_child(url: str) -> None:
    with lapse.open_keys(url, sweep=False) as keys:
        app = keys.app(1)
        app.put("key", "value", TTL)

        def use() -> int:
            calls: list[Callable[[], object]] = [
                lambda: app.ttl_get("key"),
                lambda: app.insert_if_not_exists("other", "value", TTL),
                lambda: app.put("key", "value", TTL),
                lambda: app.delete("key"),
                app.scan,
                keys.sweep,
                lambda: keys.app(2).ttl_get("key"),
                keys.backend.check,
                lambda: keys.app(1).lock("job", TTL).__enter__(),
            ]
            for number, call in enumerate(calls, 1):
                try:
                    call()
                except BackendUnavailableError as error:
                    if "forked" not in str(error):
                        return 50 + number
                else:
                    return number
            keys.close()
            return 0

        def while_writing() -> int:
            with app_lock:  # another thread is inside the store when the process is forked
                return in_child(use)

        app_lock = getattr(keys.backend, "lock", None) or threading.Lock()
        assert in_child(use) == 0
        assert while_writing() == 0
        assert app.ttl_get("key") == "value"
