"""Restores with the stock sidecars: whatever happens on the way, the data that was captured is in the claim.

The driver keeps real files, and every test compares bytes. A sidecar that is paused stops a restore at its step.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import (
    KEPT,
    LAPSING,
    RESTORE,
    RESTORE_TO,
    RESTORED_FROM,
    SNAPSHOTS,
    SOURCE,
    VOLUME_SNAPSHOT,
    WHOLE_CLAIM,
    WHOLE_CONTENT,
    Captured,
    Tenant,
    keeper_of,
    restore_name,
    storage_class,
    volume_handle,
)
from tests.integration.operator.steps import found, until, until_final, until_gone
from tests.integration.operator.test_deployed import table
from tests.servers.kube.csi import CLASS, DRIVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeRestoreRequest

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
LATE = "hp-late"
NODE = "somewhere"


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        yield own


@pytest.fixture
async def store(own: Own) -> AsyncIterator[KubernetesStore]:
    store = own.store()
    yield store
    await store.close()


@pytest.fixture
async def tenant(own: Own, store: KubernetesStore) -> Tenant:
    """A namespace, on which an operator works that keeps finished requests."""
    await asyncio.to_thread(own.operator, *KEPT)
    return await Tenant.move_in(own, store)


# --- the data is back -------------------------------------------------------------------------------------------------


async def test_what_was_captured_is_back_although_the_claim_and_its_volume_are_gone(tenant: Tenant) -> None:
    source = await tenant.capture()
    await tenant.end_original(source)

    done = await tenant.restored(source)

    assert await tenant.data() == source.data
    claim = await tenant.store.get(WHOLE_CLAIM, tenant.key("restored"))
    meta, spec = claim.metadata, claim.body["spec"]
    assert done.status is not None
    assert done.status.pvc_ref is not None
    assert (done.status.pvc_ref.name, done.status.pvc_ref.uid) == ("restored", meta.uid)
    uid = done.metadata.uid
    assert (meta.annotations[RESTORED_FROM], meta.labels[RESTORE], meta.owner_references) == (uid, uid, ())
    assert spec["dataSource"] == {
        "apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot",
        "name": restore_name(done),
    }
    # Nothing was asked for but a name: the rest is as captured.
    assert (spec["storageClassName"], spec["accessModes"], spec["volumeMode"]) == (
        CLASS,
        ["ReadWriteOnce"],
        "Filesystem",
    )
    assert spec["resources"]["requests"]["storage"] == "1Mi"
    await tenant.until_clean(done, source)


async def test_a_capture_notes_what_a_restore_needs_to_know(tenant: Tenant) -> None:
    source = await tenant.capture(size="2Mi")
    notes = {
        name.removeprefix(SOURCE): value
        for name, value in source.content.metadata.annotations.items()
        if name.startswith(SOURCE)
    }
    assert notes == {"class": CLASS, "size": "2Mi", "access-modes": "ReadWriteOnce", "volume-mode": "Filesystem"}


async def test_what_the_claim_is_to_be_called_and_labelled_is_for_the_user_to_say(tenant: Tenant) -> None:
    source = await tenant.capture(size="2Mi")
    template = {
        "labels": {"app": "shop", RESTORE: "somebody-else"},
        "annotations": {"example.org/why": "a test", RESTORED_FROM: "somebody-else"},
    }
    asked = {"storageClassName": CLASS, "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"}
    done = await tenant.restored(source, template=template, resources={"requests": {"storage": "4Mi"}}, **asked)
    assert await tenant.data() == source.data
    claim = await tenant.store.get(WHOLE_CLAIM, tenant.key("restored"))
    uid, spec = done.metadata.uid, claim.body["spec"]
    assert claim.metadata.labels == {"app": "shop", RESTORE: uid}
    assert claim.metadata.annotations["example.org/why"] == "a test"
    assert claim.metadata.annotations[RESTORED_FROM] == uid
    assert spec["resources"]["requests"]["storage"] == "4Mi"
    assert {name: spec[name] for name in asked} == asked
    await tenant.until_clean(done, source)


async def test_a_size_that_is_too_small_is_made_as_large_as_what_was_captured(tenant: Tenant) -> None:
    source = await tenant.capture(size="3Mi")
    done = await tenant.restored(source, resources={"requests": {"storage": "1Mi"}})
    assert await tenant.data() == source.data
    claim = await tenant.store.get(WHOLE_CLAIM, tenant.key("restored"))
    assert claim.body["spec"]["resources"]["requests"]["storage"] == "3Mi"
    assert claim.body["status"]["capacity"]["storage"] == "3Mi"
    await tenant.until_clean(done, source)


async def test_a_snapshot_can_be_restored_again_and_again(tenant: Tenant) -> None:
    source = await tenant.capture()
    for number in range(3):
        name = f"restored-{number}"
        done = await tenant.restored(source, name=name, claim=name)
        assert await tenant.data(name) == source.data
        await tenant.until_clean(done, source)


async def test_the_only_class_of_the_driver_is_taken_where_a_capture_noted_none(tenant: Tenant) -> None:
    source = await tenant.capture()
    await forget_class(tenant, source)
    done = await tenant.restored(source)
    assert await tenant.data() == source.data
    assert (await tenant.until_bound()).spec.storage_class_name == CLASS
    await tenant.until_clean(done, source)


async def forget_class(tenant: Tenant, source: Captured) -> None:
    """As of a capture by an earlier release."""
    changes = {"metadata": {"annotations": {f"{SOURCE}class": None}}}
    await tenant.store.patch(VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key, changes)


async def test_a_snapshot_that_a_person_made_is_restored_and_stays_theirs(tenant: Tenant) -> None:
    """Nobody owns its content before the restore: it must not go with the request afterwards."""
    claim, data = await tenant.claim()
    spec = {"volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": claim.metadata.name}}
    body = {"metadata": {"name": "manual", "namespace": tenant.namespace}, "spec": spec}
    await tenant.store.create(VOLUME_SNAPSHOT, body)

    async def bound_content() -> str | None:
        status = (await tenant.store.get(VOLUME_SNAPSHOT, tenant.key("manual"))).body.get("status", {})
        return status.get("boundVolumeSnapshotContentName") if status.get("readyToUse") else None

    name = await until(bound_content)
    before = await tenant.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name))
    reference = {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": name}
    done = await tenant.completed(await tenant.ask(reference, storageClassName=CLASS))
    assert await tenant.data() == data

    await tenant.store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(done, "vrr"))
    await tenant.until_clean(done)
    left = await tenant.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, name))
    assert left.metadata.deletion_timestamp is None
    assert left.metadata.owner_references == before.metadata.owner_references == ()
    assert left.status is not None
    assert left.status.snapshot_handle in tenant.kube.storage.snapshots()
    assert (await tenant.store.get(VOLUME_SNAPSHOT, tenant.key("manual"))).metadata.deletion_timestamp is None


# --- step by step -----------------------------------------------------------------------------------------------------


async def test_each_object_on_the_way_is_as_the_stock_sidecars_want_it(tenant: Tenant) -> None:
    source = await tenant.capture()
    with tenant.kube.component("csi-snapshotter").paused():
        request = await tenant.ask(source)
        await tenant.until_bridge(request, "VolumeSnapshot", "VolumeSnapshotContent")
        name = restore_name(request)
        snapshot = await tenant.store.get(VOLUME_SNAPSHOT, tenant.key(name))
        content = await tenant.store.get(WHOLE_CONTENT, ObjectKey(None, name))
        keeper = await tenant.store.get(OBJECT_KEEPER, keeper_of(request, "vrr"))
        pins = [one for one in await tenant.owners(source) if one.uid == keeper.metadata.uid]
        assert await tenant.claims_for(request) == []  # not before the snapshot is ready
    assert [(pin.name, pin.controller) for pin in pins] == [(keeper.metadata.name, False)]
    for made in (snapshot, content):
        assert made.metadata.labels[RESTORE] == request.metadata.uid
        assert [owner.uid for owner in made.metadata.owner_references] == [keeper.metadata.uid]
    assert snapshot.body["spec"] == {
        "volumeSnapshotClassName": CLASS,
        "source": {"volumeSnapshotContentName": name},
    }
    spec = content.body["spec"]
    assert spec["deletionPolicy"] == "Retain"
    assert spec["source"] == {"snapshotHandle": source.handle}
    assert (spec["driver"], spec["volumeSnapshotClassName"]) == (DRIVER, CLASS)
    assert spec["sourceVolumeMode"] == "Filesystem"
    wanted = {"name": name, "namespace": tenant.namespace, "uid": snapshot.metadata.uid}
    assert {field: spec["volumeSnapshotRef"].get(field) for field in wanted} == wanted
    done = await tenant.completed(request)
    assert await tenant.data() == source.data
    await tenant.until_clean(done, source)


async def shown(tenant: Tenant, request: VolumeRestoreRequest) -> dict[str, str]:
    """What `kubectl get vrr` shows of a request."""
    rows = await asyncio.to_thread(table, tenant.kube, "get", "vrr", "-n", tenant.namespace)
    return next(row for row in rows if row["NAME"] == request.metadata.name)


async def test_kubectl_shows_at_each_step_what_a_restore_waits_for(tenant: Tenant) -> None:
    snapshotter, provisioner = map(tenant.kube.component, ("csi-snapshotter", "csi-provisioner"))
    claim, data = await tenant.claim()
    told = []
    with provisioner.paused():
        with snapshotter.paused():
            capture = await tenant.ask_for_capture(claim)
            early = await tenant.ask(await unfinished(tenant, capture), name="early", claim="early")
            told.append(await tenant.until_progress(early))
            assert await tenant.bridge(early) == set()
            assert (await shown(tenant, early))["PROGRESS"] == told[-1]
        await until_final(tenant.store, VOLUME_CAPTURE_REQUEST, capture)
        await tenant.until_claimed(early)
        with snapshotter.paused():
            request = await tenant.ask(await unfinished(tenant, capture))
            await tenant.until_bridge(request, "VolumeSnapshot", "VolumeSnapshotContent")
            told.append(await until_another(tenant, request, told))
        await tenant.until_claimed(request)
        told.append(await until_another(tenant, request, told))
        row = await shown(tenant, request)
        assert (row["READY"], row["REASON"], row["PROGRESS"]) == ("", "", told[-1])
    assert "VolumeSnapshot" in told[1]
    assert re.search("claim|restored", told[2], re.IGNORECASE)
    for one in (early, request):
        await tenant.completed(one)
        assert await tenant.data(one.spec.pvc_template.metadata.name) == data
        row = await shown(tenant, one)
        assert (row["READY"], row["REASON"], row["PROGRESS"]) == ("True", "Completed", "")


async def unfinished(tenant: Tenant, capture: ObjectKey) -> Json:
    """What a capture makes, as soon as its name is known."""

    async def named() -> str | None:
        status = (await tenant.store.get(VOLUME_CAPTURE_REQUEST, capture)).status
        return status.artifact_ref.name if status is not None and status.artifact_ref is not None else None

    return {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": await until(named)}


async def until_another(tenant: Tenant, request: VolumeRestoreRequest, told: list[str]) -> str:
    async def another() -> str | None:
        says = (await shown(tenant, request))["PROGRESS"]
        return says if says and says not in told else None

    return await until(another)


# --- the source goes meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", ["csi-snapshotter", "csi-provisioner"])
async def test_a_source_whose_keeper_falls_due_during_a_restore_stays_until_that_is_through(
    tenant: Tenant, stopped: str
) -> None:
    source = await tenant.capture()
    await tenant.end_original(source)
    with tenant.kube.component(stopped).paused():
        request = await tenant.ask(source)
        if stopped == "csi-snapshotter":
            await tenant.until_bridge(request, "VolumeSnapshot", "VolumeSnapshotContent")
        else:
            await tenant.until_claimed(request)
        await tenant.end_capture(source)

        async def of_the_restore_alone() -> bool:
            return {one.name for one in await tenant.owners(source)} == {keeper_of(request, "vrr").name}

        await until(of_the_restore_alone)  # garbage collection came by, took the owner that is gone, and left the rest
        assert source.handle in tenant.kube.storage.snapshots()

    done = await tenant.completed(request)
    assert await tenant.data() == source.data
    await tenant.until_clean(done)
    # Without another owner it would stay for ever, so it goes with the request.
    await tenant.store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await until_gone(tenant.store, VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(done, "vrr"))

    async def snapshot_gone() -> bool:
        return source.handle not in tenant.kube.storage.snapshots()

    await until(snapshot_gone)
    assert await tenant.data() == source.data


# --- somebody interferes ----------------------------------------------------------------------------------------------


async def test_a_snapshot_that_a_user_deletes_midway_changes_nothing_about_the_end(tenant: Tenant) -> None:
    source = await tenant.capture()
    with tenant.kube.component("csi-snapshotter").paused():
        request = await tenant.ask(source)
        await tenant.until_bridge(request, "VolumeSnapshot", "VolumeSnapshotContent")
        first = await tenant.store.get(VOLUME_SNAPSHOT, tenant.key(restore_name(request)))
        await tenant.store.delete(VOLUME_SNAPSHOT, first.metadata.key)

        async def noticed() -> bool:
            now = await found(tenant.store, VOLUME_SNAPSHOT, first.metadata.key)
            return now is None or now.metadata.uid != first.metadata.uid

        await until(noticed)
    done = await tenant.completed(request)
    assert await tenant.data() == source.data
    assert len(await tenant.claims_for(done)) == 1
    await tenant.until_clean(done, source)


async def test_a_snapshot_that_a_user_deletes_under_its_claim_is_told_in_words_and_the_next_restore_succeeds(
    tenant: Tenant,
) -> None:
    """The stock controller keeps the snapshot while a claim waits for it, and the provisioner refuses to use it."""
    source = await tenant.capture()
    with tenant.kube.component("csi-provisioner").paused():
        request = await tenant.ask(source)
        await tenant.until_claimed(request)
        await tenant.store.delete(VOLUME_SNAPSHOT, tenant.key(restore_name(request)))
    refused = await tenant.refused(request, "RestoreFailed")
    assert "is currently being deleted" in refused
    await tenant.store.delete(PERSISTENT_VOLUME_CLAIM, tenant.key("restored"))
    await tenant.until_clean(request, source)

    again = await tenant.completed(await tenant.ask(source, name="again"))
    assert await tenant.data() == source.data
    await tenant.until_clean(again, source)


@pytest.mark.parametrize("stopped", ["csi-snapshotter", "csi-provisioner"])
async def test_a_request_that_is_deleted_midway_leaves_nothing_but_a_claim_that_was_made(
    tenant: Tenant, stopped: str
) -> None:
    source = await tenant.capture()
    with tenant.kube.component(stopped).paused():
        request = await tenant.ask(source)
        if stopped == "csi-snapshotter":
            await tenant.until_bridge(request, "VolumeSnapshot", "VolumeSnapshotContent")
        else:
            await tenant.until_claimed(request)
        await tenant.store.delete(VOLUME_RESTORE_REQUEST, request.metadata.key)
    if stopped == "csi-provisioner":
        assert await tenant.data() == source.data  # it was asked for, and its provisioner goes on
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    await tenant.until_clean(request, source)
    assert len(await tenant.claims_for(request)) == (stopped == "csi-provisioner")


# --- a claim that waits for a pod -------------------------------------------------------------------------------------


@pytest.fixture
async def late_tenant(own: Own, store: KubernetesStore) -> AsyncIterator[Tenant]:
    """A namespace on a cluster whose second class binds when a pod comes; finished requests go by themselves."""
    await asyncio.to_thread(own.operator, *LAPSING)
    tenant = await Tenant.move_in(own, store)
    await tenant.kubectl("create", "-f", "-", stdin=storage_class(LATE, binding="WaitForFirstConsumer"))
    yield tenant
    await tenant.kubectl("delete", "storageclass", LATE)


async def last_seen(tenant: Tenant, request: VolumeRestoreRequest) -> VolumeRestoreRequest:
    """Wait until a request has lapsed; returns its last state."""
    seen = [request]

    async def gone() -> bool:
        now = await found(tenant.store, VOLUME_RESTORE_REQUEST, request.metadata.key)
        seen.append(now or seen[-1])
        return now is None

    await until(gone)
    return seen[-1]


async def waiting_claim(tenant: Tenant) -> tuple[Captured, VolumeRestoreRequest]:
    """A restore that is completed as far as it can be without a pod, and whose request has lapsed since."""
    source = await held_capture(tenant)
    request = await tenant.ask(source, storageClassName=LATE)
    ended = await last_seen(tenant, request)
    assert ended.status is not None
    condition = ready_condition(ended.status.conditions)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "Completed"), condition
    assert re.search("pod|consumer", condition.message or "", re.IGNORECASE), condition
    # Beside it, one that waits for nobody goes with all that it made: so it is known that somebody acts.
    beside = await tenant.ask(source, name="beside", claim="beside", storageClassName=CLASS)
    await last_seen(tenant, beside)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(beside, "vrr"))
    assert await tenant.data("beside") == source.data

    (claim,) = await tenant.claims_for(request)
    assert (claim.metadata.name, claim.status and claim.status.phase) == ("restored", "Pending")
    assert "volume.kubernetes.io/selected-node" not in claim.metadata.annotations
    assert await found(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr")) is not None
    name = restore_name(request)
    assert await tenant.bridge(request) == {
        f"VolumeSnapshot {tenant.key(name)}",
        f"VolumeSnapshotContent {name}",
    }
    return source, request


async def held_capture(tenant: Tenant) -> Captured:
    """A capture that stays where finished requests lapse."""
    claim, data = await tenant.claim()
    key = await tenant.ask_for_capture(claim)
    held = {"metadata": {"annotations": {"lapse.dev/hold": "true"}}}
    await tenant.store.patch(VOLUME_CAPTURE_REQUEST, key, held)
    request = await until_final(tenant.store, VOLUME_CAPTURE_REQUEST, key)
    content = await tenant.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, request.status.artifact_ref.name))
    return Captured(data, claim, await tenant.volume(claim), request, content)


async def test_a_claim_that_waits_for_a_pod_keeps_its_bridge_until_it_is_bound(late_tenant: Tenant) -> None:
    tenant = late_tenant
    source, request = await waiting_claim(tenant)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    await tenant.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    chosen = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": NODE}}}  # as a scheduler does
    await tenant.store.patch(PERSISTENT_VOLUME_CLAIM, tenant.key("restored"), chosen)
    assert await tenant.data() == source.data
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    await tenant.until_clean(request, source)
    assert await tenant.data() == source.data


async def test_a_claim_that_waits_for_a_pod_and_is_given_up_takes_its_bridge_along(late_tenant: Tenant) -> None:
    tenant = late_tenant
    source, request = await waiting_claim(tenant)
    await tenant.store.delete(PERSISTENT_VOLUME_CLAIM, tenant.key("restored"))
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    await tenant.until_clean(request, source)


async def test_a_restore_lapses_with_all_that_it_made_and_its_claim_stays(own: Own, store: KubernetesStore) -> None:
    await asyncio.to_thread(own.operator, *LAPSING)
    tenant = await Tenant.move_in(own, store)
    source = await held_capture(tenant)
    await tenant.end_original(source)
    request = await tenant.ask(source)
    await last_seen(tenant, request)
    await until_gone(store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    await tenant.until_clean(request, source)
    # Its capture, too, has been waiting to lapse.
    await store.patch(
        VOLUME_CAPTURE_REQUEST, source.request.metadata.key, {"metadata": {"annotations": {"lapse.dev/hold": None}}}
    )
    await until_gone(store, VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key)
    assert await tenant.data() == source.data


# --- detached volumes -------------------------------------------------------------------------------------------------


async def test_a_detached_volume_is_adopted_and_stays_when_all_of_its_capture_lapses(tenant: Tenant) -> None:
    detached = await tenant.detach()
    volumes = tenant.kube.storage.volumes()

    done = await tenant.restored(detached)

    claim = await tenant.until_bound()
    assert (claim.spec.volume_name, claim.metadata.owner_references) == (detached.volume.metadata.name, ())
    assert claim.metadata.annotations[RESTORED_FROM] == done.metadata.uid
    assert tenant.kube.storage.volumes() == volumes
    await tenant.end_capture(detached)
    await tenant.store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(done, "vrr"))
    volume = await tenant.store.get(PERSISTENT_VOLUME, detached.volume.metadata.key)
    assert (volume.metadata.uid, volume.metadata.owner_references) == (detached.volume.metadata.uid, ())
    assert volume.metadata.deletion_timestamp is None
    assert volume.spec.claim_ref is not None
    assert volume.spec.claim_ref.uid == claim.metadata.uid
    assert volume.spec.persistent_volume_reclaim_policy == "Retain"
    assert await tenant.data() == detached.data
    assert volume_handle(volume) in tenant.kube.storage.volumes()


async def test_a_detached_volume_goes_to_another_namespace_where_it_says_so(tenant: Tenant) -> None:
    detached = await tenant.detach()
    other = await Tenant.move_in(tenant.own, tenant.store, "granted")
    grant = {"metadata": {"annotations": {RESTORE_TO: other.namespace}}}
    await tenant.store.patch(PERSISTENT_VOLUME, detached.volume.metadata.key, grant)
    await other.restored(detached)
    assert (await other.until_bound()).spec.volume_name == detached.volume.metadata.name
    assert await other.data() == detached.data
    await tenant.end_capture(detached)
    volume = await tenant.store.get(PERSISTENT_VOLUME, detached.volume.metadata.key)
    assert (volume.metadata.owner_references, volume.metadata.deletion_timestamp) == ((), None)
    assert await other.data() == detached.data
