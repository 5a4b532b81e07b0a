"""The contract of what removes old rows, on every journal that is a database."""

from __future__ import annotations

import asyncio
from typing import Any

from lapse.core.clock import VirtualClock
from lapse.core.duration import DAY, HOUR, Duration
from lapse.engine.journal.port import AUDIT, UNDO_UNTIL, Outcome
from lapse.engine.journal.retention import BATCH, JournalRetention
from tests.conformance.journal.registry import World, case, keeper, names

TTL = Duration.parse("400d")
TTL_NS = 400 * DAY


class Believed:
    """A clock that nobody doubts, unless they are told to."""

    def __init__(self) -> None:
        self.doubt: object | None = None

    async def __call__(self) -> object | None:
        return self.doubt


def retention(world: World, clock: VirtualClock, *, ttl: Duration = TTL, counted_ns: int = 0, **how: Any) -> Any:  # noqa: ANN401
    how.setdefault("doubt", Believed())
    return JournalRetention(world.journal, ttl=ttl, counted_ns=counted_ns, clock=clock, domain="requests", **how)


async def run(loop: Any, clock: VirtualClock) -> None:  # noqa: ANN401
    """Tick until everything is looked at."""
    wait: float | None = 0.0
    while wait is not None:
        ticking = asyncio.create_task(loop.tick())
        while not ticking.done():
            clock.advance(0.01)
            await asyncio.sleep(0)  # noqa: TID251 - lets tasks run, without time
        wait = ticking.result()


async def left(world: World) -> list[str]:
    return sorted([name for name in await names(world.journal, limit=10_000) if name.startswith("keeper/")])


@case
async def a_row_goes_once_it_is_older_than_its_ttl_and_not_at_that_moment(world: World) -> None:
    clock = VirtualClock()
    old = clock.wall_ns() - TTL_NS
    await world.journal.append(keeper(0, time_ns=old - 1), keeper(1, time_ns=old), keeper(2, time_ns=old + 1))
    loop = retention(world, clock)
    assert await loop.tick() is None

    assert await left(world) == ["keeper/1", "keeper/2"]
    clock.advance(ns=1)
    await loop.tick()
    assert await left(world) == ["keeper/2"]


@case
async def one_row_tells_what_was_removed_and_nothing_is_no_row(world: World) -> None:
    clock = VirtualClock()
    await world.journal.append(*(keeper(number, time_ns=5 + number) for number in range(3)))
    loop = retention(world, clock)
    for _ in range(3):
        await loop.tick()
    (row,) = await world.journal.entries()

    assert (row.domain, row.address, row.actor) == (AUDIT, "journal", "journal-retention")
    assert (row.reason, row.outcome, row.details) == ("journal_removed", Outcome.DONE, {"rows": 3, "ttl": str(TTL)})


@case
async def a_row_that_an_undo_needs_stays_until_it_is_over(world: World) -> None:
    clock = VirtualClock()
    until = clock.wall_ns() + HOUR
    await world.journal.append(
        keeper(0, time_ns=5, details={UNDO_UNTIL: until}),
        keeper(1, time_ns=5, details={UNDO_UNTIL: clock.wall_ns()}),
        keeper(2, time_ns=5, details={UNDO_UNTIL: "tomorrow\0"}),
        keeper(3, time_ns=5, details={UNDO_UNTIL: None}),
        keeper(4, time_ns=5, details={"text": UNDO_UNTIL}),
        keeper(5, time_ns=5, details={UNDO_UNTIL: 2**70}),
    )
    loop = retention(world, clock)
    await loop.tick()
    assert await left(world) == ["keeper/0", "keeper/2", "keeper/5"]
    clock.advance(ns=HOUR)
    await loop.tick()

    assert await left(world) == ["keeper/2", "keeper/5"], "what cannot be read is kept"


@case
async def rows_that_a_budget_counts_stay_however_short_the_ttl_is(world: World) -> None:
    clock = VirtualClock()
    now = clock.wall_ns()
    await world.journal.append(keeper(0, time_ns=now - 5 * DAY), keeper(1, time_ns=now - 3 * DAY))
    await retention(world, clock, ttl=Duration.parse("1d"), counted_ns=4 * DAY).tick()

    assert await left(world) == ["keeper/1"]


@case
async def nothing_goes_while_the_clock_is_in_doubt_or_rows_are_kept_for_ever(world: World) -> None:
    clock, believed = VirtualClock(), Believed()
    await world.journal.append(keeper(0, time_ns=5))
    await retention(world, clock, ttl=Duration(None)).tick()
    believed.doubt = "it jumped"
    loop = retention(world, clock, doubt=believed)
    assert await loop.tick() is None
    assert await left(world) == ["keeper/0"]
    believed.doubt = None
    await loop.tick()

    assert await left(world) == []


@case
async def many_rows_go_in_short_transactions_past_those_that_stay(world: World) -> None:
    clock = VirtualClock()
    many = 2 * BATCH + BATCH // 2
    needed = {UNDO_UNTIL: 2**62}
    await world.journal.append(*(keeper(number, time_ns=5, details=needed) for number in range(BATCH + 1)))
    await world.journal.append(*(keeper(number, time_ns=6) for number in range(10_000, 10_000 + many)))
    sizes: list[int] = []
    loop, remove = retention(world, clock), world.journal.remove

    async def counted(ids: list[int]) -> int:
        sizes.append(len(ids))
        return int(await remove(ids))

    world.journal.remove = counted
    await run(loop, clock)

    assert len(await left(world)) == BATCH + 1
    assert sum(sizes) == many
    assert max(sizes) <= BATCH
    assert [(row.details or {})["rows"] for row in await world.journal.entries(domain=AUDIT)] == [many]


@case
async def two_that_remove_at_once_remove_and_count_each_row_once(world: World) -> None:
    clock = VirtualClock()
    await world.journal.append(*(keeper(number, time_ns=5) for number in range(40)))
    other = await world.another()
    second = JournalRetention(other, ttl=TTL, counted_ns=0, clock=clock, doubt=Believed(), domain="requests")
    await asyncio.gather(retention(world, clock).tick(), second.tick())
    told = [(row.details or {})["rows"] for row in await world.journal.entries(domain=AUDIT)]

    assert await left(world) == []
    assert sum(told) == 40


@case
async def who_loses_the_lead_stops_between_two_transactions_and_tells_what_was_done(world: World) -> None:
    from lapse.engine.running.coordinator import Turn

    clock = VirtualClock()
    await world.journal.append(*(keeper(number, time_ns=5) for number in range(3 * BATCH)))
    loop, looks = retention(world, clock), iter([True, False])
    loop.begin(Turn(lambda: next(looks), lambda: None))
    await run(loop, clock)

    assert len(await left(world)) == 2 * BATCH
    assert [(row.details or {})["rows"] for row in await world.journal.entries(domain=AUDIT)] == [BATCH]


@case
async def what_could_not_be_told_is_told_the_next_time(world: World) -> None:
    clock, append = VirtualClock(), world.journal.append
    await append(keeper(0, time_ns=5))

    async def full(*_: object) -> None:
        raise OSError

    loop = retention(world, clock)
    world.journal.append = full
    failed = (await asyncio.gather(loop.tick(), return_exceptions=True))[0]
    world.journal.append = append
    await loop.tick()

    assert isinstance(failed, OSError)
    assert [(row.details or {})["rows"] for row in await world.journal.entries(domain=AUDIT)] == [1]


@case
async def a_follower_goes_on_after_the_rows_that_it_has_seen_were_removed(world: World) -> None:
    clock = VirtualClock()
    await world.journal.append(keeper(0, time_ns=5), keeper(1, time_ns=5))
    first, _ = reversed(await world.journal.entries())
    await retention(world, clock).tick()
    await world.journal.append(keeper(2, time_ns=5))

    assert await names(world.journal, after=first.place) == ["journal", "keeper/2"]
