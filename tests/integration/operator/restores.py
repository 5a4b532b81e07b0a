"""Restores as a tenant asks for them: the data that is captured, the request, and all that a restore makes on its way.

The names of what is made follow from the request's uid, so a test can look for each of them, and for what is left.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.identity import uuid
from lapse.kube.resources import ObjectKey, ready_condition, untyped
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.deployed import start_operator
from tests.integration.operator.steps import found, until, until_ended, until_final, until_gone
from tests.servers.api_proxy import ApiProxy
from tests.servers.kube.csi import CLASS, DRIVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from lapse.kube.resources import Condition, Document, Kind, OwnerReference
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.requests.api.kinds import VolumeCaptureRequest, VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolume, PersistentVolumeClaim, VolumeSnapshotContent
    from tests.integration.operator.conftest import Operator
    from tests.integration.operator.own import Own
    from tests.servers import KubeServer

Json = dict[str, Any]
SNAPSHOTS = "snapshot.storage.k8s.io/v1"
VOLUME_SNAPSHOT = untyped(SNAPSHOTS, "VolumeSnapshot", "volumesnapshots")
RESTORED_FROM = "lapse.dev/restored-from"
"""On a claim: the uid of the request that it was made for."""
RESTORE = "lapse.dev/restore"
"""The label of all that is made for a request."""
RESTORE_TO = "lapse.dev/restore-to"
"""On a source: the namespaces that may restore from it."""
SOURCE = "lapse.dev/source-"
"""What a capture notes on its content begins with this."""
KEPT = ("--request-ttl=1h", "--keeper-mode=FollowObject", "--trash-ttl=never")
"""Finished requests stay until a test deletes them; what they made goes with them."""
LAPSING = ("--request-ttl=1s", "--keeper-mode=FollowObject", "--trash-ttl=never")
"""Finished requests go by themselves."""
NOTHING: Mapping[str, str] = {}


def whole(kind: Kind[Any]) -> Kind[Document]:
    """The same kind with all fields that the API server has."""
    return untyped(kind.api_version, kind.kind, kind.plural, namespaced=kind.namespaced)


WHOLE_CLAIM = whole(PERSISTENT_VOLUME_CLAIM)
WHOLE_CONTENT = whole(VOLUME_SNAPSHOT_CONTENT)
WHOLE_REQUEST = whole(VOLUME_RESTORE_REQUEST)


def restore_name(request: VolumeRestoreRequest) -> str:
    """What the VolumeSnapshot and the VolumeSnapshotContent of a restore are called."""
    return f"restore-{request.metadata.uid}"


def keeper_of(request: VolumeRestoreRequest | VolumeCaptureRequest, short: str) -> ObjectKey:
    return ObjectKey(None, keeper_name(short, request.metadata.uid))


def noise() -> bytes:
    """Bytes like no others."""
    seed = uuid()
    return b"".join(sha256(f"{seed} {number}".encode()).digest() for number in range(1000))


@dataclass(frozen=True)
class Captured:
    """A finished capture: what was in the claim then, and where it is kept now."""

    data: bytes
    claim: PersistentVolumeClaim
    volume: PersistentVolume
    request: VolumeCaptureRequest
    content: VolumeSnapshotContent

    @property
    def handle(self) -> str:
        """By which the driver knows the snapshot."""
        assert self.content.status is not None
        assert self.content.status.snapshot_handle
        return self.content.status.snapshot_handle

    @property
    def reference(self) -> Json:
        meta = self.content.metadata
        return {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent", "name": meta.name, "uid": meta.uid}


@dataclass(frozen=True)
class Detached:
    """A finished detachment: the volume without its claim, as it was then."""

    data: bytes
    volume: PersistentVolume
    request: VolumeCaptureRequest

    @property
    def reference(self) -> Json:
        meta = self.volume.metadata
        return {"apiVersion": "v1", "kind": "PersistentVolume", "name": meta.name, "uid": meta.uid}


class Tenant:
    """One namespace with its claims, captures and restores; `own.operator` does the work."""

    def __init__(self, own: Own, store: KubernetesStore, namespace: str) -> None:
        self.own, self.store, self.namespace = own, store, namespace

    @classmethod
    async def move_in(cls, own: Own, store: KubernetesStore, name: str = "tenant") -> Tenant:
        """Make a namespace of this name, with something behind it."""
        tenant = cls(own, store, f"{name}-{uuid()}")
        await tenant.kubectl("create", "namespace", tenant.namespace)
        return tenant

    @property
    def kube(self) -> KubeServer:
        return self.own.kube

    def key(self, name: str) -> ObjectKey:
        return ObjectKey(self.namespace, name)

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return await asyncio.to_thread(self.kube.kubectl, *arguments, stdin=stdin)

    # --- data ---------------------------------------------------------------------------------------------------------

    async def claim(self, name: str = "data", *, size: str = "1Mi") -> tuple[PersistentVolumeClaim, bytes]:
        """A bound claim of the driver's with something on its volume."""
        await self.store.create(PERSISTENT_VOLUME_CLAIM, claim_body(self.namespace, name, size=size))
        claim, data = await self.until_bound(name), noise()
        (await self.folder(claim) / "data").write_bytes(data)
        return claim, data

    async def until_bound(self, name: str = "restored") -> PersistentVolumeClaim:
        async def bound() -> PersistentVolumeClaim | None:
            claim = await found(self.store, PERSISTENT_VOLUME_CLAIM, self.key(name))
            return claim if claim is not None and claim.status is not None and claim.status.phase == "Bound" else None

        return await until(bound)

    async def volume(self, claim: PersistentVolumeClaim) -> PersistentVolume:
        assert claim.spec.volume_name
        return await self.store.get(PERSISTENT_VOLUME, ObjectKey(None, claim.spec.volume_name))

    async def folder(self, claim: PersistentVolumeClaim) -> Path:
        return self.kube.storage.volume(volume_handle(await self.volume(claim)))

    async def data(self, name: str = "restored") -> bytes:
        """What is on the volume of a bound claim."""
        return (await self.folder(await self.until_bound(name)) / "data").read_bytes()

    # --- captures -----------------------------------------------------------------------------------------------------

    async def capture(self, name: str = "data", *, size: str = "1Mi") -> Captured:
        """Capture a claim of this name; afterwards it holds something else."""
        claim, data = await self.claim(name, size=size)
        request = await until_final(self.store, VOLUME_CAPTURE_REQUEST, await self.ask_for_capture(claim))
        (await self.folder(claim) / "data").write_bytes(noise())
        content = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, request.status.artifact_ref.name))
        return Captured(data, claim, await self.volume(claim), request, content)

    async def ask_for_capture(self, claim: PersistentVolumeClaim, *, mode: str = "Snapshot") -> ObjectKey:
        meta = claim.metadata
        target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": meta.name, "uid": meta.uid}
        body = {"metadata": {"name": meta.name, "namespace": meta.namespace}, "spec": {"mode": mode, "target": target}}
        return (await self.store.create(VOLUME_CAPTURE_REQUEST, body)).metadata.key

    async def end_original(self, source: Captured) -> None:
        """Delete the claim that was captured; its volume goes with it, from the disk as well."""
        await self.store.delete(PERSISTENT_VOLUME_CLAIM, source.claim.metadata.key)
        await until_gone(self.store, PERSISTENT_VOLUME, source.volume.metadata.key)

        async def gone() -> bool:
            return volume_handle(source.volume) not in self.kube.storage.volumes()

        await until(gone)

    async def detach(self, name: str = "data") -> Detached:
        claim, data = await self.claim(name)
        volume = await self.volume(claim)
        retained = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        await self.store.patch(PERSISTENT_VOLUME, volume.metadata.key, retained)
        key = await self.ask_for_capture(claim, mode="Detach")
        request = await until_final(self.store, VOLUME_CAPTURE_REQUEST, key)
        return Detached(data, await self.until_released(volume), request)

    async def until_released(self, volume: PersistentVolume) -> PersistentVolume:
        async def released() -> PersistentVolume | None:
            now = await self.store.get(PERSISTENT_VOLUME, volume.metadata.key)
            return now if now.status is not None and now.status.phase in {"Released", "Available"} else None

        return await until(released)

    async def end_capture(self, source: Captured | Detached) -> None:
        """Delete the request; its keeper is due at once, and goes."""
        await self.store.delete(VOLUME_CAPTURE_REQUEST, source.request.metadata.key)
        await until_gone(self.store, OBJECT_KEEPER, keeper_of(source.request, "vcr"))

    # --- restores -----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        source: Captured | Detached | Json,
        *,
        name: str = "back",
        claim: str = "restored",
        annotations: Mapping[str, str] = NOTHING,
        template: Mapping[str, Any] = NOTHING,
        **spec: Any,  # noqa: ANN401 - fields of the claim's spec
    ) -> VolumeRestoreRequest:
        """Ask for a restore; ``template`` is more metadata of the claim, a source may be any reference."""
        reference = source if isinstance(source, dict) else source.reference
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "annotations": dict(annotations)},
            "spec": {"sourceRef": reference, "pvcTemplate": {"metadata": {"name": claim, **template}, "spec": spec}},
        }
        return await self.submit(body)

    async def submit(self, body: Json) -> VolumeRestoreRequest:
        """Create a request."""
        return await self.store.create(VOLUME_RESTORE_REQUEST, body)

    async def completed(self, request: VolumeRestoreRequest) -> VolumeRestoreRequest:
        """Wait for the end of a request, which must be a good one."""
        done: VolumeRestoreRequest = await until_final(self.store, VOLUME_RESTORE_REQUEST, request.metadata.key)
        return done

    async def restored(self, source: Captured | Detached, **how: Any) -> VolumeRestoreRequest:  # noqa: ANN401 - see `ask`
        """Ask, and wait for the end."""
        return await self.completed(await self.ask(source, **how))

    async def refused(self, request: VolumeRestoreRequest, *reasons: str, seconds: float = 100) -> str:
        """Wait for the end of a request, which must be for one of these reasons; returns what it says."""
        ended = await until_ended(self.store, VOLUME_RESTORE_REQUEST, request.metadata.key, seconds=seconds)
        condition: Condition | None = ready_condition(ended.status.conditions)
        assert condition is not None
        assert (condition.status, condition.reason in reasons) == ("False", True), condition
        assert condition.message
        return condition.message

    async def until_progress(self, request: VolumeRestoreRequest) -> str:
        """Wait until a request that is not final says how far it is."""

        async def told() -> str | None:
            now = await self.store.get(WHOLE_REQUEST, request.metadata.key)
            return now.body.get("status", {}).get("progress") or None

        return await until(told)

    # --- what a restore makes, and what is left of it -----------------------------------------------------------------

    async def bridge(self, request: VolumeRestoreRequest) -> set[str]:
        """What there is of the objects that lead from the source to the claim, by their label or by their name."""
        name, labels = restore_name(request), {RESTORE: request.metadata.uid}
        there = set()
        for kind in (VOLUME_SNAPSHOT, WHOLE_CONTENT):
            by_label = (await self.store.list(kind, labels=labels)).items
            by_name = await found(self.store, kind, ObjectKey(self.namespace if kind.namespaced else None, name))
            there |= {f"{kind.kind} {one.metadata.key}" for one in (*by_label, *filter(None, (by_name,)))}
        return there

    async def until_bridge(self, request: VolumeRestoreRequest, *kinds: str) -> None:
        """Wait until there is one of each of these kinds."""

        async def there() -> bool:
            return {one.partition(" ")[0] for one in await self.bridge(request)} >= set(kinds)

        await until(there)

    async def claims_for(self, request: VolumeRestoreRequest) -> list[PersistentVolumeClaim]:
        labels = {RESTORE: request.metadata.uid}
        return list((await self.store.list(PERSISTENT_VOLUME_CLAIM, labels=labels)).items)

    async def until_claimed(self, request: VolumeRestoreRequest) -> PersistentVolumeClaim:
        """Wait until the claim is made."""

        async def made() -> PersistentVolumeClaim | None:
            return next(iter(await self.claims_for(request)), None)

        return await until(made)

    async def until_clean(self, request: VolumeRestoreRequest, source: Captured | None = None) -> None:
        """Wait until nothing of the bridge is left, and the source is as it was; the snapshot itself is untouched."""

        async def clean() -> bool:
            return await self._left(request, source) == []

        try:
            await until(clean, seconds=60)
        except TimeoutError:
            pytest.fail(f"left of the restore: {await self._left(request, source)}")
        if source is not None:
            assert self.kube.storage.snapshots(of=volume_handle(source.volume)) == {source.handle}

    async def _left(self, request: VolumeRestoreRequest, source: Captured | None) -> list[str]:
        left = sorted(await self.bridge(request))
        if source is not None:
            owners = await self.owners(source)
            left += [f"owner {one.name}" for one in owners if one not in source.content.metadata.owner_references]
        return left

    async def owners(self, source: Captured) -> tuple[OwnerReference, ...]:
        """Who owns the content now, if it is still the same one."""
        content = await self.store.get(VOLUME_SNAPSHOT_CONTENT, source.content.metadata.key)
        assert content.metadata.uid == source.content.metadata.uid
        assert content.metadata.deletion_timestamp is None
        return content.metadata.owner_references

    async def until_pinned(self, source: Captured, request: VolumeRestoreRequest) -> None:
        async def pinned() -> bool:
            return any(one.name == keeper_of(request, "vrr").name for one in await self.owners(source))

        await until(pinned)

    async def nothing_made(self, request: VolumeRestoreRequest, source: Captured | None = None) -> None:
        """A refused request has made no object, and left its source alone."""
        assert await self.bridge(request) == set()
        assert await self.claims_for(request) == []
        if source is not None:
            assert await self.owners(source) == source.content.metadata.owner_references


def volume_handle(volume: PersistentVolume) -> str:
    assert volume.spec.csi is not None
    assert volume.spec.csi.volume_handle
    return volume.spec.csi.volume_handle


def claim_body(namespace: str, name: str, *, size: str = "1Mi", **spec: Any) -> Json:  # noqa: ANN401 - fields of a spec
    asked = {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {**asked, **spec}}


def storage_class(name: str, *, binding: str = "Immediate", driver: str = DRIVER) -> str:
    """Another class, as a manifest."""
    return json.dumps(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storage.deckhouse.io/volumesnapshotclass": CLASS}},
            "provisioner": driver,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": binding,
        }
    )


@asynccontextmanager
async def operator_behind_proxy(own: Own, folder: Path, *policy: str) -> AsyncIterator[tuple[ApiProxy, Operator]]:
    """An operator whose every call can be held back, while that of the module is away."""
    await asyncio.to_thread(own.stop)
    with ApiProxy(own.kube) as proxy:
        url = own.kube.url.replace(f":{own.kube.port}", f":{proxy.port}")
        operator = await asyncio.to_thread(start_operator, own.kube, folder, *policy, url=url)
        try:
            yield proxy, operator
        finally:
            await asyncio.to_thread(operator.stop)
            print("".join(operator.log[-100:]))  # noqa: T201 - shown beside a failure
