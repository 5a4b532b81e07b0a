"""Policies that are stored on a real control plane, and the service that applies them to whatever kinds there are.

The control plane is one of its own: policies are of the whole cluster. Each test ends with no policy there.
"""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import DAY, HOUR, Duration
from lapse.core.identity import secret_bytes
from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.log import LogJournal
from lapse.engine.running.metrics import Metrics
from lapse.history.api.kinds import OUR_KINDS, RETENTION_POLICY
from lapse.history.policy.default_policy import history_document
from lapse.history.service import Retention
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import load_config
from lapse.kube.errors import ObjectError, UnknownKindError
from lapse.kube.resources import ObjectKey, ready_condition, untyped
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.kubernetes import KubernetesStore
from tests.servers import kube_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.history.api.kinds import RetentionStatus
    from lapse.kube.resources import Document, Kind, Page
    from lapse.objects.port import Reader
    from tests.servers import KubeServer

pytestmark = pytest.mark.server("kube", private=True)
NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)
CONFIG_MAP = untyped("v1", "ConfigMap", "configmaps")
JOB = untyped("batch/v1", "Job", "jobs")
CLUSTER_WIDGET = untyped("test.lapse.dev/v1", "ClusterWidget", "clusterwidgets", namespaced=False)
GADGET = untyped("late.lapse.dev/v1", "Gadget", "gadgets")
GADGETS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.late.lapse.dev"},
    "spec": {
        "group": "late.lapse.dev",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
OWN_NAMESPACE = "lapse-own"


class Scene:
    """A namespace of the test's own, and a service that leads."""

    def __init__(self, kube: KubeServer, store: KubernetesStore, namespace: str) -> None:
        self.kube, self.store, self.namespace = kube, store, namespace
        self.labels = {"lapse.dev/test": namespace}
        self.clock = VirtualClock(SystemClock().wall_ns())
        self.service = self.another()

    def another(self, *, direct: Reader | None = None) -> Retention:
        """The service of another process."""
        return Retention(
            self.store,
            history=history_document(),
            journal=LogJournal(),
            metrics=Metrics("test"),
            holds=listed_holds(self.store, ListedDependants(self.store, (), clock=self.clock)),
            clock=self.clock,
            interval=Duration(HOUR),
            left_alone={"kube-system", OWN_NAMESPACE},
            direct=direct,
        )

    async def make(self, kind: Kind[Document], name: str, *, namespace: str | None = None, **fields: Any) -> ObjectKey:  # noqa: ANN401 - any fields
        metadata: dict[str, Any] = {"name": name, "labels": self.labels}
        if kind.namespaced:
            metadata["namespace"] = namespace or self.namespace
        return (await self.store.create(kind, {"metadata": metadata, **fields})).metadata.key

    async def policy(self, name: str, kind: Kind[Any], *, everywhere: bool = False, **spec: Any) -> None:  # noqa: ANN401 - as in a document
        selector: dict[str, Any] = {"apiVersion": kind.api_version, "kind": kind.kind, "labels": self.labels}
        if kind.namespaced and not everywhere:
            selector["namespaces"] = [self.namespace]
        body = {"metadata": {"name": name}, "spec": {"selector": selector, "dryRun": False, **spec}}
        await self.store.create(RETENTION_POLICY, body)

    async def tick(self) -> None:
        (loop,) = self.service.loops
        await loop.tick()

    async def status(self, name: str) -> RetentionStatus:
        found = (await self.store.get(RETENTION_POLICY, ObjectKey(None, name))).status
        assert found is not None
        return found

    async def ready(self, name: str) -> str:
        found = ready_condition((await self.status(name)).conditions)
        assert found is not None
        return found.reason

    async def left(self, kind: Kind[Any], *, namespace: str | None = None) -> list[str]:
        where = (namespace or self.namespace) if kind.namespaced else None
        return [one.metadata.name for one in (await self.store.list(kind, namespace=where, labels=self.labels)).items]


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server() as server:
        yield server


@pytest.fixture
async def scene(kube: KubeServer) -> AsyncIterator[Scene]:
    store = KubernetesStore(KubeClient(load_config(file=kube.kubeconfig, environ={})), kinds=OUR_KINDS)
    namespace = f"policies-{secret_bytes(5).hex()}"
    try:
        await store.create(NAMESPACE, {"metadata": {"name": namespace}})
        yield Scene(kube, store, namespace)
        for policy in (await store.list(RETENTION_POLICY)).items:
            await store.delete(RETENTION_POLICY, policy.metadata.key)
    finally:
        await store.close()


async def finished_job(scene: Scene, name: str, *, ended: int) -> None:
    """Make a Job, as its controller would leave it; there is none here."""
    container = {"name": "main", "image": "example.org/none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    key = await scene.make(JOB, name, spec={"template": template})
    when = to_timestamp(ended)
    condition = {"status": "True", "lastProbeTime": when, "lastTransitionTime": when}
    conditions = [{**condition, "type": kind} for kind in ("SuccessCriteriaMet", "Complete")]
    status = {"conditions": conditions, "startTime": when, "completionTime": when, "succeeded": 1}
    await scene.store.patch_status(JOB, key, status)


async def test_jobs_and_config_maps_are_limited_by_policies_of_their_own(scene: Scene) -> None:
    now = scene.clock.wall_ns()
    for days in (1, 20, 40):
        await finished_job(scene, f"job-{days:02}", ended=now - days * DAY)
    for name in ("a", "b", "c"):
        await scene.make(CONFIG_MAP, name)
    await scene.policy("old-jobs", JOB, maxAge="720h", ageFrom="status.completionTime")
    await scene.policy("few-maps", CONFIG_MAP, maxCount=2)
    await scene.tick()
    assert await scene.left(JOB) == ["job-01", "job-20"]
    assert await scene.left(CONFIG_MAP) == ["b", "c"]
    jobs, maps = await scene.status("old-jobs"), await scene.status("few-maps")
    assert (jobs.matched, jobs.deleted, jobs.kept) == (3, {"ttl_expired": 1}, {"not_yet": 2})
    assert (maps.matched, maps.deleted, maps.kept) == (3, {"retention_limit": 1}, {"not_yet": 2})
    scene.clock.advance(15 * 24 * 3600)
    await scene.tick()
    assert await scene.left(JOB) == ["job-01"]
    assert (await scene.status("few-maps")).deleted == {}


async def test_a_policy_for_a_kind_that_does_not_exist_yet_waits_for_it(scene: Scene) -> None:
    for name in ("a", "b"):
        await scene.make(CONFIG_MAP, name)
    await scene.policy("aa-gadgets", GADGET, maxCount=1)
    await scene.policy("few-maps", CONFIG_MAP, maxCount=1)
    await scene.tick()
    assert await scene.ready("aa-gadgets") == "UnknownKind"
    assert await scene.left(CONFIG_MAP) == ["b"]

    scene.kube.kubectl("apply", "-f", "-", stdin=json.dumps(GADGETS))
    scene.kube.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/gadgets.late.lapse.dev")
    for name in ("a", "b", "c"):
        await created_when_served(scene, name)
    await scene.tick()
    assert await scene.left(GADGET) == ["c"]
    assert await scene.ready("aa-gadgets") == "Completed"

    scene.kube.kubectl("delete", "crd", "gadgets.late.lapse.dev", "--timeout=60s")
    await scene.make(CONFIG_MAP, "d")
    await scene.tick()
    assert await scene.ready("aa-gadgets") == "UnknownKind"
    assert await scene.left(CONFIG_MAP) == ["d"]


async def test_what_a_policy_keeps_is_not_deleted_by_one_that_names_another_version_of_the_kind(scene: Scene) -> None:
    definition = deepcopy(GADGETS)
    versions = definition["spec"]["versions"]
    versions.append({**versions[0], "name": "v2", "storage": False})
    scene.kube.kubectl("apply", "-f", "-", stdin=json.dumps(definition))
    try:
        scene.kube.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/gadgets.late.lapse.dev")
        for name in ("a", "b", "c"):
            await created_when_served(scene, name)
        await scene.policy("keeps", GADGET, keepLast={"count": 1}, maxCount=2)
        await scene.policy("ends", replace(GADGET, api_version="late.lapse.dev/v2"), maxAge="1h")
        scene.clock.advance(2 * 3600)
        await scene.tick()
        assert await scene.left(GADGET) == ["b", "c"]
        assert (await scene.ready("keeps"), await scene.ready("ends")) == ("Completed", "InvalidPolicy")
    finally:
        scene.kube.kubectl("delete", "crd", "gadgets.late.lapse.dev", "--timeout=60s")


async def created_when_served(scene: Scene, name: str) -> None:
    """A definition is established a moment before every part of the server serves it."""
    clock = SystemClock()
    async with asyncio.timeout(60):
        while True:
            try:
                await scene.make(GADGET, name)
            except UnknownKindError:
                await clock.sleep(0.1)
            else:
                return


async def test_objects_of_the_whole_cluster_are_limited_as_well(scene: Scene) -> None:
    stem = scene.namespace
    for end in ("a", "b", "c"):
        await scene.make(CLUSTER_WIDGET, f"{stem}-{end}")
    await scene.policy("cluster-widgets", CLUSTER_WIDGET, maxCount=1)
    await scene.tick()
    assert await scene.left(CLUSTER_WIDGET) == [f"{stem}-c"]


async def test_over_all_namespaces_the_system_and_our_own_are_left_alone(scene: Scene) -> None:
    await scene.store.create(NAMESPACE, {"metadata": {"name": OWN_NAMESPACE}})
    for namespace in (scene.namespace, "kube-system", OWN_NAMESPACE):
        await scene.make(CONFIG_MAP, "old", namespace=namespace)
    await scene.policy("everywhere", CONFIG_MAP, everywhere=True, maxAge="1h")
    scene.clock.advance(2 * 3600)
    await scene.tick()
    assert await scene.left(CONFIG_MAP) == []
    assert await scene.left(CONFIG_MAP, namespace="kube-system") == ["old"]
    assert await scene.left(CONFIG_MAP, namespace=OWN_NAMESPACE) == ["old"]
    assert (await scene.status("everywhere")).matched == 1


# --- an API server that goes away -------------------------------------------------------------------------------------


class Cut:
    """Reads from the store, and has the API server killed once a list was read."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self.is_cut = scene, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a reader has
        return getattr(self._scene.store, name)

    async def list(self, kind: Kind[Any], **how: Any) -> Page[Any]:  # noqa: ANN401 - as it is asked
        page = await self._scene.store.list(kind, **how)
        if kind.kind == CONFIG_MAP.kind and not self.is_cut:
            self.is_cut = True
            await asyncio.to_thread(self._scene.kube.component("apiserver").kill)
        return page


async def back(scene: Scene) -> None:
    """Start the API server again, and wait until it serves."""
    await asyncio.to_thread(scene.kube.component("apiserver").start)
    clock = SystemClock()
    async with asyncio.timeout(60):
        while True:
            try:
                await scene.store.list(CONFIG_MAP, namespace=scene.namespace)
                await scene.store.list(RETENTION_POLICY)
            except ObjectError:
                await clock.sleep(0.1)
            else:
                return


async def test_an_api_server_that_is_killed_in_the_middle_of_a_pass_costs_nothing_but_that_pass(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        await scene.make(CONFIG_MAP, name)
    await scene.policy("old-maps", CONFIG_MAP, maxAge="1h")
    await scene.tick()
    scene.clock.advance(2 * 3600)
    reader = Cut(scene)
    cut = scene.another(direct=reader)
    try:
        runs = await cut.run_once()
        assert reader.is_cut
        assert not runs["old-maps"].is_ready
        (loop,) = scene.service.loops
        assert 0 < await loop.tick() <= 60, "an API server that is away is asked again soon, and is no exception"
    finally:
        await back(scene)
    assert await scene.left(CONFIG_MAP) == ["a", "b", "c"]
    await scene.tick()
    assert await scene.left(CONFIG_MAP) == []
    assert await scene.ready("old-maps") == "Completed"
