"""The two worlds in which the contract must hold: an embedded store in a file, and a real Kubernetes API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import TYPE_CHECKING

import aiohttp

from lapse.core.clock import SystemClock
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile, Synchronous
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.resources import untyped
from lapse.objects.embedded import SCHEMA, EmbeddedStore
from lapse.objects.kubernetes import KubernetesStore
from tests.conformance.objects.registry import CLUSTER_WIDGET, KINDS, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.objects.port import ObjectStore
    from tests.servers import KubeServer

CHANGES_KEPT = 300
"""More than any case makes, and few enough to make that many more on purpose."""
PATIENCE_SECONDS = 20.0
"""Long, because a busy machine is slow, not wrong."""
WATCH_SECONDS = 4.0
"""The server sends a bookmark two seconds before it ends a watch, otherwise once a minute: so watches end soon."""
NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)


class EmbeddedWorld:
    """A file of its own; any namespace is there."""

    def __init__(self, store: ObjectStore, patience: float = PATIENCE_SECONDS) -> None:
        self.store = store
        self.patience = patience

    async def namespace(self) -> str:
        return unique("contract")

    async def age_version(self, version: str) -> str:
        """The same one, after more changes than are kept."""
        await self._change_much()
        return version

    async def age_page(self, token: str) -> str:
        await self._change_much()
        return token

    async def _change_much(self) -> None:
        made = await self.store.create(CLUSTER_WIDGET, {"metadata": {"name": unique("busy")}, "spec": {}})
        for turn in range(0, 3 * CHANGES_KEPT, 50):
            await asyncio.gather(
                *(
                    self.store.patch(CLUSTER_WIDGET, made.metadata.key, {"spec": {"turn": number}})
                    for number in range(turn, turn + 50)
                )
            )


@contextlib.asynccontextmanager
async def embedded_world(folder: Path) -> AsyncIterator[EmbeddedWorld]:
    database = Database(SQLiteFile(folder / "objects.db", synchronous=Synchronous.NORMAL), SCHEMA)
    store = EmbeddedStore(database, kinds=KINDS, clock=SystemClock(), changes_kept=CHANGES_KEPT)
    try:
        yield EmbeddedWorld(store)
    finally:
        await store.close()


class KubernetesWorld:
    """A shared server: namespaces are never removed, they go with it."""

    def __init__(self, server: KubeServer, store: KubernetesStore) -> None:
        self.store = store
        self.patience = PATIENCE_SECONDS
        self._server = server

    async def namespace(self) -> str:
        name = unique("contract")
        await self.store.create(NAMESPACE, {"metadata": {"name": name}})
        return name

    async def age_version(self, version: str) -> str:
        """The first version of all: the server's own memory of changes begins later."""
        return "1"

    async def age_page(self, token: str) -> str:
        """The same place in the list, at the first version; etcd is told to forget that one."""
        url = f"{self._server.etcd_url}/v3/kv/compaction"
        async with aiohttp.ClientSession() as session, session.post(url, json={"revision": "2"}) as answer:
            text = await answer.text()
            assert answer.status == 200 or "compacted" in text, text
        place = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return base64.urlsafe_b64encode(json.dumps({**place, "rv": 1}).encode()).decode().rstrip("=")


@contextlib.asynccontextmanager
async def kubernetes_world(server: KubeServer) -> AsyncIterator[KubernetesWorld]:
    client = KubeClient(load_config(file=server.kubeconfig, environ={}), watch_seconds=WATCH_SECONDS)
    store = KubernetesStore(client, kinds=KINDS)
    try:
        yield KubernetesWorld(server, store)
    finally:
        await store.close()
