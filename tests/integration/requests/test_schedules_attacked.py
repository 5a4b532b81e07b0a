"""Schedules under crashes, beside a second process, with a cache that is behind, and beside a hostile tenant."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lapse.engine.journal.port import Outcome
from lapse.requests.api.conditions import ConditionReason, ScheduleReason
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    SCHEDULE,
    SCHEDULED_AT,
)
from tests.integration.requests.test_schedules import KEY, MANIFESTS, at, change, nights, runs, schedule, status, told
from tests.integration.requests.test_two_processes import see_each_other
from tests.integration.requests.world import NAMESPACE, Crash, Wire, World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Json, ObjectKey
    from lapse.requests.schedules.retention import SupersededRuns

START = "2027-06-01T12:00"
SPEC: Json = {**MANIFESTS["manifestCapture"], "artifactTTL": "never"}
HOUR = 3600


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, clock=at(START)) as world:
        await world.config_map("settings")
        yield world


# --- crashes and races ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True], ids=["before", "answer-lost"])
async def test_a_crash_between_any_two_calls_makes_every_run_once_and_ends_what_it_should(
    tmp_path: Path,
    *,
    applied: bool,
) -> None:
    for number in range(1, 200):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with opened(folder, clock=at("2027-06-01T12:50")) as world:
            await world.config_map("settings")
            await schedule(world, schedule="0 * * * *", keep={"last": 1})
            world.wire.applied, world.wire.crash_at = applied, len(world.wire.calls) + number
            end, crashed = world.clock.wall_ns() + 75 * 60 * 10**9, False
            with suppress(Crash, BaseExceptionGroup):
                await world.live(minutes=75, step=300)
            if world.wire.dead:
                crashed = True
                await world.restart(wire=Wire(world.store))
                await world.rest()
                await world.live((end - world.clock.wall_ns()) / 10**9, step=300)
            assert await runs(world) == ["06-01T14:00"], f"after a crash at call {number}"
            assert len(await world.names(MANIFEST_CHECKPOINT)) == 1
            ended = [row for row in await world.journal_rows(domain="schedules") if row.outcome is Outcome.ENDED]
            assert [row.details["scheduled"] for row in ended if row.details] == ["2027-06-01T13:00:00Z"]
            if not crashed:
                return
    raise AssertionError("it never gets through")


async def test_a_run_that_was_made_and_lapsed_before_anybody_wrote_that_down_is_not_made_again(world: World) -> None:
    await schedule(world)

    def fail(call: Any) -> None:  # noqa: ANN401 - a call of the wire
        if call.method == "patch_status" and call.kind == "CaptureSchedule":
            raise Crash

    await world.live(hours=14.9, step=HOUR)
    world.wire.before = fail
    with pytest.raises((Crash, BaseExceptionGroup)):
        await world.live(hours=0.2, step=60)
    request = (await world.all(MANIFEST_CAPTURE_REQUEST))[0]
    await world.restart(wire=Wire(world.store))
    controllers = world.controllers
    world.controllers = [one for one in controllers if one.name != "captureschedules"]
    await world.live(hours=1, step=60)
    assert not await world.exists(request)
    world.controllers = controllers
    await world.live(hours=1, step=60)
    assert await runs(world) == ["06-02T03:00"]
    assert (await status(world)).last_schedule_time == "2027-06-02T03:00:00Z"


async def test_two_processes_that_both_think_they_lead_make_a_run_once_and_end_each_once(tmp_path: Path) -> None:
    clock = at(START)
    async with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as other:
        await one.config_map("settings")
        await schedule(one, keep={"last": 1})
        for _ in range(3):
            clock.advance(24 * HOUR)
            await see_each_other(one, other)
            both = (one.requests.schedules.reconcile(KEY), other.requests.schedules.reconcile(KEY))
            await asyncio.gather(*both, return_exceptions=True)
            for world in (one, other):
                await see_each_other(one, other)
                await world.settle()
            await see_each_other(one, other)
            sweeps = [world.requests.loops[-1].sweeps[0] for world in (one, other)]
            await asyncio.gather(*(sweep.run(proceed=lambda: True) for sweep in sweeps))
            await see_each_other(one, other)
        assert await runs(one) == ["06-04T03:00"]
        rows = [row for row in await one.journal_rows(domain="schedules") if row.outcome is Outcome.ENDED]
        assert len({row.uid for row in rows}) == len(rows) == 2


async def test_the_last_good_artifact_is_not_ended_for_one_that_only_the_cache_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedule(world, keep={"last": 1})
    await nights(world, 1)
    (first,) = await world.all(OBJECT_KEEPER)
    await world.hold(first)
    await nights(world, 1)
    await world.release(first)
    await world.caught_up()
    newest = next(one for one in await world.all(OBJECT_KEEPER) if one.metadata.uid != first.metadata.uid)
    read = world.requests.caches.read

    async def without_the_newest(kind: Any, key: ObjectKey) -> Any:  # noqa: ANN401 - as the real one
        """What the store says when the newest was deleted a moment ago, and the cache has not heard of it."""
        found = await read(kind, key)
        owner = None if found is None else found.metadata.controller
        return None if owner is not None and owner.uid == newest.metadata.uid else found

    monkeypatch.setattr(world.requests.caches, "read", without_the_newest)
    world.advance(11 * 60)
    await world.sweep()
    assert await world.exists(first)
    monkeypatch.undo()
    await world.live(hours=1, step=600)
    assert not await world.exists(first)


async def test_a_schedule_that_is_suspended_while_a_sweep_looks_ends_nothing(world: World) -> None:
    await schedule(world, keep={"last": 3})
    await nights(world, 3)
    found = await world.store.get(CAPTURE_SCHEDULE, KEY)
    domain: SupersededRuns = world.requests.superseded
    keepers = {one.metadata.key: one for one in domain.keepers(found)}
    due = [domain._find(key) for key in keepers]
    await change(world, suspend=True)
    fresh = await domain.refresh([one for one in due if one is not None])
    assert {one.state.is_swept for one in fresh if one is not None} == {False}


# --- forgery ----------------------------------------------------------------------------------------------------------


def forged(name: str, scheduled: str, **more: Any) -> Json:  # noqa: ANN401 - any part of metadata or spec
    metadata = {
        "namespace": NAMESPACE,
        "name": name,
        "labels": {SCHEDULE: "nightly"},
        "annotations": {SCHEDULED_AT: scheduled},
    }
    return {"metadata": metadata | more.get("metadata", {}), "spec": more.get("spec", SPEC)}


OTHER: Json = {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "others"}], "artifactTTL": "never"}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (forged("mine", "2027-06-04T03:00:00Z"), "its name is not nightly-202706040300"),
        (forged("nightly-202706040300", "soon"), "it does not say for which time"),
        (forged("nightly-202706030300", "2027-06-03T03:00:00Z"), "was not the latest time of the schedule"),
        (forged("nightly-203006040300", "2030-06-04T03:00:00Z"), "was not the latest time of the schedule"),
        (forged("nightly-202706040301", "2027-06-04T03:01:00Z"), "was not the latest time of the schedule"),
        (forged("nightly-202706040300", "2027-06-04T03:00:00Z", spec=OTHER), "the schedule asks for something else"),
        (
            forged("nightly-202706040300", "2027-06-04T03:00:00Z", spec={**SPEC, "artifactTTL": "1h"}),
            "the schedule asks for something else",
        ),
        (
            forged("other-202706040300", "2027-06-04T03:00:00Z", metadata={"labels": {SCHEDULE: "other"}}),
            "there is no such schedule",
        ),
    ],
)
async def test_a_request_that_only_says_that_it_is_a_run_makes_nothing(world: World, body: Json, problem: str) -> None:
    await schedule(world, keep={"last": 2})
    await nights(world, 3)
    await world.live(hours=1, step=600)  # the requests have lapsed
    before = await runs(world)
    await world.config_map("others")
    request = await world.store.create(MANIFEST_CAPTURE_REQUEST, body)
    await world.rest()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INCOMPATIBLE
    assert problem in outcome[1]
    assert "Make a request of your own without that label" in outcome[1]
    assert await runs(world) == before == ["06-03T03:00", "06-04T03:00"]


async def test_a_run_that_is_repeated_by_somebody_takes_no_place(world: World) -> None:
    await schedule(world, keep={"last": 2})
    await nights(world, 3)
    kept = {one.metadata.uid for one in await world.all(OBJECT_KEEPER)}
    for _ in range(3):
        await world.live(hours=1, step=600)
        body = forged("nightly-202706040300", "2027-06-04T03:00:00Z")
        request = await world.store.create(MANIFEST_CAPTURE_REQUEST, body)
        await world.rest()
        assert await world.reason(request) == ConditionReason.COMPLETED
    await world.live(hours=1, step=600)
    assert {one.metadata.uid for one in await world.all(OBJECT_KEEPER)} == kept


@pytest.mark.parametrize(
    "lie",
    [
        {"lastScheduleTime": "2099-01-01T00:00:00Z"},
        {"lastScheduleTime": "1999-01-01T00:00:00Z"},
        {"notBefore": "2099-01-01T00:00:00Z"},
        {"notBefore": "1999-01-01T00:00:00Z"},
        {"observedSchedule": "* * * * * UTC"},
        {"lastSuccessfulTime": "2099-01-01T00:00:00Z", "kept": 100},
    ],
)
async def test_a_forged_status_ends_nothing_and_the_next_run_is_made(world: World, lie: Json) -> None:
    await schedule(world, keep={"last": 3})
    await nights(world, 3)
    kept = await runs(world)
    await world.store.patch_status(CAPTURE_SCHEDULE, KEY, lie)
    await world.live(hours=2, step=600)
    assert await runs(world) == kept
    await nights(world, 1)
    assert await runs(world) == [*kept[1:], "06-05T03:00"]


async def test_a_keeper_that_follows_another_schedule_of_that_name_is_left_alone(world: World) -> None:
    made = await schedule(world, keep={"last": 3})
    await nights(world, 3)
    await world.delete(made)
    await schedule(world, keep={"last": 1})
    await world.live(hours=1, step=600)
    assert len(await runs(world)) == 3
    assert not await world.journal_rows(domain="schedules")


async def test_a_run_whose_name_is_taken_says_so(world: World) -> None:
    await schedule(world)
    body = {"metadata": {"namespace": NAMESPACE, "name": "nightly-202706020300"}, "spec": OTHER | {"artifactTTL": "1h"}}
    await world.live(hours=14.9, step=HOUR)
    await world.store.create(MANIFEST_CAPTURE_REQUEST, body)
    await world.live(minutes=8)
    _, reason, message = await told(world)
    assert reason == ScheduleReason.RUN_NOT_MADE
    assert f"mcr/{NAMESPACE}/nightly-202706020300 is there already, and is no run of it" in message
    await world.live(minutes=20)
    assert await runs(world) == ["06-02T03:00"], "once the other one has lapsed"
