from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lapse.proxy.leases import Leases
from lapse.proxy.ports import WorkspaceId
from tests.integration.proxy.kit import StoreDownError, World

A, B = WorkspaceId("a"), WorkspaceId("b")


def leases(world: World) -> Leases:
    return Leases(world, world, lease_seconds=30, idle_seconds=300)


def counting(world: World, told: Counter[WorkspaceId]) -> Leases:
    return Leases(world, world, lease_seconds=30, idle_seconds=300, not_renewed=lambda one: told.update([one]))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251 - lets what was begun go on; nothing waits for time


async def test_every_lease_is_written_down() -> None:
    world = World()
    ours = leases(world)
    for _ in range(3):
        await ours.begin(A)
    assert len(world.leases) == len(ours) == 3
    assert world.announced == {A: 3}


async def test_who_comes_second_does_not_get_in_before_the_first_is_written_down() -> None:
    class Slow(World):
        async def connected(self, workspace: WorkspaceId) -> None:
            await written.wait()
            await super().connected(workspace)

    written = asyncio.Event()
    world = Slow()
    ours, others = leases(world), leases(world)
    tasks = [asyncio.get_running_loop().create_task(each.begin(A)) for each in (ours, ours, others)]
    await settled()
    assert len(world.leases) == 3
    assert not any(task.done() for task in tasks)
    written.set()
    await asyncio.gather(*tasks)
    await ours.begin(A)
    assert world.announced == {A: 3}, "one for the two of ours, one for the other, one for the last"


async def test_without_the_store_there_is_no_lease() -> None:
    world = World(down=True)
    ours = leases(world)
    with pytest.raises(StoreDownError):
        await ours.begin(A)
    assert len(ours) == 0
    world.down = False
    await ours.renew()
    assert not world.leases


async def test_while_leases_cannot_be_renewed_who_is_connected_counts_as_active() -> None:
    world, told = World(), Counter[WorkspaceId]()
    ours = counting(world, told)
    for workspace in (A, A, B):
        await ours.begin(workspace)
    await ours.renew()
    assert told == {}
    world.down = True
    await ours.renew()
    await ours.renew()
    assert told == {A: 2, B: 2}, "each once in each round"
    world.down = False
    await ours.renew()
    assert told == {A: 2, B: 2}


async def test_who_lost_a_lease_and_gets_none_again_counts_as_active() -> None:
    class Forgetful(World):
        async def connected(self, workspace: WorkspaceId) -> None:
            if self.renewals:
                raise StoreDownError

    world, told = Forgetful(), Counter[WorkspaceId]()
    ours = counting(world, told)
    await ours.begin(A)
    world.leases.clear()
    await ours.renew()
    assert told == {A: 1}


async def test_a_lease_whose_first_writing_fails_does_not_stay_behind() -> None:
    class Forgetful(World):
        async def connected(self, workspace: WorkspaceId) -> None:
            raise StoreDownError

    world = Forgetful()
    ours = leases(world)
    with pytest.raises(StoreDownError):
        await ours.begin(A)
    await settled()
    assert not world.leases


async def test_a_caller_that_gives_up_while_a_lease_begins_leaves_none_behind() -> None:
    class Slow(World):
        async def connected(self, workspace: WorkspaceId) -> None:
            await asyncio.Event().wait()

    world = Slow()
    ours = leases(world)
    task = asyncio.get_running_loop().create_task(ours.begin(A))
    await settled()
    assert world.leases
    task.cancel()
    await asyncio.wait([task])
    await settled()
    assert not world.leases
    assert world.idle_timers == {A}


async def test_a_lease_that_cannot_be_ended_is_ended_by_a_later_round() -> None:
    world = World()
    ours = leases(world)
    connection = await ours.begin(A)
    world.down = True
    ours.end(connection)
    await settled()
    assert world.leases
    await ours.renew()
    world.down = False
    await ours.renew()
    assert not world.leases
    assert world.idle_timers == {A}


async def test_what_cannot_be_ended_for_a_whole_lease_is_left_to_time() -> None:
    world = World()
    ours = leases(world)
    connection = await ours.begin(A)
    world.down = True
    ours.end(connection)
    await settled()
    for _ in range(5):
        await ours.renew()
    world.down = False
    await ours.renew()
    assert list(world.leases) == [connection]


async def test_a_connection_that_ends_during_a_renewal_is_not_begun_again() -> None:
    class Slow(World):
        async def renew(self, *_: object) -> set[str]:  # type: ignore[override]
            ours.end(connection)
            await settled()
            return {connection}

    world = Slow()
    ours = leases(world)
    connection = await ours.begin(A)
    await ours.renew()
    assert not world.leases


async def test_a_connection_that_ends_while_it_is_begun_again_has_no_lease() -> None:
    class Slow(World):
        again = False

        async def renew(self, *_: object) -> set[str]:  # type: ignore[override]
            self.again = True
            self.leases.clear()
            return {connection}

        async def connect(self, *args: object, **named: object) -> bool:
            if self.again:
                ours.end(connection)
                await settled()
            return await super().connect(*args, **named)  # type: ignore[arg-type]

    world = Slow()
    ours = leases(world)
    connection = await ours.begin(A)
    await ours.renew()
    assert not world.leases


async def test_ending_twice_is_ending_once() -> None:
    world = World()
    ours = leases(world)
    one, two = await ours.begin(A), await ours.begin(A)
    ours.end(one)
    ours.end(one)
    await ours.close()
    assert list(world.leases) == [two]
