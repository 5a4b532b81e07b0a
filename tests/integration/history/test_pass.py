"""Passes of retention policies over the embedded store, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import HOUR, Duration
from lapse.engine.safety.holds import HOLD
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    ExperimentRef,
)
from lapse.history.records import experiment_labels, record
from lapse.kube.errors import AlreadyExistsError, UnknownKindError
from lapse.kube.resources import Document, Kind, ObjectKey, PartialObject
from tests.integration.history.world import NAMESPACE, WIDGET, World, gone_at, history_policy, opened, widgets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.history.retention.passes import PassItem


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as found:
        yield found


# --- the history ------------------------------------------------------------------------------------------------------


async def test_both_limits_in_one_pass_and_each_record_is_counted_once(world: World) -> None:
    names = await world.runs(6)  # the newest is an hour old
    report = await world.prune(ttl=Duration(5 * HOUR + HOUR // 2), limit=3)
    assert await world.left() == names[3:]
    assert report.due == {"ttl_expired": 1, "retention_limit": 2}
    assert report.outcomes == {"ended": 3}
    assert (report.matched, report.kept, report.is_complete) == (6, {"not_yet": 3}, True)
    text = world.metrics.exposition().decode()
    assert 'lapse_deletions_total{domain="history",reason="ttl_expired"} 1.0' in text
    assert 'lapse_deletions_total{domain="history",reason="retention_limit"} 2.0' in text


async def test_the_journal_names_each_that_went_and_by_which_policy(world: World) -> None:
    (name, _) = await world.runs(2)
    await world.prune(limit=1)
    (row,) = await world.rows()
    assert (row.address, row.reason, row.outcome) == (f"history/{NAMESPACE}/{name}", "retention_limit", "ended")
    assert row.details == {"policy": "history"}


async def test_zero_really_disables(world: World) -> None:
    names = await world.runs(5, hours=100_000)
    report = await world.prune(ttl=Duration(0), limit=0)
    assert await world.left() == names
    assert report.kept == {"no_limit": 5}


async def test_records_are_counted_where_they_live_and_per_experiment(world: World) -> None:
    kept = [*await world.runs(2), *await world.runs(2, namespace="bank")]
    await world.prune(limit=2)
    assert sorted(await world.left()) == sorted(kept)
    await world.prune(limit=1)
    assert sorted(await world.left()) == sorted([kept[1], kept[3]])


async def test_a_dry_run_names_what_the_real_run_then_ends(world: World) -> None:
    names = await world.runs(6)
    values: dict[str, Any] = {"ttl": Duration(5 * HOUR), "limit": 4}
    dry = await world.prune(dry_run=True, **values)
    assert await world.left() == names
    would = {row.address for row in await world.rows()}
    real = await world.prune(**values)
    assert dry.due == real.due
    assert {row.address for row in await world.rows() if row.outcome == "ended"} == would
    assert await world.left() == names[2:]


async def test_the_last_success_stays_when_asked_for(world: World) -> None:
    (good,) = await world.runs(1, status="success")
    await world.runs(3, status="failure")
    world.clock.advance(10_000 * 3600)
    report = await world.prune(keep_last_success=1)
    assert await world.left() == [good]
    assert report.kept == {"keep_last": 1, "not_yet": 0}


async def test_what_is_held_stays(world: World) -> None:
    names = await world.runs(3)
    held = {"metadata": {"annotations": {HOLD: "true"}}}
    await world.store.patch(CHAOS_EXPERIMENT_HISTORY, ObjectKey(NAMESPACE, names[0]), held)
    report = await world.prune(limit=1)
    assert await world.left() == [names[0], names[2]]
    assert report.kept["held"] == 1


async def test_on_completion_only_the_records_of_that_experiment_are_looked_at(world: World) -> None:
    await world.runs(2)
    others = await world.runs(2, experiment="other")
    ref = ExperimentRef(name="kill", namespace="shop", uid="u-shop-kill")
    report = (await world.passing(history_policy(limit=1)).run(labels=experiment_labels(ref)))["history"]
    assert report.matched == 2
    assert len(await world.left()) == 3
    assert set(others) < set(await world.left())


async def test_writing_the_record_of_a_run_again_does_not_reset_its_age(world: World) -> None:
    key = ObjectKey(NAMESPACE, await world.run())
    first = await world.store.get(CHAOS_EXPERIMENT_HISTORY, key)
    world.clock.advance(3600)
    with pytest.raises(AlreadyExistsError):
        await world.store.create(CHAOS_EXPERIMENT_HISTORY, record(first.spec, namespace=NAMESPACE))
    assert await world.store.get(CHAOS_EXPERIMENT_HISTORY, key) == first


# --- others at work meanwhile -----------------------------------------------------------------------------------------


async def test_concurrent_completions_end_nothing_twice_and_nothing_below_the_limit(world: World) -> None:
    names = await world.runs(12)
    reports = await asyncio.gather(*(world.prune(limit=5) for _ in range(4)))
    assert await world.left() == names[7:]
    assert sum(report.outcomes["ended"] for report in reports) == 7
    assert len([row for row in await world.rows() if row.outcome == "ended"]) == 7


async def test_a_record_created_during_the_pass_is_not_counted_as_old(world: World) -> None:
    names = await world.runs(4)

    async def another(page: int) -> None:
        if page == 2:  # the first of the second listing
            names.append(await world.run())

    world.before_list = another
    await world.prune(limit=3)
    assert await world.left() == names[2:]


async def test_what_was_deleted_by_somebody_else_meanwhile_saves_those_that_are_left(world: World) -> None:
    names = await world.runs(4)

    async def somebody(page: int) -> None:
        if page == 2:
            await world.store.delete(CHAOS_EXPERIMENT_HISTORY, ObjectKey(NAMESPACE, names[3]))

    world.before_list = somebody
    report = await world.prune(limit=3)
    assert await world.left() == names[:3]
    assert report.due == {}


async def test_an_object_changed_between_list_and_delete_survives(world: World) -> None:
    names = await world.runs(4)
    world.clock.advance(1000 * 3600)

    async def somebody(page: int) -> None:
        if page == 1:  # what is too old was read on the first page, and goes with the last one
            held = {"metadata": {"annotations": {HOLD: "true"}}}
            await world.store.patch(CHAOS_EXPERIMENT_HISTORY, ObjectKey(NAMESPACE, names[0]), held)

    world.before_list = somebody
    report = await world.prune()
    assert await world.left() == names[:1]
    assert report.outcomes == {"ended": 3, "held": 1}


async def test_a_pass_that_may_not_proceed_decides_nothing_about_groups_it_has_not_read(world: World) -> None:
    names = await world.runs(9)
    for asked in range(7):  # three pages, three pages again, and the acts
        answers = iter([True] * asked)
        reports = await world.passing(history_policy(limit=1)).run(proceed=partial(next, answers, False))
        assert not reports["history"].is_complete
        assert await world.left() == names


@pytest.mark.parametrize("page", [1, 20, 41, 43, 60, 83, 85, 100, 125])  # of three listings with 42 pages each
@pytest.mark.parametrize("times", [1, 2])
async def test_a_listing_whose_moment_is_gone_is_begun_again_and_nothing_is_counted_twice(
    world: World, page: int, times: int
) -> None:
    names = await world.runs(126)
    world.before_list = gone_at(*range(page, page + times))
    policy = history_policy(ttl=Duration(124 * HOUR), limit=3, dry_run=True)
    (dry,) = (await world.passing(policy).run()).values()
    assert (dry.matched, dry.due) == (126, {"ttl_expired": 2, "retention_limit": 121})
    assert dry.outcomes == {"would_end": 123}
    assert len(world.listed) > 126

    world.listed.clear()
    told: list[PassItem] = []
    policy = history_policy(ttl=Duration(124 * HOUR), limit=3)
    (real,) = (await world.passing(policy, on_item=told.append).run()).values()
    assert (real.matched, real.due, real.kept, real.is_complete) == (126, dry.due, {"not_yet": 3}, True)
    assert [one.entry.name for one in told] == sorted(names)[:123]
    assert await world.left() == names[123:]


@pytest.mark.parametrize("page", [1, 4])
async def test_when_a_moment_is_gone_again_and_again_nothing_is_ended_by_its_number(world: World, page: int) -> None:
    names = await world.runs(9)
    world.before_list = gone_at(*range(page, 100))
    report = await world.prune(ttl=Duration(7 * HOUR + HOUR // 2), limit=1)
    assert not report.is_complete
    assert report.due == {"ttl_expired": 2}
    assert await world.left() == names[2:]


async def test_what_is_listed_in_any_order_of_namespaces_is_given_once_though_the_moment_is_gone(world: World) -> None:
    for namespace in ("bank", "park", "shop"):
        for number in range(4):
            await make(world, f"w{number}", namespace=namespace)
    for page in range(1, 4):
        world.listed.clear()
        world.before_list = gone_at(page)
        report = await world.prune(widgets(maxAge="1ns", dryRun=True))
        assert (report.matched, report.outcomes) == (12, {"would_end": 12})


# --- any kind ---------------------------------------------------------------------------------------------------------


async def make(world: World, name: str, *, namespace: str = "shop", **fields: Any) -> None:  # noqa: ANN401 - as in a document
    await world.store.create(WIDGET, Document({"metadata": {"name": name, "namespace": namespace}, **fields}))
    world.clock.advance(3600)


async def test_any_kind_is_grouped_by_any_field(world: World) -> None:
    for number, colour in enumerate(("red", "blue", "red", "blue", "red")):
        await make(world, f"w{number}", spec={"colour": colour, "state": "done" if number else "busy"})
    only_when = [{"fieldPath": "spec.state", "in": ["done"]}]
    report = await world.prune(widgets(groupBy=["spec.colour"], maxCount=1, onlyWhen=only_when))
    assert await world.left(WIDGET) == ["w0", "w3", "w4"]
    assert report.matched == 4
    told = {(row.domain, row.address) for row in await world.rows()}
    assert told == {("retention", f"Widget.test.lapse.dev/shop/{name}") for name in ("w1", "w2")}


async def test_the_system_namespace_is_left_alone_unless_it_is_named(world: World) -> None:
    for namespace in ("shop", "kube-system"):
        await make(world, "w", namespace=namespace)
    await world.prune(widgets(maxAge="1ns"))
    assert [one.metadata.namespace for one in (await world.store.list(WIDGET)).items] == ["kube-system"]
    named = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "namespaces": ["kube-system"]}
    await world.prune(widgets(selector=named, maxAge="1ns"))
    assert await world.left(WIDGET) == []


async def test_metadata_is_all_that_is_read_where_it_is_enough(world: World) -> None:
    await world.runs(5)
    await world.prune(limit=100)
    assert world.listed == [PartialObject] * 2  # five records in pages of three
    world.listed.clear()
    await make(world, "w")
    await world.prune(widgets(ageFrom="spec.when", maxAge="1h"))
    assert world.listed == [Document]


async def test_without_a_time_at_the_path_nothing_goes(world: World) -> None:
    for number, when in enumerate((None, "yesterday", 7)):
        await make(world, f"w{number}", spec={"when": when})
    report = await world.prune(widgets(ageFrom="spec.when", maxAge="1ns", maxCount=1))
    assert len(await world.left(WIDGET)) == 3
    assert report.kept == {"missing_anchor": 3, "not_yet": 0}


async def test_a_kind_that_does_not_exist_is_told(world: World) -> None:
    with pytest.raises(UnknownKindError):
        await world.prune(widgets(selector={"apiVersion": "v1", "kind": "Unicorn"}))


# --- a store that can count -------------------------------------------------------------------------------------------


class CountingWorld(World):
    """One whose store is asked how much there is."""

    async def summary(self, kind: Kind[Any], **question: Any) -> Any:  # noqa: ANN401 - as it is asked
        return await self.store.summary(kind, **question)

    async def list_created_before(self, kind: Kind[Any], moment: str, **question: Any) -> Any:  # noqa: ANN401 - as it is asked
        self.listed.append(kind.type)
        page = await self.store.list_created_before(kind, moment, **question)
        self.read += len(page.items)
        return page

    read = 0
    """Objects of the pages that were listed by their age."""


async def test_nothing_is_listed_when_the_precheck_finds_that_nothing_can_be_due(world: World) -> None:
    counting = CountingWorld(world.store, world.clock, world.journal, world.metrics)
    await world.runs(3)
    await world.runs(2, namespace="bank", status="failure")
    nothing: list[dict[str, Any]] = [{"limit": 3}, {"limit": 0, "ttl": Duration(5 * HOUR)}, {"keep_last_success": 1}]
    for how in nothing:
        prechecked = await counting.prune(**how)
        assert counting.listed == []
        assert prechecked == await world.prune(**how)
        assert prechecked.matched == 5

    something: list[dict[str, Any]] = [{"limit": 2}, {"ttl": Duration(3 * HOUR)}]
    for how in something:
        counting.listed.clear()
        assert (await counting.prune(**how)).due.total() == 1
        assert counting.listed != []


async def test_only_what_is_old_enough_is_read_where_nothing_can_be_due_but_by_its_age(world: World) -> None:
    counting = CountingWorld(world.store, world.clock, world.journal, world.metrics)
    names = await world.runs(20)
    expected = await world.prune(ttl=Duration(15 * HOUR), limit=20, dry_run=True)
    found = await counting.prune(ttl=Duration(15 * HOUR), limit=20)
    assert await world.left() == names[5:]
    assert counting.read == 5 + 1  # those of the same second are read and stay
    assert (found.matched, found.due, found.kept) == (expected.matched, expected.due, expected.kept)


@pytest.mark.parametrize("how", [{"limit": 19}, {"limit": 20, "keep_last_success": 1}], ids=["too many", "the last"])
async def test_everything_is_read_where_others_decide_about_one(world: World, how: dict[str, Any]) -> None:
    counting = CountingWorld(world.store, world.clock, world.journal, world.metrics)
    await world.runs(20)
    await counting.prune(ttl=Duration(15 * HOUR), **how)
    assert counting.listed
    assert counting.read == 0


async def test_the_precheck_says_nothing_about_fields_that_are_no_labels(world: World) -> None:
    counting = CountingWorld(world.store, world.clock, world.journal, world.metrics)
    await some(world, "good", "bad")
    await counting.prune(widgets(groupBy=["spec.state"], maxCount=1))
    assert counting.listed != []
    counting.listed.clear()
    await counting.prune(widgets(groupBy=["metadata.namespace"], maxCount=2))
    assert counting.listed == []


# --- several policies -------------------------------------------------------------------------------------------------

GOOD = {"count": 1, "where": {"fieldPath": "spec.state", "in": ["good"]}}


async def some(world: World, *states: str) -> None:
    """Make widgets w0, w1 ... with an hour in between; the newest is an hour old."""
    for number, state in enumerate(states):
        await make(world, f"w{number}", spec={"state": state})


async def test_either_limit_of_any_policy_deletes_and_the_journal_names_all_that_wanted_it(world: World) -> None:
    await some(world, "bad", "bad", "bad", "bad")
    old, many = widgets("old", maxAge="210m"), widgets("many", maxCount=2)
    told: list[PassItem] = []
    reports = await world.passing(old, many, on_item=told.append).run()
    assert await world.left(WIDGET) == ["w2", "w3"]
    assert reports["old"].due == {"ttl_expired": 1}
    assert reports["many"].due == {"retention_limit": 2}
    assert reports["old"].kept == {"not_yet": 3}
    assert {one.entry.name: (one.policies, one.outcome) for one in told} == {
        "w0": (("old", "many"), "ended"),
        "w1": (("many",), "ended"),
    }
    details = {row.address[-2:]: row.details for row in await world.rows()}
    assert details == {"w0": {"policy": "old", "policies": ["many", "old"]}, "w1": {"policy": "many"}}
    # Each policy decides for itself: two of them about four widgets.
    exposition = world.metrics.exposition().decode()
    assert 'lapse_decisions_total{domain="retention",verdict="due"} 3.0' in exposition
    assert 'lapse_decisions_total{domain="retention",verdict="keep"} 5.0' in exposition


@pytest.mark.parametrize("is_dry", [True, False])
async def test_what_one_policy_keeps_no_other_deletes_at_once_by_age_or_by_number(world: World, is_dry: bool) -> None:  # noqa: FBT001 - a case
    await some(world, "good", "bad", "good", "bad", "bad")
    keeper = widgets("keeper", keepLast=GOOD, dryRun=is_dry)
    for other in (widgets("other", maxAge="90m"), widgets("other", maxCount=1)):
        reports = await world.passing(other, keeper).run()
        assert await world.left(WIDGET) == ["w2", "w4"]
        assert reports["other"].kept["keep_last"] == 1


async def test_a_policy_that_may_not_act_protects_and_reports_nothing(world: World) -> None:
    await some(world, "good", "bad", "bad")
    keeper = widgets("keeper", maxAge="1ns", keepLast=GOOD)
    reports = await world.passing(widgets("other", maxAge="150m"), keeper, acting={"other"}).run()
    assert list(reports) == ["other"]
    assert await world.left(WIDGET) == ["w0", "w1", "w2"]
    await world.passing(widgets("other", maxAge="90m"), keeper, acting={"other"}).run()
    assert await world.left(WIDGET) == ["w0", "w2"]


async def test_what_a_dry_run_and_a_real_policy_want_is_really_ended_and_the_rest_is_only_told(world: World) -> None:
    await some(world, "bad", "bad", "bad")
    dry, real = widgets("dry", maxAge="1ns", dryRun=True), widgets("real", maxCount=2)
    told: list[PassItem] = []
    reports = await world.passing(dry, real, on_item=told.append).run()
    assert await world.left(WIDGET) == ["w1", "w2"]
    assert reports["dry"].outcomes == {"would_end": 3}
    assert reports["real"].outcomes == {"ended": 1}
    found = {one.entry.name: (one.policies, str(one.verdict.reason), str(one.outcome)) for one in told}
    assert found == {
        "w0": (("real", "dry"), "retention_limit", "ended"),
        "w1": (("dry",), "ttl_expired", "would_end"),
        "w2": (("dry",), "ttl_expired", "would_end"),
    }


async def test_one_listing_covers_what_policies_of_other_labels_and_namespaces_are_about(world: World) -> None:
    for namespace in ("bank", "park", "shop"):
        for colour in ("red", "blue"):
            metadata = {"name": colour, "namespace": namespace, "labels": {"colour": colour, "size": "big"}}
            await world.store.create(WIDGET, Document({"metadata": metadata}))
    world.clock.advance(3600)
    selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind}
    red = {**selector, "namespaces": ["bank"], "labels": {"colour": "red", "size": "big"}}
    blue = {**selector, "namespaces": ["shop", "bank"], "labels": {"colour": "blue", "size": "big"}}
    reports = await world.passing(
        widgets("red", selector=red, maxAge="1ns"), widgets("blue", selector=blue, maxAge="1ns"), page=10
    ).run()
    assert len(world.listed) == 2  # a page for each namespace
    assert {name: report.matched for name, report in reports.items()} == {"red": 1, "blue": 2}
    left = {one.metadata.key for one in (await world.store.list(WIDGET)).items}
    assert left == {("park", "red"), ("park", "blue"), ("shop", "red")}


async def test_a_pass_is_over_one_kind(world: World) -> None:
    with pytest.raises(ValueError, match="one kind"):
        world.passing(history_policy(), widgets())
    with pytest.raises(ValueError, match="one kind"):
        world.passing()


async def test_only_pages_with_records_of_other_operators_are_read_whole(world: World) -> None:
    await world.runs(9, experiment="a-ours")
    spec = {
        "experimentRef": {"name": "theirs", "namespace": "shop"},
        "execution": {"startTime": "2026-01-31T12:00:00Z", "status": "success"},
    }
    for number in range(4):
        body = {"metadata": {"name": f"b-{number}", "namespace": NAMESPACE}, "spec": spec}
        await world.store.create(CHAOS_EXPERIMENT_HISTORY, body)
    await world.runs(6, experiment="c-ours")
    report = await world.prune(limit=100)

    assert (report.matched, report.unlabelled) == (19, 4)
    # Pages of three: three of ours, one that is read again, one more of theirs and then ours again.
    assert world.listed.count(Document) <= 4
    assert world.listed.count(PartialObject) >= 5
