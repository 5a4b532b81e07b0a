"""A clock that jumps stops whatever would end things by it, until a person or a second clock has the word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import UnknownReason
from lapse.core.errors import LapseError
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal import sqlite as journals
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety import sqlite as sqlite_gate_store
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.clock_guard import REFRESH_SECONDS, ClockGuard, GuardedGate, read_mark
from lapse.engine.safety.freeze import CLOCK, Freeze, FreezeReason, GateState, freeze_row, resume_row
from lapse.engine.safety.gate import SafetyGate
from lapse.engine.safety.sqlite import SQLiteGateStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOUR, DAY = 3_600, 86_400
YEAR = 365 * 86_400
SCRIPTS = (*journals.SCHEMA_SCRIPTS, *sqlite_gate_store.SCHEMA_SCRIPTS, *sqlite_gate_store.NOTES_SCRIPTS)


class AwayError(LapseError):
    """The second clock does not answer."""


class World:
    """A gate in a database, and a clock that can be set."""

    def __init__(self, path: Path) -> None:
        file = SQLiteFile(path / "journal.db", synchronous=Synchronous.NORMAL)
        self.database = Database(file, Schema(application_id=0x4C54, scripts=SCRIPTS))
        self.journal = SQLiteJournal(self.database)
        self.clock, self.metrics = VirtualClock(boot_id="one"), Metrics("test")
        self.store = SQLiteGateStore(self.journal, budgets=Budgets(), domains=["things"])
        self.true_ns = 0
        """What the second clock is ahead of the first one."""
        self.away = False

    def guard(self, *, second: bool = False) -> GuardedGate:
        """What a process that starts now has."""
        clock = BelievedClock(self.clock, dry_seconds=HOUR)
        gate = SafetyGate(
            self.store,
            budgets=Budgets(),
            domains=["things"],
            clock=clock,
            metrics=self.metrics,
            actor="lapse",
            trust_seconds=0,
        )
        sources = [self.second] if second else []
        return GuardedGate(gate, ClockGuard(clock, notes=self.store, sources=sources))

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
    again = world.guard()
    assert await again.objection("things") is FreezeReason.FROZEN, "also after a restart"
    assert await world.outcomes() == [Outcome.FROZEN]
    await world.resume()
    for one in (guard, again, world.guard()):
        assert await one.objection("things") is None
        assert (await one.allow("things", 5)).count == 5


async def test_who_ends_a_freeze_for_another_reason_has_not_looked_at_the_clock(world: World) -> None:
    guard = world.guard()
    assert await guard.objection("things") is None
    await guard.watch()
    now = world.clock.wall_ns()
    audit = Freeze(UnixNs(now), "audit until noon", "ann")
    await world.store.freeze("things", audit, freeze_row("things", audit, reason=FreezeReason.BY_PERSON, now=now))
    world.clock.jump_wall(YEAR)
    assert await guard.objection("things") is FreezeReason.FROZEN
    await world.resume()

    for one in (world.guard(), guard):
        assert (await one.allow("things", 5)).count == 0, "the clock is in doubt, as before"
    assert (await world.store.load(now)).frozen["things"].reason.startswith("the clock is")
    await world.resume()
    for one in (guard, world.guard()):
        assert (await one.allow("things", 5)).count == 5


async def test_loops_that_see_a_jump_at_the_same_moment_freeze_the_domain_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = world.store.load

    async def takes_a_while(now: int, **how: str) -> GateState:
        await world.clock.sleep(0)
        return await load(now, **how)

    monkeypatch.setattr(world.store, "load", takes_a_while)
    guard = world.guard()
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)
    await asyncio.gather(guard.watch(), guard.objection("things"), guard.allow("things", 5), guard.watch())

    assert await world.outcomes() == [Outcome.FROZEN]


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


@pytest.mark.parametrize("seconds", [HOUR, YEAR, -HOUR, -YEAR])
async def test_a_jump_while_no_process_ran_is_noticed_at_the_start(world: World, seconds: int) -> None:
    assert await world.guard().objection("things") is None
    world.clock.advance(DAY)
    world.clock.jump_wall(seconds)

    assert await world.guard().objection("things") is FreezeReason.CLOCK_JUMPED
    assert (await world.guard().allow("things", 5)).refusal is FreezeReason.FROZEN
    await world.resume()
    assert (await world.guard().allow("things", 5)).count == 5, "resumed while no process ran"


async def test_a_process_that_prepares_decides_and_dates_nothing_by_a_wrong_clock_before_its_first_look(
    world: World,
) -> None:
    assert await world.guard().objection("things") is None
    right = world.clock.wall_ns()
    world.clock.jump_wall(YEAR)
    for second in (False, True):
        world.true_ns = -YEAR * 1_000_000_000
        guard = world.guard(second=second)._guard
        await guard.prepare()
        assert guard.clock.in_doubt()
        assert abs(guard.clock.wall_ns() - right) < 1_000_000_000
    assert await world.outcomes() == [], "nothing is written"


async def test_a_look_freezes_where_nothing_is_to_be_ended_and_goes_on_when_resumed(world: World) -> None:
    guard = world.guard()
    await guard.look()
    world.clock.jump_wall(YEAR)
    await guard.look()
    assert await world.outcomes() == [Outcome.FROZEN]
    await world.resume()
    await guard.look()
    assert (await guard.allow("things", 5)).count == 5


async def test_what_is_believed_is_written_at_the_start_and_then_rarely(world: World) -> None:
    guard, mark = world.guard(), None
    for seconds, expected in ((0, 0), (10, 0), (REFRESH_SECONDS, REFRESH_SECONDS + 10), (1, REFRESH_SECONDS + 10)):
        world.clock.advance(seconds)
        await guard.look()
        mark = read_mark(await world.store.read_note(CLOCK))
        assert mark is not None
        assert (mark.boot_id, mark.boottime_ns) == ("one", expected * 1_000_000_000)
    world.clock.jump_wall(YEAR)
    world.clock.advance(REFRESH_SECONDS)
    await guard.look()
    assert read_mark(await world.store.read_note(CLOCK)) == mark, "what is in doubt is not written"


@pytest.mark.parametrize("away", [-HOUR, -YEAR, 31 * DAY, YEAR])
async def test_another_boot_that_is_behind_or_far_ahead_freezes(world: World, away: int) -> None:
    assert await world.guard().objection("things") is None
    world.clock.reboot("two", seconds=away)

    assert await world.guard().objection("things") is FreezeReason.CLOCK_JUMPED
    assert await world.guard(second=True).objection("things") is FreezeReason.FROZEN, "a person has the word now"
    await world.resume()
    assert (await world.guard().allow("things", 5)).count == 5


async def test_another_boot_after_a_while_is_dry_for_one_interval_over_restarts(world: World) -> None:
    assert await world.guard().objection("things") is None
    world.clock.reboot("two", seconds=2 * DAY)
    guard = world.guard()
    for _ in range(2):
        guard = world.guard()
        grant = await guard.allow("things", 5)
        assert (grant.count, grant.refusal, grant.is_dry) == (0, None, True)
        assert await guard.objection("things") is None
        assert guard.pause("things") == pytest.approx(HOUR - world.clock.boottime_ns() / 1e9)
        world.clock.advance(HOUR / 2)
    assert (await guard.allow("things", 5)).count == 5
    assert await world.outcomes() == []


async def test_another_boot_is_not_dry_where_a_second_clock_agrees_and_soon_after_the_last_look(world: World) -> None:
    assert await world.guard().objection("things") is None
    world.clock.reboot("two", seconds=REFRESH_SECONDS)
    assert (await world.guard().allow("things", 5)).count == 5
    world.clock.reboot("three", seconds=2 * DAY)
    assert (await world.guard(second=True).allow("things", 5)).count == 5
    assert (await world.guard().allow("things", 5)).count == 5


async def test_a_second_clock_that_does_not_know_is_none(world: World) -> None:
    async def unsure() -> int | None:
        return None

    guard = world.guard()
    guard._guard._sources = (unsure,)
    assert await guard.objection("things") is None
    world.clock.jump_wall(YEAR)
    assert await guard.objection("things") is FreezeReason.CLOCK_JUMPED


async def test_a_clock_that_is_believed_costs_no_call(world: World) -> None:
    guard = world.guard()
    assert (await guard.allow("things", 5)).count == 5
    await guard.watch()
    world.database.close()
    for _ in range(3):
        world.clock.advance(60)
        await guard.watch()
