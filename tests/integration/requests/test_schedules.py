"""Schedules on the real store and controllers, on virtual time: runs, missed ones, suspensions, and what stays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.engine.verbs.contract import DeleteRequest, ReleaseRequest, UndoRequest, WhyRequest
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.api.conditions import ConditionReason, ScheduleReason
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    SCHEDULE,
    SCHEDULED_AT,
    VOLUME_CAPTURE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.schedules.view import read_runs
from tests.integration.requests.people import person
from tests.integration.requests.world import NAMESPACE, World, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Json
    from lapse.requests.api.kinds import CaptureSchedule

KEY = ObjectKey(NAMESPACE, "nightly")
CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data"}
VOLUME: Json = {"volumeCapture": {"mode": "Snapshot", "target": CLAIM}}
MANIFESTS: Json = {"manifestCapture": {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]}}
HOUR = 3600
DAY = 24 * HOUR


def at(text: str) -> VirtualClock:
    """A clock that begins at a moment in UTC."""
    return VirtualClock(wall_ns=int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000_000)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, clock=at("2027-06-01T12:00")) as world:
        await world.volume("data")
        await world.config_map("settings")
        yield world


async def schedule(world: World, **spec: Any) -> CaptureSchedule:  # noqa: ANN401 - any part of a spec
    whole = {"schedule": "0 3 * * *", "template": MANIFESTS, "keep": {"last": 3}} | spec
    body = {"metadata": {"namespace": NAMESPACE, "name": "nightly"}, "spec": whole}
    found = await world.store.create(CAPTURE_SCHEDULE, body)
    await world.rest()
    return found


async def change(world: World, **spec: Any) -> None:  # noqa: ANN401 - as above
    await world.store.patch(CAPTURE_SCHEDULE, KEY, {"spec": spec})
    await world.rest()


async def status(world: World) -> Any:  # noqa: ANN401 - a status
    return (await world.store.get(CAPTURE_SCHEDULE, KEY)).status


async def told(world: World) -> tuple[str, str, str]:
    ready = ready_condition((await status(world)).conditions)
    assert ready is not None
    return ready.status, ready.reason, ready.message


async def runs(world: World) -> list[str]:
    """The times of the runs whose artifacts are kept."""
    return sorted(one.metadata.annotations[SCHEDULED_AT][5:16] for one in await world.all(OBJECT_KEEPER))


async def keepers_of_runs(world: World) -> list[Any]:
    return [one for one in await world.all(OBJECT_KEEPER) if SCHEDULE in one.metadata.labels]


async def snapshots_ready(world: World) -> None:
    for content in await world.all(VOLUME_SNAPSHOT_CONTENT):
        if content.status is None or not content.status.ready_to_use:
            await world.report(VOLUME_SNAPSHOT_CONTENT, content.metadata.key, {"readyToUse": True})
    await world.rest()


async def nights(world: World, count: int) -> None:
    for _ in range(count):
        await world.live(hours=24, step=HOUR)
        await snapshots_ready(world)


# --- runs -------------------------------------------------------------------------------------------------------------


async def test_a_run_makes_an_ordinary_request_and_its_keeper_follows_the_schedule(world: World) -> None:
    claim = await world.store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(NAMESPACE, "data"))
    made = await schedule(world, template=VOLUME)
    assert not await world.all(VOLUME_CAPTURE_REQUEST), "a schedule made now does not run for the past"
    assert (await status(world)).next_schedule_time == "2027-06-02T03:00:00Z"
    await world.live(hours=15, step=HOUR)
    (request,) = await world.all(VOLUME_CAPTURE_REQUEST)
    assert request.metadata.name == "nightly-202706020300"
    assert request.metadata.labels == {SCHEDULE: "nightly"}
    assert request.spec.target.uid == claim.metadata.uid
    assert request.spec.artifact_ttl == "never"
    keeper = await world.keeper(request)
    assert (keeper.spec.mode, keeper.spec.ttl) == (KeeperMode.FOLLOW_OBJECT_WITH_TTL, "24h")
    assert keeper.spec.follow_object_ref is not None
    assert (keeper.spec.follow_object_ref.kind, keeper.spec.follow_object_ref.uid) == (
        "CaptureSchedule",
        made.metadata.uid,
    )
    assert (await status(world)).active == 1
    await snapshots_ready(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    found = await status(world)
    assert (found.last_schedule_time, found.last_successful_time) == ("2027-06-02T03:00:00Z",) * 2
    assert (found.active, found.kept, found.next_schedule_time) == (0, 1, "2027-06-03T03:00:00Z")
    assert await told(world) == ("True", ScheduleReason.SCHEDULED, "")


async def test_artifacts_outlive_their_requests_by_weeks_while_the_schedule_is_there(world: World) -> None:
    await schedule(world, keep={"last": 1})
    await world.live(hours=15, step=HOUR)
    await change(world, suspend=True)
    await world.live(hours=24 * 60, step=12 * HOUR)
    assert not await world.all(MANIFEST_CAPTURE_REQUEST)
    assert await runs(world) == ["06-02T03:00"]
    assert len(await world.names(MANIFEST_CHECKPOINT)) == 1


async def test_a_schedule_that_came_back_keeps_its_runs_however_often_and_holds_them_first(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=at("2027-06-01T12:00"), services={"trash_ttl": Duration.parse("7d")}) as world:
        await world.config_map("settings")
        await schedule(world)
        await nights(world, 2)
        ann, name = person(world), "csched/shop/nightly"
        for made in (2, 3):
            kept = [f"keeper/{one.metadata.name}" for one in await keepers_of_runs(world)]
            assert len(kept) == made
            await ann.release(ReleaseRequest(address=name))
            await ann.delete(DeleteRequest(address=name))
            await world.live(hours=20, step=HOUR)
            assert (await keepers_of_runs(world))[0].status.lost_at is not None
            (back,) = (await ann.undo(UndoRequest(address=name))).items
            assert all(one in (back.says or "") for one in kept), "the answer tells what is held with it"
            told = [await ann.why(WhyRequest(address=one)) for one in kept]
            assert [one.hold for one in told] == [back.hold] * made
            again = await world.store.get(CAPTURE_SCHEDULE, KEY)
            assert len(await read_runs(world.store, again)) == made
            await world.rest()
            assert {one.status.lost_at for one in await keepers_of_runs(world)} == {None}
            assert (await status(world)).kept == made
            await nights(world, 1)
        assert len(await keepers_of_runs(world)) == 4, "no place is taken from what is held"
        await world.live(hours=8 * 24, step=HOUR)
        await world.requests.upkeep.tick()
        await nights(world, 1)
        assert len(await keepers_of_runs(world)) == 3, "the hold is over, and its tiers count for all of them"
        await change(world, suspend=True)
        await world.live(hours=24 * 30, step=12 * HOUR)
        assert len(await keepers_of_runs(world)) == 3


async def test_another_schedule_in_the_place_of_a_deleted_one_gets_none_of_its_runs(world: World) -> None:
    made = await schedule(world)
    await nights(world, 2)
    (old, _) = await keepers_of_runs(world)
    await world.store.delete(CAPTURE_SCHEDULE, KEY)
    await world.live(hours=1, step=HOUR)
    other = await schedule(world)
    assert other.metadata.uid != made.metadata.uid
    assert await read_runs(world.store, other) == []
    await world.live(hours=26, step=HOUR)
    assert not await world.exists(old)


@pytest.mark.parametrize("mode", [KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL])
async def test_deleting_a_schedule_keeps_its_artifacts_for_keeper_ttl(tmp_path: Path, mode: KeeperMode) -> None:
    policy = RequestPolicy(keeper_mode=mode, keeper_ttl=Duration.parse("5h"))
    async with opened(tmp_path, policy=policy, clock=at("2027-06-01T12:00")) as world:
        await world.config_map("settings")
        made = await schedule(world)
        await nights(world, 3)
        assert len(await runs(world)) == 3
        await world.delete(made)
        await world.live(hours=4.9, step=HOUR / 10)
        assert len(await world.names(MANIFEST_CHECKPOINT)) == 3
        await world.live(hours=1, step=HOUR / 10)
        assert not await world.names(MANIFEST_CHECKPOINT)
        assert {row.reason for row in await world.journal_rows(domain="keepers")} == {"ttl_expired"}


async def test_what_stays_are_the_newest_of_each_day_week_and_month(world: World) -> None:
    await schedule(world, keep={"daily": 3, "weekly": 2, "monthly": 2}, template=VOLUME)
    await nights(world, 35)
    # The 6th of July is a Tuesday: the last three days, the Sunday before, and the last of June.
    assert await runs(world) == ["06-30T03:00", "07-04T03:00", "07-05T03:00", "07-06T03:00"]
    assert len(await world.names(VOLUME_SNAPSHOT_CONTENT)) == 4
    rows = await world.journal_rows(domain="schedules")
    assert {row.reason for row in rows} == {"superseded"}
    assert len(rows) == 31
    assert rows[0].details == {"schedule": f"{NAMESPACE}/nightly", "scheduled": "2027-06-02T03:00:00Z"}
    assert (await status(world)).kept == 4


async def test_a_schedule_that_is_edited_keeps_less_at_once(world: World) -> None:
    await schedule(world, keep={"last": 10})
    await nights(world, 6)
    await change(world, keep={"last": 2})
    assert await runs(world) == ["06-06T03:00", "06-07T03:00"]


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2027-03-26T12:00", ["03-27T01:30", "03-28T01:00", "03-29T00:30"]),
        ("2027-10-29T12:00", ["10-30T00:30", "10-31T00:30", "11-01T01:30"]),
    ],
)
async def test_a_night_on_which_the_clocks_are_set_has_one_run(tmp_path: Path, start: str, expected: list[str]) -> None:
    async with opened(tmp_path, clock=at(start)) as world:
        await world.config_map("settings")
        await schedule(world, schedule="30 2 * * *", timeZone="Europe/Berlin", keep={"last": 10})
        await world.live(hours=72, step=600)
        assert await runs(world) == expected


async def test_missed_runs_are_made_up_by_one(world: World) -> None:
    await schedule(world, keep={"last": 10})
    await world.live(hours=16, step=HOUR)
    await world.stop()
    world.advance(seconds=3 * DAY + 6 * HOUR)
    await world.restart()
    await world.rest()
    assert await runs(world) == ["06-02T03:00", "06-05T03:00"]
    await world.live(hours=24, step=HOUR)
    assert await runs(world) == ["06-02T03:00", "06-05T03:00", "06-06T03:00"]


async def test_a_missed_run_that_is_later_than_the_starting_deadline_is_not_made_up(world: World) -> None:
    await schedule(world, startingDeadline="1h")
    await world.stop()
    world.advance(seconds=17 * HOUR)
    await world.restart()
    await world.rest()
    assert await runs(world) == []
    _, reason, message = await told(world)
    assert reason == ScheduleReason.SCHEDULED
    assert message == "the run of 2027-06-02T03:00:00Z was not made: it was later than startingDeadline"
    await world.live(hours=24, step=HOUR / 2)
    assert await runs(world) == ["06-03T03:00"]


async def test_runs_that_fall_into_a_suspension_are_not_made_up(world: World) -> None:
    await schedule(world, keep={"last": 10})
    await nights(world, 1)
    await change(world, suspend=True)
    assert (await told(world))[:2] == ("True", ScheduleReason.SUSPENDED)
    assert (await status(world)).next_schedule_time is None
    await world.live(hours=72, step=HOUR)
    await change(world, suspend=False)
    assert await runs(world) == ["06-02T03:00"]
    assert (await told(world))[:2] == ("True", ScheduleReason.SCHEDULED)
    await nights(world, 1)
    assert await runs(world) == ["06-02T03:00", "06-06T03:00"]


async def test_a_schedule_that_is_given_another_time_does_not_run_for_the_past(world: World) -> None:
    await schedule(world)
    await nights(world, 1)  # it is noon
    await change(world, schedule="0 11 * * *")
    assert await runs(world) == ["06-02T03:00"]
    await world.live(hours=24, step=HOUR)
    assert await runs(world) == ["06-02T03:00", "06-03T11:00"]


async def test_a_change_of_something_else_loses_no_run_that_was_missed(world: World) -> None:
    await schedule(world)
    await world.stop()
    world.advance(seconds=17 * HOUR)
    await world.store.patch(CAPTURE_SCHEDULE, KEY, {"spec": {"keep": {"last": 5}}})
    await world.restart()
    await world.rest()
    assert await runs(world) == ["06-02T03:00"]


async def test_while_nobody_knows_what_time_it_is_no_run_is_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await schedule(world)
    monkeypatch.setattr(world.clock, "in_doubt", lambda: True)
    await world.live(hours=16, step=HOUR)
    assert await runs(world) == []
    monkeypatch.undo()
    await world.live(hours=0.1)
    assert await runs(world) == ["06-02T03:00"]


async def test_nothing_is_called_while_nothing_is_due(world: World) -> None:
    await schedule(world)
    await world.live(hours=1, step=60)
    before = len(world.wire.writes)
    await world.live(hours=10, step=600)
    assert len(world.wire.writes) == before


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_run_whose_claim_is_not_there_is_told_and_made_once_it_is(world: World) -> None:
    target = {**CLAIM, "name": "later"}
    await schedule(world, template={"volumeCapture": {"mode": "Snapshot", "target": target}})
    await world.live(hours=15, step=HOUR)
    await world.live(minutes=1)
    ready, reason, message = await told(world)
    assert (ready, reason) == ("False", ScheduleReason.RUN_NOT_MADE)
    assert message == (
        "the run of 2027-06-02T03:00:00Z could not be made: There is no PersistentVolumeClaim shop/later."
    )
    assert (await status(world)).last_schedule_time is None
    await world.volume("later")
    await world.live(minutes=2)
    (request,) = await world.all(VOLUME_CAPTURE_REQUEST)
    assert request.metadata.name == "nightly-202706020300"
    assert (await told(world))[:2] == ("True", ScheduleReason.SCHEDULED)


async def test_a_failed_run_pushes_nothing_out_and_goes_by_itself(world: World) -> None:
    await schedule(world, template=VOLUME, keep={"last": 2})
    await nights(world, 2)
    for _ in range(2):
        await world.live(hours=24, step=HOUR)
        for content in await world.all(VOLUME_SNAPSHOT_CONTENT):
            if content.status is None:
                failed = {"readyToUse": False, "error": {"message": "no space"}}
                await world.report(VOLUME_SNAPSHOT_CONTENT, content.metadata.key, failed)
        await world.rest()
    ready, reason, message = await told(world)
    assert (ready, reason) == ("False", ScheduleReason.RUN_FAILED)
    assert message == "nightly-202706050300 has failed (Failed): no space"
    assert await runs(world) == ["06-02T03:00", "06-03T03:00", "06-04T03:00", "06-05T03:00"]
    await world.live(hours=1, step=60)
    assert (await told(world))[1] == ScheduleReason.RUN_FAILED, "also when the request has lapsed"
    found = await status(world)
    assert (found.last_schedule_time, found.last_successful_time) == ("2027-06-05T03:00:00Z", "2027-06-03T03:00:00Z")
    await nights(world, 3)
    assert await runs(world) == ["06-07T03:00", "06-08T03:00"]
    found_rows = await world.journal_rows(domain="schedules")
    rows = {row.details["scheduled"][5:10]: row.reason for row in found_rows if row.details}
    assert rows == {
        "06-02": "superseded", "06-03": "superseded", "06-06": "superseded",
        "06-04": "not_usable", "06-05": "not_usable",
    }  # fmt: skip


async def test_an_artifact_that_is_not_ready_is_no_reason_to_end_an_older_one(world: World) -> None:
    await schedule(world, template=VOLUME, keep={"last": 1})
    await nights(world, 1)
    await world.live(hours=24, step=HOUR)
    assert await runs(world) == ["06-02T03:00", "06-03T03:00"]
    await snapshots_ready(world)
    assert await runs(world) == ["06-03T03:00"]


async def test_a_schedule_that_cannot_be_read_says_so_and_ends_nothing(world: World) -> None:
    await schedule(world, keep={"last": 2})
    await nights(world, 2)
    await change(world, timeZone="Europe/Atlantis", keep={"last": 1})
    ready, reason, message = await told(world)
    assert (ready, reason) == ("False", ScheduleReason.INVALID_SCHEDULE)
    assert "'Europe/Atlantis' is not a time zone. Expected a name of the IANA database" in message
    await nights(world, 1)
    assert len(await runs(world)) == 2
    await change(world, timeZone=None)
    assert await runs(world) == ["06-03T03:00"]


async def test_where_schedules_may_not_capture_manifests_the_status_says_so(tmp_path: Path) -> None:
    services = {"scheduled_manifests": False}
    async with opened(tmp_path, clock=at("2027-06-01T12:00"), services=services) as world:
        await world.config_map("settings")
        await schedule(world)
        await nights(world, 1)
        ready, reason, message = await told(world)
        assert (ready, reason) == ("False", ScheduleReason.NOT_ALLOWED)
        assert "may set schedule_manifests to admitted" in message
        assert not await world.all(MANIFEST_CAPTURE_REQUEST)


# --- holds and brakes -------------------------------------------------------------------------------------------------


async def test_what_is_held_stays_until_it_is_released(world: World) -> None:
    await schedule(world, keep={"last": 1})
    await nights(world, 1)
    (first,) = await world.all(OBJECT_KEEPER)
    await world.hold(first)
    await nights(world, 2)
    assert await runs(world) == ["06-02T03:00", "06-04T03:00"]
    await world.release(first)
    await world.live(hours=1, step=600)
    assert await runs(world) == ["06-04T03:00"]


async def test_a_held_schedule_keeps_all_of_its_artifacts(world: World) -> None:
    made = await schedule(world, keep={"last": 1})
    await nights(world, 1)
    await world.hold(made)
    await nights(world, 2)
    assert len(await runs(world)) == 3
    await world.release(await world.fresh(made))
    await world.live(hours=1, step=600)
    assert await runs(world) == ["06-04T03:00"]


async def test_a_dry_run_tells_what_would_go_and_ends_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=at("2027-06-01T12:00"), services={"dry_run": True}) as world:
        await world.config_map("settings")
        await schedule(world, keep={"last": 1})
        await nights(world, 2)
        assert len(await runs(world)) == 2
        rows = await world.journal_rows(domain="schedules")
        assert {(row.outcome, row.reason) for row in rows} == {("would_end", "superseded")}


@pytest.mark.parametrize("told_now", [{"error": {"message": "x"}}, {"readyToUse": False}, {"readyToUse": None}])
async def test_an_outage_that_is_told_on_artifacts_ends_none_of_them(world: World, told_now: Json) -> None:
    await schedule(world, template=VOLUME, keep={"last": 5})
    await nights(world, 5)
    for content in await world.all(VOLUME_SNAPSHOT_CONTENT):
        await world.report(VOLUME_SNAPSHOT_CONTENT, content.metadata.key, {"snapshotHandle": "h", **told_now})
    await world.live(hours=72, step=HOUR)
    assert len(await runs(world)) >= 5
