"""Cases: of each experiment the newest records stay, as many as the limit says."""

from __future__ import annotations

from lapse.history.records import experiment_labels
from tests.conformance.retention.registry import EXPIRED, TOO_MANY, Experiment, World, case, counted, left, prune


@case
async def the_newest_stay_as_many_as_the_limit_says(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(7)
    for limit, gone in ((7, {}), (5, {TOO_MANY: 2}), (4, {TOO_MANY: 1}), (1, {TOO_MANY: 3})):
        result = await prune(world, home, limit=limit)
        assert (result.due, await left(world, home)) == (gone, names[-limit:])
    assert (counted(world, TOO_MANY), counted(world, EXPIRED)) == (6, 0)


@case
async def who_was_created_later_is_newer_whatever_it_is_called(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    late_run = await experiment.run()
    await world.tick()
    early_run = await experiment.run(start=1_700_000_000_000_000_000)  # its record came late, and has the smaller name
    assert early_run < late_run
    await prune(world, home, limit=1)
    assert await left(world, home) == [early_run]


@case
async def a_limit_of_zero_really_disables(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(5)
    result = await prune(world, home, limit=0)
    assert (result.due, await left(world, home)) == ({}, names)


@case
async def each_experiment_has_a_limit_of_its_own(world: World) -> None:
    home = await world.namespace()
    first, second = Experiment(world, home, name="first"), Experiment(world, home, name="second", uid="u-2")
    names = [*await first.runs(3), *await second.runs(2)]
    await prune(world, home, limit=2)
    assert await left(world, home) == sorted(names[1:])


@case
async def two_experiments_of_the_same_name_in_two_namespaces_do_not_share_a_budget(world: World) -> None:
    home = await world.namespace()
    shop = await Experiment(world, home, namespace="shop", uid="u-1").runs(2)
    bank = await Experiment(world, home, namespace="bank", uid="u-2").runs(2)
    await prune(world, home, limit=2)
    assert await left(world, home) == sorted(shop + bank)
    await prune(world, home, limit=1)
    assert await left(world, home) == sorted([shop[-1], bank[-1]])


@case
async def an_experiment_made_anew_under_its_name_does_not_share_a_budget(world: World) -> None:
    home = await world.namespace()
    before = await Experiment(world, home, uid="u-1").runs(2)
    after = await Experiment(world, home, uid="u-2").runs(2)
    await prune(world, home, limit=2)
    assert await left(world, home) == sorted(before + after)


@case
async def names_that_are_long_and_begin_alike_do_not_share_a_budget(world: World) -> None:
    home = await world.namespace()
    stem = "a-very-long-name-that-somebody-thought-of-" * 5
    names = [await Experiment(world, home, name=f"{stem}{end}", uid=None).run() for end in ("one", "two")]
    await prune(world, home, limit=1)
    assert await left(world, home) == sorted(names)


@case
async def records_are_counted_where_they_live_not_in_the_experiments_namespace(world: World) -> None:
    home, team = await world.namespace(), await world.namespace()
    names = await Experiment(world, home, namespace=team).runs(3)
    foreign = await Experiment(world, team, namespace=team).runs(3)  # the same experiment, in another history
    await prune(world, home, limit=2)
    assert await left(world, home) == names[1:]
    assert await left(world, team) == foreign


@case
async def a_completion_looks_at_the_records_of_its_experiment_only(world: World) -> None:
    home = await world.namespace()
    mine, other = Experiment(world, home, name="mine"), Experiment(world, home, name="other", uid="u-2")
    names, others = await mine.runs(3), await other.runs(3)
    policy = world.tried.history(namespace=home, ttl="0", limit=1)
    (result,) = (await world.tried.run([policy], labels=experiment_labels(mine.ref))).values()
    assert result.matched == 3
    assert await left(world, home) == [names[-1], *others]


@case
async def a_completion_finds_its_records_whatever_the_experiment_is_called(world: World) -> None:
    home = await world.namespace()
    stem = "a-very-long-name-that-somebody-thought-of-" * 5
    plain = Experiment(world, home, name="plain", uid=None)
    long, alike = (Experiment(world, home, name=f"{stem}{end}", uid="u-1") for end in ("one", "two"))
    names = {one.ref.name: await one.runs(2) for one in (plain, long, alike)}
    policy = world.tried.history(namespace=home, ttl="0", limit=1)
    for one in (plain, long):
        (result,) = (await world.tried.run([policy], labels=experiment_labels(one.ref))).values()
        assert (result.matched, result.ended) == (2, 1)
    kept = [names[plain.ref.name][1], names[long.ref.name][1], *names[alike.ref.name]]
    assert await left(world, home) == sorted(kept)
