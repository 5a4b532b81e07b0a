"""What a fault must not disturb: a capture lapses, two requests are carried out, and everything else stays.

Made before the fault: two finished captures, both held. While it lasts one of them is let go, and a
capture and a manifest capture are asked for. Sooner or later the one that was let go must be gone, with its keeper,
its content object and its physical snapshot; the new ones must be completed, with one artifact each; and nothing else
may have been deleted by anybody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lapse.core.identity import uuid
from lapse.kube.errors import UnknownKindError
from lapse.kube.resources import Document, ObjectKey
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    OUR_KINDS,
    VOLUME_CAPTURE_REQUEST,
)
from lapse.requests.api.upstream import CONFIG_MAP, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.manifests import read_checkpoint
from tests.integration.operator.audit import AuditedObject
from tests.integration.operator.steps import (
    ask_for_capture,
    ask_for_manifests,
    bound_claim,
    found,
    let_go,
    until_final,
    until_gone,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.kube.resources import Kind
    from lapse.objects.kubernetes import KubernetesStore
    from tests.integration.operator.own import Own

POLICY = ("--request-ttl=1s", "--keeper-mode=FollowObject", "--trash-ttl=never")


class Scene:
    """See the module. `prepare`, then `act` while the fault is there, then `converge`."""

    def __init__(self, own: Own, store: KubernetesStore) -> None:
        self.own, self.store = own, store
        self.namespace = f"scene-{uuid()}"
        self.claims: dict[str, Any] = {}
        self.goes: Any = None
        self.stays: Any = None
        self.new = ObjectKey(self.namespace, "new")
        self.manifests = ObjectKey(self.namespace, "settings")
        self._since = 0

    async def prepare(self) -> None:
        await asyncio.to_thread(self.own.kube.kubectl, "create", "namespace", self.namespace)
        # A volume for each: of several snapshots of one volume the driver forgets all but the last.
        for claim in ("goes", "stays", "new"):
            self.claims[claim], _ = await bound_claim(self.store, self.own.kube, self.namespace, claim)
        name = {"name": "settings", "namespace": self.namespace}
        await self.store.create(CONFIG_MAP, {"metadata": name, "data": {"greeting": "moin"}})
        keys = [await self._capture(name) for name in ("goes", "stays")]
        self.goes, self.stays = [await until_final(self.store, VOLUME_CAPTURE_REQUEST, key) for key in keys]
        self._since = self.own.audit.mark()

    async def _capture(self, name: str) -> ObjectKey:
        return await ask_for_capture(self.store, self.claims[name], held=True, name=name)

    @property
    def due(self) -> set[AuditedObject]:
        return {
            AuditedObject("volumecapturerequests", self.goes.metadata.name),
            AuditedObject("objectkeepers", keeper_name("vcr", self.goes.metadata.uid)),
            AuditedObject("volumesnapshotcontents", self.goes.status.artifact_ref.name),
        }

    async def act(self) -> None:
        await let_go(self.store, VOLUME_CAPTURE_REQUEST, self.goes.metadata.key)
        await self.ask()

    async def ask(self) -> None:
        await self._capture("new")
        target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}
        await ask_for_manifests(self.store, self.namespace, [target])

    async def converge(self) -> None:
        await self._all_is_done()
        await self._all_is_gone()
        await self._nothing_else_is_gone()

    async def _all_is_done(self) -> None:
        request = await until_final(self.store, VOLUME_CAPTURE_REQUEST, self.new)
        content = await self.store.get(VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, request.status.artifact_ref.name))
        assert content.metadata.controller is not None
        assert content.metadata.controller.name == keeper_name("vcr", request.metadata.uid)
        done = await until_final(self.store, MANIFEST_CAPTURE_REQUEST, self.manifests)
        (captured,) = await read_checkpoint(self.store, done.status.checkpoint_name)
        assert captured["data"] == {"greeting": "moin"}

    async def _all_is_gone(self) -> None:
        uid = self.goes.metadata.uid
        await until_gone(self.store, VOLUME_CAPTURE_REQUEST, self.goes.metadata.key)
        await until_gone(self.store, OBJECT_KEEPER, ObjectKey(None, keeper_name("vcr", uid)))
        await until_gone(self.store, VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, self.goes.status.artifact_ref.name))

    async def handles(self) -> set[str]:
        """The snapshots of all contents there are."""
        contents = (await self.store.list(VOLUME_SNAPSHOT_CONTENT)).items
        return {str(one.status and one.status.snapshot_handle) for one in contents}

    async def _nothing_else_is_gone(self) -> None:
        assert self.own.audit.deleted(self._since) <= self.due
        async for kind, key, uid in self._left():
            there = await found(self.store, kind, key)
            assert there is not None, f"{kind.kind} {key} is gone"
            assert there.metadata.uid == (uid or there.metadata.uid)
        assert self.own.kube.storage.snapshots() == await self.handles()
        for kind in OUR_KINDS:
            with suppress(UnknownKindError):  # removing one is a fault, too
                for one in (await self.store.list(replace(kind, type=Document))).items:
                    assert "finalizers" not in one.body["metadata"]

    async def _left(self) -> AsyncIterator[tuple[Kind[Any], ObjectKey, str | None]]:
        """What must still be there, and as which object."""
        new = await self.store.get(VOLUME_CAPTURE_REQUEST, self.new)
        manifests = await self.store.get(MANIFEST_CAPTURE_REQUEST, self.manifests)
        assert manifests.status is not None
        for request in (self.stays, new):
            yield VOLUME_CAPTURE_REQUEST, request.metadata.key, request.metadata.uid
            yield OBJECT_KEEPER, ObjectKey(None, keeper_name("vcr", request.metadata.uid)), None
        yield OBJECT_KEEPER, ObjectKey(None, keeper_name("mcr", manifests.metadata.uid)), None
        yield MANIFEST_CHECKPOINT, ObjectKey(None, manifests.status.checkpoint_name or ""), None
