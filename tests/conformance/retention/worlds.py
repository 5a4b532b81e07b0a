"""The two worlds in which retention must hold: an embedded store in a file, and a real Kubernetes API server.

The clock of both is a virtual one. The embedded store takes its creation times from it; those of an API server are
real, so there a later creation time takes a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from lapse.core.clock import SystemClock, VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.resources import untyped
from lapse.objects.embedded import open_embedded
from lapse.objects.kubernetes import KubernetesStore
from tests.conformance.retention.registry import KINDS, Implementation, Meddler, unique

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from lapse.engine.journal.port import Journal
    from lapse.kube.resources import Kind, ObjectKey, Page
    from lapse.objects.port import Deletion, ObjectStore
    from tests.servers import KubeServer

NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)
SECOND = 1.0
A_LITTLE = 0.05


class MeddledStore:
    """A store as what is tried sees it: somebody else may be at work between two of its calls."""

    def __init__(self, inner: ObjectStore, meddler: Meddler) -> None:
        self._inner, self._meddler = inner, meddler

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        return getattr(self._inner, name)

    async def list(self, kind: Kind[Any], **how: Any) -> Page[Any]:  # noqa: ANN401 - as it is asked
        return await self._meddled(await self._inner.list(kind, **how))

    async def list_created_before(self, kind: Kind[Any], moment: str, **how: Any) -> Page[Any]:  # noqa: ANN401 - as it is asked
        return await self._meddled(await cast("Any", self._inner).list_created_before(kind, moment, **how))

    async def _meddled(self, page: Page[Any]) -> Page[Any]:
        self._meddler.lists += 1
        if self._meddler.after_list is not None:
            await self._meddler.after_list(self._meddler.lists)
        return page

    async def delete(self, kind: Kind[Any], key: ObjectKey, **how: Any) -> None:  # noqa: ANN401 - as it is asked
        self._may_fail(key)
        await self._inner.delete(kind, key, **how)

    async def delete_all(self, deletions: Sequence[Deletion], **how: Any) -> Any:  # noqa: ANN401 - as it is asked
        for deletion in deletions:
            self._may_fail(deletion.key)
        return await cast("Any", self._inner).delete_all(deletions, **how)

    def _may_fail(self, key: ObjectKey) -> None:
        if key.name in self._meddler.failing:
            raise RuntimeError(f"a test lets the deletion of {key} fail")


Make = Callable[["Surroundings"], Implementation]


class Surroundings:
    """What an implementation is given."""

    def __init__(self, store: ObjectStore, clock: VirtualClock, journal: Journal) -> None:
        self.clock, self.journal = clock, journal
        self.metrics, self.meddler = Metrics("test"), Meddler()
        self.store = cast("ObjectStore", MeddledStore(store, self.meddler))


class EmbeddedWorld:
    """A file of its own; any namespace is there."""

    def __init__(self, store: ObjectStore, around: Surroundings, tried: Implementation) -> None:
        self.store, self.tried = store, tried
        self.clock, self.metrics, self.meddler = around.clock, around.metrics, around.meddler

    async def namespace(self) -> str:
        return unique("history")

    async def tick(self) -> None:
        self.clock.advance(SECOND)


@contextlib.asynccontextmanager
async def embedded_world(folder: Path, make: Make) -> AsyncIterator[EmbeddedWorld]:
    clock = VirtualClock()
    store = open_embedded(folder / "objects.db", kinds=KINDS, clock=clock, synchronous=Synchronous.NORMAL)
    around = Surroundings(store, clock, SQLiteJournal(store.database))
    try:
        yield EmbeddedWorld(store, around, make(around))
    finally:
        await store.close()


class KubernetesWorld(EmbeddedWorld):
    """A shared server: namespaces are never removed, they go with it."""

    async def namespace(self) -> str:
        name = await super().namespace()
        await self.store.create(NAMESPACE, {"metadata": {"name": name}})
        return name

    async def tick(self) -> None:
        await SystemClock().sleep(SECOND + A_LITTLE)


@contextlib.asynccontextmanager
async def kubernetes_world(server: KubeServer, make: Make) -> AsyncIterator[KubernetesWorld]:
    store = KubernetesStore(KubeClient(load_config(file=server.kubeconfig, environ={})), kinds=KINDS)
    around = Surroundings(store, VirtualClock(SystemClock().wall_ns()), LogJournal())
    try:
        yield KubernetesWorld(store, around, make(around))
    finally:
        await store.close()
