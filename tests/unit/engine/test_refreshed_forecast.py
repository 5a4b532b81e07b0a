"""A forecast that is shown, with its things as they are now: what was counted stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.errors import LapseError
from lapse.engine.service import LocalService
from lapse.engine.verbs.contract import DeleteRequest, ExtendRequest, ForecastRequest, HoldRequest
from lapse.engine.verbs.place import Caller
from tests.conformance.service.registry import HOUR
from tests.conformance.service.worlds import LocalWorld, local_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.verbs.contract import Forecast

ASKED = ForecastRequest(within="2h")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with local_world(tmp_path) as opened:
        yield opened


def service(world: LocalWorld) -> LocalService:
    return LocalService(world.place, Caller.token("ann"))


def told(forecast: Forecast) -> dict[str, tuple[bool, bool]]:
    return {one.address: (one.due, one.hold is not None) for one in forecast.items}


async def test_things_are_told_as_they_are_now_and_what_was_counted_stays(world: LocalWorld) -> None:
    for name in ("held", "extended", "deleted", "left"):
        await world.things.add(name)
    verbs = service(world)
    shown = await verbs.forecast(ASKED)
    assert told(shown) == dict.fromkeys(["thing/deleted", "thing/extended", "thing/held", "thing/left"], (False, False))

    await verbs.hold(HoldRequest(address="thing/held", reason="audit"))
    await verbs.extend(ExtendRequest(address="thing/extended", time="2h"))
    await verbs.delete(DeleteRequest(address="thing/deleted"))
    world.elapse(HOUR + 1)
    again = await verbs.refresh_forecast(shown)

    assert told(again) == {"thing/held": (True, True), "thing/left": (True, False)}
    assert again.items == [one for one in (await verbs.forecast(ASKED)).items if one.address in told(again)]
    assert (again.domains, again.now, again.until) == (shown.domains, shown.now, shown.until)


async def test_a_new_thing_of_the_same_name_is_not_taken_for_the_one_that_was_shown(world: LocalWorld) -> None:
    await world.things.add("a")
    verbs = service(world)
    shown = await verbs.forecast(ASKED)
    await verbs.delete(DeleteRequest(address="thing/a"))
    await world.things.add("a")

    assert told(await verbs.refresh_forecast(shown)) == {}


async def test_what_cannot_be_read_stays_as_it_was(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(LapseError):  # noqa: N818 - an error of the test
        """The store is gone."""

    async def gone(_: str) -> None:
        raise Gone

    await world.things.add("a")
    verbs = service(world)
    shown = await verbs.forecast(ASKED)
    monkeypatch.setattr(type(world.place), "domain", lambda _, name: gone(name))

    assert await verbs.refresh_forecast(shown) == shown
