from __future__ import annotations

import asyncio

import pytest

from lapse.proxy.leases import CoalescedWrites
from lapse.proxy.ports import WorkspaceId
from tests.integration.proxy.kit import StoreDownError
from tests.unit.proxy.test_leases import settled

A, B = WorkspaceId("a"), WorkspaceId("b")


class Database:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.begun: list[WorkspaceId] = []
        self.done: list[WorkspaceId] = []
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def write(self, workspace: WorkspaceId) -> None:
        self.begun.append(workspace)
        error = await self.answers.get()
        if error is not None:
            raise error
        self.done.append(workspace)

    async def answer(self, error: Exception | None = None) -> None:
        self.answers.put_nowait(error)
        await settled()


def callers(writes: CoalescedWrites, workspace: WorkspaceId, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.get_running_loop().create_task(writes.write(workspace)) for _ in range(count)]


async def test_those_who_come_at_once_share_one_write() -> None:
    database = Database()
    together = callers(CoalescedWrites(database.write), A, 100)
    await settled()
    assert not any(one.done() for one in together)
    await database.answer()
    assert all(one.done() for one in together)
    assert database.begun == [A]


async def test_who_comes_during_a_write_waits_for_the_next() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    first = callers(writes, A, 1)
    await settled()
    assert database.begun == [A]
    later = callers(writes, A, 50)
    await settled()
    await database.answer()
    assert [one.done() for one in first + later] == [True] + 50 * [False]
    await database.answer()
    assert all(one.done() for one in later)
    assert database.done == [A, A]


async def test_workspaces_do_not_wait_for_each_other() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    callers(writes, A, 1)
    (other,) = callers(writes, B, 1)
    await settled()
    assert database.begun == [A, B]
    await database.answer()
    await database.answer()
    assert other.done()


async def test_a_write_that_fails_fails_for_those_who_wait_for_it_and_for_nobody_else() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    unlucky = callers(writes, A, 3)
    await settled()
    later = callers(writes, A, 3)
    await settled()
    await database.answer(StoreDownError())
    assert all(isinstance(one.exception(), StoreDownError) for one in unlucky)
    await database.answer()
    assert all(one.exception() is None for one in later)


async def test_who_gives_up_leaves_the_write_to_the_others() -> None:
    database = Database()
    gone, stays = callers(CoalescedWrites(database.write), A, 2)
    await settled()
    gone.cancel()
    await settled()
    await database.answer()
    assert gone.cancelled()
    assert stays.done()


async def test_a_failure_that_nobody_waits_for_any_more_is_nobodys_error() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    (gone,) = callers(writes, A, 1)
    await settled()
    gone.cancel()
    await settled()
    await database.answer(StoreDownError())
    again = callers(writes, A, 1)
    await settled()
    await database.answer()
    assert again[0].exception() is None


async def test_the_write_begins_after_the_call() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    for turn in range(5):
        before = len(database.begun)
        (caller,) = callers(writes, A, 1)
        await settled()
        assert len(database.begun) == before + 1 == turn + 1
        await database.answer()
        await caller


async def test_an_end_in_the_middle_leaves_nobody_waiting() -> None:
    database = Database()
    writes = CoalescedWrites(database.write)
    waiting = callers(writes, A, 1)
    await settled()
    waiting += callers(writes, A, 1)
    await settled()
    for task in asyncio.all_tasks():
        if task.get_name() == "proxy-connected":
            task.cancel()
    await settled()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
