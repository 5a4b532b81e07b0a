"""Retention of Kubernetes' own kinds on a real control plane: what is asked of the API server, and who is quicker.

Policies are read as the API server has them after its own checks and defaults, and are not stored: they are of the
whole cluster, which others use at the same time. Creation times are real, so the injected clock goes on instead.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.duration import DAY
from lapse.core.identity import secret_bytes
from lapse.core.timestamps import to_timestamp
from lapse.engine.executor import Executor
from lapse.engine.journal.log import LogJournal
from lapse.engine.running.metrics import Metrics
from lapse.history.api.kinds import OUR_KINDS, RETENTION_POLICY
from lapse.history.policy.policy import Policy
from lapse.history.retention.passes import Pass
from lapse.kube.api.client import KubeClient
from lapse.kube.auth.config import Cluster, KubeConfig, User, load_config
from lapse.kube.errors import GoneError
from lapse.kube.resources import Document, ObjectKey, untyped
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.kubernetes import KubernetesStore
from lapse.objects.target import ObjectTarget
from tests.servers.api_proxy import ApiProxy, Asked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from lapse.history.retention.passes import PassReport
    from lapse.kube.resources import Json, Kind, Page
    from lapse.objects.port import Reader
    from tests.servers import KubeServer

pytestmark = pytest.mark.server("kube")
CONFIG_MAP = untyped("v1", "ConfigMap", "configmaps")
JOB = untyped("batch/v1", "Job", "jobs")
NAMESPACE = untyped("v1", "Namespace", "namespaces", namespaced=False)
METADATA = "as=PartialObjectMetadataList"
LABEL = "lapse.dev/test"


@dataclass
class Scene:
    """A namespace of the test's own on the shared control plane, and what a pass needs beside it."""

    kube: KubeServer
    store: KubernetesStore
    namespace: str
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(SystemClock().wall_ns()))
    metrics: Metrics = field(default_factory=lambda: Metrics("test"))

    async def config_maps(self, *names: str, **metadata: Any) -> list[Document]:  # noqa: ANN401 - any metadata
        return [
            await self.store.create(
                CONFIG_MAP,
                {
                    "metadata": {
                        "name": name,
                        "namespace": self.namespace,
                        "labels": {LABEL: self.namespace},
                        **metadata,
                    },
                    "data": {"text": "moin" * 100},
                },
            )
            for name in names
        ]

    async def job(self, name: str, *, group: str, ended: int | None, succeeded: bool = True) -> None:
        """Make a Job, as its controller would leave it; there is none here."""
        container = {"name": "main", "image": "example.org/none"}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        labels = {"cron": group}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        made = await self.store.create(JOB, {"metadata": metadata, "spec": {"template": template}})
        if ended is not None:
            await self.store.patch_status(JOB, made.metadata.key, job_status(ended, succeeded=succeeded))

    def policy(self, kind: Kind[Any], **spec: Any) -> Policy:  # noqa: ANN401 - as in a document
        """Read a policy about a kind in this namespace, as the API server takes it."""
        selector = {"apiVersion": kind.api_version, "kind": kind.kind, "namespaces": [self.namespace]}
        body = RETENTION_POLICY.body(
            {"metadata": {"name": self.namespace}, "spec": {"selector": selector, "dryRun": False, **spec}}
        )
        taken = self.kube.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
        return Policy.read(RETENTION_POLICY.convert(json.loads(taken)))

    async def run(
        self, policy: Policy, *, store: KubernetesStore | None = None, direct: Reader | None = None, page: int = 500
    ) -> PassReport:
        store = store or self.store
        holds = listed_holds(store, ListedDependants(store, (), clock=self.clock))
        around: Any = {"clock": self.clock, "metrics": self.metrics}
        journal = LogJournal()
        executor = Executor(ObjectTarget(store, holds), journal, actor="test", **around)
        passing = Pass([policy], direct=direct or store, executor=executor, journal=journal, page=page, **around)
        return (await passing.run())[policy.name]

    async def left(self, kind: Kind[Any] = CONFIG_MAP) -> list[str]:
        page = await self.store.list(kind, namespace=self.namespace)
        return [one.metadata.name for one in page.items if one.metadata.name != "kube-root-ca.crt"]


def job_status(ended: int, *, succeeded: bool) -> Json:
    """The status of a Job that has ended; a server refuses one that does not fit together."""
    when = to_timestamp(ended)
    condition = {"status": "True", "lastProbeTime": when, "lastTransitionTime": when}
    first, last = ("SuccessCriteriaMet", "Complete") if succeeded else ("FailureTarget", "Failed")
    told = {"conditions": [{**condition, "type": first}, {**condition, "type": last}], "startTime": when}
    return {**told, "succeeded": 1, "completionTime": when} if succeeded else {**told, "failed": 1}


@pytest.fixture
async def scene(shared_kube: KubeServer) -> AsyncIterator[Scene]:
    store = KubernetesStore(KubeClient(load_config(file=shared_kube.kubeconfig, environ={})), kinds=OUR_KINDS)
    namespace = f"retention-{secret_bytes(5).hex()}"
    try:
        await store.create(NAMESPACE, {"metadata": {"name": namespace}})
        yield Scene(shared_kube, store, namespace)
    finally:
        await store.close()


@pytest.fixture
def proxy(shared_kube: KubeServer) -> Iterator[ApiProxy]:
    with ApiProxy(shared_kube) as found:
        yield found


@asynccontextmanager
async def through(proxy: ApiProxy, kube: KubeServer) -> AsyncIterator[KubernetesStore]:
    """The store behind a proxy."""
    cluster = Cluster(server=f"https://127.0.0.1:{proxy.port}", ca=kube.ca_file)
    store = KubernetesStore(
        KubeClient(KubeConfig(cluster=cluster, user=User(token=kube.admin_token.encode()))), kinds=OUR_KINDS
    )
    try:
        yield store
    finally:
        await store.close()


def asked(proxy: ApiProxy, method: str, plural: str = "configmaps") -> list[Asked]:
    return [one for one in proxy.asked if one.method == method and f"/{plural}" in one.path]


# --- kinds of Kubernetes ----------------------------------------------------------------------------------------------


async def test_config_maps_are_limited_by_number_and_by_age(scene: Scene) -> None:
    await scene.config_maps("a", "b", "c", "d")
    report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=3))
    assert (report.matched, report.due, await scene.left()) == (4, {"retention_limit": 1}, ["b", "c", "d"])
    scene.clock.advance(40 * 24 * 3600)
    report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="720h"))
    assert (report.due, report.outcomes, await scene.left()) == ({"ttl_expired": 3}, {"ended": 3}, [])
    text = scene.metrics.exposition().decode()
    assert 'lapse_deletions_total{domain="retention",reason="ttl_expired"} 3.0' in text
    assert 'lapse_deletions_total{domain="retention",reason="retention_limit"} 1.0' in text


def mine(scene: Scene) -> Json:
    """Without the ConfigMap that Kubernetes puts into each namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespaces": [scene.namespace],
        "labels": {LABEL: scene.namespace},
    }


async def test_jobs_go_by_the_time_of_their_end_and_by_number_and_the_last_good_one_stays(scene: Scene) -> None:
    now = scene.clock.wall_ns()
    for days in (1, 2, 3, 40, 50):
        await scene.job(f"nightly-{days:02}", group="nightly", ended=now - days * DAY, succeeded=days in {40, 50})
    await scene.job("nightly-running", group="nightly", ended=None)
    for days in (1, 2):
        await scene.job(f"weekly-{days:02}", group="weekly", ended=now - days * DAY)
    policy = scene.policy(
        JOB,
        groupBy=["metadata.labels['cron']"],
        ageFrom="status.conditions[1].lastTransitionTime",
        onlyWhen=[{"fieldPath": "status.conditions[1].type", "in": ["Complete", "Failed"]}],
        maxAge="720h",
        maxCount=2,
        keepLast={"count": 1, "where": {"fieldPath": "status.succeeded", "in": ["1"]}},
    )
    report = await scene.run(policy, page=2)
    assert report.matched == 7
    assert report.due == {"ttl_expired": 1, "retention_limit": 1}
    assert await scene.left(JOB) == [
        "nightly-01",
        "nightly-02",
        "nightly-40",
        "nightly-running",
        "weekly-01",
        "weekly-02",
    ]
    assert report.kept["keep_last"] == 1


async def test_a_path_that_is_no_time_deletes_nothing(scene: Scene) -> None:
    await scene.config_maps("a", "b")
    scene.clock.advance(400 * 24 * 3600)
    for path in ("data.text", "data.none", "metadata.labels", "status.completionTime"):
        report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), ageFrom=path, maxAge="1h", maxCount=1))
        assert (report.due, report.kept["missing_anchor"]) == ({}, 2)
    assert await scene.left() == ["a", "b"]


@pytest.mark.parametrize("group_by", [[], ["data.text"]], ids=["metadata", "whole-objects"])
async def test_what_is_being_deleted_takes_no_place_and_is_not_deleted_again(
    scene: Scene, proxy: ApiProxy, group_by: list[str]
) -> None:
    await scene.config_maps("a", "b")
    await scene.config_maps("c", finalizers=["lapse.dev/test"])
    await scene.store.delete(CONFIG_MAP, ObjectKey(scene.namespace, "c"))
    assert await scene.left() == ["a", "b", "c"]
    async with through(proxy, scene.kube) as store:
        policy = scene.policy(CONFIG_MAP, selector=mine(scene), groupBy=group_by, maxCount=2)
        report = await scene.run(policy, store=store)
    assert (report.matched, report.due) == (2, {})
    assert asked(proxy, "DELETE") == []
    await scene.store.patch(CONFIG_MAP, ObjectKey(scene.namespace, "c"), {"metadata": {"finalizers": None}})


# --- what is asked ----------------------------------------------------------------------------------------------------


async def test_a_deletion_names_the_uid_and_the_version_that_were_read(scene: Scene, proxy: ApiProxy) -> None:
    old, _ = await scene.config_maps("a", "b")
    async with through(proxy, scene.kube) as store:
        await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=1), store=store)
    (deletion,) = asked(proxy, "DELETE")
    assert urlsplit(deletion.path).path == f"/api/v1/namespaces/{scene.namespace}/configmaps/a"
    conditions = {"uid": old.metadata.uid, "resourceVersion": old.metadata.resource_version}
    assert json.loads(deletion.body)["preconditions"] == conditions
    assert await scene.left() == ["b"]


async def test_metadata_is_all_that_is_asked_for_in_as_many_calls_as_there_are_pages(
    scene: Scene, proxy: ApiProxy
) -> None:
    count, page = 23, 5
    await scene.config_maps(*(f"m{number:02}" for number in range(count)))
    async with through(proxy, scene.kube) as store:
        report = await scene.run(
            scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="720h", maxCount=count), store=store, page=page
        )
        assert (report.matched, report.due) == (count, {})
        lists = asked(proxy, "GET")
        assert len(lists) == -(-count // page)
        assert all(METADATA in one.accept for one in lists)
        assert {parse_qs(urlsplit(one.path).query)["limit"][0] for one in lists} == {str(page)}

        proxy.asked.clear()  # what is too old needs no second look
        scene.clock.advance(31 * 24 * 3600)
        report = await scene.run(
            scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="720h", maxCount=count), store=store, page=page
        )
        assert report.outcomes == {"ended": count}
        assert len(asked(proxy, "GET")) == -(-count // page)
        assert len(asked(proxy, "DELETE")) == count


async def test_a_number_that_is_exceeded_costs_one_more_listing_of_metadata(scene: Scene, proxy: ApiProxy) -> None:
    await scene.config_maps(*(f"m{number:02}" for number in range(10)))
    async with through(proxy, scene.kube) as store:
        report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=8), store=store, page=5)
    assert report.outcomes == {"ended": 2}
    lists = asked(proxy, "GET")
    assert len(lists) == 4
    assert all(METADATA in one.accept for one in lists)


async def test_whole_objects_are_asked_for_only_where_a_path_leaves_the_metadata(scene: Scene, proxy: ApiProxy) -> None:
    await scene.config_maps("a", "b")
    policy = scene.policy(CONFIG_MAP, selector=mine(scene), groupBy=["data.text"], maxCount=2)
    async with through(proxy, scene.kube) as store:
        report = await scene.run(policy, store=store)
    assert (report.matched, report.due) == (2, {})
    (listing,) = asked(proxy, "GET")
    assert "PartialObjectMetadata" not in listing.accept


async def test_namespaces_and_labels_are_selected_by_the_server(scene: Scene, proxy: ApiProxy) -> None:
    await scene.config_maps("a")
    async with through(proxy, scene.kube) as store:
        await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=1), store=store)
    (listing,) = asked(proxy, "GET")
    assert urlsplit(listing.path).path == f"/api/v1/namespaces/{scene.namespace}/configmaps"
    assert parse_qs(urlsplit(listing.path).query)["labelSelector"] == [f"{LABEL}={scene.namespace}"]


# --- who is quicker ---------------------------------------------------------------------------------------------------


def hold_back(proxy: ApiProxy, name: str, act: Callable[[], object]) -> list[str]:
    """Let ``act`` happen when the deletion of that ConfigMap is on its way; return the log of what was held back."""
    held: list[str] = []

    def before(request: Asked) -> None:
        if request.method == "DELETE" and urlsplit(request.path).path.endswith(f"/configmaps/{name}") and not held:
            held.append(request.path)
            act()

    proxy.before = before
    return held


@pytest.mark.parametrize("limit", [{"maxAge": "1h"}, {"maxCount": 1}], ids=["by-age", "by-count"])
async def test_an_object_changed_between_list_and_delete_survives(
    scene: Scene, proxy: ApiProxy, limit: dict[str, Any]
) -> None:
    await scene.config_maps("a", "b", "c")
    scene.clock.advance(2 * 3600)
    change = ("annotate", "configmap", "a", "-n", scene.namespace, "touched=yes")
    held = hold_back(proxy, "a", lambda: scene.kube.kubectl(*change))
    async with through(proxy, scene.kube) as store:
        report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), **limit), store=store)
    assert held
    assert report.outcomes["changed"] == 1
    assert await scene.left() == (["a"] if "maxAge" in limit else ["a", "c"])
    found = await scene.store.get(CONFIG_MAP, ObjectKey(scene.namespace, "a"))
    assert found.metadata.annotations == {"touched": "yes"}
    assert found.metadata.deletion_timestamp is None


async def test_a_hold_that_comes_at_the_last_moment_holds(scene: Scene, proxy: ApiProxy) -> None:
    await scene.config_maps("a", "b")
    scene.clock.advance(2 * 3600)
    change = ("annotate", "configmap", "a", "-n", scene.namespace, "lapse.dev/hold=true")
    held = hold_back(proxy, "a", lambda: scene.kube.kubectl(*change))
    policy = scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="1h")
    async with through(proxy, scene.kube) as store:
        for _ in range(2):
            await scene.run(policy, store=store)
    assert held
    assert await scene.left() == ["a"]


async def test_an_object_deleted_and_created_anew_under_its_name_survives(scene: Scene, proxy: ApiProxy) -> None:
    first, _ = await scene.config_maps("a", "b")
    scene.clock.advance(2 * 3600)
    at = ("-n", scene.namespace)

    def anew() -> None:
        scene.kube.kubectl("delete", "configmap", "a", *at)
        scene.kube.kubectl("create", "configmap", "a", *at, "--from-literal=made=anew")

    held = hold_back(proxy, "a", anew)
    async with through(proxy, scene.kube) as store:
        report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="1h"), store=store)
    assert held
    assert report.outcomes == {"ended": 1, "changed": 1}
    found = await scene.store.get(CONFIG_MAP, ObjectKey(scene.namespace, "a"))
    assert (found.body["data"], found.metadata.uid == first.metadata.uid) == ({"made": "anew"}, False)


async def test_what_somebody_else_deletes_first_is_no_failure_and_not_counted(scene: Scene, proxy: ApiProxy) -> None:
    await scene.config_maps("a", "b")
    scene.clock.advance(2 * 3600)
    gone = ("delete", "configmap", "a", "-n", scene.namespace)
    held = hold_back(proxy, "a", lambda: scene.kube.kubectl(*gone))
    async with through(proxy, scene.kube) as store:
        report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="1h"), store=store)
    assert held
    assert report.outcomes == {"ended": 1, "gone": 1}
    assert 'lapse_deletions_total{domain="retention",reason="ttl_expired"} 1.0' in scene.metrics.exposition().decode()


async def test_passes_at_once_delete_nothing_twice_and_nothing_below_the_limit(scene: Scene) -> None:
    names = [f"m{number:02}" for number in range(12)]
    await scene.config_maps(*names)
    policy = scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=5)
    reports = await asyncio.gather(*(scene.run(policy, page=4) for _ in range(4)))
    assert await scene.left() == names[7:]
    assert sum(report.outcomes["ended"] for report in reports) == 7


# --- lists that are too late ------------------------------------------------------------------------------------------


class Late:
    """A reader whose pages come too late: the API server has forgotten the moment that they are of."""

    def __init__(self, scene: Scene, late: Callable[[int], bool]) -> None:
        self._scene, self._late = scene, late
        self.pages: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a reader has
        return getattr(self._scene.store, name)

    async def list(self, kind: Kind[Any], *, after: str | None = None, **how: Any) -> Page[Any]:  # noqa: ANN401 - as it is asked
        if after is not None:
            self.pages["later"] += 1
            if self._late(self.pages["later"]):
                after = await forgotten(self._scene.kube, after)
        try:
            return await self._scene.store.list(kind, after=after, **how)
        except GoneError:
            self.pages["gone"] += 1
            raise


async def forgotten(kube: KubeServer, token: str) -> str:
    """The same place in a list, as of the first version of all; etcd is told to forget that one."""
    url = f"{kube.etcd_url}/v3/kv/compaction"
    async with aiohttp.ClientSession() as session, session.post(url, json={"revision": "2"}) as answer:
        text = await answer.text()
        assert answer.status == 200 or "compacted" in text, text
    place = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**place, "rv": 1}).encode()).decode().rstrip("=")


@pytest.mark.parametrize("late", [1, 2, 3, 4, 5, 6])
async def test_a_page_that_is_gone_in_the_middle_costs_nothing_but_another_attempt(scene: Scene, late: int) -> None:
    names = [f"m{number:02}" for number in range(10)]
    await scene.config_maps(*names)
    reader = Late(scene, lambda page: page == late)
    report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=6), direct=reader, page=3)
    assert reader.pages["gone"] == 1
    assert (report.matched, report.due, report.is_complete) == (10, {"retention_limit": 4}, True)
    assert await scene.left() == names[4:]


@pytest.mark.parametrize("late", [1, 2, 3, 4])
async def test_over_all_namespaces_a_gone_page_has_nothing_left_out_or_counted_twice(scene: Scene, late: int) -> None:
    label = scene.namespace
    homes = [label, f"{label}-b", f"{label}0"]  # a server lists the second one first
    for home in homes:
        if home != label:
            await scene.store.create(NAMESPACE, {"metadata": {"name": home}})
        for name in ("a", "b", "c"):
            metadata = {"name": name, "namespace": home, "labels": {LABEL: label}}
            await scene.store.create(CONFIG_MAP, {"metadata": metadata})
    scene.clock.advance(2 * 3600)
    everywhere = {"apiVersion": "v1", "kind": "ConfigMap", "labels": {LABEL: label}}
    reader = Late(scene, lambda page: page == late)
    report = await scene.run(scene.policy(CONFIG_MAP, selector=everywhere, maxAge="1h"), direct=reader, page=2)
    assert reader.pages["gone"] == 1
    assert (report.matched, report.outcomes, report.is_complete) == (9, {"ended": 9}, True)
    assert (await scene.store.list(CONFIG_MAP, labels={LABEL: label})).items == ()


async def test_what_is_too_old_goes_although_a_page_is_gone_in_the_middle(scene: Scene) -> None:
    await scene.config_maps(*(f"m{number:02}" for number in range(10)))
    scene.clock.advance(2 * 3600)
    reader = Late(scene, lambda page: page == 2)
    report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxAge="1h"), direct=reader, page=3)
    assert reader.pages["gone"] == 1
    assert (report.due, report.outcomes) == ({"ttl_expired": 10}, {"ended": 10})
    assert await scene.left() == []


async def test_a_server_that_forgets_every_moment_has_nothing_ended_by_number(scene: Scene) -> None:
    names = [f"m{number:02}" for number in range(10)]
    await scene.config_maps(*names)
    reader = Late(scene, lambda page: page > 3)  # the first listing is complete, no second one ever is
    report = await scene.run(scene.policy(CONFIG_MAP, selector=mine(scene), maxCount=2), direct=reader, page=3)
    assert reader.pages["gone"] > 0
    assert (report.due, report.is_complete) == ({}, False)
    assert await scene.left() == names
