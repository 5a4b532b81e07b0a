"""Cases: the same limits for any kind, by any field; doubt means keep."""

from __future__ import annotations

from lapse.core.duration import DAY
from lapse.core.timestamps import to_timestamp
from tests.conformance.retention.registry import (
    EXPIRED,
    WIDGET,
    World,
    age,
    apply,
    case,
    hold,
    left,
    unique,
    widget,
    widgets,
)

YEAR = 365 * DAY


@case
async def any_kind_is_limited_by_age_and_by_count(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b", "c", "d"):
        await widget(world, home, name)
    await apply(world, widgets(world, home, maxCount=3))
    assert await left(world, home, WIDGET) == ["b", "c", "d"]
    await age(world, home, "d", YEAR, kind=WIDGET)
    await apply(world, widgets(world, home, maxAge="1h"))
    assert await left(world, home, WIDGET) == []


@case
async def groups_are_made_of_several_fields(world: World) -> None:
    home = await world.namespace()
    for number, (colour, size) in enumerate((("red", 1), ("red", 2), ("blue", 1), ("red", 1), ("red", 2), ("red", 1))):
        await widget(world, home, f"w{number}", spec={"colour": colour, "size": size})
    await apply(world, widgets(world, home, groupBy=["spec.colour", "spec.size"], maxCount=1))
    assert await left(world, home, WIDGET) == ["w2", "w4", "w5"]


@case
async def without_a_grouping_all_are_one_group(world: World) -> None:
    home = await world.namespace()
    for number in range(4):
        await widget(world, home, f"w{number}", spec={"colour": str(number)})
    await apply(world, widgets(world, home, maxCount=1))
    assert await left(world, home, WIDGET) == ["w3"]


@case
async def only_what_the_conditions_hold_for_is_deleted_or_counted(world: World) -> None:
    home = await world.namespace()
    for number, state in enumerate(("busy", "done", "failed", "busy", "done", "busy")):
        await widget(world, home, f"w{number}", spec={"state": state})
    only = [{"fieldPath": "spec.state", "in": ["done", "failed"]}]
    result = await apply(world, widgets(world, home, maxCount=1, onlyWhen=only))
    assert result.matched == 3
    assert await left(world, home, WIDGET) == ["w0", "w3", "w4", "w5"]


@case
async def an_age_can_count_from_any_field(world: World) -> None:
    home = await world.namespace()
    now = world.clock.wall_ns() // 1_000_000_000 * 1_000_000_000
    for days in (1, 2, 3):
        await widget(world, home, f"w{days}", spec={"finished": to_timestamp(now - days * DAY)})
    result = await apply(world, widgets(world, home, ageFrom="spec.finished", maxAge="36h"))
    assert (result.due, await left(world, home, WIDGET)) == ({EXPIRED: 2}, ["w1"])


@case
async def without_a_time_at_the_path_nothing_goes_and_no_place_is_taken(world: World) -> None:
    home = await world.namespace()
    times = (None, "yesterday", 7, "2026-13-01T00:00:00Z", "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z")
    for number, when in enumerate(times):
        await widget(world, home, f"w{number}", spec={} if when is None else {"when": when})
    await apply(world, widgets(world, home, ageFrom="spec.when", maxCount=1))
    assert await left(world, home, WIDGET) == ["w0", "w1", "w2", "w3", "w5"]
    await apply(world, widgets(world, home, ageFrom="spec.when", maxAge="1h", maxCount=1))
    assert await left(world, home, WIDGET) == ["w0", "w1", "w2", "w3"]


@case
async def a_time_that_means_not_set_is_no_time(world: World) -> None:
    home = await world.namespace()
    times = ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z")
    for number, when in enumerate((*times, "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z")):
        await widget(world, home, f"w{number}", spec={"when": when})
    await apply(world, widgets(world, home, ageFrom="spec.when", maxCount=1))
    assert await left(world, home, WIDGET) == ["w0", "w1", "w2", "w3", "w5"]
    await apply(world, widgets(world, home, ageFrom="spec.when", maxAge="1h"))
    assert await left(world, home, WIDGET) == ["w0", "w1", "w2", "w3"]


@case
async def without_a_field_of_the_group_no_count_takes_it(world: World) -> None:
    home = await world.namespace()
    for number in range(3):
        await widget(world, home, f"w{number}", spec={"size": 1})
    await apply(world, widgets(world, home, groupBy=["spec.colour"], maxCount=1))
    assert await left(world, home, WIDGET) == ["w0", "w1", "w2"]


@case
async def what_may_be_the_last_good_one_stays(world: World) -> None:
    home = await world.namespace()
    for name, spec in (("a", {"colour": "red", "state": "good"}), ("b", {"state": "good"}), ("c", {"colour": "red"})):
        await widget(world, home, name, spec=spec)
    await age(world, home, "c", YEAR, kind=WIDGET)
    keeping = {"count": 1, "where": {"fieldPath": "spec.state", "in": ["good"]}}
    await apply(world, widgets(world, home, groupBy=["spec.colour"], maxAge="1h", keepLast=keeping))
    assert await left(world, home, WIDGET) == ["a", "b"]


@case
async def labels_select_what_a_policy_is_about(world: World) -> None:
    home = await world.namespace()
    for number in range(4):
        await widget(world, home, f"w{number}", labels={"app": "one" if number % 2 else "two"})
    selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "namespaces": [home], "labels": {"app": "one"}}
    await apply(world, widgets(world, home, selector=selector, maxCount=1))
    assert await left(world, home, WIDGET) == ["w0", "w2", "w3"]


@case
async def the_system_and_our_own_namespace_are_left_alone_unless_named(world: World) -> None:
    home, system, label = await world.namespace(), "kube-system", unique("case")
    for namespace in (home, system):
        await widget(world, namespace, label, labels={"case": label})
    await age(world, home, label, YEAR, kind=WIDGET)
    everywhere = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "labels": {"case": label}}
    await apply(world, widgets(world, home, selector=everywhere, maxAge="1h"))
    assert await left(world, home, WIDGET) == []
    assert label in await left(world, system, WIDGET)
    await apply(world, widgets(world, home, selector={**everywhere, "namespaces": [system]}, maxAge="1h"))
    assert label not in await left(world, system, WIDGET)


@case
async def the_last_ones_stay_of_each_group_whatever_the_limits_say(world: World) -> None:
    home = await world.namespace()
    for number, (colour, state) in enumerate(
        (("red", "good"), ("red", "good"), ("red", "bad"), ("blue", "bad"), ("blue", "good"), ("blue", "bad"))
    ):
        await widget(world, home, f"w{number}", spec={"colour": colour, "state": state})
    await age(world, home, "w5", YEAR, kind=WIDGET)
    keeping = {"count": 1, "where": {"fieldPath": "spec.state", "in": ["good"]}}
    await apply(world, widgets(world, home, groupBy=["spec.colour"], maxAge="1h", keepLast=keeping))
    assert await left(world, home, WIDGET) == ["w1", "w4"]


@case
async def what_is_held_stays_of_any_kind(world: World) -> None:
    home = await world.namespace()
    for name in ("a", "b", "c"):
        await widget(world, home, name)
    await hold(world, home, "a", kind=WIDGET)
    await apply(world, widgets(world, home, maxCount=1))
    assert await left(world, home, WIDGET) == ["a", "c"]
