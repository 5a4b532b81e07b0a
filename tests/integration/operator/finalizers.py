"""Sees every state that an object of ours is ever in, and who keeps it from going."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lapse.kube.resources import Document
from lapse.requests.api.kinds import OUR_KINDS
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.kube.resources import Kind
    from lapse.objects.kubernetes import KubernetesStore

OF_THE_SNAPSHOTTER = "snapshot.storage.kubernetes.io/"


@asynccontextmanager
async def no_finalizers_of_ours(store: KubernetesStore) -> AsyncIterator[None]:
    """Watch all our kinds inside the block; raises when one had a finalizer, or a content one not the snapshotter's."""
    seen: set[tuple[str, str]] = set()

    async def look(kind: Kind[Document], since: str) -> None:
        async for event in store.watch(kind, since=since):
            body: dict[str, Any] = event.object.body if event.object is not None else {}
            states.append(kind.kind)
            seen.update((kind.kind, name) for name in body.get("metadata", {}).get("finalizers", ()))

    states: list[str] = []
    looking = []
    for kind in (*OUR_KINDS, VOLUME_SNAPSHOT_CONTENT):
        whole = replace(kind, type=Document)
        looking.append(asyncio.create_task(look(whole, (await store.list(whole)).resource_version)))
    try:
        yield
        assert not any(task.done() for task in looking), looking
    finally:
        for task in looking:
            task.cancel()
        await asyncio.wait(looking)
    assert states, "nothing was seen"
    snapshots = VOLUME_SNAPSHOT_CONTENT.kind
    ours = {(kind, name) for kind, name in seen if kind != snapshots or not name.startswith(OF_THE_SNAPSHOTTER)}
    assert ours == set()
