"""A keeper that could not be decided about is looked at again, although nothing about it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.kube.errors import StoreUnavailableError
from lapse.requests.api.kinds import VOLUME_CAPTURE_REQUEST

if TYPE_CHECKING:
    from tests.integration.requests.world import Call, World


async def test_a_keeper_whose_object_could_not_be_read_once_goes_a_little_later(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    await world.delete(request)
    await world.settle()
    keeper = await world.keeper(request)

    def refuse(call: Call) -> None:
        if str(call) == "get VolumeCaptureRequest":
            raise StoreUnavailableError(problem="it is being restarted")

    world.wire.before = refuse
    world.advance(48 * 3600)
    reports = await world.sweep()
    assert (reports["keepers"].failed, await world.exists(keeper)) == (1, True)

    world.wire.before = lambda _call: None
    await world.live(minutes=3)

    assert not await world.exists(keeper)
