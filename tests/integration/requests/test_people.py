"""What people do with requests, keepers and artifacts: plan, why, hold, extend and undo of what lapsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.core.timestamps import from_timestamp
from lapse.engine.verbs.contract import ExtendRequest
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import EXPIRES_AT, VOLUME_CAPTURE_REQUEST
from lapse.requests.view import read_views
from tests.integration.requests.people import person
from tests.integration.requests.world import World, content_key, kind_of, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVICES = {"trash_ttl": Duration.parse("7d")}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, services=SERVICES) as found:
        yield found


def address(obj: Any) -> str:  # noqa: ANN401 - any object
    return str(Located(kind_of(obj), obj.metadata.key).address)


async def shown(world: World) -> dict[str, Any]:
    """What a list of the namespace shows, by address."""
    views = await read_views(world.store, (), "shop", now=world.clock.wall_ns(), rule=world.policy.ttl_rule)
    return {one.address: one for one in views}


# --- extend -----------------------------------------------------------------------------------------------------------


async def test_a_list_and_the_status_show_the_end_that_a_person_has_given(world: World) -> None:
    request = await world.completed(VOLUME_CAPTURE_REQUEST)
    ann = person(world)
    extended = await ann.extend(ExtendRequest(address=address(request), time="2h"))
    await world.settle()
    assert (await shown(world))[address(request)].expires_at == extended.deadline
    assert from_timestamp((await world.fresh(request)).metadata.annotations[EXPIRES_AT]) == extended.deadline

    await world.live(hours=3, step=600)
    keeper = await world.keeper(request)
    snapshot = f"snapshot/{content_key(request).name}"
    told = await ann.extend(ExtendRequest(address=snapshot, time="5h"))
    await world.settle()
    assert (await shown(world))[address(keeper)].expires_at == told.deadline
    assert from_timestamp((await world.keeper(request)).status.expires_at) == told.deadline  # type: ignore[union-attr,arg-type]
    await world.live(hours=26, step=600)
    assert await world.exists(keeper), "its keeper stays with it, because an artifact has no time of its own"
    await world.live(hours=4, step=600)
    assert not await world.exists(keeper)
