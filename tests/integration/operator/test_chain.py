"""From a claim to a snapshot to a claim again, and how long everything on the way is kept: on a real control plane.

A control plane of its own, because here the operators have policies that differ from those of other tests.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.identity import uuid
from lapse.core.timestamps import from_timestamp
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey, ready_condition, untyped
from lapse.objects.packing.chunks import as_captured, capture_order
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    TTL,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.manifests import read_checkpoint
from tests.integration.operator.finalizers import no_finalizers_of_ours
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.steps import (
    CLOCK,
    HOLD,
    ask_for_capture,
    ask_for_manifests,
    bound_claim,
    found,
    let_go,
    until,
    until_ended,
    until_final,
    until_gone,
)
from tests.servers.kube.csi import CLASS, DRIVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.objects.kubernetes import KubernetesStore

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
SNAPSHOTS = "snapshot.storage.k8s.io/v1"
VOLUME_SNAPSHOT = untyped(SNAPSHOTS, "VolumeSnapshot", "volumesnapshots")
AT_ONCE = ("--request-ttl=2s", "--request-ttl-mode=scanner", "--keeper-mode=FollowObject", "--trash-ttl=never")
LATER = ("--request-ttl=1h", "--request-ttl-mode=annotation", "--keeper-mode=FollowObjectWithTTL", "--keeper-ttl=1h")
HOUR_NS = 3_600_000_000_000


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
def namespace(own: Own) -> str:
    name = f"chain-{uuid()}"
    own.kube.kubectl("create", "namespace", name)
    return name


# --- there and back ---------------------------------------------------------------------------------------------------


async def provision(store: KubernetesStore, namespace: str, content: Any) -> None:  # noqa: ANN401 - a content
    """Do what a provisioner does that watches restore requests: make the claim, by means of the stock one.

    A VolumeSnapshot refuses a content that was made for nobody, so it gets another one, of the same physical snapshot.
    """
    name = f"bridge-{uuid()}"
    spec = {
        "driver": DRIVER,
        "deletionPolicy": "Retain",
        "volumeSnapshotClassName": CLASS,
        "source": {"snapshotHandle": content.status.snapshot_handle},
        "volumeSnapshotRef": {"name": "bridge", "namespace": namespace},
    }
    await store.create(VOLUME_SNAPSHOT_CONTENT, {"metadata": {"name": name}, "spec": spec})
    source = {"volumeSnapshotClassName": CLASS, "source": {"volumeSnapshotContentName": name}}
    await store.create(VOLUME_SNAPSHOT, {"metadata": {"name": "bridge", "namespace": namespace}, "spec": source})
    asked = {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
        "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "bridge"},
    }
    claim = {"metadata": {"name": "restored", "namespace": namespace}, "spec": asked}
    await store.create(PERSISTENT_VOLUME_CLAIM, claim)


async def test_a_foreign_provisioner_that_watches_restores_answers_them_where_it_is_told_to(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *AT_ONCE, "--restore-executor=external")
    claim, folder = await bound_claim(store, own.kube, namespace)
    data = noise(100_000).encode()
    (folder / "data").write_bytes(data)
    capture = await until_final(store, VOLUME_CAPTURE_REQUEST, await ask_for_capture(store, claim, held=True))
    (folder / "data").write_bytes(b"written since")
    content = await store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, capture.status.artifact_ref.name))
    assert content.status is not None

    source = {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", **by_name_and_uid(content)}
    spec = {"sourceRef": source, "pvcTemplate": {"metadata": {"name": "restored"}, "spec": {"storageClassName": CLASS}}}
    body = {"metadata": {"name": "back", "namespace": namespace, "annotations": {HOLD: "true"}}, "spec": spec}
    restore = (await store.create(VOLUME_RESTORE_REQUEST, body)).metadata.key
    await provision(store, namespace, content)

    done = await until_final(store, VOLUME_RESTORE_REQUEST, restore)
    restored = await store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, "restored"))
    assert done.status.pvc_ref.uid == restored.metadata.uid
    volume = await asyncio.to_thread(own.kube.claim_folder, "restored", namespace=namespace)
    assert (volume / "data").read_bytes() == data

    # What was restored is the user's: it stays when the requests, their keepers and the snapshot are gone.
    await let_go(store, VOLUME_RESTORE_REQUEST, restore)
    await let_go(store, VOLUME_CAPTURE_REQUEST, capture.metadata.key)
    await until_gone(store, OBJECT_KEEPER, ObjectKey(None, keeper_name("vrr", done.metadata.uid)))
    await until_gone(store, VOLUME_SNAPSHOT_CONTENT, content.metadata.key)
    assert content.status.snapshot_handle not in own.kube.storage.snapshots()
    left = await store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, "restored"))
    assert (left.metadata.uid, left.metadata.owner_references) == (restored.metadata.uid, ())
    assert (volume / "data").read_bytes() == data


def by_name_and_uid(obj: Any) -> Json:  # noqa: ANN401 - any object
    return {"name": obj.metadata.name, "uid": obj.metadata.uid}


def noise(characters: int) -> str:
    """Text that packing hardly makes shorter, another one each time."""
    seed = uuid()
    lines = (sha256(f"{seed} {number}".encode()).hexdigest() for number in range(characters // 64 + 1))
    return "".join(lines)[:characters]


def mixed_objects(namespace: str) -> list[Json]:
    """A few hundred, of several kinds, some large: more than one chunk holds."""
    made: list[Json] = []
    for number in range(60):
        meta = {"name": f"object-{number}", "namespace": namespace, "labels": {"made-for": "capture"}}
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": meta["name"]}
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
        rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
        made += [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"text": noise(40_000)}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"key": f"moin {number} — ☃"}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {**rbac, "kind": "Role", "rules": [rule] * (number % 3)},
            {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
            {"apiVersion": "test.lapse.dev/v1", "kind": "Widget", "metadata": meta, "spec": {"size": number / 7}},
        ]
    return made


async def test_a_namespace_of_many_kinds_is_read_back_as_it_was(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *AT_ONCE)
    made = mixed_objects(namespace)
    await asyncio.to_thread(
        own.kube.kubectl, "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    )
    kinds = "configmaps,secrets,serviceaccounts,roles,rolebindings,widgets"
    listed = await asyncio.to_thread(
        own.kube.kubectl, "get", kinds, "-n", namespace, "-l", "made-for=capture", "-o", "json"
    )
    live = json.loads(listed)["items"]
    targets = [{"apiVersion": one["apiVersion"], "kind": one["kind"], "name": one["metadata"]["name"]} for one in made]
    key = await ask_for_manifests(store, namespace, targets)

    request = await until_final(store, MANIFEST_CAPTURE_REQUEST, key)
    name = request.status.checkpoint_name
    checkpoint = await store.get(MANIFEST_CHECKPOINT, ObjectKey(None, name))
    assert checkpoint.status is not None
    assert checkpoint.status.total_objects == len(made) == 360
    assert len(checkpoint.status.chunks) > 1
    assert await read_checkpoint(store, name) == sorted(map(as_captured, live), key=capture_order)

    await let_go(store, MANIFEST_CAPTURE_REQUEST, key)
    await until_gone(store, MANIFEST_CHECKPOINT, ObjectKey(None, name))
    for chunk in checkpoint.status.chunks:
        await until_gone(store, MANIFEST_CHUNK, ObjectKey(None, chunk.name))


# --- how long it is kept ----------------------------------------------------------------------------------------------


async def test_a_snapshot_goes_with_its_request_whether_that_lapses_or_is_deleted(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *AT_ONCE)
    async with no_finalizers_of_ours(store):
        claims = {name: await bound_claim(store, own.kube, namespace, name) for name in ("lapses", "deleted", "stays")}
        keys = {
            name: await ask_for_capture(store, claim, held=name != "lapses", name=name)
            for name, (claim, _) in claims.items()
        }
        deleted = await until_final(store, VOLUME_CAPTURE_REQUEST, keys["deleted"])
        await until_final(store, VOLUME_CAPTURE_REQUEST, keys["stays"])
        await let_go(store, VOLUME_CAPTURE_REQUEST, keys["deleted"])  # held, its snapshot would stay
        await until_released(store, deleted)
        with suppress(NotFoundError):  # it may lapse first
            await store.delete(VOLUME_CAPTURE_REQUEST, keys["deleted"])

        await until_gone(store, OBJECT_KEEPER, ObjectKey(None, keeper_name("vcr", deleted.metadata.uid)))
        await until_gone(store, VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, deleted.status.artifact_ref.name))
        await until_gone(store, VOLUME_CAPTURE_REQUEST, keys["lapses"])

        async def only_one_is_left() -> bool:
            left = {name: own.kube.storage.snapshots(of=folder.name) for name, (_, folder) in claims.items()}
            return {name: len(snapshots) for name, snapshots in left.items()} == {"lapses": 0, "deleted": 0, "stays": 1}

        await until(only_one_is_left)


async def until_released(store: KubernetesStore, request: Any) -> None:  # noqa: ANN401 - a request
    """Wait until the hold of a request is taken from its keeper, or the keeper is gone."""

    async def released() -> bool:
        keeper = await found(store, OBJECT_KEEPER, ObjectKey(None, keeper_name("vcr", request.metadata.uid)))
        return keeper is None or HOLD not in keeper.metadata.annotations

    await until(released)


async def test_captures_that_are_deleted_at_once_leave_nothing_behind(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *AT_ONCE)
    contents, snapshots = await names(store), own.kube.storage.snapshots()
    claims = await asyncio.gather(*(bound_claim(store, own.kube, namespace, f"claim-{number}") for number in range(20)))
    for number, (claim, folder) in enumerate(claims):
        (folder / "bulk").write_bytes(bytes(8_000_000))  # takes the driver a moment to pack
        key = await ask_for_capture(store, claim, held=False, name=claim.metadata.name)
        await CLOCK.sleep(0.015 * number)  # before, while and after the snapshot is made
        try:
            await store.delete(VOLUME_CAPTURE_REQUEST, key)
        except NotFoundError:
            pytest.fail("it lapsed before it could be deleted")

    async def all_is_as_before() -> bool:
        return await names(store) == contents and own.kube.storage.snapshots() == snapshots

    await until(all_is_as_before)
    assert [one for one in (await store.list(OBJECT_KEEPER)).items if follows(one, namespace)] == []


async def names(store: KubernetesStore) -> set[str]:
    return {one.metadata.name for one in (await store.list(VOLUME_SNAPSHOT_CONTENT)).items}


def follows(keeper: Any, namespace: str) -> bool:  # noqa: ANN401 - a keeper
    return bool(keeper.spec.follow_object_ref.namespace == namespace)


async def test_a_snapshot_outlives_its_request_which_goes_when_its_own_annotation_says(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *LATER)
    claim, _ = await bound_claim(store, own.kube, namespace)
    short, long, wrong = [
        await ask_for_capture(store, claim, held=False, name=name, annotations={TTL: ttl})
        for name, ttl in (("short", "2s"), ("long", "1h"), ("wrong", "10minutes"))
    ]
    request = await until_final(store, VOLUME_CAPTURE_REQUEST, short)

    async def gone() -> bool:
        """Look, and be looked at: a finished request is reconciled when it changes, else twice a minute at the most."""
        for key in (short, long):
            if await found(store, VOLUME_CAPTURE_REQUEST, key) is not None:
                await touch(store, key)
        return await found(store, VOLUME_CAPTURE_REQUEST, short) is None

    await until(gone)
    assert await found(store, VOLUME_CAPTURE_REQUEST, long) is not None
    invalid = await until_ended(store, VOLUME_CAPTURE_REQUEST, wrong)
    condition = ready_condition(invalid.status.conditions)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "InvalidTTL")

    keeper = ObjectKey(None, keeper_name("vcr", request.metadata.uid))

    async def counts_down() -> Any:  # noqa: ANN401 - a keeper
        found_one = await store.get(OBJECT_KEEPER, keeper)
        return found_one if found_one.status is not None and found_one.status.lost_at else None

    status = (await until(counts_down)).status
    assert status.phase == "Expiring"
    assert from_timestamp(status.expires_at) == (from_timestamp(status.lost_at) or 0) + HOUR_NS
    content = await store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, request.status.artifact_ref.name))
    assert content.metadata.deletion_timestamp is None
    assert content.status is not None
    assert content.status.snapshot_handle in own.kube.storage.snapshots()


async def touch(store: KubernetesStore, key: ObjectKey) -> None:
    try:
        await store.patch(VOLUME_CAPTURE_REQUEST, key, {"metadata": {"labels": {"touched": uuid()}}})
    except NotFoundError:
        return


# --- what a tenant wrote beforehand -----------------------------------------------------------------------------------


async def test_a_tenant_who_may_write_keepers_and_statuses_takes_nobodys_snapshot_or_volume_along(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.stop)  # the tenant is quicker than the operator
    (mine, _), (other, _) = [await bound_claim(store, own.kube, namespace, name) for name in ("mine", "other")]
    snapshot = await ask_for_capture(store, mine, held=True, name="snapshot")
    retained = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    names = [ObjectKey(None, claim.spec.volume_name) for claim in (mine, other)]
    _, volume = [await store.patch(PERSISTENT_VOLUME, name, retained) for name in names]
    detach = await store.create(
        VOLUME_CAPTURE_REQUEST,
        {
            "metadata": {"name": "detach", "namespace": namespace, "annotations": {HOLD: "true"}},
            "spec": {"mode": "Detach", "target": _target(mine)},
        },
    )
    await asyncio.to_thread(_as_tenant, own, namespace, await store.get(VOLUME_CAPTURE_REQUEST, snapshot), volume)
    await asyncio.to_thread(own.operator, *LATER)

    for key, says in ((snapshot, "its ttl is 1s"), (detach.metadata.key, f"{volume.metadata.name} does not belong")):
        request = await until_ended(store, VOLUME_CAPTURE_REQUEST, key)
        condition = ready_condition(request.status.conditions)
        assert condition is not None
        assert condition.status == "False"
        assert says in condition.message
    assert await found(store, PERSISTENT_VOLUME_CLAIM, mine.metadata.key) is not None
    assert await found(store, PERSISTENT_VOLUME_CLAIM, other.metadata.key) is not None
    kept = await store.get(PERSISTENT_VOLUME, volume.metadata.key)
    assert kept.metadata.owner_references == ()
    assert namespace not in {one.spec.volume_snapshot_ref.namespace for one in await contents(store)}


async def contents(store: KubernetesStore) -> tuple[Any, ...]:
    return tuple((await store.list(VOLUME_SNAPSHOT_CONTENT)).items)


def _target(claim: Any) -> Json:  # noqa: ANN401 - a claim
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.metadata.name, "uid": claim.metadata.uid}


def _as_tenant(own: Own, namespace: str, request: Any, volume: Any) -> None:  # noqa: ANN401 - a capture and a volume
    """Write what somebody with two rights may write: keepers, and the status of requests of one namespace."""
    kubectl = own.kube.kubectl
    kubectl("create", "clusterrole", "keepers", "--verb=create", "--resource=objectkeepers.deckhouse.io")
    kubectl("create", "clusterrolebinding", "keepers", "--clusterrole=keepers", "--user=mallory")
    both = "volumecapturerequests.storage.deckhouse.io,volumecapturerequests.storage.deckhouse.io/status"
    kubectl("create", "role", "-n", namespace, "statuses", "--verb=get,patch", f"--resource={both}")
    kubectl("create", "rolebinding", "-n", namespace, "statuses", "--role=statuses", "--user=mallory")
    followed = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": VOLUME_CAPTURE_REQUEST.kind,
                "namespace": namespace, "name": request.metadata.name, "uid": request.metadata.uid}  # fmt: skip
    keeper = {
        "apiVersion": OBJECT_KEEPER.api_version,
        "kind": OBJECT_KEEPER.kind,
        "metadata": {"name": keeper_name("vcr", request.metadata.uid)},
        "spec": {"mode": "FollowObjectWithTTL", "ttl": "1s", "followObjectRef": followed},
    }
    kubectl("create", "--as=mallory", "-f", "-", stdin=json.dumps(keeper))
    reference = {"apiVersion": "v1", "kind": "PersistentVolume", "name": volume.metadata.name,
                 "uid": volume.metadata.uid}  # fmt: skip
    kubectl("patch", "--as=mallory", "-n", namespace, "vcr", "detach", "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": {"artifactRef": reference}}))  # fmt: skip
