"""The rules of the fire-and-forget pattern and its anti-patterns, each held by a test of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.duration import Duration
from lapse.kube.controller.controller import DependencyMissingError
from lapse.kube.errors import ForbiddenError, InvalidError, NotFoundError, StoreUnavailableError
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    REQUEST_KINDS,
    SNAPSHOT_CLASS,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.controllers.caches import WATCHED
from lapse.requests.controllers.capture import VolumeCapture
from lapse.requests.controllers.detach import Detach
from lapse.requests.controllers.manifests import ManifestCapture
from lapse.requests.controllers.restore import VolumeRestore
from lapse.requests.lifecycle.keeper import KeeperController
from lapse.requests.lifecycle.policy import RequestPolicy, RestoreOwnership
from tests.integration.requests.stories import answer, detach, done, manifests, restore, snapshot
from tests.integration.requests.world import NAMESPACE, Call, World, content_key, keeper_key, kind_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import Json, Kind, Object
    from tests.integration.requests.stories import Ask


every_request = pytest.mark.parametrize("ask", [snapshot, detach, restore, manifests])
with_artifacts = pytest.mark.parametrize("ask", [snapshot, detach, manifests])
ARTIFACTS: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOT_CONTENT, PERSISTENT_VOLUME, MANIFEST_CHECKPOINT, MANIFEST_CHUNK)


async def artifacts(world: World) -> list[Any]:
    return [obj for kind in ARTIFACTS for obj in await world.all(kind) if obj.metadata.owner_references]


# --- ownership --------------------------------------------------------------------------------------------------------


@with_artifacts
async def test_a_request_never_owns_artifacts(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    found = await artifacts(world)
    assert found
    for obj in found:
        assert request.metadata.uid not in {owner.uid for owner in obj.metadata.owner_references}


@with_artifacts
async def test_the_keeper_is_the_only_controller_owner(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    keeper = await world.keeper(request)
    for obj in await artifacts(world):
        assert [owner.uid for owner in obj.metadata.owner_references if owner.controller] == [keeper.metadata.uid]
        (owner,) = [owner for owner in obj.metadata.owner_references if owner.controller]
        assert (owner.api_version, owner.kind, owner.name) == (
            OBJECT_KEEPER.api_version,
            "ObjectKeeper",
            keeper.metadata.name,
        )


@every_request
async def test_there_are_no_finalizers_on_anything(world: World, ask: Ask) -> None:
    await done(world, ask)
    for call in world.wire.writes:
        metadata = (call.body or {}).get("metadata") or {}
        assert "finalizers" not in metadata, call
    for body in (await world.state()).values():
        assert "finalizers" not in body["metadata"]


@every_request
async def test_the_keeper_follows_its_request_by_name_and_uid(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    keeper = await world.keeper(request)
    followed = keeper.spec.follow_object_ref
    assert followed is not None
    assert (followed.kind, followed.namespace, followed.name, followed.uid) == (
        kind_of(request).kind,
        NAMESPACE,
        "one",
        request.metadata.uid,
    )
    assert keeper.spec.mode == KeeperMode.FOLLOW_OBJECT_WITH_TTL
    assert Duration.parse(keeper.spec.ttl or "") == Duration.parse("24h")
    assert not keeper.metadata.owner_references


@every_request
async def test_an_empty_keeper_uid_means_come_back_in_a_second_and_no_artifact(world: World, ask: Ask) -> None:
    request = await ask(world)
    await world.caught_up()
    before = {kind.kind: await world.names(kind) for kind in ARTIFACTS}

    def without_uid(call: Call, answer: Any) -> Any:  # noqa: ANN401 - any object
        if str(call) != "get ObjectKeeper":
            return answer
        return OBJECT_KEEPER.convert({**OBJECT_KEEPER.body(answer), "metadata": {"name": answer.metadata.name}})

    world.wire.after = without_uid
    assert (await world.reconcile(request)).requeue_after == 1.0
    assert {kind.kind: await world.names(kind) for kind in ARTIFACTS} == before
    assert (await world.fresh(request)).status is None, "nothing is recorded before the uid is known"
    assert await artifacts(world) == []
    world.wire.after = lambda _call, answer: answer
    await world.live(5, step=1)
    await answer(world, request)
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED


@every_request
@pytest.mark.parametrize("wrong", ["uid", "mode"])
async def test_an_existing_keeper_of_another_uid_or_mode_is_refused(world: World, ask: Ask, wrong: str) -> None:
    request = await ask(world)
    kind = kind_of(request)
    followed = {"apiVersion": kind.api_version, "kind": kind.kind, "namespace": NAMESPACE, "name": "one"}
    uid = "somebody-else" if wrong == "uid" else request.metadata.uid
    spec: dict[str, Any] = {"mode": KeeperMode.FOLLOW_OBJECT, "followObjectRef": {**followed, "uid": uid}}
    if wrong == "uid":
        spec |= {"mode": KeeperMode.FOLLOW_OBJECT_WITH_TTL, "ttl": "24h"}
    await world.store.create(OBJECT_KEEPER, {"metadata": {"name": keeper_key(request).name}, "spec": spec})
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INTERNAL_ERROR
    assert ("it follows another object" if wrong == "uid" else "its mode is FollowObject") in outcome[1]
    assert await artifacts(world) == []
    assert len(await world.all(PERSISTENT_VOLUME_CLAIM)) == (0 if ask in {restore, manifests} else 1)


@pytest.mark.parametrize("ask", [snapshot, manifests])
async def test_an_existing_artifact_of_somebody_else_is_refused(world: World, ask: Ask) -> None:
    first = await ask(world)
    await world.settle()
    name = content_key(first) if ask is snapshot else ObjectKey(None, (await world.names(MANIFEST_CHECKPOINT))[0])
    kind = VOLUME_SNAPSHOT_CONTENT if ask is snapshot else MANIFEST_CHECKPOINT
    # The same request in a new process, before it recorded anything, finds an object that its keeper does not own.
    await world.delete(await world.keeper(first))
    await world.caught_up()
    body: Any = {"metadata": {"name": name.name}, "spec": {}}
    await world.store.create(kind, body)
    recorded = "artifactRef" if ask is snapshot else "checkpointName"
    blank: Json = {"conditions": [], "completionTimestamp": None, recorded: None}
    await world.store.patch_status(kind_of(first), first.metadata.key, blank)
    await world.settle()
    outcome = await world.outcome(first)
    assert outcome is not None
    assert outcome[0] == ConditionReason.INTERNAL_ERROR
    assert "not owned by the keeper of this request" in outcome[1]


# --- what is made, and what is not ------------------------------------------------------------------------------------


@every_request
async def test_no_volume_snapshot_and_no_claim_is_ever_created_by_our_controllers(world: World, ask: Ask) -> None:
    await done(world, ask)
    created = {call.kind for call in world.wire.writes if call.method == "create"}
    assert created <= {"ObjectKeeper", "VolumeSnapshotContent", "ManifestCheckpoint", "ManifestCheckpointContentChunk"}


async def test_the_content_is_made_directly_from_volume_and_class(world: World) -> None:
    request = await done(world, snapshot)
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    spec = content.spec
    assert (spec.driver, spec.deletion_policy, spec.volume_snapshot_class_name) == ("csi.example.com", "Delete", "fast")
    assert spec.source.volume_handle == "vol-data"
    assert request.status.artifact_ref.uid == content.metadata.uid


@pytest.mark.parametrize("ask", [snapshot, detach])
async def test_no_artifact_is_created_twice(world: World, ask: Ask) -> None:
    request = await ask(world)
    await world.reconcile(request)
    artifact = (await world.fresh(request)).status.artifact_ref
    kind: Kind[Any] = VOLUME_SNAPSHOT_CONTENT if ask is snapshot else PERSISTENT_VOLUME
    await world.store.delete(kind, ObjectKey(None, artifact.name))
    await world.live(minutes=5, step=5)
    assert await world.reason(request) == ConditionReason.NOT_FOUND
    assert await world.all(kind) == []


async def test_a_checkpoint_that_is_gone_is_not_created_again(world: World) -> None:
    request = await manifests(world)

    def broken(call: Call) -> None:
        if str(call) == "create ManifestCheckpointContentChunk":
            raise StoreUnavailableError(problem="try later")

    world.wire.before = broken
    await world.settle()
    assert len(await world.all(MANIFEST_CHECKPOINT)) == 1
    await world.delete((await world.all(MANIFEST_CHECKPOINT))[0])
    world.wire.before = lambda _call: None
    await world.live(minutes=5, step=5)
    assert await world.reason(request) == ConditionReason.NOT_FOUND
    assert await world.all(MANIFEST_CHECKPOINT) == []


@every_request
async def test_a_terminal_request_is_not_touched_by_a_thousand_reconciles(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    before = {name: body["metadata"]["resourceVersion"] for name, body in (await world.state()).items()}
    world.wire.calls.clear()
    for _ in range(1000):
        result = await world.reconcile(request)
        assert result.requeue_after is None
    assert {name: body["metadata"]["resourceVersion"] for name, body in (await world.state()).items()} == before
    assert world.wire.calls == [], "the cache knows that it is final"


@every_request
async def test_a_failed_request_is_never_tried_again(world: World, ask: Ask) -> None:
    request = await ask(world)
    await world.caught_up()

    def forbidden(call: Call) -> None:
        if call.kind == "ObjectKeeper":
            raise ForbiddenError(problem="objectkeepers is forbidden")

    world.wire.before = forbidden
    await world.settle()
    world.wire.before = lambda _call: None
    assert await world.reason(request) == ConditionReason.RBAC_DENIED
    version = (await world.fresh(request)).metadata.resource_version
    await world.live(minutes=5)
    await world.restart()
    await world.live(minutes=3)
    assert (await world.fresh(request)).metadata.resource_version == version
    assert await world.all(OBJECT_KEEPER) == []


@every_request
async def test_a_change_of_the_spec_is_rejected(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    kind = kind_of(request)
    changes = {
        VOLUME_CAPTURE_REQUEST: {"mode": "Detach" if request.spec is None else "Snapshot", "target": {"name": "other"}},
        VOLUME_RESTORE_REQUEST: {"pvcTemplate": {"metadata": {"name": "other"}}},
        MANIFEST_CAPTURE_REQUEST: {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "other"}]},
    }[kind]
    with pytest.raises(InvalidError, match="immutable"):
        await world.store.patch(kind, request.metadata.key, {"spec": changes})
    assert (await world.fresh(request)).metadata.resource_version == request.metadata.resource_version


@every_request
async def test_a_pending_request_has_no_ready_condition(world: World, ask: Ask) -> None:
    request = await ask(world)

    def no_end(call: Call) -> None:
        if call.method == "patch_status" and call.kind == kind_of(request).kind and "conditions" in (call.body or {}):
            raise StoreUnavailableError(problem="before the end is written")

    world.wire.before = no_end
    await world.live(seconds=10, step=1)
    found = await world.fresh(request)
    assert found.status is None or ready_condition(found.status.conditions) is None
    assert found.status is None or found.status.completion_timestamp is None


# --- what executors report --------------------------------------------------------------------------------------------


async def test_the_error_of_a_snapshot_is_translated_with_its_message(world: World) -> None:
    request = await snapshot(world)
    await world.settle()
    await world.snapshot_failed(request, "rpc error: code = ResourceExhausted desc = pool is full")
    await world.settle()
    assert await world.outcome(request) == (
        ConditionReason.FAILED,
        "rpc error: code = ResourceExhausted desc = pool is full",
    )
    assert len(await world.all(VOLUME_SNAPSHOT_CONTENT)) == 1, "nothing is healed"


async def test_a_message_of_any_length_ends_the_request(world: World) -> None:
    request = await snapshot(world)
    await world.settle()
    await world.snapshot_failed(request, "a long story " * 10_000)
    await world.live(minutes=2)
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.FAILED
    assert outcome[1].startswith("a long story a long story ")
    assert len(outcome[1]) <= 32_768


async def test_an_error_without_a_message_is_an_error(world: World) -> None:
    request = await snapshot(world)
    await world.settle()
    await world.snapshot_failed(request, None)
    await world.settle()
    assert await world.outcome(request) == (
        ConditionReason.FAILED,
        "the snapshotter reported an error without a message",
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Lost"}, "the PersistentVolumeClaim shop/restored has lost its volume"),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "ProvisioningFailed", "status": "True", "message": "no space in pool"}],
            },
            "no space in pool",
        ),
    ],
)
async def test_the_failure_of_a_provisioner_is_translated_with_its_message(
    world: World, status: dict[str, Any], message: str
) -> None:
    request = await restore(world)
    await world.settle()
    await world.provision(request, status=status)
    await world.settle()
    assert await world.outcome(request) == (ConditionReason.RESTORE_FAILED, message)


async def test_executors_do_not_write_the_status_of_a_request_and_controllers_not_that_of_others(world: World) -> None:
    for kind in REQUEST_KINDS:
        await world.completed(kind, kind.short)
    written = {call.kind for call in world.wire.writes if call.method == "patch_status"}
    ours = {kind.kind for kind in REQUEST_KINDS} | {"ObjectKeeper", "ManifestCheckpoint"}
    assert written == ours


# --- caches and configuration -----------------------------------------------------------------------------------------


async def test_a_claim_and_a_request_applied_in_the_same_instant_do_not_end_in_not_found(world: World) -> None:
    await world.classes()
    await world.stop()  # the caches hear of nothing any more
    request = await world.capture("one", await world.volume())
    await world.reconcile(request)
    assert await world.outcome(request) is None
    assert len(await world.all(VOLUME_SNAPSHOT_CONTENT)) == 1


async def test_a_snapshot_and_its_restore_applied_in_the_same_instant_do_not_end_in_not_found(world: World) -> None:
    await world.stop()
    request = await world.restore("one", await world.snapshot())
    await world.reconcile(request)
    assert await world.outcome(request) is None


async def test_a_claim_that_was_replaced_is_found_although_the_cache_has_the_old_one(world: World) -> None:
    old = await world.volume()
    await world.caught_up()
    await world.stop()
    await world.delete(old)
    request = await world.capture("one", await world.volume())
    await world.reconcile(request)
    assert await world.outcome(request) is None


async def test_a_refusal_by_an_outdated_volume_is_confirmed_first(world: World) -> None:
    claim = await world.volume(reclaim="Delete")
    await world.caught_up()
    await world.stop()
    policy = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    await world.store.patch(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"), policy)
    request = await world.capture("one", claim, mode="Detach")
    await world.reconcile(request)
    assert await world.outcome(request) is None


async def test_a_volume_that_was_released_a_moment_ago_can_be_restored_from(world: World) -> None:
    await world.volume()
    await world.caught_up()
    await world.stop()
    volume = await world.released()
    request = await world.restore("one", volume)
    await world.reconcile(request)
    assert await world.outcome(request) is None


async def test_a_claim_that_was_there_before_and_is_replaced_by_the_provisioner_is_no_obstacle(world: World) -> None:
    await world.volume("restored")
    old = (await world.all(PERSISTENT_VOLUME_CLAIM))[0]
    world.advance(10)
    source = await world.snapshot()
    await world.caught_up()
    await world.stop()
    await world.delete(old)
    request = await world.restore("one", source)
    await world.provision(request)
    await world.reconcile(request)
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_configuration_is_read_directly_and_never_watched(world: World) -> None:
    assert STORAGE_CLASS not in WATCHED
    assert VOLUME_SNAPSHOT_CLASS not in WATCHED
    await done(world, snapshot)
    informers = world.requests.caches._informers
    assert STORAGE_CLASS not in informers
    assert VOLUME_SNAPSHOT_CLASS not in informers
    reads = [str(call) for call in world.wire.calls]
    assert "get StorageClass" in reads
    assert "get VolumeSnapshotClass" in reads


async def test_a_storage_class_that_changed_after_the_start_is_seen(world: World) -> None:
    claim = await world.volume()
    await world.caught_up()
    other = {"metadata": {"name": "other"}, "driver": "csi.example.com", "deletionPolicy": "Retain"}
    await world.apply(VOLUME_SNAPSHOT_CLASS, other)
    await world.apply(STORAGE_CLASS, {"metadata": {"name": "fast", "annotations": {SNAPSHOT_CLASS: "other"}}})
    request = await world.capture("one", claim)
    await world.settle()
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))
    assert (content.spec.volume_snapshot_class_name, content.spec.deletion_policy) == ("other", "Retain")


@pytest.mark.parametrize("missing", ["store", "direct", "caches", "policy", "clock"])
@pytest.mark.parametrize("controller", [VolumeCapture, VolumeRestore, ManifestCapture, Detach, KeeperController])
def test_a_controller_without_a_dependency_cannot_be_built(controller: Any, missing: str) -> None:  # noqa: ANN401
    stand_in = object()
    dependencies: dict[str, Any] = dict.fromkeys(("store", "direct", "caches", "policy", "clock"), stand_in)
    more = {
        VolumeCapture: ("detach", "runs"),
        VolumeRestore: ("executor", "notes"),
        ManifestCapture: ("runs",),
        Detach: ("executor",),
    }
    dependencies |= dict.fromkeys(more.get(controller, ()), stand_in)
    if controller is KeeperController:
        dependencies["keepers"] = dependencies.pop("policy")
        missing = "keepers" if missing == "policy" else missing
    if controller not in {Detach, KeeperController}:
        with pytest.raises(TypeError):
            controller()  # none has a default
    dependencies[missing] = None
    with pytest.raises(DependencyMissingError, match=missing):
        controller(**dependencies)


def test_a_capture_without_detach_and_a_detach_without_ender_cannot_be_built() -> None:
    common: dict[str, Any] = dict.fromkeys(("store", "direct", "caches", "policy", "clock"), object())
    with pytest.raises(DependencyMissingError, match="detach"):
        VolumeCapture(detach=None, runs=object(), **common)  # type: ignore[arg-type]
    with pytest.raises(DependencyMissingError, match="runs"):
        VolumeCapture(detach=object(), runs=None, **common)  # type: ignore[arg-type]
    with pytest.raises(DependencyMissingError, match="executor"):
        Detach(executor=None, **common)  # type: ignore[arg-type]


# --- our own failures are no outcomes ---------------------------------------------------------------------------------


@every_request
async def test_a_forbidden_call_is_rbac_denied(world: World, ask: Ask) -> None:
    request = await ask(world)
    await world.caught_up()

    def forbidden(call: Call) -> None:
        if str(call) == "create ObjectKeeper":
            raise ForbiddenError(problem="objectkeepers.deckhouse.io is forbidden")

    world.wire.before = forbidden
    await world.settle()
    outcome = await world.outcome(request)
    assert outcome is not None
    assert outcome[0] == ConditionReason.RBAC_DENIED
    assert "objectkeepers.deckhouse.io is forbidden" in outcome[1]


@every_request
@pytest.mark.parametrize(
    "said", [StoreUnavailableError(problem="500 informer-sync failed"), ForbiddenError(problem="no")]
)
async def test_a_denial_by_a_server_that_is_not_ready_is_not_an_outcome(
    world: World, ask: Ask, said: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has just started knows nobody's rights, and not even who may ask whether it is ready."""

    def forbidden(call: Call) -> None:
        if str(call) == "create ObjectKeeper":
            raise ForbiddenError(problem="objectkeepers.deckhouse.io is forbidden")

    async def not_ready() -> None:
        raise said

    request = await ask(world)
    await world.caught_up()
    world.wire.before = forbidden
    with monkeypatch.context() as starting:
        starting.setattr(world.wire, "check", not_ready, raising=False)
        with pytest.raises(StoreUnavailableError):
            await world.reconcile(request)
    world.wire.before = lambda _call: None
    await done(world, lambda _world: _itself(request))


async def _itself(request: Any) -> Any:  # noqa: ANN401 - any request
    return request


@every_request
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer-lost"])
async def test_a_timeout_or_a_500_of_our_own_call_is_not_an_outcome(
    tmp_path: Path,
    ask: Ask,
    *,
    lost: bool,
) -> None:
    """Each call of the whole story fails once, in turn; each time the story ends as it would have."""
    failed_at = 0
    while True:
        failed_at += 1
        folder = tmp_path / str(failed_at)
        folder.mkdir()
        async with opened(folder) as world:
            if not await _with_one_failure(world, ask, failed_at, lost=lost):
                break
    assert failed_at > 5


async def _with_one_failure(world: World, ask: Ask, number: int, *, lost: bool) -> bool:
    failures: list[Call] = []

    def fail(call: Call) -> None:
        if len(world.wire.calls) >= number and not failures:
            failures.append(call)
            raise StoreUnavailableError(problem="500 from the API server")

    def lose(call: Call, found: Any) -> Any:  # noqa: ANN401
        fail(call)
        return found

    if lost:
        world.wire.after = lose
    else:
        world.wire.before = fail
    request = await ask(world)
    await world.live(60, step=30)
    assert await world.reason(request) in {None, ConditionReason.COMPLETED}, failures
    await answer(world, request)
    await world.live(120, step=30)
    assert await world.reason(request) == ConditionReason.COMPLETED, failures
    return bool(failures)


async def test_a_store_that_is_away_for_an_hour_delays_a_capture_and_nothing_else(world: World) -> None:
    request = await snapshot(world)

    def away(_call: Call) -> None:
        raise StoreUnavailableError(problem="being restarted")

    world.wire.before = away
    await world.live(hours=1, step=30)
    assert await world.outcome(request) is None
    world.wire.before = lambda _call: None
    await world.live(minutes=2, step=10)
    await world.snapshot_ready(request)
    await world.live(minutes=2, step=10)
    assert await world.reason(request) == ConditionReason.COMPLETED


# --- restored data ----------------------------------------------------------------------------------------------------


async def test_a_restored_claim_survives_its_request_and_its_keeper(world: World) -> None:
    request = await done(world, restore)
    claim = (await world.all(PERSISTENT_VOLUME_CLAIM))[0]
    assert request.status.pvc_ref.uid == claim.metadata.uid
    await world.live(hours=26, step=1800)
    assert not await world.exists(request)
    assert await world.all(OBJECT_KEEPER) == []
    assert (await world.fresh(claim)).metadata.owner_references == ()


async def test_with_ownership_by_the_keeper_a_restored_claim_goes_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path, policy=RequestPolicy(restore_ownership=RestoreOwnership.KEEPER)) as world:
        request = await done(world, restore)
        claim = (await world.all(PERSISTENT_VOLUME_CLAIM))[0]
        assert [owner.uid for owner in claim.metadata.owner_references] == [(await world.keeper(request)).metadata.uid]
        await world.live(hours=26, step=1800)
        assert not await world.exists(claim)


async def test_a_restore_whose_source_is_gone_once_the_data_has_arrived_is_complete(world: World) -> None:
    source = await world.snapshot()
    request = await world.restore("one", source)
    await world.settle()
    await world.stop()
    await world.provision(request)
    await world.delete(source)
    await world.restart()
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_a_volume_that_is_bound_to_the_very_claim_that_was_asked_for_is_restored(world: World) -> None:
    """A provisioner may bind the volume itself to the new claim."""
    await world.volume()
    volume = await world.released()
    request = await world.restore("one", volume)
    await world.settle()
    await world.stop()
    claim = await world.provision(request)
    reference = {"namespace": NAMESPACE, "name": "restored", "uid": claim.metadata.uid}
    await world.store.patch(PERSISTENT_VOLUME, volume.metadata.key, {"spec": {"claimRef": reference}})
    await world.report(PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Bound"})
    await world.restart()
    await world.settle()
    assert await world.reason(request) == ConditionReason.COMPLETED


# --- owners and garbage -----------------------------------------------------------------------------------------------


@with_artifacts
async def test_artifacts_go_with_their_keeper_and_not_before(world: World, ask: Ask) -> None:
    request = await done(world, ask)
    found = await artifacts(world)
    await world.live(hours=23, step=3600)
    assert not await world.exists(request)
    assert [await world.exists(obj) for obj in found if not hasattr(obj, "body")]
    for obj in found:
        assert await _is_there(world, obj)
    await world.live(hours=3, step=1800)
    for obj in found:
        assert not await _is_there(world, obj)


async def _is_there(world: World, obj: Object) -> bool:
    try:
        await world.store.get(kind_of(obj), obj.metadata.key)
    except NotFoundError:
        return False
    return True


@with_artifacts
async def test_an_artifact_with_a_second_owner_survives(world: World, ask: Ask) -> None:
    await done(world, ask)
    heir = await world.config_map("heir")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "heir", "uid": heir.metadata.uid}
    artifact = (await artifacts(world))[0]
    kind = kind_of(artifact)
    owners = kind.body(artifact)["metadata"]["ownerReferences"]
    await world.store.patch(kind, artifact.metadata.key, {"metadata": {"ownerReferences": [*owners, reference]}})
    await world.live(hours=26, step=1800)
    assert await world.all(OBJECT_KEEPER) == []
    left = await world.fresh(artifact)
    assert [owner.uid for owner in left.metadata.owner_references] == [heir.metadata.uid]
