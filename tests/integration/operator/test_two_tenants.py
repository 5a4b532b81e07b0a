"""Two tenants on one cluster: what one of them tries, with every right in its own namespace, never reaches the other.

Mallory may do everything in a namespace of hers, all kinds and all status subresources included, and read contents,
volumes, keepers and classes, which belong to the whole cluster. She tries one thing after another; each is refused with
a reason or has no effect, and everything of Alice's is afterwards as it was before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from lapse.kube.resources import ObjectKey
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.restores import (
    KEPT,
    RESTORE,
    RESTORE_TO,
    RESTORED_FROM,
    SNAPSHOTS,
    VOLUME_SNAPSHOT,
    Captured,
    Tenant,
    claim_body,
    keeper_of,
    restore_name,
    volume_handle,
    whole,
)
from tests.integration.operator.steps import found, until, until_ended, until_gone
from tests.servers import KubectlError
from tests.servers.kube.csi import CLASS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.kube.resources import Kind
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeRestoreRequest

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
GROUP = "tenants"
READABLE = (
    "volumesnapshotcontents.snapshot.storage.k8s.io,volumesnapshotclasses.snapshot.storage.k8s.io,persistentvolumes,"
    "storageclasses.storage.k8s.io,objectkeepers.deckhouse.io"
)
HELD = {"lapse.dev/hold": "true"}
REFUSED = ("InvalidSource", "Incompatible", "NotFound", "PVBound", "InternalError", "RestoreFailed")


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        own.kube.kubectl("create", "clusterrole", "readers", "--verb=get,list,watch", f"--resource={READABLE}")
        own.kube.kubectl("create", "clusterrolebinding", "readers", "--clusterrole=readers", f"--group={GROUP}")
        yield own


@pytest.fixture
async def store(own: Own) -> AsyncIterator[KubernetesStore]:
    store = own.store()
    yield store
    await store.close()


class Person(Tenant):
    """A tenant with a name by which the API server judges what comes from `send`."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (f"--as={self.namespace}", f"--as-group={GROUP}", "-n", self.namespace)

    async def send(self, *arguments: str, manifest: Json | None = None) -> str:
        """Run kubectl with the rights of this person."""
        return await self.kubectl(*self.identity, *arguments, stdin=json.dumps(manifest) if manifest else "")

    async def make(self, manifest: Json) -> Json:
        made: Json = json.loads(await self.send("create", "-f", "-", "-o", "json", manifest=manifest))
        return made

    async def write_status(self, what: str, status: Json) -> None:
        await self.send("patch", what, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))

    async def submit(self, body: Json) -> VolumeRestoreRequest:
        kind = {"apiVersion": VOLUME_RESTORE_REQUEST.api_version, "kind": VOLUME_RESTORE_REQUEST.kind}
        return VOLUME_RESTORE_REQUEST.convert(await self.make({**kind, **body}))


@pytest.fixture
async def alice(own: Own, store: KubernetesStore) -> Person:
    return await enter(own, store, "alice")


@pytest.fixture
async def mallory(own: Own, store: KubernetesStore) -> Person:
    return await enter(own, store, "mallory")


async def enter(own: Own, store: KubernetesStore, name: str) -> Person:
    await asyncio.to_thread(own.operator, *KEPT)
    tenant = await Tenant.move_in(own, store, name)
    person = Person(own, store, tenant.namespace)
    binding = ("create", "rolebinding", "everything", "--clusterrole=cluster-admin", f"--user={person.namespace}")
    await person.kubectl(*binding, "-n", person.namespace)
    return person


# --- what must not change ---------------------------------------------------------------------------------------------


async def world(person: Person) -> dict[str, Json]:
    """Everything that is a person's: metadata, spec and phase, without what only counts writes."""
    store, seen = person.store, {}
    inside: list[Kind[Any]] = [PERSISTENT_VOLUME_CLAIM, VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST, VOLUME_SNAPSHOT]
    outside: list[tuple[Kind[Any], str]] = [
        (VOLUME_SNAPSHOT_CONTENT, "volumeSnapshotRef"),
        (PERSISTENT_VOLUME, "claimRef"),
    ]
    for kind in inside:
        for one in (await store.list(whole(kind), namespace=person.namespace)).items:
            seen[f"{kind.kind} {one.metadata.name}"] = one.body
    for kind, owner in outside:
        for one in (await store.list(whole(kind))).items:
            if (one.body["spec"].get(owner) or {}).get("namespace") == person.namespace:
                seen[f"{kind.kind} {one.metadata.name}"] = one.body
    for one in (await store.list(whole(OBJECT_KEEPER))).items:
        if one.body["spec"]["followObjectRef"]["namespace"] == person.namespace:
            seen[f"{OBJECT_KEEPER.kind} {one.metadata.name}"] = one.body
    return {name: lasting(body) for name, body in seen.items()}


def lasting(body: Json) -> Json:
    meta = {
        name: body["metadata"].get(name)
        for name in ("uid", "ownerReferences", "annotations", "labels", "deletionTimestamp")
    }
    status = body.get("status", {})
    return {**meta, "spec": body.get("spec"), "phase": status.get("phase"), "conditions": status.get("conditions")}


async def proof_of_life(person: Person, source: Captured) -> None:
    """A restore of one's own goes through: whatever was tried before has been looked at by now."""
    done = await person.restored(source, name="honest", claim="honest")
    assert await person.data("honest") == source.data
    await person.until_clean(done, source)


# --- what she tries ---------------------------------------------------------------------------------------------------

Attempt = Callable[[Person, Person, Captured], Awaitable[None]]
ATTEMPTS: dict[str, Attempt] = {}
"""By what is tried: called with Mallory, Alice and what Alice has captured."""


def attempt(function: Attempt) -> Attempt:
    ATTEMPTS[function.__name__.replace("_", " ")] = function
    return function


@attempt
async def name_the_content_of_another(mallory: Person, alice: Person, source: Captured) -> None:
    request = await mallory.ask(source)
    assert mallory.namespace in await mallory.refused(request, "InvalidSource")
    await mallory.nothing_made(request, source)


@attempt
async def name_the_volume_in_use_of_another(mallory: Person, alice: Person, source: Captured) -> None:
    reference = {"apiVersion": "v1", "kind": "PersistentVolume", "name": source.volume.metadata.name}
    await mallory.refused(await mallory.ask(reference), "InvalidSource", "PVBound")


@attempt
async def grant_it_to_herself_on_her_own_request(mallory: Person, alice: Person, source: Captured) -> None:
    notes = {RESTORE_TO: mallory.namespace, RESTORED_FROM: "anything", "lapse.dev/source-class": CLASS}
    request = await mallory.ask(source, annotations=notes, template={"annotations": notes})
    await mallory.refused(request, "InvalidSource")
    await mallory.nothing_made(request, source)


@attempt
async def grant_it_to_herself_on_the_content(mallory: Person, alice: Person, source: Captured) -> None:
    grant = f"{RESTORE_TO}={mallory.namespace}"
    with pytest.raises(KubectlError, match="forbidden"):
        await mallory.send("annotate", "volumesnapshotcontent", source.content.metadata.name, grant)


@attempt
async def forge_the_outcome_of_her_own_request(mallory: Person, alice: Person, source: Captured) -> None:
    request = await mallory.ask(source)
    await until_ended(mallory.store, VOLUME_RESTORE_REQUEST, request.metadata.key)
    claim = source.claim.metadata
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name, "uid": claim.uid}
    pending = {"type": "Ready", "status": "False", "reason": "Processing", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    forged = {"pvcRef": {**reference, "namespace": alice.namespace}, "completionTimestamp": None}
    await mallory.write_status("vrr/back", {**forged, "conditions": [pending], "progress": "bound"})
    await mallory.refused(request, "InvalidSource")
    await mallory.nothing_made(request, source)


@attempt
async def forge_the_artifact_of_a_capture(mallory: Person, alice: Person, source: Captured) -> None:
    claim, _ = await mallory.claim("mine")
    await asyncio.to_thread(mallory.own.stop)  # she is quicker than the operator
    capture = await mallory.ask_for_capture(claim)
    await mallory.write_status("vcr/mine", {"artifactRef": source.reference})
    request = await mallory.ask(source)
    await asyncio.to_thread(mallory.own.operator, *KEPT)
    ended = await until_ended(mallory.store, VOLUME_CAPTURE_REQUEST, capture)
    assert ended.status.conditions[0].status == "False"
    await mallory.refused(request, "InvalidSource")
    await mallory.nothing_made(request, source)


@attempt
async def make_a_snapshot_from_the_content_of_another(mallory: Person, alice: Person, source: Captured) -> None:
    await snapshot_in_vain(mallory, "stolen", source.content.metadata.name)


async def snapshot_in_vain(mallory: Person, name: str, content: str) -> None:
    """Make a VolumeSnapshot from a content that is for another; the stock controller says no."""
    spec = {"volumeSnapshotClassName": CLASS, "source": {"volumeSnapshotContentName": content}}
    await mallory.make({"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshot", "metadata": {"name": name}, "spec": spec})

    async def judged() -> Json | None:
        status = (await mallory.store.get(VOLUME_SNAPSHOT, mallory.key(name))).body.get("status", {})
        return status if status.get("error") else None

    assert not (await until(judged)).get("readyToUse")


@attempt
async def make_the_snapshot_of_her_restore_beforehand(mallory: Person, alice: Person, source: Captured) -> None:
    mine = await mallory.capture("mine")
    await asyncio.to_thread(mallory.own.stop)
    request = await mallory.ask(mine)
    spec = {
        "volumeSnapshotClassName": CLASS,
        "source": {"volumeSnapshotContentName": source.content.metadata.name},
    }
    meta = {"name": restore_name(request), "labels": {RESTORE: request.metadata.uid}}
    await mallory.make({"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshot", "metadata": meta, "spec": spec})
    await asyncio.to_thread(mallory.own.operator, *KEPT)
    await mallory.refused(request, *REFUSED)
    assert await mallory.claims_for(request) == []


@attempt
async def make_the_claim_of_her_restore_beforehand(mallory: Person, alice: Person, source: Captured) -> None:
    mine = await mallory.capture("mine")
    await asyncio.to_thread(mallory.own.stop)
    request = await mallory.ask(mine)
    marks = {"annotations": {RESTORED_FROM: request.metadata.uid}, "labels": {RESTORE: request.metadata.uid}}
    body = claim_body(mallory.namespace, "restored", volumeName=source.volume.metadata.name)
    body["metadata"] |= marks
    await mallory.make({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **body})
    await asyncio.to_thread(mallory.own.operator, *KEPT)
    await mallory.refused(request, "Incompatible")
    assert [one.status and one.status.phase for one in await mallory.claims_for(request)] == ["Pending"]


@attempt
async def write_a_retention_policy(mallory: Person, alice: Person, source: Captured) -> None:
    selector = {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent"}
    spec = {"selector": selector, "maxAge": "1s", "dryRun": False}
    policy = {"apiVersion": "lapse.dev/v1alpha1", "kind": "RetentionPolicy", "metadata": {"name": "mine"}, "spec": spec}
    with pytest.raises(KubectlError, match="forbidden"):
        await mallory.make(policy)


@attempt
async def make_or_end_things_of_the_whole_cluster(mallory: Person, alice: Person, source: Captured) -> None:
    keeper = keeper_of(source.request, "vcr").name
    for command in (
        ("delete", "volumesnapshotcontent", source.content.metadata.name),
        ("delete", "pv", source.volume.metadata.name),
        ("delete", "objectkeeper", keeper),
        ("annotate", "objectkeeper", keeper, "lapse.dev/hold=true"),
        ("patch", "pv", source.volume.metadata.name, "--type=merge", "-p", '{"metadata":{"ownerReferences":null}}'),
    ):
        with pytest.raises(KubectlError, match="forbidden"):
            await mallory.send(*command)


@pytest.mark.parametrize("tried", ATTEMPTS.values(), ids=ATTEMPTS)
async def test_nothing_that_a_tenant_tries_reaches_another(alice: Person, mallory: Person, tried: Attempt) -> None:
    source = await alice.capture()
    hers = await mallory.capture("hers")
    there = await world(alice)
    assert len(there) >= 5  # a claim, its volume, a capture, its keeper, its content
    original = await alice.data("data")
    volumes = mallory.kube.storage.volumes()

    await tried(mallory, alice, source)

    await proof_of_life(mallory, hers)
    assert await world(alice) == there
    assert source.handle in alice.kube.storage.snapshots()
    assert await alice.data("data") == original
    for handle in mallory.kube.storage.volumes() - volumes:  # whatever was made since holds nothing of hers
        file = mallory.kube.storage.volume(handle) / "data"
        assert not file.exists() or file.read_bytes() not in {source.data, original}
    await proof_of_life(alice, source)


# --- volumes that were detached ---------------------------------------------------------------------------------------


async def test_a_detached_volume_of_another_is_out_of_reach(alice: Person, mallory: Person) -> None:
    detached = await alice.detach()
    hers = await mallory.capture("hers")
    there = await world(alice)
    request = await mallory.ask(detached)
    await mallory.refused(request, "InvalidSource")
    await mallory.nothing_made(request)
    # Without us, by name: the volume is not for her.
    body = claim_body(mallory.namespace, "stolen", volumeName=detached.volume.metadata.name)
    await mallory.make({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **body})
    await proof_of_life(mallory, hers)
    assert await world(alice) == there

    await alice.restored(detached)
    assert await alice.data() == detached.data
    assert (await alice.until_bound()).spec.volume_name == detached.volume.metadata.name
    claim = await mallory.store.get(PERSISTENT_VOLUME_CLAIM, mallory.key("stolen"))
    assert claim.status is not None
    assert claim.status.phase != "Bound"


# --- while a restore of another is on its way -------------------------------------------------------------------------


async def test_a_restore_that_is_on_its_way_cannot_be_tapped_or_stopped(alice: Person, mallory: Person) -> None:
    source = await alice.capture()
    with alice.kube.component("csi-provisioner").paused():
        request = await alice.ask(source)
        claim = await alice.until_claimed(request)
        name = restore_name(request)
        # The content that leads to it is as little hers as the one that it leads from.
        reference = {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": name}
        await mallory.refused(await mallory.ask(reference), "InvalidSource")
        await snapshot_in_vain(mallory, name, name)
        await mallory.make(failure_of(mallory, claim.metadata.name, claim.metadata.uid, alice.namespace))
        taken = await alice.store.get(VOLUME_RESTORE_REQUEST, request.metadata.key)
        assert taken.status is None or taken.status.completion_timestamp is None
    done = await alice.completed(request)
    assert await alice.data() == source.data
    await mallory.send("delete", "volumesnapshot", name)
    await alice.until_clean(done, source)


def failure_of(mallory: Person, claim: str, uid: str, namespace: str) -> Json:
    """An Event like a provisioner's about a claim of another namespace."""
    about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "uid": uid, "namespace": namespace}
    now = "2199-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "failure"},
        "involvedObject": {**about, "namespace": mallory.namespace},
        "reason": "ProvisioningFailed",
        "message": "rpc error: code = InvalidArgument desc = made up",
        "type": "Warning",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "hostpath.csi.k8s.io"},
    }


async def test_what_names_the_keeper_of_another_as_its_owner_keeps_it_from_nothing(
    alice: Person, mallory: Person
) -> None:
    """Whoever reads keepers knows their uids. A claim that waits counts in the keeper's namespace only."""
    source = await alice.capture()
    done = await alice.restored(source)
    await alice.until_clean(done, source)
    for keeper in (keeper_of(source.request, "vcr"), keeper_of(done, "vrr")):
        owner = await alice.store.get(OBJECT_KEEPER, keeper)
        reference = {
            "apiVersion": OBJECT_KEEPER.api_version,
            "kind": OBJECT_KEEPER.kind,
            "name": owner.metadata.name,
            "uid": owner.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = claim_body(mallory.namespace, f"parasite-{len(keeper.name)}-{keeper.name[4:7]}", storageClassName="none")
        body["metadata"] |= {
            "annotations": {RESTORED_FROM: done.metadata.uid},
            "labels": {RESTORE: done.metadata.uid},
            "ownerReferences": [reference],
            "finalizers": ["tests.lapse.dev/stays"],
        }
        await mallory.make({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **body})

    await alice.store.delete(VOLUME_RESTORE_REQUEST, done.metadata.key)
    await alice.store.delete(VOLUME_CAPTURE_REQUEST, source.request.metadata.key)
    await until_gone(alice.store, OBJECT_KEEPER, keeper_of(done, "vrr"))
    await until_gone(alice.store, OBJECT_KEEPER, keeper_of(source.request, "vcr"))
    await until_gone(alice.store, VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key)
    assert await alice.data() == source.data


async def test_a_tenant_really_has_the_rights_that_are_tried_here(alice: Person, mallory: Person) -> None:
    """Otherwise a refusal by the API server would look like one of ours."""
    await mallory.claim()
    for verb, what in (
        ("create", "volumerestorerequests.storage.deckhouse.io"),
        ("patch", "volumerestorerequests.storage.deckhouse.io/status"),
        ("create", "volumesnapshots.snapshot.storage.k8s.io"),
        ("patch", "volumesnapshots.snapshot.storage.k8s.io/status"),
        ("create", "events"),
        ("delete", "persistentvolumeclaims"),
    ):
        assert (await mallory.send("auth", "can-i", verb, what)).strip() == "yes"
    for what in ("volumesnapshotcontents", "persistentvolumes", "objectkeepers"):
        assert await mallory.send("get", what)
    with pytest.raises(KubectlError, match="forbidden"):
        await mallory.kubectl(*mallory.identity[:2], "get", "pvc", "-n", alice.namespace)


async def test_the_volume_of_a_restore_is_of_the_namespace_that_asked(alice: Person, mallory: Person) -> None:
    """Two restores with the same names everywhere, at the same time, each from one's own capture."""
    sources = await asyncio.gather(alice.capture(), mallory.capture())
    done = await asyncio.gather(
        *(person.restored(source) for person, source in zip((alice, mallory), sources, strict=True))
    )
    for person, source, request in zip((alice, mallory), sources, done, strict=True):
        assert await person.data() == source.data
        volume = await person.volume(await person.until_bound())
        assert volume.spec.claim_ref is not None
        assert volume.spec.claim_ref.namespace == person.namespace
        assert volume_handle(volume) in person.kube.storage.volumes()
        await person.until_clean(request, source)
    assert await found(alice.store, VOLUME_SNAPSHOT, ObjectKey(alice.namespace, restore_name(done[1]))) is None
