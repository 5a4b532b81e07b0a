"""Cases: what is older than the TTL goes, counted from when the store made it."""

from __future__ import annotations

import msgspec

from lapse.core.duration import DAY, HOUR, SECOND
from tests.conformance.retention.registry import EXPIRED, Experiment, World, age, case, counted, left, prune

YEAR = 365 * DAY
MONTH = "720h"


@case
async def a_record_goes_when_its_age_exceeds_the_ttl_and_not_before(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run()
    await age(world, home, name, 720 * HOUR)
    result = await prune(world, home, ttl=MONTH)
    assert (result.due, await left(world, home)) == ({}, [name])
    world.clock.advance(ns=1)
    result = await prune(world, home, ttl=MONTH)
    assert (result.due, result.ended, await left(world, home)) == ({EXPIRED: 1}, 1, [])


@case
async def various_ttls_each_take_what_is_older(world: World) -> None:
    for text, ns in (("1h", HOUR), ("24h", DAY), (MONTH, 30 * DAY), ("2160h", 90 * DAY)):
        home = await world.namespace()
        old, young = await Experiment(world, home).spaced(2)
        await age(world, home, old, ns + 1)
        await prune(world, home, ttl=text)
        assert await left(world, home) == [young], text


@case
async def backdated_records_go_one_after_the_other(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).spaced(3)
    for gone in range(3):
        await age(world, home, names[gone], 720 * HOUR + 1)
        result = await prune(world, home, ttl=MONTH)
        assert result.due == {EXPIRED: 1}
        assert await left(world, home) == names[gone + 1 :]
    assert counted(world, EXPIRED) == 3


@case
async def a_ttl_of_zero_really_disables(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[-1], 100 * YEAR)
    for text in ("0", "0h", "never"):
        result = await prune(world, home, ttl=text)
        assert (result.due, await left(world, home)) == ({}, names)
    assert counted(world, EXPIRED) == 0


@case
async def a_ttl_of_zero_leaves_the_count_in_force(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[-1], 10 * YEAR)
    await prune(world, home, ttl="0", limit=2)
    assert await left(world, home) == names[1:]


@case
async def the_smallest_ttl_is_an_hour(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run()
    await age(world, home, name, HOUR - SECOND)
    await prune(world, home, ttl="1h")
    assert await left(world, home) == [name]
    world.clock.advance(ns=SECOND + 1)
    await prune(world, home, ttl="1h")
    assert await left(world, home) == []


@case
async def the_largest_ttl_keeps_for_centuries(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run()
    await age(world, home, name, 200 * YEAR)
    for text in ("106751d", "2540400h"):  # 292 years, and 290
        result = await prune(world, home, ttl=text)
        assert (result.due, await left(world, home)) == ({}, [name])
    await prune(world, home, ttl="1740000h")  # 198 years
    assert await left(world, home) == []


@case
async def what_was_there_before_the_ttl_was_set_is_subject_to_it(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run()
    await age(world, home, name, YEAR)
    await prune(world, home, ttl="0")
    assert await left(world, home) == [name]
    await prune(world, home, ttl=MONTH)
    assert await left(world, home) == []


@case
async def an_age_counts_from_the_creation_of_the_record_not_from_the_run(world: World) -> None:
    home = await world.namespace()
    late = await Experiment(world, home).run(start=world.clock.wall_ns() - YEAR)
    await age(world, home, late, DAY)
    result = await prune(world, home, ttl=MONTH)
    assert (result.due, await left(world, home)) == ({}, [late])


@case
async def a_record_from_the_future_stays(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run()
    world.clock.jump_wall(-YEAR / SECOND)  # our clock is behind that of the store
    result = await prune(world, home, ttl="1h")
    assert (result.due, await left(world, home)) == ({}, [name])


@case
async def a_retried_run_does_not_reset_an_age(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    spec = experiment.spec()
    name, is_new = await world.tried.write(spec, namespace=home)
    assert is_new
    await world.tick()
    assert await world.tried.write(spec, namespace=home) == (name, False)
    assert await left(world, home) == [name]
    other = await experiment.run()  # as young as a record of the retry would be
    await age(world, home, name, 720 * HOUR + 1)
    await prune(world, home, ttl=MONTH)
    assert await left(world, home) == [other]


@case
async def two_runs_of_one_second_are_two_records(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    first = experiment.spec()
    other = msgspec.structs.replace(first, execution=msgspec.structs.replace(first.execution, status="failure"))
    names = {await world.tried.write(spec, namespace=home) for spec in (first, other)}
    assert len(names) == 2
    assert all(is_new for _, is_new in names)
    assert len(await left(world, home)) == 2


@case
async def one_instant_written_in_another_way_is_the_same_run(world: World) -> None:
    home = await world.namespace()
    first = Experiment(world, home).spec()
    start = first.execution.start_time.removesuffix("Z")
    name, _ = await world.tried.write(first, namespace=home)
    for text in (f"{start}+00:00", f"{start}.000Z", f"{start}.000000-00:00"):
        again = msgspec.structs.replace(first, execution=msgspec.structs.replace(first.execution, start_time=text))
        assert await world.tried.write(again, namespace=home) == (name, False)
    assert await left(world, home) == [name]


@case
async def records_of_experiments_that_are_gone_go_as_well(world: World) -> None:
    home = await world.namespace()
    names = [await Experiment(world, home, name=f"gone-{number}", uid=f"u-{number}").run() for number in range(4)]
    await age(world, home, names[-1], YEAR)
    result = await prune(world, home, ttl=MONTH, limit=100)
    assert (result.matched, result.ended, await left(world, home)) == (4, 4, [])
