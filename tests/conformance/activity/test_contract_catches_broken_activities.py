from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.core.errors import LapseError
from tests.conformance.activity import cases  # noqa: F401 - fills the registries
from tests.conformance.activity.broken import BROKEN, BROKEN_ON_SERVERS, OnServer, Passing
from tests.conformance.activity.registry import REGISTRY, SERVER_REGISTRY
from tests.conformance.activity.worlds import InProcessWorld, ServerWorld
from tests.servers import redis_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.activity.registry import Case, World


class BrokenWorld(InProcessWorld):
    """One process, seen through a broken activity."""

    def __init__(self, broken: type[Passing]) -> None:
        super().__init__()
        self._broken = broken
        self.one = self.other = broken(self.one)

    async def lose_everything(self) -> None:
        await super().lose_everything()
        self.one = self.other = self._broken(self.one)


async def catches(case: Case, world: World) -> bool:
    try:
        await asyncio.wait_for(case(world), 60)
    except (AssertionError, LapseError, pytest.fail.Exception):
        return True
    return False


async def caught_by(registry: Mapping[str, Case], world_of: Mapping[str, World]) -> list[str]:
    return [name for name, case in registry.items() if await catches(case, world_of[name])]


@pytest.mark.parametrize("broken", [pytest.param(broken, id=broken.__name__) for broken in BROKEN])
async def test_a_broken_activity_is_caught(broken: type[Passing]) -> None:
    assert await caught_by(REGISTRY, {name: BrokenWorld(broken) for name in REGISTRY})


async def test_an_activity_that_only_passes_on_is_not_caught() -> None:
    assert await caught_by(REGISTRY, {name: BrokenWorld(Passing) for name in REGISTRY}) == []


@pytest.mark.server("redis", private=True)
@pytest.mark.parametrize("broken", [pytest.param(broken, id=broken.__name__) for broken in BROKEN_ON_SERVERS])
async def test_an_activity_that_is_broken_on_a_server_is_caught(broken: type[OnServer]) -> None:
    import redis  # `make test` has no driver

    with redis_server() as server, redis.Redis.from_url(server.url) as raw:
        caught = []
        for name, case in SERVER_REGISTRY.items():
            world = ServerWorld(server, raw)
            inner = world.one, world.other
            world.one, world.other = (broken(activity, raw) for activity in inner)
            if await catches(case, world):
                caught.append(name)
            for activity in inner:
                await activity.close()
        assert caught
