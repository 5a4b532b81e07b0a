"""The forecast as the pages show it, on virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from lapse.core.clock import SystemClock, VirtualClock
from lapse.engine.verbs.contract import Forecast, ForecastRequest
from lapse.engine.view import Moment
from lapse.web.live import LiveChanges, Source
from lapse.web.pages.outlook import FORECAST, Outlook

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lapse.web.api.verbs import LocalVerbs

ASKED = ForecastRequest(within="1h")
"""Of the coming hour."""


class World:
    """A store with a number that changes, and forecasts of it that take ``cost`` seconds."""

    def __init__(self, *, is_whole: bool = True) -> None:
        self.clock = VirtualClock()
        self.number, self.computed, self.cost = 0, 0, 0.0
        self.live = LiveChanges([Source("objects", self.version)], clock=self.clock, is_whole=is_whole)
        self.refreshed, self.rows_cost, self.changes_meanwhile = 0, 0.0, False
        self.outlook = Outlook(cast("LocalVerbs", self), self.live)

    async def version(self) -> Hashable:
        return self.number

    async def forecast(self, _: ForecastRequest) -> Forecast:
        self.computed += 1
        number = self.number
        if self.cost:
            self.clock.advance(self.cost)
        if self.changes_meanwhile:
            self.number += 1
            await self.live.seen()
        return Forecast(
            now=Moment(number),
            until=Moment(number),
            step_seconds=60.0,
            domains=[],
            budget=None,
            items=[],
            next=None,
            problems={},
        )

    async def refresh_forecast(self, shown: Forecast) -> Forecast:
        """Note in ``until`` of what number the rows are."""
        self.refreshed += 1
        number = self.number
        if self.rows_cost:
            self.clock.advance(self.rows_cost)
        return replace(shown, until=Moment(number))

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            await self.settle()
            self.clock.advance(0.25)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await SystemClock().sleep(0)

    async def shown(self) -> int:
        found = await self.outlook.forecast(ASKED)
        assert found is not None
        return int(found.now)

    async def shown_rows(self) -> int:
        found = await self.outlook.forecast(ASKED)
        assert found is not None
        return int(found.until)


async def test_a_forecast_is_computed_once_while_nothing_changes() -> None:
    world = World()
    async with world.live.subscribe():
        assert await world.shown() == await world.shown() == 0
        await world.pass_time(5)
        assert await world.shown() == 0
        assert world.computed == 1


async def test_a_page_that_is_shown_an_older_forecast_than_the_last_change_is_told_when_there_can_be_another() -> None:
    world = World()
    world.cost = 0.4
    async with world.live.subscribe() as subscription:
        assert await world.shown() == 0
        world.number = 1
        await world.pass_time(0.5)
        assert await anext(subscription) == {"objects"}
        assert await world.shown() == 0  # five times as long as it took is not over

        told = asyncio.ensure_future(anext(subscription))
        await world.pass_time(2)
        assert FORECAST in await told
        assert await world.shown() == 1
        assert world.computed == 2


async def test_nobody_is_told_twice_of_one_change() -> None:
    world = World()
    world.cost = 0.15
    async with world.live.subscribe() as subscription:
        await world.shown()
        world.number = 1
        await world.pass_time(0.5)
        await anext(subscription)
        for _ in range(3):
            await world.shown()
        told = asyncio.ensure_future(anext(subscription))
        await world.pass_time(2)
        await told
        assert await world.shown() == 1
        again = asyncio.ensure_future(anext(subscription))
        await world.pass_time(2)
        assert not again.done() or FORECAST not in again.result()  # every five seconds there is a reminder
        again.cancel()


async def test_rows_show_a_change_although_it_is_too_early_to_count_again() -> None:
    world = World()
    world.cost = 4.0
    async with world.live.subscribe():
        assert (await world.shown(), await world.shown_rows()) == (0, 0)
        world.number = 1
        await world.pass_time(0.5)
        assert (await world.shown(), await world.shown_rows()) == (0, 1)
        await world.shown_rows()
        assert (world.computed, world.refreshed) == (1, 1), "each change is read once, whoever looks"

        await world.pass_time(20)
        assert await world.shown() == 1
        assert world.computed == 2


async def test_rows_that_take_long_to_read_are_read_seldom() -> None:
    world = World()
    world.cost, world.rows_cost = 40.0, 2.0
    async with world.live.subscribe():
        await world.shown()
        for expected, passed in ((1, 0.5), (1, 5.0), (2, 6.0)):
            world.number += 1
            await world.pass_time(passed)
            await world.shown()
            assert world.refreshed == expected


async def test_rows_are_read_again_also_where_nobody_watches_for_changes() -> None:
    world = World()
    world.cost = 4.0
    await world.shown()
    world.number = 1
    await world.pass_time(0.5)
    assert (await world.shown(), await world.shown_rows()) == (0, 1)


async def test_the_second_of_two_quick_changes_is_told_as_soon_as_rows_can_be_read_again() -> None:
    world = World()
    world.cost, world.rows_cost = 4.0, 0.2
    async with world.live.subscribe() as subscription:
        await world.shown()
        for number in (1, 2):
            world.number = number
            await world.pass_time(0.25)
            assert await world.shown_rows() == 1

        async def hear() -> None:
            while FORECAST not in await anext(subscription):
                pass

        heard = asyncio.ensure_future(hear())
        await world.pass_time(1)
        assert heard.done()
        assert (await world.shown(), await world.shown_rows()) == (0, 2)


async def test_what_changed_while_all_was_counted_is_in_the_rows_at_once() -> None:
    world = World()
    world.cost, world.changes_meanwhile = 4.0, True
    async with world.live.subscribe():
        assert await world.shown() == 0
        assert await world.shown_rows() == 1


async def test_where_a_store_cannot_tell_that_it_has_changed_nothing_is_taken_for_unchanged() -> None:
    world = World(is_whole=False)
    async with world.live.subscribe():
        await world.shown()
        await world.shown()
        assert (world.computed, world.refreshed) == (1, 0), "too early for another"
        await world.pass_time(0.5)
        await world.shown()
        assert world.computed == 2


async def test_a_told_change_is_reminded_of_also_where_another_store_cannot_tell() -> None:
    world = World(is_whole=False)
    world.cost = 0.4
    async with world.live.subscribe() as subscription:
        await world.shown()
        world.number = 1
        await world.pass_time(0.5)
        await anext(subscription)
        assert await world.shown() == 0
        told = asyncio.ensure_future(anext(subscription))
        await world.pass_time(2)
        assert FORECAST in await told
        assert await world.shown() == 1
