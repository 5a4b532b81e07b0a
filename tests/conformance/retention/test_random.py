"""For random objects under random policies, the product leaves what the model leaves, and counts what it counts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.duration import HOUR
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.log import LogJournal
from lapse.kube.resources import ObjectKey
from tests.conformance.retention.model import Model
from tests.conformance.retention.product import Product
from tests.conformance.retention.registry import EXPIRED, TOO_MANY, WIDGET, counted, hold, left, widget, widgets
from tests.conformance.retention.worlds import EmbeddedWorld, Surroundings, embedded_world
from tests.examples import examples

if TYPE_CHECKING:
    from lapse.kube.resources import Json
    from tests.conformance.retention.registry import World

START = 1_700_000_000_000_000_000

objects = st.fixed_dictionaries(
    {
        "hours": st.integers(0, 5),
        "held": st.sampled_from([False, False, False, True]),
        "state": st.sampled_from(["good", "bad"]),
        "colour": st.sampled_from(["red", "blue", None]),
        "when": st.one_of(st.integers(0, 30), st.sampled_from([None, "soon"])),
    }
)


def policy_from(place: str) -> st.SearchStrategy[Json]:
    """Policies about fields of one place: of the spec, or of metadata, which is all that is read then."""
    good = {"fieldPath": f"{place}.state", "in": ["good"]}
    return st.fixed_dictionaries(
        {"dryRun": st.sampled_from([False, False, True])},
        optional={
            "maxAge": st.sampled_from(["0", "2h", "5h", "10h"]),
            "maxCount": st.integers(0, 4),
            "groupBy": st.sampled_from([[f"{place}.colour"], [f"{place}.colour", f"{place}.state"]]),
            "ageFrom": st.just(f"{place}.when"),
            "onlyWhen": st.just([{"fieldPath": f"{place}.state", "in": ["bad", "worse"]}]),
            "keepLast": st.one_of(
                st.builds(lambda count: {"count": count}, st.integers(0, 2)),
                st.builds(lambda count: {"count": count, "where": good}, st.integers(1, 2)),
            ),
        },
    )


SPEC, METADATA = policy_from("spec"), policy_from("metadata.annotations")
policies = st.one_of(
    st.lists(SPEC, min_size=1, max_size=3),
    st.lists(METADATA, min_size=1, max_size=3),
    st.lists(st.one_of(SPEC, METADATA), min_size=2, max_size=3),
)
Outcome = tuple[list[str], list[int], tuple[int, int]]
"""What is left, how many objects each policy is about, and what the metrics tell."""


async def outcomes(things: list[dict[str, Any]], specs: list[Json]) -> tuple[Outcome, Outcome]:
    """Let the model and the product do the same, each in a namespace of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_world(Path(folder), Product) as world:
            for number, thing in enumerate(things):
                for home in ("model", "product"):
                    await make(world, home, f"w{number:02}", thing)
                world.clock.advance(thing["hours"] * 3600)
            around = Surroundings(world.store, world.clock, LogJournal())
            model = Model(world.store, clock=world.clock, metrics=around.metrics)
            beside = EmbeddedWorld(world.store, around, model)
            return await outcome(beside, "model", specs), await outcome(world, "product", specs)


async def make(world: World, home: str, name: str, thing: dict[str, Any]) -> None:
    when = thing["when"]
    spec = {"state": thing["state"], "colour": thing["colour"]}
    spec["when"] = to_timestamp(START + when * HOUR) if isinstance(when, int) else when
    told = {key: value for key, value in spec.items() if value is not None}
    await widget(world, home, name, spec=told)
    await world.store.patch(WIDGET, ObjectKey(home, name), {"metadata": {"annotations": told}})
    if thing["held"]:
        await hold(world, home, name, kind=WIDGET)


async def outcome(world: World, home: str, specs: list[Json]) -> Outcome:
    rules = [widgets(world, home, f"p{number}", **spec) for number, spec in enumerate(specs)]
    results = await world.tried.run(rules)
    told = counted(world, EXPIRED, domain="retention"), counted(world, TOO_MANY, domain="retention")
    return await left(world, home, WIDGET), [results[f"p{number}"].matched for number in range(len(specs))], told


@settings(max_examples=examples(80))
@given(st.lists(objects, max_size=9), policies)
def test_for_any_objects_and_policies_the_product_does_what_the_model_does(
    things: list[dict[str, Any]], specs: list[Json]
) -> None:
    expected, found = asyncio.run(outcomes(things, specs))
    assert found == expected
