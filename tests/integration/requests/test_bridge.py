"""The bridge on virtual time: every step, every way back, and a crash between any two calls.

The stock controllers are played (`tests.integration.requests.cluster`); the same with the real ones is in
`tests/integration/operator/test_restores.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.errors import ForbiddenError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    BEFORE_RESTORE,
    OBJECT_KEEPER,
    RESTORE_TO,
    RESTORED_FROM,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
    KeeperMode,
)
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.lifecycle.policy import RequestPolicy
from tests.integration.requests.cluster import BRIDGED, play
from tests.integration.requests.test_crashes import Story, crashing, either_side
from tests.integration.requests.world import CLASS, DRIVER, NAMESPACE, content_key, keeper_key, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.requests.api.upstream import PersistentVolume, PersistentVolumeClaim, VolumeSnapshotContent
    from tests.integration.requests.world import World

RESTORED = ObjectKey(NAMESPACE, "restored")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path, services=BRIDGED) as found:
        yield found


async def captured(world: World, name: str = "source") -> VolumeSnapshotContent:
    """A snapshot that the capture controller has made, and whose claim is gone."""
    claim = await world.volume(f"{name}-data")
    volume = ObjectKey(None, f"pv-{name}-data")
    await world.store.patch(PERSISTENT_VOLUME, volume, {"spec": {"capacity": {"storage": "5Gi"}}})
    capture = await world.capture(name, claim)
    await world.settle()
    await world.snapshot_ready(capture)
    await world.settle()
    await world.delete(claim)
    return await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(capture))


async def detached(world: World) -> PersistentVolume:
    """A volume that the capture controller has detached."""
    claim = await world.volume()
    key = ObjectKey(None, "pv-data")
    await world.store.patch(PERSISTENT_VOLUME, key, {"spec": {"capacity": {"storage": "5Gi"}}})
    capture = await world.capture("away", claim, mode="Detach")
    await world.live(5, step=1)
    await world.report(PERSISTENT_VOLUME, key, {"phase": "Released"})
    assert await world.reason(capture) == ConditionReason.COMPLETED
    return await world.store.get(PERSISTENT_VOLUME, key)


async def go_on(world: World, *, rounds: int = 6, provisions: bool = True) -> None:
    """Let our controllers and those of the cluster work in turn."""
    for _ in range(rounds):
        await world.live(1, step=1)
        await play(world, provisions=provisions)
    await world.live(1, step=1)


async def claim_of(world: World) -> PersistentVolumeClaim | None:
    return next((one for one in await world.all(PERSISTENT_VOLUME_CLAIM) if one.metadata.key == RESTORED), None)


async def bridges(world: World) -> list[str]:
    """The names of all that stands between sources and claims."""
    kinds: tuple[Any, ...] = (VOLUME_SNAPSHOT, VOLUME_SNAPSHOT_CONTENT)
    return [name for kind in kinds for name in await world.names(kind) if name.startswith("restore-")]


async def owners(world: World, kind: Any, name: str) -> list[str]:  # noqa: ANN401 - a kind
    return [owner.name for owner in (await world.store.get(kind, ObjectKey(None, name))).metadata.owner_references]


# --- crashes ----------------------------------------------------------------------------------------------------------


class Restored(Story):
    """A restore from a source that is there already, up to its good end and until nothing of the bridge is left."""

    def __init__(self, prepare: Any) -> None:  # noqa: ANN401 - makes a source
        super().__init__(prepare)
        self._make, self._source = prepare, None

    async def prepare(self, world: World) -> None:
        self._source = await self._make(world)

    async def tell(self, world: World) -> None:
        if self.request is None:
            self.request = await world.restore("one", self._source)
        await go_on(world, rounds=10)
        assert await world.reason(self.request) == ConditionReason.COMPLETED
        assert await bridges(world) == []


@pytest.mark.parametrize("source", [captured, detached])
@either_side
async def test_a_crash_between_any_two_calls_of_a_restore_changes_nothing_about_its_end(
    tmp_path: Path,
    source: Any,  # noqa: ANN401 - makes one
    *,
    applied: bool,
) -> None:
    calls, left = await crashing(tmp_path, lambda: Restored(source), applied=applied, services=BRIDGED)
    assert calls > 8, "there are so many steps at least"
    assert not [one for one in left if BEFORE_RESTORE in one]


# --- from a snapshot --------------------------------------------------------------------------------------------------


async def test_what_was_captured_decides_what_the_request_leaves_open(world: World) -> None:
    source = await captured(world)
    request = await world.restore("one", source)
    await go_on(world)
    claim = await claim_of(world)
    assert claim is not None
    assert claim.spec.storage_class_name == CLASS
    assert claim.spec.resources is not None
    assert claim.spec.resources.requests == {"storage": "5Gi"}
    assert (claim.metadata.annotations[RESTORED_FROM], claim.metadata.owner_references) == (request.metadata.uid, ())


async def test_a_source_is_pinned_while_it_is_needed_and_no_longer(world: World) -> None:
    source = await captured(world)
    (first,) = await owners(world, VOLUME_SNAPSHOT_CONTENT, source.metadata.name)
    request = await world.restore("one", source)
    await world.live(1, step=1)
    name = source.metadata.name
    assert await owners(world, VOLUME_SNAPSHOT_CONTENT, name) == [first, keeper_key(request).name]
    await go_on(world)
    assert await owners(world, VOLUME_SNAPSHOT_CONTENT, name) == [first]


async def test_a_source_that_nobody_owns_is_not_pinned_and_stays_when_the_restore_lapses(world: World) -> None:
    await world.classes()
    source = await world.snapshot()
    body = {"metadata": {"annotations": {"lapse.dev/source-size": "1Gi"}}}
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, body)
    await world.report(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"readyToUse": True, "snapshotHandle": "h"})
    request = await world.restore("one", source)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    await world.live(hours=26, step=600)
    assert await world.names(OBJECT_KEEPER) == []
    assert await world.names(VOLUME_SNAPSHOT_CONTENT) == ["snap"]


async def test_a_capture_that_lapses_during_a_restore_takes_nothing_along(world: World) -> None:
    source = await captured(world)
    request = await world.restore("one", source)
    await world.live(1, step=1)
    capture = await world.store.get(VOLUME_CAPTURE_REQUEST, ObjectKey(NAMESPACE, "source"))
    await world.delete(await world.keeper(capture))
    await world.delete(capture)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    # Its only owner is the restore, without which it would stay for ever.
    assert await owners(world, VOLUME_SNAPSHOT_CONTENT, source.metadata.name) == [keeper_key(request).name]


async def test_the_second_content_always_retains_whatever_the_first_does(world: World) -> None:
    source = await captured(world)
    assert source.spec.deletion_policy == "Delete"
    request = await world.restore("one", source)
    await world.live(1, step=1)
    name = ObjectKey(None, f"restore-{request.metadata.uid}")
    content = await world.store.get(VOLUME_SNAPSHOT_CONTENT, name)
    snapshot = await world.store.get(VOLUME_SNAPSHOT, ObjectKey(NAMESPACE, name.name))
    assert (content.spec.deletion_policy, content.spec.source.snapshot_handle) == ("Retain", "h")
    assert content.spec.volume_snapshot_ref.uid == snapshot.metadata.uid
    assert content.metadata.annotations["snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"] == "yes"


async def test_a_snapshot_that_somebody_deletes_is_made_again_with_a_content_of_its_own(world: World) -> None:
    source = await captured(world)
    request = await world.restore("one", source)
    await world.live(1, step=1)
    (snapshot,) = await world.all(VOLUME_SNAPSHOT)
    await world.delete(snapshot)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert await bridges(world) == []
    reasons = [str(row.reason) for row in await world.journal_rows()]
    assert reasons.count("snapshot_replaced") == 1


async def test_a_claim_that_waits_for_a_pod_is_the_end_and_the_bridge_stays_until_it_is_bound(world: World) -> None:
    source = await captured(world)
    await world.store.patch(STORAGE_CLASS, ObjectKey(None, CLASS), {"volumeBindingMode": "WaitForFirstConsumer"})
    request = await world.restore("one", source)
    await go_on(world, provisions=False)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert "first pod" in (await world.message(request))
    assert len(await bridges(world)) == 2
    await world.live(hours=50, step=600)  # request and keeper TTL are long over
    assert await world.names(VOLUME_RESTORE_REQUEST) == []
    assert len(await bridges(world)) == 2
    assert keeper_key(request).name in await world.names(OBJECT_KEEPER)
    await go_on(world)
    assert await bridges(world) == []
    await world.live(hours=1, step=600)
    assert await world.names(OBJECT_KEEPER) == []


@pytest.mark.parametrize("after", ["snapshot", "claim"])
async def test_a_request_that_is_deleted_midway_leaves_nothing_but_a_claim_that_was_made(
    world: World, after: str
) -> None:
    source = await captured(world)
    (first,) = await owners(world, VOLUME_SNAPSHOT_CONTENT, source.metadata.name)
    request = await world.restore("one", source)
    await world.live(1, step=1)
    if after == "claim":
        await go_on(world, provisions=False)
    await world.delete(await world.fresh(request))
    await go_on(world)
    assert await bridges(world) == []
    assert await owners(world, VOLUME_SNAPSHOT_CONTENT, source.metadata.name) == [first]
    assert (await claim_of(world) is not None) == (after == "claim")


async def test_a_claim_that_somebody_deletes_before_it_is_bound_is_not_made_again(world: World) -> None:
    request = await world.restore("one", await captured(world))
    await go_on(world, provisions=False)
    claim = await claim_of(world)
    assert claim is not None
    await world.delete(claim)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.NOT_FOUND
    assert await claim_of(world) is None
    assert await bridges(world) == []


async def test_a_claim_of_that_name_which_says_nothing_is_refused_and_nothing_is_made(world: World) -> None:
    source = await captured(world)
    request = await world.restore("one", source)
    made = {"metadata": {"namespace": NAMESPACE, "name": "restored"}, "status": {"phase": "Bound"}}
    await world.apply(PERSISTENT_VOLUME_CLAIM, made)  # in the same second
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    assert await bridges(world) == []


async def test_a_forged_claim_of_another_namespace_neither_answers_nor_keeps_anything(world: World) -> None:
    request = await world.restore("one", await captured(world))
    await world.live(1, step=1)
    metadata = {
        "namespace": "other",
        "name": "restored",
        "annotations": {RESTORED_FROM: request.metadata.uid},
        "labels": {"lapse.dev/restore": request.metadata.uid},
    }
    await world.apply(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "status": {"phase": "Pending"}})
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert await bridges(world) == []
    await world.live(hours=26, step=600)
    assert keeper_key(request).name not in await world.names(OBJECT_KEEPER)


async def test_what_a_quota_says_is_the_end_of_a_restore_in_its_words(world: World) -> None:
    request = await world.restore("one", await captured(world))
    words = 'persistentvolumeclaims "restored" is forbidden: exceeded quota: small, requested: requests.storage=5Gi'

    def refuse(call: Any) -> None:  # noqa: ANN401 - a call
        if str(call) == "create PersistentVolumeClaim":
            raise ForbiddenError(problem=words)

    world.wire.before = refuse
    await go_on(world)
    assert await world.reason(request) == ConditionReason.RESTORE_FAILED
    assert words in await world.message(request)
    assert await bridges(world) == []


async def test_a_right_that_is_missing_is_told_as_such(world: World) -> None:
    request = await world.restore("one", await captured(world))

    def refuse(call: Any) -> None:  # noqa: ANN401 - a call
        if str(call) == "create VolumeSnapshot":
            raise ForbiddenError(problem='User "lapse" cannot create resource "volumesnapshots"')

    world.wire.before = refuse
    await go_on(world)
    assert await world.reason(request) == ConditionReason.RBAC_DENIED
    assert await claim_of(world) is None


async def test_a_held_request_keeps_its_bridge_and_a_released_one_lets_it_go(world: World) -> None:
    request = await world.restore("one", await captured(world), annotations={"lapse.dev/hold": "true"})
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    assert len(await bridges(world)) == 2
    await world.store.patch(
        VOLUME_RESTORE_REQUEST, request.metadata.key, {"metadata": {"annotations": {"lapse.dev/hold": None}}}
    )
    await world.live(130, step=10)
    assert await bridges(world) == []


# --- the class, the size and the tenant -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "reason", "words"),
    [
        ({"storageClassName": "nowhere"}, ConditionReason.NOT_FOUND, "no StorageClass nowhere"),
        ({"storageClassName": "foreign"}, ConditionReason.INCOMPATIBLE, "is for csi.other.com"),
    ],
)
async def test_a_class_that_cannot_be_is_told_before_a_claim_is_made(
    world: World, template: dict[str, str], reason: ConditionReason, words: str
) -> None:
    source = await captured(world)
    await world.apply(STORAGE_CLASS, {"metadata": {"name": "foreign"}, "provisioner": "csi.other.com"})
    request = await world.restore("one", source, spec=template)
    await go_on(world)
    assert await world.reason(request) == reason
    assert words in await world.message(request)
    made = {str(call) for call in world.wire.writes if call.method == "create"}
    assert not made & {"create VolumeSnapshot", "create PersistentVolumeClaim"}


@pytest.mark.parametrize("classes", [0, 1, 2])
async def test_without_a_captured_class_the_only_one_of_the_driver_is_taken(world: World, classes: int) -> None:
    source = await captured(world)
    await world.store.patch(
        VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"metadata": {"annotations": {"lapse.dev/source-class": None}}}
    )
    storage = await world.store.get(STORAGE_CLASS, ObjectKey(None, CLASS))
    await world.delete(storage)
    for number in range(classes):
        await world.apply(STORAGE_CLASS, {"metadata": {"name": f"class-{number}"}, "provisioner": DRIVER})
    request = await world.restore("one", source)
    await go_on(world)
    claim = await claim_of(world)
    if classes == 1:
        assert claim is not None
        assert claim.spec.storage_class_name == "class-0"
    else:
        assert await world.reason(request) == ConditionReason.INCOMPATIBLE
        assert claim is None


@pytest.mark.parametrize(("asked", "size"), [("1Gi", "5Gi"), ("5120Mi", "5120Mi"), ("6Gi", "6Gi"), (None, "5Gi")])
async def test_a_claim_is_never_smaller_than_what_it_is_to_hold(world: World, asked: str | None, size: str) -> None:
    spec = {"resources": {"requests": {"storage": asked}}} if asked else None
    await world.restore("one", await captured(world), spec=spec)
    await go_on(world)
    claim = await claim_of(world)
    assert claim is not None
    assert claim.spec.resources is not None
    assert claim.spec.resources.requests == {"storage": size}


@pytest.mark.parametrize(
    ("grant", "allowed"), [(None, False), ("shop-2,other", False), ("other, shop", True), ("shop", True)]
)
async def test_a_source_of_another_namespace_takes_a_grant(world: World, grant: str | None, *, allowed: bool) -> None:
    await world.classes()
    source = await world.snapshot(namespace="other")
    notes = {"lapse.dev/source-size": "1Gi", **({RESTORE_TO: grant} if grant else {})}
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"metadata": {"annotations": notes}})
    await world.report(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"readyToUse": True, "snapshotHandle": "h"})
    request = await world.restore("one", source)
    await go_on(world)
    if allowed:
        assert await world.reason(request) == ConditionReason.COMPLETED
    else:
        assert await world.reason(request) == ConditionReason.INVALID_SOURCE
        assert "other" not in (await world.message(request))
        assert await world.names(OBJECT_KEEPER) == []


# --- from a volume ----------------------------------------------------------------------------------------------------


async def test_a_detached_volume_is_adopted_and_then_the_users(world: World) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.COMPLETED
    found = await world.store.get(PERSISTENT_VOLUME, volume.metadata.key)
    assert (found.metadata.uid, found.metadata.owner_references) == (volume.metadata.uid, ())
    assert BEFORE_RESTORE not in found.metadata.annotations
    await world.live(hours=60, step=600)
    assert await world.names(OBJECT_KEEPER) == []
    assert "pv-data" in await world.names(PERSISTENT_VOLUME)


async def test_a_volume_is_reserved_and_leaves_its_capture_before_its_claim_is_there(world: World) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume)
    await world.live(1, step=1)
    found = await world.store.get(PERSISTENT_VOLUME, volume.metadata.key)
    assert found.spec.claim_ref is not None
    assert (found.spec.claim_ref.name, found.spec.claim_ref.uid) == ("restored", None)
    assert [owner.name for owner in found.metadata.owner_references] == [keeper_key(request).name]


async def test_a_reservation_is_undone_when_its_restore_fails(world: World) -> None:
    volume = await detached(world)

    def refuse(call: Any) -> None:  # noqa: ANN401 - a call
        if str(call) == "create PersistentVolumeClaim":
            raise ForbiddenError(problem="exceeded quota: small")

    world.wire.before = refuse
    request = await world.restore("one", volume)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.RESTORE_FAILED
    found = await world.store.get(PERSISTENT_VOLUME, volume.metadata.key)
    assert found.spec.claim_ref == volume.spec.claim_ref
    assert found.metadata.owner_references == volume.metadata.owner_references
    assert BEFORE_RESTORE not in found.metadata.annotations


async def test_a_reservation_whose_capture_has_lapsed_meanwhile_stays_with_the_restore(world: World) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume)
    await world.live(1, step=1)
    capture = await world.store.get(VOLUME_CAPTURE_REQUEST, ObjectKey(NAMESPACE, "away"))
    await world.delete(await world.keeper(capture))
    claim = await claim_of(world)
    assert claim is not None
    await world.delete(claim)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.NOT_FOUND
    assert await owners(world, PERSISTENT_VOLUME, "pv-data") == [keeper_key(request).name]


async def test_two_restores_of_one_volume_have_one_winner(world: World) -> None:
    volume = await detached(world)
    one = await world.restore("one", volume)
    two = await world.restore("two", volume, claim="other")
    await go_on(world)
    reasons = {await world.reason(one), await world.reason(two)}
    assert reasons == {ConditionReason.COMPLETED, ConditionReason.PV_BOUND}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resources": {"requests": {"storage": "6Gi"}}}, "has 5Gi, and the claim asks for 6Gi"),
        ({"storageClassName": "slow"}, "of the class fast"),
        ({"volumeMode": "Block"}, "mode Filesystem"),
        ({"accessModes": ["ReadWriteMany"]}, "allows ReadWriteOnce"),
    ],
)
async def test_what_a_volume_cannot_be_is_told_and_it_is_left_as_it_was(
    world: World, spec: dict[str, Any], words: str
) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume, spec=spec)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    assert words in await world.message(request)
    assert await world.store.get(PERSISTENT_VOLUME, volume.metadata.key) == volume


async def test_a_volume_that_no_keeper_of_the_namespace_keeps_is_not_adopted(world: World) -> None:
    claim = await world.volume()
    await world.delete(claim)
    volume = await world.report(PERSISTENT_VOLUME, ObjectKey(None, "pv-data"), {"phase": "Released"})
    request = await world.restore("one", volume)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INVALID_SOURCE
    assert await world.store.get(PERSISTENT_VOLUME, volume.metadata.key) == volume


async def test_a_volume_that_would_go_with_its_next_claim_is_refused(world: World) -> None:
    volume = await detached(world)
    changes = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
    await world.store.patch(PERSISTENT_VOLUME, volume.metadata.key, changes)
    request = await world.restore("one", volume)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE


async def test_a_volume_whose_claim_has_just_gone_is_waited_for(world: World) -> None:
    """A capture is Completed when the claim is gone; the cluster calls the volume Bound for a moment longer."""
    volume = await detached(world)
    await world.report(PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Bound"})
    other = await world.restore("one", volume)
    same = await world.restore("two", volume, claim="data")
    await go_on(world)
    assert (await world.outcome(other), await world.outcome(same)) == (None, None)
    assert await world.names(PERSISTENT_VOLUME_CLAIM) == []
    await world.delete(await world.fresh(same))
    await world.report(PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Released"})
    await go_on(world)
    assert await world.reason(other) == ConditionReason.COMPLETED


async def test_an_annotation_alone_does_not_make_a_claim_the_answer(world: World) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume)
    metadata = {"namespace": NAMESPACE, "name": "restored", "annotations": {RESTORED_FROM: request.metadata.uid}}
    made = {"metadata": metadata, "spec": {"volumeName": "another"}, "status": {"phase": "Bound"}}
    await world.apply(PERSISTENT_VOLUME_CLAIM, made)
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE


# --- what the stock sidecars need to know -----------------------------------------------------------------------------


async def test_what_the_sidecars_need_is_copied_and_what_was_captured_counts(world: World) -> None:
    source = await captured(world)
    prefix = "snapshot.storage.kubernetes.io"
    notes = {
        f"{prefix}/deletion-secret-name": "key",
        f"{prefix}/deletion-secret-namespace": "vault",
        f"{prefix}/allow-volume-mode-change": "true",
        "lapse.dev/source-access-modes": "ReadWriteMany,ReadOnlyMany",
        "lapse.dev/source-volume-mode": "Block",
        "example.com/other": "not copied",
    }
    body = {"metadata": {"annotations": notes, "labels": {f"{prefix}/managed-by": "node-7", "other": "no"}}}
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, body)
    await world.report(VOLUME_SNAPSHOT_CONTENT, source.metadata.key, {"restoreSize": 9 * 2**30})
    request = await world.restore("one", source)
    await world.live(1, step=1)
    made = await world.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, f"restore-{request.metadata.uid}"))
    copied = {name: text for name, text in made.metadata.annotations.items() if "being-deleted" not in name}
    assert copied == {name: text for name, text in notes.items() if name.startswith(prefix)}
    assert made.metadata.labels == {"lapse.dev/restore": request.metadata.uid, f"{prefix}/managed-by": "node-7"}
    await go_on(world)
    claim = await claim_of(world)
    assert claim is not None
    assert (claim.spec.access_modes, claim.spec.volume_mode) == (("ReadWriteMany", "ReadOnlyMany"), "Block")
    assert claim.spec.resources is not None
    assert claim.spec.resources.requests == {"storage": str(9 * 2**30)}


async def test_the_snapshot_goes_first_and_then_its_content(world: World) -> None:
    await world.restore("one", await captured(world))
    await go_on(world, rounds=10)
    deleted = [call.kind for call in world.wire.writes if call.method == "delete"]
    assert deleted == ["VolumeSnapshot", "VolumeSnapshotContent"]


async def test_an_error_of_the_snapshotter_is_shown_but_final_only_at_the_deadline(world: World) -> None:
    request = await world.restore("one", await captured(world))
    await world.live(1, step=1)
    key = ObjectKey(NAMESPACE, f"restore-{request.metadata.uid}")
    words = "can not find snapshot h"
    await world.report(VOLUME_SNAPSHOT, key, {"readyToUse": False, "error": {"message": words}})
    await world.live(30, step=1)
    status = (await world.fresh(request)).status
    assert await world.outcome(request) is None
    assert status is not None
    assert words in (status.progress or "")
    await world.live(hours=24, step=600)
    assert await world.reason(request) == ConditionReason.DEADLINE_EXCEEDED
    assert words in await world.message(request)


async def test_a_snapshot_that_is_bound_to_another_content_is_not_ready(world: World) -> None:
    request = await world.restore("one", await captured(world))
    await world.live(1, step=1)
    key = ObjectKey(NAMESPACE, f"restore-{request.metadata.uid}")
    await world.report(VOLUME_SNAPSHOT, key, {"readyToUse": True, "boundVolumeSnapshotContentName": "another"})
    await world.live(5, step=1)
    assert await claim_of(world) is None


@pytest.mark.parametrize(
    "changed",
    [{"deletionPolicy": "Delete"}, {"source": {"snapshotHandle": "another"}}, {"driver": "csi.other.com"}],
)
async def test_a_content_of_that_name_which_is_not_as_it_would_be_made_is_refused(
    world: World, changed: dict[str, Any]
) -> None:
    request = await world.restore("one", await captured(world))
    await world.live(1, step=1)
    key = ObjectKey(None, f"restore-{request.metadata.uid}")
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, key, {"spec": changed})
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INCOMPATIBLE
    assert await claim_of(world) is None


async def test_a_claim_whose_marks_were_taken_off_keeps_what_it_is_filled_from(world: World) -> None:
    source = await captured(world)
    await world.store.patch(STORAGE_CLASS, ObjectKey(None, CLASS), {"volumeBindingMode": "WaitForFirstConsumer"})
    await world.restore("one", source)
    await go_on(world, provisions=False)
    marks = {"metadata": {"labels": {"lapse.dev/restore": None}, "annotations": {RESTORED_FROM: None}}}
    await world.store.patch(PERSISTENT_VOLUME_CLAIM, RESTORED, marks)
    await world.live(hours=80, step=600)
    assert len(await bridges(world)) == 2
    assert source.metadata.name in await world.names(VOLUME_SNAPSHOT_CONTENT)
    await go_on(world)
    assert await bridges(world) == []


async def test_a_claim_that_the_cache_has_not_seen_yet_keeps_its_bridge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await world.restore("one", await captured(world))
    await go_on(world, provisions=False)
    monkeypatch.setattr(world.requests.caches.of(PERSISTENT_VOLUME_CLAIM), "indexed", lambda _index, _value: [])
    await world.delete(await world.fresh(request))
    await world.live(5, step=1)
    assert len(await bridges(world)) == 2


# --- what others do at the worst moment -------------------------------------------------------------------------------


async def test_two_restores_of_one_volume_that_both_fail_leave_it_with_its_capture(world: World) -> None:
    volume = await detached(world)

    def refuse(call: Any) -> None:  # noqa: ANN401 - a call
        if str(call) == "create PersistentVolumeClaim":
            raise ForbiddenError(problem="exceeded quota: small")

    world.wire.before = refuse
    await world.restore("one", volume)
    await world.restore("two", volume)  # into the same claim
    await go_on(world)
    found = await world.store.get(PERSISTENT_VOLUME, volume.metadata.key)
    assert found.metadata.owner_references == volume.metadata.owner_references
    assert found.spec.claim_ref == volume.spec.claim_ref


async def test_two_restores_of_one_volume_into_one_claim_lose_nothing(world: World) -> None:
    volume = await detached(world)
    requests = [await world.restore(name, volume) for name in ("one", "two")]
    await go_on(world)
    reasons = [await world.reason(one) for one in requests]
    assert reasons.count(ConditionReason.COMPLETED) == 1
    await world.live(hours=60, step=600)
    assert await owners(world, PERSISTENT_VOLUME, "pv-data") == []


async def test_a_claim_that_is_deleted_before_its_volume_is_let_go_gives_it_back_to_nobody(world: World) -> None:
    volume = await detached(world)
    request = await world.restore("one", volume)
    await world.live(1, step=1)
    await play(world)  # bound, and the process ends before anybody has seen it
    await world.stop()
    claim = await claim_of(world)
    assert claim is not None
    await world.delete(claim)
    await world.report(PERSISTENT_VOLUME, volume.metadata.key, {"phase": "Released"})
    await world.restart()
    await world.live(hours=60, step=600)
    assert await world.all(VOLUME_RESTORE_REQUEST) == [], request.metadata.name
    assert await owners(world, PERSISTENT_VOLUME, "pv-data") == []


async def test_a_volume_is_not_given_to_a_keeper_that_goes_in_the_same_moment(tmp_path: Path) -> None:
    policy = RequestPolicy(keeper_mode=KeeperMode.FOLLOW_OBJECT)
    async with opened(tmp_path, services=BRIDGED, policy=policy) as world:
        volume = await detached(world)
        request = await world.restore("one", volume)
        gone: list[str] = []
        passed_on = world.wire.pass_on

        async def with_a_deletion(these: Any, real: Any) -> Any:  # noqa: ANN401 - calls, and what does them
            if str(these[0]) == "patch PersistentVolume" and not gone:
                gone.append("keeper")
                await world.delete(await world.keeper(request))
            return await passed_on(these, real)

        world.wire.pass_on = with_a_deletion  # type: ignore[method-assign]
        await go_on(world)
        assert gone
        assert "pv-data" in await world.names(PERSISTENT_VOLUME)


async def test_what_was_made_for_another_restore_is_no_source(world: World) -> None:
    await world.restore("one", await captured(world))
    await world.live(1, step=1)
    (name,) = [one for one in await world.names(VOLUME_SNAPSHOT_CONTENT) if one.startswith("restore-")]
    alias = await world.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name))
    request = await world.restore("two", alias, claim="other")
    await go_on(world)
    assert await world.reason(request) == ConditionReason.INVALID_SOURCE


async def test_an_error_without_end_is_shown_in_part(world: World) -> None:
    request = await world.restore("one", await captured(world))
    await world.live(1, step=1)
    key = ObjectKey(NAMESPACE, f"restore-{request.metadata.uid}")
    await world.report(VOLUME_SNAPSHOT, key, {"readyToUse": False, "error": {"message": "x" * 100_000}})
    await world.live(30, step=1)
    status = (await world.fresh(request)).status
    assert status is not None
    assert "x" * 100 in (status.progress or "")
    assert len(status.progress or "") < 2_000
