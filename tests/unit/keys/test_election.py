"""Elections in virtual time: who leads, when the work stops, what a silent store does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.backends.layout import Prefix
from lapse.keys.election import Election
from lapse.keys.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.engine.running.election import Leadership, Term
    from lapse.keys.aio import AsyncKeys

TTL = 8


class Cut:
    """A space whose calls fail, or never answer, once the line is cut."""

    def __init__(self, space: object) -> None:
        self._space = space
        self.state = "up"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for every operation
        async def call(*args: object) -> object:
            if self.state == "silent":
                await asyncio.get_running_loop().create_future()
            if self.state == "down":
                raise BackendUnavailableError(backend="test", problem="cut")
            return getattr(self._space, name)(*args)

        return call


class Candidate:
    """A candidate whose work notes when it runs."""

    def __init__(self, keys: AsyncKeys, clock: VirtualClock, *, slow_to_stop: int = 0) -> None:
        self.election = Election(keys, "scanner", ttl_seconds=TTL, clock=clock)
        self.line = Cut(self.election._lease._keys._space)  # type: ignore[attr-defined]  # the seam under the face
        self.election._lease._keys._space = self.line  # type: ignore[attr-defined]
        self.clock = clock
        self.works = [False]
        self.fences: list[int] = []
        self.slow_to_stop = slow_to_stop
        self.task = asyncio.create_task(self.election.campaign(self.work))

    async def work(self, term: Term) -> None:
        self.fences.append(term.fence)
        self.works.append(True)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if self.slow_to_stop:
                await self.clock.sleep(self.slow_to_stop)
            self.works.append(False)

    def working(self) -> bool:
        return self.works[-1]

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class World:
    def __init__(self, keys: AsyncKeys, clock: VirtualClock) -> None:
        self.keys, self.clock = keys, clock
        self.candidates: list[Candidate] = []

    async def join(self, **options: int) -> Candidate:
        self.candidates.append(Candidate(self.keys, self.clock, **options))
        await self.settle()
        return self.candidates[-1]

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)  # noqa: TID251 - yields, does not wait
        assert sum(candidate.working() for candidate in self.candidates) <= 1, "two leaders work at the same time"

    async def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * 8)):
            self.clock.advance(0.125)
            await self.settle()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = VirtualClock()
    async with lapse.open_keys_async("memory://", clock=clock, sweep=False) as keys:
        made = World(keys, clock)
        yield made
        for candidate in made.candidates:
            candidate.line.state = "up"
            leaving = asyncio.create_task(candidate.leave())
            await made.passes(5)
            await leaving


async def test_one_of_two_leads_and_stays_the_leader() -> None:
    async with world() as w:
        one, other = await w.join(), await w.join()
        await w.passes(60)
        assert one.working()
        assert not other.working()
        assert one.election.leading
        assert len(one.fences) == 1


async def test_a_leader_that_was_killed_while_its_clock_was_a_year_ahead_does_not_block_the_next_one_for_a_year() -> (
    None
):
    async with world() as w:
        w.clock.jump_wall(365 * 86_400)
        killed = await w.join()
        assert killed.working()
        killed.line.state = "silent"  # it renews and releases nothing any more
        killed.task.cancel()
        await w.passes(12)
        w.clock.jump_wall(-365 * 86_400)
        heir = await w.join()
        await w.passes(TTL - 1)
        assert not heir.working(), "a living owner would still have time to renew"
        await w.passes(TTL)
        assert heir.working()


async def test_a_leader_that_leaves_makes_room_at_once() -> None:
    async with world() as w:
        one, other = await w.join(), await w.join()
        await one.leave()
        await w.passes(2)
        assert other.working()
        assert other.fences[0] > one.fences[0]


@pytest.mark.parametrize("failure", ["down", "silent"])
async def test_a_leader_without_its_store_stops_before_anybody_else_can_start(failure: str) -> None:
    async with world() as w:
        one, other = await w.join(), await w.join()
        one.line.state = failure
        await w.passes(TTL * 3 / 4 - 0.5)
        assert one.working(), "stepped down although the store could still come back in time"
        await w.passes(1)
        assert not one.working()
        assert not one.election.leading
        await w.passes(TTL)
        assert other.working()
        assert other.fences[0] > one.fences[0]


async def test_a_store_that_comes_back_in_time_changes_nothing() -> None:
    async with world() as w:
        one, other = await w.join(), await w.join()
        for _ in range(10):
            one.line.state = "down"
            await w.passes(TTL / 2)
            one.line.state = "up"
            await w.passes(2)
        assert one.working()
        assert len(one.fences) == 1
        assert not other.fences


async def test_a_refused_renewal_ends_the_work_at_once() -> None:
    async with world() as w:
        one = await w.join()
        w.keys.backend.async_space(Prefix.LEADER_ELECTION, 0).put("lock:scanner", "usurper", TTL)
        await w.passes(TTL / 4 + 0.25)
        assert not one.working()
        assert w.keys.backend.async_space(Prefix.LEADER_ELECTION, 0).get("lock:scanner") == "usurper"


async def test_work_that_is_slow_to_stop_keeps_the_lease_until_it_has_stopped() -> None:
    async with world() as w:
        one, other = await w.join(slow_to_stop=1), await w.join()
        leaving = asyncio.create_task(one.leave())
        await w.settle()
        assert one.working()
        assert not other.working()
        await w.passes(4)
        await leaving
        assert not one.working()
        assert other.working()


async def test_a_leader_whose_machine_was_suspended_stops_at_the_first_chance() -> None:
    async with world() as w:
        one = await w.join()
        w.clock.suspend(TTL + 1)
        assert not one.election.leading
        await w.passes(TTL / 4 + 0.25)
        assert len(one.fences) == 2 or not one.working(), "went on as if nothing had happened"


async def test_work_that_ends_by_itself_ends_the_election_and_releases() -> None:
    async with world() as w:

        async def short(term: Term) -> None:
            assert not term.lost

        election: Leadership = Election(w.keys, "scanner", ttl_seconds=TTL, clock=w.clock)
        await election.campaign(short)
        assert not election.leading
        assert w.keys.backend.async_space(Prefix.LEADER_ELECTION, 0).get("lock:scanner") is None


async def test_an_error_of_the_work_is_raised_and_the_lease_is_released() -> None:
    async with world() as w:

        async def broken(_: Term) -> None:
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            await Election(w.keys, "scanner", ttl_seconds=TTL, clock=w.clock).campaign(broken)
        other = await w.join()
        assert other.working()


async def test_candidates_for_different_names_do_not_meet() -> None:
    async with world() as w:
        one = await w.join()
        other = Election(w.keys, "keeper", ttl_seconds=TTL, clock=w.clock)
        seen: list[bool] = []

        async def note(_: Term) -> None:
            seen.append(one.working())

        await other.campaign(note)
        assert seen == [True]
