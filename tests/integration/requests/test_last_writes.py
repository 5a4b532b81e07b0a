"""The last writes of a request, and who makes them: the finalise function, then the scanner, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.errors import ConflictError
from lapse.kube.resources import ready_condition
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import REQUEST_KINDS, TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.lifecycle.policy import RequestPolicy, TTLMode
from tests.integration.requests.world import Call, World, opened

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import Condition, Kind

every_kind = pytest.mark.parametrize("kind", REQUEST_KINDS, ids=lambda kind: kind.short)
OVER = 3600.0


async def ready_of(world: World, request: Any) -> Condition:  # noqa: ANN401 - any request
    found = ready_condition((await world.fresh(request)).status.conditions)
    assert found is not None
    return found


async def test_a_conflict_on_the_record_of_an_artifact_does_not_begin_the_step_again(world: World) -> None:
    request = await world.capture("nightly", await world.volume())
    await world.caught_up()
    refused: list[Call] = []

    def lose(call: Call) -> None:
        if str(call) == "patch_status VolumeCaptureRequest" and len(refused) < 4:
            refused.append(call)
            raise ConflictError(kind="VolumeCaptureRequest", name="nightly", problem="somebody labelled it")

    world.wire.before = lose
    await world.reconcile(request)
    assert len(refused) == 4
    status = (await world.fresh(request)).status
    assert status is not None
    assert status.artifact_ref is not None
    assert [str(call) for call in world.wire.calls].count("create VolumeSnapshotContent") == 1


@pytest.mark.parametrize("method", ["patch", "patch_status"])
async def test_a_conflict_on_the_last_writes_is_retried(world: World, method: str) -> None:
    request = await world.capture("nightly", await world.volume())
    await world.settle()
    await world.snapshot_ready(request)
    await world.caught_up()
    refused: list[Call] = []

    def lose(call: Call) -> None:
        if (call.method, call.kind) == (method, VOLUME_CAPTURE_REQUEST.kind) and len(refused) < 3:
            refused.append(call)
            raise ConflictError(kind=call.kind, name=call.key, problem="somebody was faster")

    world.wire.before = lose
    await world.reconcile(request)  # one reconcile, and no error of it

    assert len(refused) == 3
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert (await world.fresh(request)).metadata.annotations[TTL] == "10m"


async def test_what_somebody_wrote_in_between_is_kept(world: World) -> None:
    request = await world.capture("nightly", await world.volume())
    await world.settle()
    await world.snapshot_ready(request)
    await world.stop()  # the caches hear of nothing any more
    await world.annotate(request, {"team": "blue"})
    await world.reconcile(request)

    assert await world.reason(request) == ConditionReason.COMPLETED
    assert (await world.fresh(request)).metadata.annotations["team"] == "blue"


@pytest.mark.parametrize("fail", [False, True], ids=["after success", "after failure"])
async def test_the_last_transition_time_moves_only_when_the_status_does(tmp_path: Path, *, fail: bool) -> None:
    async with opened(tmp_path, policy=RequestPolicy(request_ttl_mode=TTLMode.ANNOTATION)) as world:
        request = await world.completed(VOLUME_CAPTURE_REQUEST, fail=fail)
        before = await ready_of(world, request)
        world.advance(60)
        await world.annotate(request, {TTL: "10minutes"})
        await world.settle()
        after = await ready_of(world, request)

        assert after.reason == ConditionReason.INVALID_TTL
        assert (after.last_transition_time == before.last_transition_time) is fail
        completed = (await world.fresh(request)).status.completion_timestamp
        assert completed == request.status.completion_timestamp, "set once"


@every_kind
async def test_where_a_scanner_decides_a_reconcile_knows_nothing_of_the_ttl(world: World, kind: Kind[Any]) -> None:
    request = await world.completed(kind)
    world.advance(OVER)
    for _ in range(10):
        assert (await world.reconcile(request)).requeue_after is None
    assert await world.exists(request)

    await world.sweep()
    assert not await world.exists(request)


async def test_the_scanner_deletes_and_writes_nothing_else(world: World) -> None:
    for kind in REQUEST_KINDS:
        await world.completed(kind, kind.short)
    world.advance(OVER)
    world.wire.calls.clear()
    await world.sweep()

    assert sorted(map(str, world.wire.calls)) == sorted(f"delete {kind.kind}" for kind in REQUEST_KINDS)
