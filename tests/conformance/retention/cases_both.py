"""Cases: both limits in one pass, what is saved from them, two policies on one object, and what metrics tell."""

from __future__ import annotations

from lapse.core.duration import DAY, HOUR
from tests.conformance.retention.registry import (
    EXPIRED,
    FAILURE,
    SUCCESS,
    TOO_MANY,
    WIDGET,
    Experiment,
    World,
    age,
    apply,
    case,
    counted,
    hold,
    left,
    prune,
    widget,
    widgets,
)

MONTH = "720h"
YEAR = 365 * DAY


# --- both limits ------------------------------------------------------------------------------------------------------


@case
async def who_violates_either_limit_goes_and_is_counted_once_by_age_first(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    old = await experiment.runs(2)
    await world.tick()
    young = await experiment.runs(4)
    await age(world, home, old[-1], 720 * HOUR + 1)
    result = await prune(world, home, ttl=MONTH, limit=3)
    assert await left(world, home) == young[1:]
    assert (result.matched, result.due, result.ended) == (6, {EXPIRED: 2, TOO_MANY: 1}, 3)
    assert (counted(world, EXPIRED), counted(world, TOO_MANY)) == (2, 1)


@case
async def a_record_within_the_limit_still_goes_by_age(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[-1], YEAR)
    result = await prune(world, home, ttl=MONTH, limit=100)
    assert (result.due, await left(world, home)) == ({EXPIRED: 3}, [])


@case
async def a_record_within_its_ttl_still_goes_by_count(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[0], HOUR)
    result = await prune(world, home, ttl=MONTH, limit=1)
    assert (result.due, await left(world, home)) == ({TOO_MANY: 2}, names[-1:])


@case
async def both_limits_hold_for_each_experiment_on_its_own(world: World) -> None:
    home = await world.namespace()
    busy, rare = Experiment(world, home, name="busy"), Experiment(world, home, name="rare", uid="u-2")
    rarely = await rare.runs(2)
    await world.tick()
    often, again = await busy.runs(4), await rare.run()
    await age(world, home, rarely[-1], 720 * HOUR + 1)
    result = await prune(world, home, ttl=MONTH, limit=3)
    assert (result.due, await left(world, home)) == ({EXPIRED: 2, TOO_MANY: 1}, [*often[1:], again])


@case
async def a_second_pass_finds_nothing_more(world: World) -> None:
    home = await world.namespace()
    await Experiment(world, home).runs(5)
    await prune(world, home, ttl=MONTH, limit=2)
    before = await left(world, home)
    result = await prune(world, home, ttl=MONTH, limit=2)
    assert (result.due, result.ended, await left(world, home)) == ({}, 0, before)


@case
async def the_metrics_tell_what_went_and_by_which_limit(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    old = await experiment.run()
    await world.tick()
    await experiment.runs(3)
    await age(world, home, old, 720 * HOUR + 1)
    await prune(world, home, ttl=MONTH, limit=1, dry_run=True)
    assert (counted(world, EXPIRED), counted(world, TOO_MANY)) == (0, 0)
    await prune(world, home, ttl=MONTH, limit=1)
    assert (counted(world, EXPIRED), counted(world, TOO_MANY)) == (1, 2)


@case
async def the_metrics_tell_records_from_other_kinds(world: World) -> None:
    home = await world.namespace()
    name = await widget(world, home, "a")
    await age(world, home, name, YEAR, kind=WIDGET)
    await apply(world, widgets(world, home, maxAge="1h"))
    assert (counted(world, EXPIRED, domain="retention"), counted(world, EXPIRED, domain="history")) == (1, 0)


@case
async def a_dry_run_finds_what_the_real_run_then_takes(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(6)
    dry = await prune(world, home, limit=2, dry_run=True)
    assert (dry.ended, await left(world, home)) == (0, names)
    real = await prune(world, home, limit=2)
    assert (real.due, real.ended, await left(world, home)) == (dry.due, 4, names[4:])


# --- what is saved ----------------------------------------------------------------------------------------------------


@case
async def without_keep_last_success_the_last_good_one_goes(world: World) -> None:
    home = await world.namespace()
    name = await Experiment(world, home).run(SUCCESS)
    await age(world, home, name, YEAR)
    await prune(world, home, ttl=MONTH)
    assert await left(world, home) == []


@case
async def the_last_success_is_saved_from_the_age(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    good = await experiment.runs(3, SUCCESS)
    bad = await experiment.runs(2, FAILURE)
    await age(world, home, bad[-1], YEAR)
    await prune(world, home, ttl=MONTH, keep=2)
    assert await left(world, home) == good[1:]


@case
async def the_last_success_is_saved_from_the_count(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    good = await experiment.runs(2, SUCCESS)
    bad = await experiment.runs(4, FAILURE)
    await prune(world, home, limit=2, keep=1)
    assert await left(world, home) == [good[-1], *bad[2:]]


@case
async def the_last_success_is_that_of_each_experiment(world: World) -> None:
    home = await world.namespace()
    shop, bank = Experiment(world, home), Experiment(world, home, namespace="bank", uid="u-2")
    good = [(await one.runs(2, SUCCESS))[-1] for one in (shop, bank)]
    await age(world, home, good[-1], YEAR)
    await prune(world, home, ttl=MONTH, limit=1, keep=1)
    assert await left(world, home) == sorted(good)


@case
async def a_hold_saves_from_both_limits_and_changes_nothing_for_others(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(5)
    await hold(world, home, names[0])
    await prune(world, home, limit=2)
    assert await left(world, home) == [names[0], *names[3:]]
    await age(world, home, names[-1], YEAR)
    await prune(world, home, ttl=MONTH, limit=2)
    assert await left(world, home) == names[:1]


@case
async def a_held_one_among_the_newest_takes_no_place(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await hold(world, home, names[-1])
    await prune(world, home, limit=1)
    assert await left(world, home) == names[-2:]


@case
async def a_held_one_among_the_last_takes_no_place(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3, SUCCESS)
    await hold(world, home, names[-1])
    for name in names:
        await age(world, home, name, YEAR)
    await prune(world, home, ttl=MONTH, keep=1)
    assert await left(world, home) == names[-2:]


@case
async def a_hold_that_is_over_saves_nothing(world: World) -> None:
    home = await world.namespace()
    over, not_over = await Experiment(world, home).runs(2)
    await age(world, home, not_over, YEAR)
    await hold(world, home, over, until=world.clock.wall_ns() - HOUR)
    await hold(world, home, not_over, until=world.clock.wall_ns() + HOUR)
    await prune(world, home, ttl=MONTH)
    assert await left(world, home) == [not_over]


# --- two policies on one object ---------------------------------------------------------------------------------------


@case
async def of_two_policies_either_limit_deletes(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b", "c"):
        await widget(world, home, name)
        await world.tick()
    await age(world, home, "a", 10 * HOUR + 1, kind=WIDGET)
    by_age = widgets(world, home, "by-age", maxAge="10h")
    by_count = widgets(world, home, "by-count", maxCount=1)
    results = await world.tried.run([by_age, by_count])
    assert await left(world, home, WIDGET) == ["c"]
    assert set(results) == {"by-age", "by-count"}
    told = counted(world, EXPIRED, domain="retention"), counted(world, TOO_MANY, domain="retention")
    assert told == (1, 1)  # a violates both, and is counted once


@case
async def the_last_ones_of_one_policy_are_saved_from_another(world: World) -> None:
    home = await world.namespace()
    for name, state in (("a", "good"), ("b", "good"), ("c", "bad")):
        await widget(world, home, name, spec={"state": state})
        await world.tick()
    await age(world, home, "c", YEAR, kind=WIDGET)
    keeping = {"count": 1, "where": {"fieldPath": "spec.state", "in": ["good"]}}
    saving = widgets(world, home, "saving", keepLast=keeping)
    ending = widgets(world, home, "ending", maxAge="1h", maxCount=1)
    for order in ([saving, ending], [ending, saving]):
        await world.tried.run(order)
        assert await left(world, home, WIDGET) == ["b"]


@case
async def a_hold_wins_over_all_policies(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b"):
        await widget(world, home, name)
    await hold(world, home, "a", kind=WIDGET)
    await age(world, home, "b", YEAR, kind=WIDGET)
    await world.tried.run([widgets(world, home, "one", maxAge="1h"), widgets(world, home, "two", maxCount=1)])
    assert await left(world, home, WIDGET) == ["a"]


@case
async def a_dry_policy_deletes_nothing_beside_one_that_does(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b", "c"):
        await widget(world, home, name)
    real = widgets(world, home, "real", maxCount=2)
    dry = widgets(world, home, "dry", maxCount=1, dryRun=True)
    results = await world.tried.run([dry, real])
    assert await left(world, home, WIDGET) == ["b", "c"]
    assert results["dry"].due == {TOO_MANY: 2}
    assert (results["dry"].ended, results["real"].ended) == (0, 1)


@case
async def the_reason_is_that_of_a_policy_that_deletes(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b"):
        await widget(world, home, name)
    await age(world, home, "b", YEAR, kind=WIDGET)
    dry = widgets(world, home, "dry", maxAge="1h", dryRun=True)
    await world.tried.run([dry, widgets(world, home, "real", maxCount=1)])
    assert await left(world, home, WIDGET) == ["b"]
    told = counted(world, EXPIRED, domain="retention"), counted(world, TOO_MANY, domain="retention")
    assert told == (0, 1)


@case
async def the_last_ones_of_a_dry_policy_are_saved_nevertheless(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b"):
        await widget(world, home, name)
    await age(world, home, "b", YEAR, kind=WIDGET)
    dry = widgets(world, home, "dry", keepLast={"count": 1}, dryRun=True)
    await world.tried.run([dry, widgets(world, home, "real", maxAge="1h")])
    assert await left(world, home, WIDGET) == ["b"]


@case
async def policies_about_different_objects_do_not_meet(world: World) -> None:
    one, other = await world.namespace(), await world.namespace()
    for home in (one, other):
        for name in ("a", "b", "c"):
            await widget(world, home, name)
    await world.tried.run([widgets(world, one, "one", maxCount=1), widgets(world, other, "other", maxCount=2)])
    assert (await left(world, one, WIDGET), await left(world, other, WIDGET)) == (["c"], ["b", "c"])
