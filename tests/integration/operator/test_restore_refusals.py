"""Restores that must not be: each ends with a reason, has made nothing that stays, and left its source as it was."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.errors import InvalidError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import (
    KEPT,
    RESTORE,
    RESTORE_TO,
    RESTORED_FROM,
    SOURCE,
    WHOLE_CONTENT,
    Captured,
    Detached,
    Tenant,
    claim_body,
    keeper_of,
    operator_behind_proxy,
    storage_class,
    volume_handle,
)
from tests.integration.operator.steps import found, until, until_gone
from tests.servers import KubectlError
from tests.servers.kube.csi import CLASS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeRestoreRequest
    from tests.servers.api_proxy import Asked

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
NOBODY = "00000000-0000-4000-8000-000000000000"
SLOW = "tests.lapse.dev/slow"
"""A finalizer that keeps an object while it is being deleted."""


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


@pytest.fixture
async def second_class(tenant: Tenant) -> AsyncIterator[str]:
    name = "hp-second"
    await tenant.kubectl("create", "-f", "-", stdin=storage_class(name))
    yield name
    await tenant.kubectl("delete", "storageclass", name)


# --- the source -------------------------------------------------------------------------------------------------------


async def test_a_source_of_that_name_with_another_uid_is_not_the_one_that_was_meant(tenant: Tenant) -> None:
    source = await tenant.capture()
    request = await tenant.ask({**source.reference, "uid": NOBODY})
    assert NOBODY in await tenant.refused(request, "NotFound")
    await tenant.nothing_made(request, source)


async def test_a_source_that_is_being_deleted_is_refused(tenant: Tenant) -> None:
    source = await tenant.capture()
    await delete_slowly(tenant, source)
    request = await tenant.ask(source)
    await tenant.refused(request, "InvalidSource", "NotFound")
    assert await tenant.bridge(request) == set()
    assert await tenant.claims_for(request) == []
    await end_slow_deletion(tenant, source)


async def test_a_source_whose_deletion_begins_while_it_is_pinned_is_refused(
    own: Own, tenant: Tenant, tmp_path: Path
) -> None:
    source = await tenant.capture()
    name = source.content.metadata.name
    deleted: list[str] = []

    def delete(asked: Asked) -> None:
        if asked.method == "PATCH" and f"/volumesnapshotcontents/{name}" in asked.path and not deleted:
            deleted.append(name)
            patch = json.dumps({"metadata": {"finalizers": [SLOW]}})
            own.kube.kubectl("patch", "volumesnapshotcontent", name, "--type=merge", "-p", patch)
            own.kube.kubectl("delete", "volumesnapshotcontent", name, "--wait=false")

    async with operator_behind_proxy(own, tmp_path, *KEPT) as (proxy, _):
        proxy.before = delete
        request = await tenant.ask(source)
        await tenant.refused(request, "InvalidSource", "NotFound")
        assert deleted
        assert await tenant.claims_for(request) == []
        await tenant.until_clean(request)
    await end_slow_deletion(tenant, source)


async def delete_slowly(tenant: Tenant, source: Captured) -> None:
    key = source.content.metadata.key
    await tenant.store.patch(VOLUME_SNAPSHOT_CONTENT, key, {"metadata": {"finalizers": [SLOW]}})
    await tenant.store.delete(VOLUME_SNAPSHOT_CONTENT, key)
    assert (await tenant.store.get(VOLUME_SNAPSHOT_CONTENT, key)).metadata.deletion_timestamp


async def end_slow_deletion(tenant: Tenant, source: Captured) -> None:
    key = source.content.metadata.key

    async def gone() -> bool:
        content = await found(tenant.store, WHOLE_CONTENT, key)
        if content is not None:
            left = [one for one in content.body["metadata"].get("finalizers", []) if one != SLOW]
            await tenant.store.patch(WHOLE_CONTENT, key, {"metadata": {"finalizers": left or None}})
        return content is None

    await until(gone)


async def test_a_volume_in_use_is_not_adopted(tenant: Tenant) -> None:
    claim, data = await tenant.claim()
    volume = await tenant.volume(claim)
    request = await tenant.ask({"apiVersion": "v1", "kind": "PersistentVolume", "name": volume.metadata.name})
    assert "data" in await tenant.refused(request, "PVBound")
    assert await tenant.volume(await tenant.until_bound("data")) == volume
    assert await tenant.data("data") == data
    await tenant.nothing_made(request)


async def test_a_volume_that_would_be_deleted_with_its_claim_is_not_adopted(tenant: Tenant) -> None:
    detached = await tenant.detach()
    key = detached.volume.metadata.key
    # Delete as reclaim policy: were it set while the volume is Released, it would go at once.
    await tenant.store.patch(PERSISTENT_VOLUME, key, {"spec": {"claimRef": None}})

    async def available() -> bool:
        status = (await tenant.store.get(PERSISTENT_VOLUME, key)).status
        return status is not None and status.phase == "Available"

    await until(available)
    await tenant.store.patch(PERSISTENT_VOLUME, key, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    request = await tenant.ask(detached)
    await tenant.refused(request, "Incompatible", "InvalidSource")
    volume = await tenant.store.get(PERSISTENT_VOLUME, key)
    assert volume.spec.claim_ref is None
    assert volume.metadata.owner_references == detached.volume.metadata.owner_references
    await tenant.nothing_made(request)
    # Without a claim it is anybody's, and the claim of the next test would get it.
    await tenant.store.delete(PERSISTENT_VOLUME, key)


# --- whose it is ------------------------------------------------------------------------------------------------------


async def test_another_namespace_gets_nothing_unless_the_source_names_it(tenant: Tenant) -> None:
    source = await tenant.capture()
    other = await Tenant.move_in(tenant.own, tenant.store, "other")
    near = f"{other.namespace}-too,{other.namespace[:-1]}, x{other.namespace}"
    for number, grant in enumerate((None, "", near, "*")):
        await grant_to(tenant, source, grant)
        request = await other.ask(source, name=f"back-{number}")
        assert other.namespace in await other.refused(request, "InvalidSource")
        await other.nothing_made(request, source)
        assert await found(other.store, OBJECT_KEEPER, keeper_of(request, "vrr")) is None
    assert (await other.store.list(PERSISTENT_VOLUME_CLAIM, namespace=other.namespace)).items == ()

    await grant_to(tenant, source, f"somebody, {other.namespace}")
    done = await other.restored(source)
    assert await other.data() == source.data
    await other.until_clean(done, source)
    await tenant.restored(source)  # a grant takes nothing from whom it belongs to
    assert await tenant.data() == source.data


async def grant_to(tenant: Tenant, source: Captured, names: str | None) -> None:
    changes = {"metadata": {"annotations": {RESTORE_TO: names}}}
    await tenant.store.patch(VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key, changes)


async def test_a_detached_volume_is_not_adopted_from_another_namespace(tenant: Tenant) -> None:
    detached = await tenant.detach()
    other = await Tenant.move_in(tenant.own, tenant.store, "other")
    request = await other.ask(detached)
    await other.refused(request, "InvalidSource")
    await other.nothing_made(request)
    await until_as_it_was(tenant, detached)


# --- the claim --------------------------------------------------------------------------------------------------------


async def test_a_claim_of_that_name_that_was_there_before_is_no_success(tenant: Tenant) -> None:
    source = await tenant.capture()
    _, data = await tenant.claim("restored")
    before = await tenant.store.get(PERSISTENT_VOLUME_CLAIM, tenant.key("restored"))
    request = await tenant.ask(source)
    assert "restored" in await tenant.refused(request, "Incompatible")
    assert await tenant.store.get(PERSISTENT_VOLUME_CLAIM, tenant.key("restored")) == before
    assert await tenant.data() == data
    await tenant.until_clean(request, source)


IMPOSTORS: dict[str, Json] = {
    "without a mark": {},
    "with the mark of another request": {"annotations": {RESTORED_FROM: NOBODY}, "labels": {RESTORE: NOBODY}},
    "with our mark and no source": {"annotations": {RESTORED_FROM: "UID"}, "labels": {RESTORE: "UID"}},
}


@pytest.mark.parametrize("marks", IMPOSTORS.values(), ids=IMPOSTORS)
async def test_a_claim_that_somebody_makes_in_the_same_second_is_no_success(
    own: Own, tenant: Tenant, tmp_path: Path, marks: Json
) -> None:
    source = await tenant.capture()
    made: list[Json] = []

    def quicker(asked: Asked) -> None:
        if asked.method == "POST" and asked.path.startswith(claims_path(tenant.namespace)) and not made:
            uid = json.loads(asked.body)["metadata"]["annotations"][RESTORED_FROM]
            body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim_body(tenant.namespace, "restored")}
            body["metadata"] |= json.loads(json.dumps(marks).replace("UID", uid))
            made.append(json.loads(own.kube.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(body))))

    async with operator_behind_proxy(own, tmp_path, *KEPT) as (proxy, _):
        proxy.before = quicker
        request = await tenant.ask(source)
        assert "restored" in await tenant.refused(request, "Incompatible")
        await tenant.until_clean(request, source)
    claim = await tenant.until_bound()
    assert claim.metadata.uid == made[0]["metadata"]["uid"]
    assert not (await tenant.folder(claim) / "data").exists()


def claims_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


async def test_an_adoption_that_fails_leaves_the_volume_as_it_was(tenant: Tenant) -> None:
    detached = await tenant.detach()
    _, data = await tenant.claim("restored")
    request = await tenant.ask(detached)
    assert "restored" in await tenant.refused(request, "Incompatible")
    await until_as_it_was(tenant, detached)
    assert await tenant.data() == data
    # And so it can still be had, under another name.
    await tenant.restored(detached, name="again", claim="again")
    assert await tenant.data("again") == detached.data


async def test_a_claim_made_between_reservation_and_claim_is_no_success_and_nothing_is_lost(
    own: Own, tenant: Tenant, tmp_path: Path
) -> None:
    """The volume is reserved for a name, so the cluster may give it to whoever has that name in the namespace."""
    detached = await tenant.detach()
    made: list[str] = []

    def quicker(asked: Asked) -> None:
        if asked.method == "POST" and asked.path.startswith(claims_path(tenant.namespace)) and not made:
            made.append("restored")
            body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim_body(tenant.namespace, "restored")}
            own.kube.kubectl("create", "-f", "-", stdin=json.dumps(body))

    async with operator_behind_proxy(own, tmp_path, *KEPT) as (proxy, _):
        proxy.before = quicker
        request = await tenant.ask(detached)
        await tenant.refused(request, "Incompatible")
        assert made

        async def settled() -> bool:
            now = await tenant.store.get(PERSISTENT_VOLUME, detached.volume.metadata.key)
            before = detached.volume
            is_as_before = (now.metadata.owner_references, now.spec.claim_ref) == (
                before.metadata.owner_references,
                before.spec.claim_ref,
            )
            is_taken = now.spec.claim_ref is not None and now.spec.claim_ref.name == "restored"
            return is_as_before or (is_taken and now.metadata.owner_references == ())

        await until(settled)
    volume = tenant.kube.storage.volume(volume_handle(detached.volume))
    assert (volume / "data").read_bytes() == detached.data


async def until_as_it_was(tenant: Tenant, detached: Detached) -> None:
    """Wait until a volume has the owners and the claim of before."""
    before = detached.volume

    async def same() -> bool:
        now = await tenant.store.get(PERSISTENT_VOLUME, before.metadata.key)
        return (now.metadata.owner_references, now.spec.claim_ref) == (
            before.metadata.owner_references,
            before.spec.claim_ref,
        )

    await until(same, seconds=30)
    assert (tenant.kube.storage.volume(volume_handle(before)) / "data").read_bytes() == detached.data


# --- classes, sizes, quotas -------------------------------------------------------------------------------------------


async def test_a_class_that_is_not_there_is_named(tenant: Tenant) -> None:
    source = await tenant.capture()
    request = await tenant.ask(source, storageClassName="nowhere")
    assert "nowhere" in await tenant.refused(request, "Incompatible", "NotFound")
    await tenant.until_clean(request, source)
    assert await tenant.claims_for(request) == []


async def test_a_class_of_another_driver_is_refused(tenant: Tenant) -> None:
    source = await tenant.capture()
    await tenant.kubectl("create", "-f", "-", stdin=storage_class("elsewhere", driver="other.example"))
    request = await tenant.ask(source, storageClassName="elsewhere")
    assert "other.example" in await tenant.refused(request, "Incompatible")
    await tenant.until_clean(request, source)
    assert await tenant.claims_for(request) == []
    await tenant.kubectl("delete", "storageclass", "elsewhere")


async def test_of_two_classes_none_is_guessed(tenant: Tenant, second_class: str) -> None:
    source = await tenant.capture()
    changes = {"metadata": {"annotations": {f"{SOURCE}class": None}}}
    await tenant.store.patch(VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key, changes)
    request = await tenant.ask(source)
    says = await tenant.refused(request, "Incompatible")
    assert "storageClassName" in says or "StorageClass" in says
    await tenant.until_clean(request, source)
    assert await tenant.claims_for(request) == []
    await tenant.restored(source, name="said", storageClassName=second_class)
    assert await tenant.data() == source.data


async def test_more_than_the_driver_has_ends_with_the_words_of_the_driver(tenant: Tenant) -> None:
    source = await tenant.capture()
    request = await tenant.ask(source, resources={"requests": {"storage": "3Ti"}})
    assert "code = OutOfRange" in await tenant.refused(request, "RestoreFailed")
    await until_given_up(tenant, request, source)


async def test_another_mode_than_the_captured_one_ends_with_a_reason(tenant: Tenant) -> None:
    source = await tenant.capture()
    request = await tenant.ask(source, volumeMode="Block")
    # The provisioner gives no code for it, so it may take until nobody doubts it any more.
    says = await tenant.refused(request, "RestoreFailed", "Incompatible", seconds=200)
    assert "mode" in says.lower()
    await until_given_up(tenant, request, source)


async def until_given_up(tenant: Tenant, request: VolumeRestoreRequest, source: Captured) -> None:
    """Once the user has deleted the claim that cannot be filled, nothing is left."""
    for claim in await tenant.claims_for(request):
        await tenant.store.delete(PERSISTENT_VOLUME_CLAIM, claim.metadata.key)
    await tenant.until_clean(request, source)


QUOTAS = {"claims": "persistentvolumeclaims", "snapshots": "count/volumesnapshots.snapshot.storage.k8s.io"}


@pytest.mark.parametrize("limited", QUOTAS.values(), ids=QUOTAS)
async def test_a_quota_ends_a_restore_with_the_words_of_the_quota(tenant: Tenant, limited: str) -> None:
    source = await tenant.capture()
    await set_quota(tenant, limited)
    request = await tenant.ask(source)
    says = await tenant.refused(request, "RestoreFailed")
    assert "exceeded quota: none-left" in says
    assert f"limited: {limited}=0" in says
    await tenant.until_clean(request, source)
    assert await tenant.claims_for(request) == []


async def set_quota(tenant: Tenant, limited: str) -> None:
    """Allow none more of something; no controller of quotas runs here, so the test writes the status as well."""
    hard = {limited: "0"}
    meta = {"name": "none-left", "namespace": tenant.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}
    await tenant.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    status = json.dumps({"status": {"hard": hard, "used": {limited: "0"}}})
    place = ("-n", tenant.namespace, "--subresource=status", "--type=merge", "-p", status)
    await tenant.kubectl("patch", "resourcequota", "none-left", *place)
    if limited.startswith("count/"):
        spec = {"volumeSnapshotClassName": CLASS, "source": {"volumeSnapshotContentName": "none"}}
        kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot"}
        tried = {**kind, "metadata": {"name": "probe", "namespace": tenant.namespace}, "spec": spec}
    else:
        tried = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim_body(tenant.namespace, "probe")}

    async def in_force() -> bool:
        try:
            await tenant.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(tried))
        except KubectlError as error:
            return "exceeded quota" in str(error)
        return False

    await until(in_force)


# --- the request ------------------------------------------------------------------------------------------------------


async def test_a_keeper_that_somebody_else_made_is_not_trusted(own: Own, tenant: Tenant) -> None:
    source = await tenant.capture()
    await asyncio.to_thread(own.stop)  # somebody is quicker
    request = await tenant.ask(source)
    meta = request.metadata
    followed = {"apiVersion": VOLUME_RESTORE_REQUEST.api_version, "kind": VOLUME_RESTORE_REQUEST.kind,
                "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}  # fmt: skip
    spec = {"mode": "FollowObjectWithTTL", "ttl": "1s", "followObjectRef": followed}
    await tenant.store.create(OBJECT_KEEPER, {"metadata": {"name": keeper_of(request, "vrr").name}, "spec": spec})
    await asyncio.to_thread(own.operator, *KEPT)
    assert "is not trusted" in await tenant.refused(request, "InternalError", "Incompatible")
    await tenant.nothing_made(request, source)
    await tenant.store.delete(VOLUME_RESTORE_REQUEST, meta.key)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    assert source.handle in tenant.kube.storage.snapshots()


@pytest.mark.parametrize("stopped", ["csi-snapshotter", "csi-provisioner"])
async def test_a_restore_that_takes_too_long_ends_and_is_cleared_away(
    own: Own, store: KubernetesStore, stopped: str
) -> None:
    await asyncio.to_thread(own.operator, *KEPT, "--request-deadline=8s")
    tenant = await Tenant.move_in(own, store)
    source = await tenant.capture()
    with own.kube.component(stopped).paused():
        request = await tenant.ask(source)
        assert "8s" in await tenant.refused(request, "DeadlineExceeded")
    await until_given_up(tenant, request, source)  # which takes the sidecar: the finalizer of a content is its own


async def test_a_final_request_is_not_carried_out_again(tenant: Tenant) -> None:
    source = await tenant.capture()
    request = await tenant.restored(source)
    await tenant.until_clean(request, source)
    await tenant.store.delete(PERSISTENT_VOLUME_CLAIM, tenant.key("restored"))
    await until_gone(tenant.store, PERSISTENT_VOLUME_CLAIM, tenant.key("restored"))
    # Touched, it is looked at again; the one beside it shows that somebody looks.
    await tenant.store.patch(VOLUME_RESTORE_REQUEST, request.metadata.key, {"metadata": {"labels": {"touched": "yes"}}})
    beside = await tenant.restored(source, name="beside", claim="beside")
    await tenant.until_clean(beside, source)
    await tenant.nothing_made(request, source)


async def test_names_that_no_claim_can_have_are_refused(tenant: Tenant) -> None:
    source = await tenant.capture()
    try:
        request = await tenant.ask(source, claim="Not_A_Name")
    except InvalidError:
        return  # the definition does not take it
    await tenant.refused(request, "Incompatible", "InternalError", "RestoreFailed", "InvalidSource")
    await tenant.until_clean(request, source)


async def test_a_source_that_is_never_ready_is_waited_for_and_can_be_given_up(tenant: Tenant) -> None:
    body = {
        "metadata": {"name": f"foreign-{tenant.namespace}"},
        "spec": {
            "driver": "other.example",
            "deletionPolicy": "Retain",
            "source": {"snapshotHandle": "nothing"},
            "volumeSnapshotRef": {"name": "foreign", "namespace": tenant.namespace, "uid": NOBODY},
        },
    }
    content = await tenant.store.create(VOLUME_SNAPSHOT_CONTENT, body)
    meta = content.metadata
    request = await tenant.ask(
        {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": meta.name}
    )
    assert await tenant.until_progress(request)
    await tenant.nothing_made(request)
    await tenant.store.delete(VOLUME_RESTORE_REQUEST, request.metadata.key)
    await until_gone(tenant.store, OBJECT_KEEPER, keeper_of(request, "vrr"))
    left = await tenant.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, meta.name))
    assert left.metadata.owner_references == ()
    await tenant.store.delete(VOLUME_SNAPSHOT_CONTENT, meta.key)
