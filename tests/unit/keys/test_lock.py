from __future__ import annotations

import asyncio

import pytest

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.errors import BackendUnavailableError, KeyTooLongError, LockHeldError, LockLostError


class SilentSpace:
    swaps = 0

    def swap(self, *_: object) -> bool:
        self.swaps += 1
        raise BackendUnavailableError(backend="test", problem="silence")


async def settle() -> None:
    """Let every task run until it waits for time."""
    for _ in range(50):
        await asyncio.sleep(0)  # noqa: TID251 - yields, does not wait


async def pass_time(clock: VirtualClock, seconds: int) -> None:
    for _ in range(seconds * 4):
        clock.advance(0.25)
        await settle()


async def test_a_second_caller_is_refused_while_the_lock_is_held() -> None:
    async with lapse.open_keys_async("memory://", clock=VirtualClock(), sweep=False) as keys:
        app = keys.app(1)
        async with app.lock("job", 30) as held:
            assert not held.lost
            with pytest.raises(LockHeldError, match="wait_seconds"):
                async with app.lock("job", 30):
                    pytest.fail("two holders")
        async with app.lock("job", 30) as again:
            assert again.fence > held.fence


async def test_a_held_lock_is_renewed_for_as_long_as_the_work_takes() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        async with app.lock("job", 8) as held:
            await pass_time(clock, 100)
            held.check()
            with pytest.raises(LockHeldError):
                await app.lock("job", 8).__aenter__()


async def test_a_waiting_caller_gets_the_lock_when_it_is_released() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        first = app.lock("job", 30)
        await first.__aenter__()
        waiting = asyncio.create_task(app.lock("job", 30, wait_seconds=20).__aenter__())
        await pass_time(clock, 5)
        assert not waiting.done()
        await first.__aexit__(None, None, None)
        await pass_time(clock, 2)
        second = waiting.result()
        assert second.fence == first.fence + 1
        await second.__aexit__(None, None, None)


async def test_a_waiting_caller_gives_up_in_time() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys, keys.app(1).lock("job", 30):
        waiting = asyncio.create_task(keys.app(1).lock("job", 30, wait_seconds=3).__aenter__())
        await pass_time(clock, 4)
        with pytest.raises(LockHeldError):
            waiting.result()


async def test_a_holder_whose_record_was_taken_is_told_at_the_next_renewal() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        held = await app.lock("job", 8).__aenter__()
        records = keys.backend.async_space(Prefix.LEADER_ELECTION, 1)
        records.put("lock:job", "usurper", 8)
        await pass_time(clock, 3)
        with pytest.raises(LockLostError, match="another holder took it"):
            held.check()
        with pytest.raises(LockLostError, match="another holder took it"):
            await held.__aexit__(None, None, None)
        assert records.get("lock:job") == "usurper", "the usurper's lock was released by the loser"


async def test_a_holder_that_cannot_renew_is_lost_by_time_alone() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        lock = keys.app(1).lock("job", 8)
        await lock.__aenter__()
        silent = SilentSpace()
        lock._lease._keys._space = silent  # type: ignore[attr-defined]  # the store stops answering
        await pass_time(clock, 7)
        lock.check()
        await pass_time(clock, 1)
        assert lock.lost
        assert silent.swaps >= 4, "renewal was not retried every second"
        with pytest.raises(LockLostError, match="not renewed in time"):
            lock.check()


async def test_a_suspended_machine_has_lost_its_lock() -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        lock = keys.app(1).lock("job", 8)
        await lock.__aenter__()
        clock.suspend(9)
        assert lock.lost


async def test_a_number_drawn_by_a_stalled_caller_never_counts() -> None:
    """Stalled between insert and swap for longer than the TTL, while another one takes and leaves the lock."""
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        app = keys.app(1)
        slow = app.lock("job", 8)
        draw = slow._lease._next_fence

        async def stalled_draw() -> int:
            clock.advance(9)
            async with app.lock("job", 8):
                pass
            return await draw()

        slow._lease._next_fence = stalled_draw  # type: ignore[method-assign]
        with pytest.raises(LockHeldError):
            await slow.__aenter__()
        with pytest.raises(LockLostError, match="has not been acquired"):
            _ = slow.fence


def test_the_blocking_face_does_the_same() -> None:
    with lapse.open_keys("memory://") as keys:
        app = keys.app(1)
        with app.lock("job", 30) as held:
            assert held.fence > 0
            with pytest.raises(LockHeldError), app.lock("job", 30):
                pytest.fail("two holders")
        with app.lock("job", 30) as again:
            assert again.fence == held.fence + 1


def test_a_lock_needs_a_name_that_fits() -> None:
    with lapse.open_keys("memory://") as keys:
        with pytest.raises(KeyTooLongError, match=r"1019 bytes .* limit is 1018"):
            keys.app(1).lock("n" * 1019, 30)
        with keys.app(1).lock("n" * 1018, 30):
            pass


def test_locks_of_two_applications_do_not_meet() -> None:
    with lapse.open_keys("memory://") as keys, keys.app(1).lock("job", 30), keys.app(2).lock("job", 30):
        assert keys.app(1).scan() == [], "a lock shows up among the application's keys"
