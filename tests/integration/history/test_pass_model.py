"""For any objects and any policies a pass ends what a few lines of slow and plain code say, and no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.timestamps import to_timestamp
from lapse.engine.safety.holds import HOLD
from lapse.kube.resources import Document, Json, ObjectKey
from tests.integration.history.world import WIDGET, World, opened, widgets

if TYPE_CHECKING:
    from lapse.history.retention.passes import PassItem, PassReport

HOURS = 3600
LATEST = 12
GOOD = {"fieldPath": "metadata.labels.state", "in": ["good"]}


@dataclass(frozen=True)
class Thing:
    """An object; what is None is not there."""

    name: str
    age: int
    """Hours since it was made."""
    since: int | None
    """Hours since what its spec says; below zero in the future."""
    group: str | None
    shelf: str | None
    state: str
    is_held: bool

    @property
    def document(self) -> Json:
        labels = {"state": self.state} | ({} if self.group is None else {"group": self.group})
        annotations = {HOLD: "yes"} if self.is_held else {}
        metadata = {"name": self.name, "namespace": "shop", "labels": labels, "annotations": annotations}
        return {"metadata": metadata, "spec": {} if self.shelf is None else {"shelf": self.shelf}}


@dataclass(frozen=True)
class Rule:
    """A policy, as a test can think of it."""

    name: str
    max_age: int | None
    max_count: int | None
    keep: int
    keeps_only_good: bool
    group_by: str | None
    only_bad: bool
    from_spec: bool
    dry_run: bool
    selected: str | None
    """Of things with this group alone, by their labels."""

    @property
    def spec(self) -> Json:
        selector: Json = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind}
        found: Json = {"maxCount": self.max_count or 0, "dryRun": self.dry_run}
        found["selector"] = selector | ({} if self.selected is None else {"labels": {"group": self.selected}})
        found["keepLast"] = {"count": self.keep} | ({"where": GOOD} if self.keeps_only_good else {})
        found["maxAge"] = "0" if self.max_age is None else f"{self.max_age}h"
        found["groupBy"] = (
            [{"group": "metadata.labels.group", "shelf": "spec.shelf"}[self.group_by]] if self.group_by else []
        )
        found["onlyWhen"] = [{"fieldPath": "metadata.labels.state", "in": ["bad"]}] if self.only_bad else []
        return found | ({"ageFrom": "spec.since"} if self.from_spec else {})


def model(things: list[Thing], rules: list[Rule]) -> tuple[set[str], set[str]]:
    """Return what is ended, and what only a dry run would end, as slow and as short as it can be said."""
    saved = {one.name for one in things if one.is_held}
    wanted: dict[bool, set[str]] = {True: set(), False: set()}
    for rule in rules:
        mine = [
            one for one in things if rule.selected in {None, one.group} and not (rule.only_bad and one.state == "good")
        ]
        ages = {one: one.since if rule.from_spec else one.age for one in mine}
        group = {one: getattr(one, rule.group_by) if rule.group_by else "" for one in mine}
        kept = {one for one in mine if rule.keep and (one.state == "good" or not rule.keeps_only_good)}
        for one, age in ages.items():
            known = [
                (-other_age, other.name, other)
                for other, other_age in ages.items()
                if other_age is not None and group[other] == group[one] and not other.is_held
            ]
            newer = [other for *place, other in known if age is not None and place > [-age, one.name]]
            if (one in kept and (age is None or len(kept.intersection(newer)) < rule.keep)) or (
                rule.keep and age is not None and group[one] is None
            ):
                saved.add(one.name)
            too_many = rule.max_count is not None and group[one] is not None and len(newer) >= rule.max_count
            if age is not None and (too_many or (rule.max_age is not None and age > rule.max_age)):
                wanted[rule.dry_run].add(one.name)
    return wanted[False] - saved, wanted[True] - wanted[False] - saved


THINGS = st.lists(
    st.builds(
        Thing,
        name=st.integers(0, 99).map("w{:02}".format),
        age=st.integers(0, LATEST),
        since=st.none() | st.integers(-2, LATEST),
        group=st.sampled_from([None, "a", "a", "b"]),
        shelf=st.sampled_from([None, "a", "b", "b"]),
        state=st.sampled_from(["good", "bad"]),
        is_held=st.sampled_from([False] * 5 + [True]),
    ),
    max_size=14,
    unique_by=lambda one: one.name,
)
RULES = st.lists(
    st.builds(
        Rule,
        name=st.sampled_from(["one", "two", "three"]),
        max_age=st.none() | st.integers(1, LATEST),
        max_count=st.none() | st.integers(1, 4),
        keep=st.integers(0, 2),
        keeps_only_good=st.booleans(),
        group_by=st.sampled_from([None, "group", "shelf"]),
        only_bad=st.booleans(),
        from_spec=st.booleans(),
        dry_run=st.booleans(),
        selected=st.sampled_from([None, None, "a"]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda one: one.name,
)


async def fill(world: World, things: list[Thing]) -> None:
    """Make them, the oldest first, as time goes by; then it is now."""
    began = world.clock.wall_ns()
    for hours in range(LATEST, -1, -1):
        for one in things:
            if one.age == hours:
                await world.store.create(WIDGET, Document(with_since(one, began)))
        world.clock.advance(HOURS if hours else 0)


def with_since(one: Thing, began: int) -> Json:
    body = one.document
    if one.since is not None:
        body["spec"]["since"] = to_timestamp(began + (LATEST - one.since) * HOURS * 10**9)
    return body


async def passed(world: World, rules: list[Rule], **how: Any) -> tuple[list[PassItem], dict[str, PassReport]]:  # noqa: ANN401 - as a pass is made
    told: list[PassItem] = []
    policies = [widgets(rule.name, **rule.spec) for rule in rules]
    reports = await world.passing(*policies, on_item=told.append, **how).run()
    return told, reports


@settings(max_examples=150, deadline=None)
@given(things=THINGS, rules=RULES, page=st.integers(1, 5), can_count=st.booleans())
def test_a_pass_ends_what_the_model_says(things: list[Thing], rules: list[Rule], page: int, can_count: bool) -> None:  # noqa: FBT001 - drawn
    async def play(folder: Path) -> None:
        async with opened(folder) as world:
            await fill(world, things)
            direct = world.store if can_count else world
            told, reports = await passed(world, rules, page=page, direct=direct)
            ended, only_told = model(things, rules)
            assert set(await world.left(WIDGET)) == {one.name for one in things} - ended
            outcomes = Counter((one.entry.name, str(one.outcome)) for one in told)
            assert outcomes == Counter(
                [(name, "ended") for name in ended] + [(name, "would_end") for name in only_told]
            )
            for report in reports.values():
                assert report.is_complete
                assert report.matched == report.due.total() + report.kept.total()
                assert report.due.total() == report.outcomes.total()
            again, _ = await passed(world, rules, page=page, direct=direct)
            assert not [one for one in again if one.outcome == "ended"], "a second pass finds more"

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


@settings(max_examples=100, deadline=None)
@given(things=THINGS, rules=RULES, late=THINGS, at=st.integers(1, 12), page=st.integers(1, 3))
def test_whatever_others_do_meanwhile_nothing_goes_that_was_never_due(
    things: list[Thing], rules: list[Rule], late: list[Thing], at: int, page: int
) -> None:
    """At one page of any listing others remove, hold, change and make objects."""

    async def play(folder: Path) -> None:
        async with opened(folder) as world:
            began = world.clock.wall_ns()
            await fill(world, things)
            due = model(things, rules)[0]

            async def others(number: int) -> None:
                if number == at:
                    due.update(model(await meddle(world, things, late, began), rules)[0])

            world.before_list = others
            told, _ = await passed(world, rules, page=page)
            assert {one.entry.name for one in told if one.outcome == "ended"} <= due

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def meddle(world: World, things: list[Thing], late: list[Thing], began: int) -> list[Thing]:
    """Remove every fifth of those that are there, change others, and make new ones; return what there is then."""
    names = set(await world.left(WIDGET))
    there = {one.name: one for one in things if one.name in names}
    for name in [name for name in there if not int(name[1:]) % 5]:
        await world.store.delete(WIDGET, ObjectKey("shop", name))
        del there[name]
    for one in late:
        body = with_since(one, began)
        if one.name in there:
            labels = {"group": None} | body["metadata"]["labels"]
            metadata = {"labels": labels, "annotations": {HOLD: "yes" if one.is_held else None}}
            changes = {"metadata": metadata, "spec": {"shelf": None, "since": None} | body["spec"]}
            await world.store.patch(WIDGET, ObjectKey("shop", one.name), changes)
        else:
            await world.store.create(WIDGET, Document(body))
        there[one.name] = replace(one, age=there[one.name].age if one.name in there else 0)
    return list(there.values())
