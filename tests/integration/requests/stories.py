"""The four things that a person can ask for, and what an executor answers: told the same way in many tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST
from tests.integration.requests.world import kind_of

if TYPE_CHECKING:
    from tests.integration.requests.world import World

Ask = Callable[["World"], Awaitable[Any]]
"""Makes what a request needs, and the request, which is called ``one``."""


async def snapshot(world: World) -> Any:  # noqa: ANN401 - a request
    """Capture by snapshot."""
    return await world.capture("one", await world.volume())


async def detach(world: World) -> Any:  # noqa: ANN401 - a request
    """Capture by detachment."""
    return await world.capture("one", await world.volume(), mode="Detach")


async def restore(world: World) -> Any:  # noqa: ANN401 - a request
    """Restore a snapshot of somebody else."""
    return await world.restore("one", await world.snapshot())


async def manifests(world: World) -> Any:  # noqa: ANN401 - a request
    """Capture the manifest of one object."""
    return await world.capture_manifests("one", await world.config_map("settings"))


async def answer(world: World, request: Any) -> None:  # noqa: ANN401 - a request
    """Play the executor: all is well."""
    if kind_of(request) is VOLUME_RESTORE_REQUEST:
        await world.provision(request)
    elif kind_of(request) is VOLUME_CAPTURE_REQUEST and request.spec.mode == "Snapshot":
        await world.snapshot_ready(request)


async def done(world: World, ask: Ask) -> Any:  # noqa: ANN401 - a request
    """Tell the whole story up to its good end."""
    request = await ask(world)
    await world.live(2, step=1)
    await answer(world, request)
    await world.live(2, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    return await world.fresh(request)
