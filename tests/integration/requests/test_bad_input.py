"""What users get wrong: each ends with a clear condition or error, nothing is lost and nothing is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.kube.errors import InvalidError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    SNAPSHOT_CLASS,
    TTL,
    VOLUME_CAPTURE_REQUEST,
)
from lapse.requests.api.upstream import (
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.lifecycle.policy import PolicyError, RequestPolicy, TTLMode
from tests.integration.requests.world import NAMESPACE, World, content_key, opened

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = "n" * 253


async def nothing_was_made(world: World) -> bool:
    kinds: tuple[Any, ...] = (OBJECT_KEEPER, VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT, MANIFEST_CHUNK)
    return not [name for kind in kinds for name in await world.names(kind)]


async def ends(world: World, request: Any) -> tuple[str, str]:  # noqa: ANN401 - any request
    await world.live(minutes=2, step=30)
    outcome = await world.outcome(request)
    assert outcome is not None
    return outcome


# --- targets and sources ----------------------------------------------------------------------------------------------


async def test_an_unknown_mode_is_refused_before_it_is_stored(world: World) -> None:
    claim = await world.volume()
    with pytest.raises(InvalidError, match=r"spec\.mode"):
        await world.capture("one", claim, mode="Teleport")


async def test_an_unknown_mode_that_is_stored_all_the_same_is_invalid(world: World) -> None:
    """An older server, or one without our rules, may hold it."""
    request = await world.capture("one", await world.volume())
    await world.caught_up()

    def teleport(call: Any, answer: Any) -> Any:  # noqa: ANN401
        if str(call) != "get VolumeCaptureRequest":
            return answer
        body = VOLUME_CAPTURE_REQUEST.body(answer)
        return VOLUME_CAPTURE_REQUEST.convert({**body, "spec": {**body["spec"], "mode": "Teleport"}})

    world.wire.after = teleport
    await world.settle()
    assert await world.outcome(request) == (
        ConditionReason.INVALID_MODE,
        "unknown mode Teleport: expected Snapshot or Detach",
    )
    assert await nothing_was_made(world)


@pytest.mark.parametrize("mode", ["Snapshot", "Detach"])
async def test_a_missing_target_is_not_found(world: World, mode: str) -> None:
    request = await world.capture("one", mode=mode, target={"name": "nobody", "uid": "0-0"})
    assert await ends(world, request) == (
        ConditionReason.NOT_FOUND,
        "there is no PersistentVolumeClaim shop/nobody with uid 0-0",
    )
    assert await nothing_was_made(world)


@pytest.mark.parametrize("mode", ["Snapshot", "Detach"])
async def test_a_target_of_another_uid_is_not_found_and_not_touched(world: World, mode: str) -> None:
    claim = await world.volume()
    request = await world.capture("one", mode=mode, target={"name": "data", "uid": "of-an-earlier-claim"})
    assert (await ends(world, request))[0] == ConditionReason.NOT_FOUND
    assert await world.exists(claim)
    assert await nothing_was_made(world)


async def test_a_target_of_another_kind_is_unsupported(world: World) -> None:
    request = await world.capture("one", target={"kind": "Pod", "name": "app", "uid": "1"})
    assert (await ends(world, request))[0] == ConditionReason.UNSUPPORTED_TARGET_KIND


async def test_a_target_in_another_namespace_is_not_found(world: World) -> None:
    claim = await world.volume(namespace="elsewhere")
    request = await world.capture("one", claim)
    assert (await ends(world, request))[0] == ConditionReason.NOT_FOUND


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ({"csi": False}, ConditionReason.INCOMPATIBLE, "is not a CSI volume"),
        ({"storage_class": None}, ConditionReason.INCOMPATIBLE, "names no StorageClass"),
        ({"storage_class": "absent"}, ConditionReason.NOT_FOUND, "There is no StorageClass absent"),
        ({"phase": "Lost"}, ConditionReason.INVALID_SOURCE, "has lost its volume"),
    ],
)
async def test_a_volume_that_cannot_be_captured_is_named(
    world: World, given: dict[str, Any], reason: ConditionReason, words: str
) -> None:
    request = await world.capture("one", await world.volume(**given))
    found, message = await ends(world, request)
    assert found == reason
    assert words in message
    assert await nothing_was_made(world)


async def test_a_storage_class_without_a_snapshot_class_is_incompatible(world: World) -> None:
    await world.classes(snapshot_class=None)
    request = await world.capture("one", await world.volume())
    reason, message = await ends(world, request)
    assert reason == ConditionReason.INCOMPATIBLE
    assert SNAPSHOT_CLASS in message


async def test_a_snapshot_class_that_does_not_exist_is_not_found(world: World) -> None:
    await world.classes(snapshot_class="absent")
    request = await world.capture("one", await world.volume())
    assert (await ends(world, request))[0] == ConditionReason.NOT_FOUND


async def test_a_snapshot_class_of_another_driver_is_incompatible(world: World) -> None:
    claim = await world.volume()
    await world.apply(VOLUME_SNAPSHOT_CLASS, {"metadata": {"name": "fast"}, "driver": "other.example.com"})
    request = await world.capture("one", claim)
    reason, message = await ends(world, request)
    assert reason == ConditionReason.INCOMPATIBLE
    assert "other.example.com" in message


async def test_a_volume_that_is_gone_is_not_found(world: World) -> None:
    claim = await world.volume()
    await world.store.delete(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"))
    request = await world.capture("one", claim)
    assert await ends(world, request) == (ConditionReason.NOT_FOUND, "there is no PersistentVolume pv-data")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"apiVersion": "v1", "kind": "Secret", "name": "x"}, ConditionReason.INVALID_SOURCE),
        (
            {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": "x"},
            ConditionReason.NOT_FOUND,
        ),
        ({"apiVersion": "v1", "kind": "PersistentVolume", "name": "x"}, ConditionReason.NOT_FOUND),
        (
            {"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv-data", "uid": "other"},
            ConditionReason.NOT_FOUND,
        ),
        ({"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv-data"}, ConditionReason.PV_BOUND),
    ],
)
async def test_a_source_that_cannot_be_restored_from_is_refused(
    world: World, source: dict[str, str], reason: ConditionReason
) -> None:
    await world.volume()
    request = await world.restore("one", source_ref=source)
    assert (await ends(world, request))[0] == reason
    assert await nothing_was_made(world)


async def test_a_snapshot_that_failed_is_an_invalid_source(world: World) -> None:
    source = await world.snapshot(ready=False)
    await world.report(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"error": {"message": "pool is full"}})
    request = await world.restore("one", source)
    reason, message = await ends(world, request)
    assert reason == ConditionReason.INVALID_SOURCE
    assert "pool is full" in message


async def test_a_claim_that_was_there_before_is_not_taken_for_the_restored_one(world: World) -> None:
    claim = await world.volume("restored")
    world.advance(5)
    request = await world.restore("one", await world.snapshot())
    assert (await ends(world, request))[0] == ConditionReason.INCOMPATIBLE
    assert (await world.fresh(claim)).metadata.owner_references == ()


# --- names and sizes --------------------------------------------------------------------------------------------------


async def test_names_at_the_limit_are_captured_restored_and_lapse(world: World) -> None:
    claim = await world.volume(LONGEST[: 253 - len("pv-")])
    request = await world.capture(LONGEST, claim)
    await world.settle()
    await world.snapshot_ready(request)
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED
    source = await world.snapshot(LONGEST)
    restored = await world.restore(LONGEST, source, claim=LONGEST)
    await world.settle()
    await world.provision(restored)
    await world.settle()
    assert await world.reason(restored) == ConditionReason.COMPLETED
    target = await world.config_map(LONGEST)
    manifests = await world.capture_manifests(LONGEST, target)
    await world.settle()
    assert await world.reason(manifests) == ConditionReason.COMPLETED
    for kind in (OBJECT_KEEPER, VOLUME_SNAPSHOT_CONTENT, MANIFEST_CHECKPOINT, MANIFEST_CHUNK):
        assert all(len(name) <= 253 for name in await world.names(kind))
    await world.live(minutes=12)
    assert await world.all(MANIFEST_CAPTURE_REQUEST) == []
    assert {row.address.rpartition("/")[2] for row in await world.journal_rows()} == {LONGEST}


async def test_a_name_beyond_the_limit_is_refused(world: World) -> None:
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        await world.capture_manifests(LONGEST + "n", await world.config_map("settings"))


async def test_a_megabyte_of_annotations_is_refused(world: World) -> None:
    claim = await world.volume()
    with pytest.raises(InvalidError, match=r"metadata\.annotations have 1000004 bytes"):
        await world.capture("one", claim, annotations={"note": "x" * 1_000_000})
    assert await world.all(VOLUME_CAPTURE_REQUEST) == []


@pytest.mark.parametrize("mode", [*TTLMode])
async def test_annotations_that_leave_no_room_for_the_ttl_do_not_keep_a_request_from_ending(
    tmp_path: Path, mode: TTLMode
) -> None:
    async with opened(tmp_path, policy=RequestPolicy(request_ttl_mode=mode)) as world:
        claim = await world.volume()
        request = await world.capture("one", claim, annotations={"note": "x" * (256 * 1024 - 4)})
        await world.settle()
        await world.snapshot_ready(request)
        await world.settle()
        assert await world.reason(request) == ConditionReason.COMPLETED
        assert TTL not in (await world.fresh(request)).metadata.annotations
        await world.live(minutes=9)
        assert await world.exists(request)
        await world.live(minutes=4, step=30)
        assert not await world.exists(request)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0s", "0"])
def test_a_request_ttl_of_zero_is_a_start_up_error(text: str) -> None:
    with pytest.raises(PolicyError, match="request_ttl"):
        RequestPolicy(request_ttl=Duration(0) if text == "0" else Duration.parse(text))


@pytest.mark.parametrize("setting", ["request_ttl", "request_deadline", "keeper_ttl"])
def test_a_duration_that_would_end_everything_at_once_is_a_start_up_error(setting: str) -> None:
    with pytest.raises(PolicyError, match=setting):
        RequestPolicy(**{setting: Duration.parse("0s")})  # type: ignore[arg-type]


# --- odd worlds -------------------------------------------------------------------------------------------------------


async def test_a_request_that_is_deleted_while_it_is_worked_on_is_let_go(world: World) -> None:
    request = await world.capture("one", await world.volume())
    await world.settle()
    await world.delete(request)
    await world.snapshot_ready(request)
    await world.live(minutes=5)
    assert await world.all(VOLUME_CAPTURE_REQUEST) == []


async def test_a_new_request_of_the_same_name_is_another_request(world: World) -> None:
    claim = await world.volume()
    first = await world.capture("one", claim)
    await world.settle()
    await world.delete(first)
    second = await world.capture("one", claim)
    await world.settle()
    await world.snapshot_ready(second)
    await world.settle()
    assert await world.reason(second) == ConditionReason.COMPLETED
    assert len(await world.all(VOLUME_SNAPSHOT_CONTENT)) == 2
    assert content_key(first) != content_key(second)


async def test_a_condition_of_somebody_else_is_kept_beside_ours(world: World) -> None:
    request = await world.capture("one", await world.volume())
    await world.settle()
    theirs = {"type": "Audited", "status": "True", "reason": "Seen"}
    pending = {"type": "Ready", "status": "False", "reason": "Processing", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    await world.store.patch_status(VOLUME_CAPTURE_REQUEST, request.metadata.key, {"conditions": [theirs, pending]})
    await world.settle()
    await world.snapshot_failed(request, "broken")
    await world.settle()
    found = (await world.fresh(request)).status
    assert found is not None
    assert {condition.type: condition.reason for condition in found.conditions} == {
        "Audited": "Seen",
        "Ready": ConditionReason.FAILED,
    }
    ready = next(condition for condition in found.conditions if condition.type == "Ready")
    assert ready.last_transition_time == "2020-01-01T00:00:00Z", "its status has not changed"


async def test_everything_that_the_users_own_is_left_alone(world: World) -> None:
    await world.volume()
    settings = await world.config_map("settings")
    await world.capture_manifests("one", settings)
    await world.live(hours=30, step=3600)
    left: dict[Any, list[str]] = {
        PERSISTENT_VOLUME_CLAIM: ["data"],
        PERSISTENT_VOLUME: ["pv-data"],
        STORAGE_CLASS: ["fast"],
        CONFIG_MAP: ["settings"],
    }
    for kind, names in left.items():
        assert await world.names(kind) == names
    assert settings.metadata.namespace == NAMESPACE
    assert await nothing_was_made(world)
