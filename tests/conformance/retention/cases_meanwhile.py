"""Cases: others are at work while a pass runs; it takes nothing but what it has decided about."""

from __future__ import annotations

import asyncio

from lapse.core.duration import DAY, HOUR
from lapse.history.records import experiment_labels
from lapse.kube.resources import ObjectKey
from tests.conformance.retention.registry import (
    EXPIRED,
    RECORD,
    TOO_MANY,
    WIDGET,
    Experiment,
    World,
    age,
    apply,
    case,
    counted,
    history,
    hold,
    left,
    prune,
    widget,
    widgets,
)

YEAR = 365 * DAY


@case
async def concurrent_completions_do_not_delete_twice_or_below_the_limit(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    names = await experiment.runs(12)
    labels = experiment_labels(experiment.ref)
    policy = history(world, home, limit=5)
    results = await asyncio.gather(*(world.tried.run([policy], labels=labels) for _ in range(4)))
    assert await left(world, home) == names[7:]
    assert sum(result.ended for one in results for result in one.values()) == 7
    assert counted(world, TOO_MANY) == 7


@case
async def a_completion_beside_the_hourly_pass_deletes_nothing_twice(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    names = await experiment.runs(6)
    await age(world, home, names[-1], 720 * HOUR + 1)
    policy = history(world, home, ttl="720h", limit=2)
    await asyncio.gather(world.tried.run([policy]), world.tried.run([policy], labels=experiment_labels(experiment.ref)))
    assert await left(world, home) == []
    assert (counted(world, EXPIRED), counted(world, TOO_MANY)) == (6, 0)


@case
async def a_record_created_during_the_pass_is_not_counted_as_old(world: World) -> None:
    home = await world.namespace()
    experiment = Experiment(world, home)
    names = await experiment.runs(4)

    async def another(page: int) -> None:
        if page == 1:
            names.append(await experiment.run())

    world.meddler.after_list = another
    await prune(world, home, ttl="1h", limit=3)
    found = await left(world, home)
    assert len(names) == 5
    assert names[-3:] == found[-3:], "the newest three stay, and the one that came meanwhile is the newest"


@case
async def what_somebody_deletes_meanwhile_does_not_bring_a_group_below_its_limit(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(4)

    async def somebody(page: int) -> None:
        if page == 1:
            await world.store.delete(RECORD, ObjectKey(home, names[-1]))

    world.meddler.after_list = somebody
    await prune(world, home, limit=3)
    assert await left(world, home) == names[:3]


@case
async def a_record_that_is_held_between_list_and_delete_survives(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[-1], YEAR)

    async def somebody(page: int) -> None:
        if page == 1:
            await hold(world, home, names[0])

    world.meddler.after_list = somebody
    await prune(world, home, ttl="720h")
    assert await left(world, home) == names[:1]


@case
async def an_object_changed_between_list_and_delete_survives(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b", "c"):
        await widget(world, home, name)
    await age(world, home, "c", YEAR, kind=WIDGET)

    async def somebody(page: int) -> None:
        await world.store.patch(WIDGET, ObjectKey(home, "a"), {"spec": {"seen": page}})

    world.meddler.after_list = somebody
    for spec in ({"maxAge": "1h"}, {"maxCount": 1}):
        await apply(world, widgets(world, home, **spec))
        assert "a" in await left(world, home, WIDGET), spec
    assert world.meddler.lists > 0


@case
async def an_object_deleted_and_created_anew_under_its_name_survives(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b"):
        await widget(world, home, name)
    await age(world, home, "b", YEAR, kind=WIDGET)

    async def somebody(page: int) -> None:
        await world.store.delete(WIDGET, ObjectKey(home, "a"))
        await widget(world, home, "a", spec={"made": page})

    world.meddler.after_list = somebody
    await apply(world, widgets(world, home, maxAge="1h"))
    assert await left(world, home, WIDGET) == ["a"]
    assert (await world.store.get(WIDGET, ObjectKey(home, "a"))).body["spec"] == {"made": world.meddler.lists}


@case
async def a_deletion_that_fails_does_not_stop_the_others(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(5)
    await age(world, home, names[-1], YEAR)
    world.meddler.failing.add(names[1])
    result = await prune(world, home, ttl="720h")
    assert (result.ended, await left(world, home)) == (4, names[1:2])
    assert counted(world, EXPIRED) == 4
    world.meddler.failing.clear()
    await prune(world, home, ttl="720h")
    assert await left(world, home) == []
