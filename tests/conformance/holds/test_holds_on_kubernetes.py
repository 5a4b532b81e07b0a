"""Whatever ends things on a real API server, and wherever the hold stands: what is held stays, and goes when released.

The sweeps and passes of Lapse run here on a clock of the test, which is ahead of that of the server.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import Duration
from lapse.core.identity import uuid
from lapse.core.timestamps import to_timestamp
from lapse.domains import object_kinds
from lapse.engine.journal.log import LogJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.holds import Hold
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.policy.default_policy import history_document
from lapse.history.records import write_record
from lapse.history.service import Retention
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.errors import NotFoundError
from lapse.objects.holds.steering import ObjectPlace
from lapse.objects.kubernetes import KubernetesStore
from lapse.requests.api.kinds import (
    CAPTURE_SCHEDULE,
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    RUN,
    SCHEDULED_AT,
)
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.service import Requests
from tests.conformance.holds.stage import reference
from tests.servers import kube_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from lapse.kube.resources import Json, Kind
    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
HOUR = 3600
HELD = {"lapse.dev/hold": "true"}
RELEASED = {"lapse.dev/hold": None, "lapse.dev/hold-until": None, "lapse.dev/held-dependents": None}
TARGETS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]
_REAL = SystemClock()


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server(csi=True) as server:
        yield server


@dataclass
class Target:
    place: ObjectPlace
    act: Callable[[], Awaitable[object]]


@dataclass
class Harness:
    """Everything that ends things, on one cluster, in one namespace."""

    store: KubernetesStore
    clock: VirtualClock
    requests: Requests
    namespace: str
    marked: list[ObjectPlace] = field(default_factory=list)
    steered: list[ObjectPlace] = field(default_factory=list)

    # --- objects ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        kind: Kind[Any],
        *owners: ObjectPlace,
        spec: Json | None = None,
        **metadata: Any,  # noqa: ANN401 - fields
    ) -> ObjectPlace:
        meta = {"name": f"o-{uuid()[:13]}", "ownerReferences": [reference(one) for one in owners], **metadata}
        meta |= {"namespace": self.namespace} if kind.namespaced else {}
        made = await self.store.create(kind, {"metadata": meta} if spec is None else {"metadata": meta, "spec": spec})
        return ObjectPlace(kind, made.metadata.key, made.metadata.uid)

    async def keeper(self, ttl: str = "9999h", **metadata: Any) -> ObjectPlace:  # noqa: ANN401 - fields of metadata
        return await self.create(OBJECT_KEEPER, spec={"mode": "TTL", "ttl": ttl}, **metadata)

    async def own(self, place: ObjectPlace, owner: ObjectPlace) -> None:
        before = (await self.store.get(place.kind, place.key)).metadata.owner_references
        owners = [{"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid} for one in before]
        changes = {"metadata": {"ownerReferences": [*owners, reference(owner)]}}
        await self.store.patch(place.kind, place.key, changes)

    async def mark(self, place: ObjectPlace, annotations: Json | None = None) -> None:
        await self.store.patch(place.kind, place.key, {"metadata": {"annotations": annotations or HELD}})
        self.marked.append(place)

    async def release(self) -> None:
        for one in self.marked:
            await self.store.patch(one.kind, one.key, {"metadata": {"annotations": RELEASED}})
        for one in self.steered:
            await self.requests.steering.release(one, by="bob")

    async def exists(self, place: ObjectPlace) -> bool:
        try:
            found = await self.store.get(place.kind, place.key)
        except NotFoundError:
            return False
        return bool(found.metadata.uid == place.uid)

    async def act(self, target: Target) -> None:
        await self.caught_up()
        await target.act()

    async def caught_up(self) -> None:
        async with asyncio.timeout(30):
            for kind, cache in list(self.requests.caches._informers.items()):
                while {one.metadata.resource_version for one in cache.items()} != {
                    one.metadata.resource_version for one in (await self.store.list(kind)).items
                }:
                    await _REAL.sleep(0.01)

    # --- who acts -----------------------------------------------------------------------------------------------------

    async def _sweep(self, loop: str) -> None:
        (found,) = [one for one in self.requests.loops if one.name == loop]
        await found.sweeps[0].run(proceed=lambda: True)

    async def by_request_ttl(self) -> Target:
        request = await self.create(MANIFEST_CAPTURE_REQUEST, spec={"targets": TARGETS})
        done = to_timestamp(self.clock.wall_ns())
        ready = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": done}
        status = {"conditions": [ready], "completionTimestamp": done}
        await self.store.patch_status(request.kind, request.key, status)
        self.clock.advance(HOUR)
        return Target(request, lambda: self._sweep("request-ttl"))

    async def by_keeper_sweep(self) -> Target:
        keeper = await self.keeper("1h")
        self.clock.advance(2 * HOUR)
        return Target(keeper, lambda: self._sweep("keepers"))

    async def by_schedule(self) -> Target:
        template = {"schedule": "0 3 * * *", "template": {"manifestCapture": {"targets": TARGETS}}, "keep": {"last": 1}}
        schedule = await self.create(CAPTURE_SCHEDULE, spec=template)
        followed = {**reference(schedule), "namespace": self.namespace}
        annotations = {SCHEDULED_AT: to_timestamp(self.clock.wall_ns()), RUN: f"mcr/{self.namespace}/gone"}
        spec = {"mode": "FollowObjectWithTTL", "ttl": "9999h", "followObjectRef": followed}
        keeper = await self.create(OBJECT_KEEPER, spec=spec, annotations=annotations)
        self.clock.advance(1000 * HOUR)

        async def sweep() -> None:
            self.requests.superseded.look(await self.store.get(CAPTURE_SCHEDULE, schedule.key))
            await self._sweep("schedules")

        return Target(keeper, sweep)

    async def by_policy_on_keeper(self) -> Target:
        label = uuid()[:8]
        keeper = await self.keeper(labels={"app": label})
        self.clock.advance(2 * HOUR)
        return Target(keeper, lambda: self._pass(OBJECT_KEEPER, labels={"app": label}))

    async def by_policy_on_maps(self) -> Target:
        one = await self.create(CONFIG_MAP, labels={"app": "old"})
        self.clock.advance(2 * HOUR)
        return Target(one, lambda: self._pass(CONFIG_MAP, labels={"app": "old"}, namespaces=[self.namespace]))

    async def by_history(self) -> Target:
        record = await self.record()
        self.clock.advance(1000 * HOUR)
        return Target(record, lambda: self._retention().run_once())

    async def record(self) -> ObjectPlace:
        ref = ExperimentRef(name="kill", namespace="shop", uid=uuid())
        execution = Execution(start_time=to_timestamp(self.clock.wall_ns()), status="success")
        spec = HistorySpec(experiment_ref=ref, execution=execution)
        made, _ = await write_record(self.store, spec, namespace=self.namespace)
        return ObjectPlace(CHAOS_EXPERIMENT_HISTORY, made.metadata.key, made.metadata.uid)

    async def _pass(self, kind: Kind[Any], **selector: Any) -> None:  # noqa: ANN401 - fields of the selector
        spec = {
            "selector": {"apiVersion": kind.api_version, "kind": kind.kind, **selector},
            "maxAge": "1h",
            "dryRun": False,
        }
        runs = await self._retention({"metadata": {"name": "old"}, "spec": spec}).run_once()
        assert runs["old"].is_ready, runs["old"].message

    def _retention(self, *documents: Json) -> Retention:
        return Retention(
            self.store,
            history=history_document(namespace=self.namespace),
            documents=documents,
            journal=LogJournal(),
            metrics=Metrics("test"),
            holds=self.requests.holds,
            clock=self.clock,
            interval=Duration.parse("1h"),
        )

    # --- where a hold stands ------------------------------------------------------------------------------------------

    async def on_itself(self, target: Target) -> None:
        await self.mark(target.place)

    async def until_later(self, target: Target) -> None:
        end = to_timestamp(self.clock.wall_ns() + 300 * 24 * HOUR * 10**9)
        await self.mark(target.place, {**HELD, "lapse.dev/hold-until": end})

    async def on_its_owner(self, target: Target) -> None:
        owner = await self.keeper()
        await self.own(target.place, owner)
        await self.mark(owner)

    async def on_the_owner_of_its_owner(self, target: Target) -> None:
        above, owner = await self.keeper(), await self.keeper()
        await self.own(owner, above)
        await self.own(target.place, owner)
        await self.mark(above)

    async def on_a_dependant(self, target: Target) -> None:
        await self.mark(await self.create(CONFIG_MAP, target.place))

    async def on_a_dependant_of_a_dependant(self, target: Target) -> None:
        between = await self.create(CONFIG_MAP, target.place)
        await self.mark(await self.create(CONFIG_MAP, between))

    async def in_a_note(self, target: Target) -> None:
        await self.mark(target.place, {"lapse.dev/held-dependents": "3b0c-of-a-kind-that-nobody-watches"})

    async def in_a_note_on_a_dependant(self, target: Target) -> None:
        await self.mark(await self.create(CONFIG_MAP, target.place), {"lapse.dev/held-dependents": "3b0c"})

    async def on_a_dependant_that_nobody_watches(self, target: Target) -> None:
        below = await self.record()
        await self.own(below, target.place)
        await self.requests.steering.hold(below, Hold("audit", None, "ann"))
        self.steered.append(below)


WHO = [
    Harness.by_request_ttl,
    Harness.by_keeper_sweep,
    Harness.by_schedule,
    Harness.by_policy_on_keeper,
    Harness.by_policy_on_maps,
    Harness.by_history,
]
WHERE = [
    Harness.on_itself,
    Harness.until_later,
    Harness.on_its_owner,
    Harness.on_the_owner_of_its_owner,
    Harness.on_a_dependant,
    Harness.on_a_dependant_of_a_dependant,
    Harness.in_a_note,
    Harness.in_a_note_on_a_dependant,
    Harness.on_a_dependant_that_nobody_watches,
]


@asynccontextmanager
async def opened(kube: KubeServer) -> AsyncIterator[Harness]:
    store = KubernetesStore(KubeClient(load_config(file=kube.kubeconfig, environ={})), kinds=object_kinds())
    clock, namespace = VirtualClock(_REAL.wall_ns()), f"holds-{uuid()[:8]}"
    kube.kubectl("create", "namespace", namespace)
    policy = RequestPolicy(request_ttl=Duration.parse("10m"))
    requests = Requests(
        store, policy=policy, journal=LogJournal(), metrics=Metrics("test"), clock=clock, hold_kinds=[CONFIG_MAP]
    )
    filling = asyncio.create_task(requests.caches.run())
    try:
        await requests.caches.wait_until_synced()
        yield Harness(store, clock, requests, namespace)
    finally:
        filling.cancel()
        await asyncio.wait([filling])
        kube.kubectl("delete", "objectkeepers", "--all")
        kube.kubectl("delete", "namespace", namespace, "--wait=false")
        await store.close()


@pytest.mark.parametrize("who", WHO, ids=lambda one: one.__name__)
async def test_what_is_held_on_a_cluster_stays_and_goes_when_it_is_released(kube: KubeServer, who: Any) -> None:  # noqa: ANN401 - a method
    async with opened(kube) as harness:
        for where in WHERE:
            target = await who(harness)
            await where(harness, target)
            await harness.act(target)
            assert await harness.exists(target.place), where.__name__
            await harness.release()
            harness.marked, harness.steered = [], []
            harness.clock.advance(HOUR)
            await harness.act(target)
            assert not await harness.exists(target.place), where.__name__
