"""A lease in a database: one owner at a time, by the time since boot, with a number that grows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.running.coordinator import Coordinator, ElectedWork
from lapse.engine.running.database_lease import SCHEMA_SCRIPTS, NotAcquiredError, SQLiteLease
from lapse.engine.running.election import LeaseElection
from lapse.engine.running.metrics import Metrics
from tests.unit.engine.test_leadership import Ticking, pass_time, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Open = Callable[[], Database]

TTL = 8


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """What opens one file again and again, as several processes do."""
    files: list[Database] = []

    def another() -> Database:
        file = SQLiteFile(tmp_path / "state.db", synchronous=Synchronous.NORMAL)
        files.append(Database(file, Schema(application_id=0x4C54, scripts=SCHEMA_SCRIPTS)))
        return files[-1]

    yield another
    for one in files:
        one.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(boot_id="this boot")


async def test_one_of_two_owns_it_until_its_time_is_over_and_numbers_grow(opened: Open, clock: VirtualClock) -> None:
    one, other = (SQLiteLease(opened(), clock=clock, ttl_seconds=TTL) for _ in range(2))
    assert [await one.acquire(), await other.acquire()] == [True, False]
    clock.advance(TTL - 1)
    assert await one.renew()
    clock.advance(TTL - 1)
    was_lost = one.lost
    assert not await other.acquire()
    clock.advance(1)
    assert [was_lost, one.lost] == [False, True]
    assert await other.acquire()
    assert other.fence > one.fence
    assert not await one.renew()
    assert not await one.release()
    assert not other.lost


async def test_it_is_free_at_once_when_it_was_given_back(opened: Open, clock: VirtualClock) -> None:
    one, other = (SQLiteLease(opened(), clock=clock, ttl_seconds=TTL) for _ in range(2))
    assert await one.acquire()
    assert await one.release()
    assert one.lost
    assert await other.acquire()
    assert other.fence > one.fence


async def test_who_sets_the_wall_clock_ends_nobodys_lease(opened: Open, clock: VirtualClock) -> None:
    one, other = (SQLiteLease(opened(), clock=clock, ttl_seconds=TTL) for _ in range(2))
    assert await one.acquire()
    clock.jump_wall(10**9)
    assert not await other.acquire()
    assert await one.renew()


async def test_a_lease_of_another_boot_is_free(opened: Open, clock: VirtualClock) -> None:
    clock.advance(10_000)
    before = SQLiteLease(opened(), clock=clock, ttl_seconds=TTL)
    assert await before.acquire()
    after = SQLiteLease(opened(), clock=VirtualClock(boot_id="the next boot"), ttl_seconds=TTL)
    assert await after.acquire()
    assert after.fence > before.fence


async def test_after_an_answer_that_was_lost_the_owner_takes_it_again(opened: Open, clock: VirtualClock) -> None:
    one = SQLiteLease(opened(), clock=clock, ttl_seconds=TTL)
    assert await one.acquire()
    first = one.fence
    assert await one.acquire()
    assert one.fence > first


def test_a_lease_that_was_never_acquired_has_no_number(opened: Open, clock: VirtualClock) -> None:
    lease = SQLiteLease(opened(), clock=clock)
    assert lease.lost
    with pytest.raises(NotAcquiredError):
        _ = lease.fence


# --- two elections ----------------------------------------------------------------------------------------------------


def election(database: Database, name: str, clock: VirtualClock) -> LeaseElection:
    return LeaseElection(SQLiteLease(database, clock=clock, name=name, ttl_seconds=TTL), clock=clock)


async def test_a_process_may_lead_in_one_store_and_wait_in_another(opened: Open, clock: VirtualClock) -> None:
    """Two machines share a database and have a folder each: of three elections, each is led by one."""
    coordinators, runs, shared, own = [], [], [], []
    for number in range(2):
        database = opened()
        shared.append(Ticking(clock, name="shared", interval=1))
        own.append(Ticking(clock, name="own", interval=1))
        beside = ElectedWork(election(database, f"folder {number}", clock), [own[-1]])
        leadership = election(database, "database", clock)
        coordinators.append(
            Coordinator(clock=clock, metrics=Metrics("test"), loops=[shared[-1]], leadership=leadership, beside=beside)
        )
        runs.append(asyncio.create_task(coordinators[-1].run()))
        await settle()
    await pass_time(clock, 20)
    assert [one.leading for one in coordinators] == [True, False], "it is said of what they share"
    assert [bool(one.seen) for one in shared] == [True, False]
    assert all(one.seen for one in own)

    coordinators[0].stop()
    await settle()
    await runs[0]
    await pass_time(clock, 3)
    assert coordinators[1].leading
    assert shared[1].seen
    coordinators[1].stop()
    await settle()
    await runs[1]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread of the database does; where other tests run beside, that may take its time."""
    for _ in range(100):
        if condition():
            return
        await settle()
    assert condition()


async def test_work_beside_nothing_else_is_the_processs_own(opened: Open, clock: VirtualClock) -> None:
    beside = ElectedWork(election(opened(), "folder", clock), [Ticking(clock)])
    coordinator = Coordinator(clock=clock, metrics=Metrics("test"), beside=beside)
    run = asyncio.create_task(coordinator.run())
    await until(lambda: coordinator.leading)
    coordinator.stop()
    await settle()
    await run
