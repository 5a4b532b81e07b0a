"""The two worlds in which the contract must hold: an embedded store in a file, and a real Kubernetes API server."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING

import aiohttp

from lapse.kube.resources import untyped
from tests.conformance.objects.book import KINDS, unique
from tests.conformance.objects.kubernetes_adapter import KubernetesStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import KubeServer

NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)


class KubernetesWorld:
    """A shared server: namespaces are never removed, they go with it."""

    def __init__(self, server: KubeServer, store: KubernetesStore) -> None:
        self.store = store
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
    certificate = (server.client_certificate_file, server.client_key_file)
    store = KubernetesStore(server.url, ca_file=server.ca_file, certificate=certificate, kinds=KINDS)
    try:
        yield KubernetesWorld(server, store)
    finally:
        await store.close()
