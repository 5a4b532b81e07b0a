from __future__ import annotations

import asyncio

from lapse.core.clock import VirtualClock
from lapse.engine.running.logins import FORGET_SECONDS, FREE, LONGEST_SECONDS, MOST_WAITING, LoginFailures, LoginProof
from lapse.engine.running.metrics import Metrics


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251 - lets tasks run, without time


async def waits(failures: LoginFailures, clock: VirtualClock, peer: str = "192.0.2.1") -> float:
    """Fail once; return how long the answer waits, to a tenth of a second."""
    task = asyncio.create_task(failures.failed(LoginProof.TOKEN, peer))
    await settle()
    seconds = 0.0
    while not task.done():
        clock.advance(0.1)
        seconds += 0.1
        await settle()
    return seconds


async def test_a_few_failures_are_answered_at_once_and_more_ever_later_up_to_a_bound() -> None:
    clock = VirtualClock()
    failures = LoginFailures(clock, Metrics("test"))
    seen = [await waits(failures, clock) for _ in range(FREE + 12)]

    assert seen[:FREE] == [0.0] * FREE
    assert all(seen[FREE:])
    assert 2 < seen[-1] <= LONGEST_SECONDS + 0.2


async def test_other_peers_do_not_wait_and_an_old_failure_is_forgotten() -> None:
    clock = VirtualClock()
    failures = LoginFailures(clock, Metrics("test"))
    for _ in range(FREE + 1):
        await waits(failures, clock)
    assert await waits(failures, clock, "192.0.2.2") == 0
    clock.advance(FORGET_SECONDS + 1)
    assert await waits(failures, clock) == 0


async def test_those_who_wait_are_bounded() -> None:
    clock = VirtualClock()
    failures = LoginFailures(clock, Metrics("test"))
    tasks = [
        asyncio.create_task(failures.failed(LoginProof.TOKEN, "192.0.2.1")) for _ in range(FREE + MOST_WAITING + 50)
    ]
    await settle()

    assert sum(not task.done() for task in tasks) == MOST_WAITING
    clock.advance(LONGEST_SECONDS)
    await asyncio.gather(*tasks)


async def test_failures_are_counted_by_what_was_wrong_and_stand_at_zero_from_the_start() -> None:
    metrics = Metrics("test")
    failures = LoginFailures(VirtualClock(), metrics)
    assert metrics.exposition().decode().count("lapse_login_failures_total{") == len(LoginProof)
    await failures.failed(LoginProof.TICKET, "192.0.2.1")
    assert 'lapse_login_failures_total{proof="ticket"} 1.0' in metrics.exposition().decode()
