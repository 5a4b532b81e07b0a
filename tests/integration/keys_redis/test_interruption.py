"""Locks on a server, cancelled at every wait: nothing is held afterwards that nobody holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.keys.backends.layout import Prefix
from tests.interruption import cancel_everywhere
from tests.servers.pytest_plugin import each

if TYPE_CHECKING:
    from tests.servers import Server

pytestmark = pytest.mark.parametrize("shared_server", each("redis", "valkey"), indirect=True)


@pytest.mark.parametrize("again", [None, 1, 3])
async def test_a_lock_that_is_cancelled_at_any_wait_is_free_afterwards(
    shared_server: Server, namespace: str, again: int | None
) -> None:
    async with lapse.open_keys_async(f"{shared_server.url}?namespace={namespace}") as keys:
        records = keys.backend.async_space(Prefix.LEADER_ELECTION, 1)

        async def use() -> None:
            async with keys.app(1).lock("job", 60):
                await asyncio.sleep(0)  # noqa: TID251 - a place to be cancelled at

        async def check(when: str) -> None:
            await asyncio.sleep(0.02)  # noqa: TID251 - what was cancelled twice gives back in the background
            assert await records.get("lock:job") is None, when  # type: ignore[misc]  # a coroutine here

        assert await cancel_everywhere(use, check, again=again) > 2


async def test_acquires_that_are_cancelled_at_any_moment_leave_no_lock(shared_server: Server, namespace: str) -> None:
    async with lapse.open_keys_async(f"{shared_server.url}?namespace={namespace}") as keys:
        await keys.app(1).put("first", "connection", 60)
        for number in range(200):
            acquiring = asyncio.create_task(keys.app(1).lock(f"job:{number}", 60).__aenter__())
            await asyncio.sleep(number * 1e-5)  # noqa: TID251 - a moment of the server's
            acquiring.cancel()
            done, _ = await asyncio.wait({acquiring})
            for task in done:
                if not task.cancelled():
                    await task.result().__aexit__(None, None, None)
        left = await keys.backend.async_space(Prefix.LEADER_ELECTION, 1).scan("lock:", "lock;", 1000)  # type: ignore[misc]
        assert left == []
