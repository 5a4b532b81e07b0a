"""Cases: what may be said about time and number, and that a mistake deletes nothing."""

from __future__ import annotations

from typing import Any

from lapse.core.duration import HOUR
from tests.conformance.retention.registry import (
    WIDGET,
    Experiment,
    World,
    age,
    case,
    history,
    left,
    refused,
    widget,
    widgets,
)

YEAR = 365 * 24 * HOUR


@case
async def a_ttl_is_off_or_an_hour_or_more(world: World) -> None:
    home = await world.namespace()
    for text in ("0", "0s", "1h", "60m", "24h", "720h", "30d", "P30D", "106751d", "never"):
        history(world, home, ttl=text)
    for text in ("", "720", "soon", "1y", "1ns", "1s", "30m", "59m59s", "300000d"):
        with refused():
            history(world, home, ttl=text)


@case
async def a_negative_ttl_does_not_wipe_everything(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    await age(world, home, names[-1], YEAR)
    for text in ("-1ns", "-1h", "-720h", "-P30D"):
        await _refused_or_without_effect(world, home, ttl=text)
    assert await left(world, home) == names


@case
async def a_negative_count_does_not_wipe_everything(world: World) -> None:
    home = await world.namespace()
    names = await Experiment(world, home).runs(3)
    for flags in ({"limit": -1}, {"keep": -1}, {"limit": -100, "keep": -1}):
        await _refused_or_without_effect(world, home, **flags)
    assert await left(world, home) == names


async def _refused_or_without_effect(world: World, home: str, **flags: Any) -> None:  # noqa: ANN401 - of a history
    """Demand a refusal; what is taken nevertheless is applied, so that the damage shows."""
    try:
        policy = history(world, home, **flags)
    except ValueError:
        return
    await world.tried.run([policy])
    assert await left(world, home), f"{flags} were taken, and wiped everything"
    raise AssertionError(f"{flags} were taken")


@case
async def a_policy_with_limits_that_are_none_is_refused_and_deletes_nothing(world: World) -> None:
    home = await world.namespace()
    name = await widget(world, home, "a")
    await age(world, home, name, YEAR, kind=WIDGET)
    broken: tuple[dict[str, Any], ...] = (
        {"maxAge": "-1h"},
        {"maxAge": "soon"},
        {"maxCount": -1},
        {"keepLast": {"count": -1}, "maxAge": "1h"},
        {"ageFrom": "metadata..when", "maxAge": "1h"},
        {"groupBy": ["spec.["], "maxCount": 1},
        {"onlyWhen": [{"fieldPath": "", "in": ["a"]}], "maxAge": "1h"},
    )
    for spec in broken:
        with refused():
            await world.tried.run([widgets(world, home, **spec)])
    assert await left(world, home, WIDGET) == [name]


@case
async def a_policy_deletes_nothing_until_it_says_so(world: World) -> None:
    home = await world.namespace()
    name = await widget(world, home, "a")
    await age(world, home, name, YEAR, kind=WIDGET)
    selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "namespaces": [home]}
    await world.tried.run([world.tried.policy("unsaid", {"selector": selector, "maxAge": "1h"})])
    assert await left(world, home, WIDGET) == [name]
    await world.tried.run([world.tried.policy("said", {"selector": selector, "maxAge": "1h", "dryRun": False})])
    assert await left(world, home, WIDGET) == []
