"""A clock that jumps freezes what would end things by it, until a person or a second clock has the word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.errors import LapseError
from lapse.core.verdict import UnknownReason
from lapse.db.database import Database
from lapse.db.sqlite import Schema, SQLiteFile, Synchronous
from lapse.engine import journal as journals
from lapse.engine import sqlite_brakes
from lapse.engine.brakes import Brakes
from lapse.engine.budget import Budgets
from lapse.engine.clock_guard import ClockGuard
from lapse.engine.freeze import FreezeReason, resume_row
from lapse.engine.journal import Outcome, SQLiteJournal
from lapse.engine.metrics import Metrics
from lapse.engine.sqlite_brakes import SQLiteBrakes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

YEAR = 365 * 86_400
SCRIPTS = (*journals.SCHEMA_SCRIPTS, *sqlite_brakes.SCHEMA_SCRIPTS)


class AwayError(LapseError):
    """The second clock does not answer."""


class World:
    """Brakes in a database, and a clock that can be set."""

    def __init__(self, path: Path) -> None:
        file = SQLiteFile(path / "journal.db", synchronous=Synchronous.NORMAL)
        self.database = Database(file, Schema(application_id=0x4C54, scripts=SCRIPTS))
        self.journal = SQLiteJournal(self.database)
        self.clock, self.metrics = VirtualClock(), Metrics("test")
        self.store = SQLiteBrakes(self.journal, budgets=Budgets(), domains=["things"], actors=["lapse"])
        self.true_ns = 0
        """What the second clock is ahead of the first one."""
        self.away = False

    def guard(self, *, second: bool = False) -> ClockGuard:
        brakes = Brakes(
            self.store,
            budgets=Budgets(),
            domains=["things"],
            clock=self.clock,
            metrics=self.metrics,
            actor="lapse",
            trust_seconds=0,
        )
        return ClockGuard(brakes, clock=self.clock, second=self.second if second else None)

    async def second(self) -> int:
        if self.away:
            raise AwayError
        return self.clock.wall_ns() + self.true_ns

    async def outcomes(self) -> list[Outcome]:
        return [row.outcome for row in await self.journal.entries(domain="things")]

    async def resume(self) -> None:
        await self.store.resume("things", resume_row("things", by="ann", now=self.clock.wall_ns()))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    made.database.close()


@pytest.mark.parametrize("seconds", [YEAR, -YEAR, 601])
async def test_a_jump_freezes_the_domain_until_somebody_resumes_it(world: World, seconds: int) -> None:
    guard = world.guard()
    assert await guard.objection("things") is None
    world.clock.advance(60)
    world.clock.jump_wall(seconds)

    assert await guard.objection("things") is FreezeReason.CLOCK_JUMPED
    assert (await guard.allow("things", 5)).refusal is FreezeReason.FROZEN
    assert await world.guard().objection("things") is FreezeReason.FROZEN, "also after a restart"
    assert await world.outcomes() == [Outcome.FROZEN]
    await world.resume()
    assert await guard.objection("things") is None
    assert (await guard.allow("things", 5)).count == 5


async def test_an_act_in_the_middle_of_a_jump_is_refused(world: World) -> None:
    guard = world.guard()
    assert (await guard.allow("things", 5)).count == 5
    world.clock.jump_wall(YEAR)

    assert (await guard.allow("things", 5)).refusal is FreezeReason.CLOCK_JUMPED


async def test_time_that_passes_sleep_and_small_corrections_are_no_jumps(world: World) -> None:
    guard = world.guard()
    for _ in range(10):
        world.clock.advance(86_400)
        assert await guard.objection("things") is None
        world.clock.suspend(7 * 86_400)
        assert await guard.objection("things") is None
        world.clock.jump_wall(599)
        assert await guard.objection("things") is None
    assert await world.outcomes() == []


async def test_a_clock_that_was_put_right_goes_on_where_a_second_one_agrees(world: World) -> None:
    guard = world.guard(second=True)
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)

    assert await guard.objection("things") is None
    assert await world.outcomes() == []


async def test_a_clock_that_a_second_one_contradicts_is_not_believed(world: World) -> None:
    guard = world.guard(second=True)
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)
    world.true_ns = -YEAR * 1_000_000_000

    assert await guard.objection("things") is FreezeReason.CLOCK_JUMPED
    (row,) = await world.journal.entries(domain="things")
    assert row.details == {"reason": "the clock is 365d ahead of what was expected; set it right, then resume"}


async def test_with_a_second_clock_one_that_is_wrong_from_the_start_is_noticed(world: World) -> None:
    world.true_ns = -YEAR * 1_000_000_000

    assert await world.guard(second=True).objection("things") is FreezeReason.CLOCK_JUMPED


async def test_while_the_second_clock_is_silent_nothing_is_ended_and_nothing_is_frozen(world: World) -> None:
    guard = world.guard(second=True)
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)
    world.away = True

    assert await guard.objection("things") is UnknownReason.CLOCK_JUMPED
    assert (await guard.allow("things", 5)).refusal is UnknownReason.CLOCK_JUMPED
    assert await world.outcomes() == []
    world.away = False
    assert await guard.objection("things") is None


async def test_while_the_freeze_cannot_be_written_nothing_is_ended(world: World) -> None:
    guard = world.guard()
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)
    world.database.close()

    assert isinstance(await guard.objection("things"), UnknownReason)
