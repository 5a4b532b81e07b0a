"""A store with people who steer its objects: the embedded one, or a real API server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapse.core.clock import SystemClock, UnixNs, VirtualClock
from lapse.core.identity import uuid
from lapse.db.sqlite.file import Synchronous
from lapse.domains import object_kinds
from lapse.engine.safety.holds import Hold, held_dependents, own_hold_of
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.objects.embedded import open_embedded
from lapse.objects.holds.cluster import ListedDependants
from lapse.objects.holds.steering import ObjectPlace, Steering
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.lifecycle.keeper import keepers_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lapse.kube.resources import Json, Kind, ObjectKey
    from lapse.objects.port import ObjectStore
    from tests.servers import KubeServer

HOUR = 3600 * 10**9
ANN, BOB = "ann", "bob"
_REAL = SystemClock()


class CutOffError(BaseException):
    """The process ends here."""


@dataclass
class Line:
    """The way to a store: it may be cut off after some writes, or have something happen before each."""

    store: Any
    writes_left: int | None = None
    before: Callable[[str, Kind[Any], ObjectKey], None] = lambda *_: None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        return getattr(self.store, name)

    async def patch(self, kind: Kind[Any], key: ObjectKey, changes: Json, **how: Any) -> Any:  # noqa: ANN401 - as the port has it
        self.before("patch", kind, key)
        if self.writes_left == 0:
            raise CutOffError
        await _REAL.sleep(0)  # others have their turn between any two calls
        answer = await self.store.patch(kind, key, changes, **how)
        if self.writes_left is not None:
            self.writes_left -= 1
        return answer

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - as the port has it
        self.before("get", kind, key)
        await _REAL.sleep(0)
        return await self.store.get(kind, key)


class Stage:
    """See the module."""

    def __init__(self, store: ObjectStore, clock: VirtualClock, namespace: str) -> None:
        self.store, self.clock, self.namespace = store, clock, namespace
        self.mark = uuid()[:8]
        """For names that the whole cluster shares."""

    @property
    def now(self) -> UnixNs:
        return UnixNs(self.clock.wall_ns() // 10**9 * 10**9)

    def later(self, hours: float) -> UnixNs:
        return UnixNs(self.now + round(hours * HOUR))

    def steering(self, line: Any = None) -> Steering:  # noqa: ANN401 - a store
        store = self.store if line is None else line
        listed = ListedDependants(self.store, [CONFIG_MAP, OBJECT_KEEPER], clock=_REAL)
        return Steering(store, dependants=listed, followers=keepers_of(store), clock=_REAL)

    # --- objects ------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind[Any], name: str, *owners: ObjectPlace, spec: Json | None = None) -> ObjectPlace:
        metadata: Json = {"name": name, "ownerReferences": [reference(one) for one in owners]}
        if kind.namespaced:
            metadata["namespace"] = self.namespace
        body = {"metadata": metadata} if spec is None else {"metadata": metadata, "spec": spec}
        made = await self.store.create(kind, body)
        return ObjectPlace(kind, made.metadata.key, made.metadata.uid)

    async def map(self, name: str, *owners: ObjectPlace) -> ObjectPlace:
        return await self.create(CONFIG_MAP, name, *owners)

    async def keeper(self, name: str, *owners: ObjectPlace) -> ObjectPlace:
        return await self.create(OBJECT_KEEPER, f"{name}-{self.mark}", *owners, spec={"mode": "TTL", "ttl": "9999h"})

    async def request(self) -> tuple[ObjectPlace, ObjectPlace]:
        """A request with its keeper."""
        target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": uuid()}
        spec = {"mode": "Snapshot", "target": target}
        made = await self.create(VOLUME_CAPTURE_REQUEST, "nightly", spec=spec)
        ref = {**reference(made), "namespace": self.namespace}
        name = keeper_name(VOLUME_CAPTURE_REQUEST.short, made.uid)
        keeper = await self.create(
            OBJECT_KEEPER, name, spec={"mode": "FollowObjectWithTTL", "ttl": "9999h", "followObjectRef": ref}
        )
        return made, keeper

    # --- what is written ----------------------------------------------------------------------------------------------

    async def annotations(self, place: ObjectPlace) -> dict[str, str]:
        return dict((await self.store.get(place.kind, place.key)).metadata.annotations)

    async def annotate(self, place: ObjectPlace, **values: str | None) -> None:
        changes = {f"lapse.dev/{name.replace('_', '-')}": value for name, value in values.items()}
        await self.store.patch(place.kind, place.key, {"metadata": {"annotations": changes}})

    async def held(self, place: ObjectPlace) -> Hold | None:
        return own_hold_of(await self.annotations(place))

    async def noted(self, owner: ObjectPlace) -> set[str]:
        return {one.uid for one in held_dependents(await self.annotations(owner))}


def reference(place: ObjectPlace) -> Json:
    return {
        "apiVersion": place.kind.api_version,
        "kind": place.kind.kind,
        "name": place.key.name,
        "uid": place.uid,
    }


@asynccontextmanager
async def embedded_stage(folder: Path) -> AsyncIterator[Stage]:
    clock = VirtualClock(SystemClock().wall_ns())
    store = open_embedded(folder / "objects.db", kinds=object_kinds(), clock=clock, synchronous=Synchronous.NORMAL)
    try:
        yield Stage(store, clock, "shop")
    finally:
        await store.close()


@asynccontextmanager
async def kubernetes_stage(server: KubeServer) -> AsyncIterator[Stage]:
    store = KubernetesStore(KubeClient(load_config(file=server.kubeconfig, environ={})), kinds=object_kinds())
    namespace = f"holds-{uuid()[:8]}"
    server.kubectl("create", "namespace", namespace)
    try:
        yield Stage(store, VirtualClock(SystemClock().wall_ns()), namespace)
    finally:
        server.kubectl("delete", "namespace", namespace, "--wait=false")
        await store.close()
