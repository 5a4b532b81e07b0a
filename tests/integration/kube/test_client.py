"""The client on a real API server: what the contract of the object store does not ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import SystemClock
from lapse.kube.api import wire
from lapse.kube.api.discovery import Discovery
from lapse.kube.controller.informer import Informer
from lapse.kube.errors import (
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import ObjectKey, PartialObject, metadata_only, untyped
from lapse.objects.kubernetes import KubernetesStore, NoDatabaseError
from tests.conformance.objects.registry import NARROW, UNKNOWN, WIDGET, unique, widget

if TYPE_CHECKING:
    from lapse.kube.api.client import KubeClient
    from lapse.kube.resources import Kind

pytestmark = pytest.mark.server("kube")
CONFIG_MAP = untyped("v1", "ConfigMap", "configmaps")
DEPLOYMENT = untyped("apps/v1", "Deployment", "deployments")


async def make(client: KubeClient, namespace: str, *names: str, **spec: object) -> None:
    for name in names:
        await client.create(WIDGET, {**widget(namespace, name), "spec": spec})


async def test_kinds_of_the_core_group_and_of_others_are_read_and_written(admin: KubeClient, namespace: str) -> None:
    made = await admin.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": namespace}, "data": {"x": "1"}})
    key = made.metadata.key
    assert (await admin.patch(CONFIG_MAP, key, {"data": {"x": None, "y": "2"}})).body["data"] == {"y": "2"}
    listed = await admin.list(CONFIG_MAP, namespace=namespace, labels={})
    assert {item.body["kind"] for item in listed.items} == {"ConfigMap"}
    await admin.delete(CONFIG_MAP, key, uid=made.metadata.uid)
    with pytest.raises(NotFoundError):
        await admin.get(CONFIG_MAP, key)
    assert (await admin.list(DEPLOYMENT, namespace=namespace)).items == ()


async def test_a_deletion_is_for_one_object_in_one_state(admin: KubeClient, namespace: str) -> None:
    made = await admin.create(WIDGET, widget(namespace, "a"))
    key, old = made.metadata.key, made.metadata.resource_version
    new = await admin.patch(WIDGET, key, {"spec": {"size": 3}})
    for wrong in ({"uid": "another"}, {"version": old}, {"uid": made.metadata.uid, "version": old}):
        with pytest.raises(ConflictError):
            await admin.delete(WIDGET, key, **wrong)
    await admin.delete(WIDGET, key, uid=made.metadata.uid, version=new.metadata.resource_version)
    with pytest.raises(NotFoundError):
        await admin.delete(WIDGET, key)


async def test_lists_come_in_pages_of_one_moment(admin: KubeClient, namespace: str) -> None:
    await make(admin, namespace, *(f"w{number}" for number in range(5)))
    first = await admin.list(NARROW, namespace=namespace, limit=2)
    await make(admin, namespace, "w9")
    names, after = [item.metadata.name for item in first.items], first.next
    while after is not None:
        page = await admin.list(NARROW, namespace=namespace, limit=2, after=after)
        names += [item.metadata.name for item in page.items]
        after = page.next
        assert page.resource_version == first.resource_version
    assert names == ["w0", "w1", "w2", "w3", "w4"]


async def test_metadata_alone_can_be_listed_got_and_followed(admin: KubeClient, namespace: str) -> None:
    partial = metadata_only(WIDGET)
    await make(admin, namespace, "a", size=7, text="x" * 10_000)
    found = await admin.list(partial, namespace=namespace)
    assert [type(item) for item in found.items] == [PartialObject]
    assert found.items[0].metadata.uid == (await admin.get(partial, ObjectKey(namespace, "a"))).metadata.uid
    raw = await admin._transport.call(
        "GET", f"/apis/test.lapse.dev/v1/namespaces/{namespace}/widgets", accept=wire.accept(partial, "List")
    )
    assert len(raw.content) < 2_000, "the server left the rest away"
    informer = Informer(admin, partial, namespace=namespace, clock=SystemClock())
    running = asyncio.create_task(informer.run())
    await informer.synced.wait()
    await make(admin, namespace, "b", text="y" * 10_000)
    async with asyncio.timeout(20):
        while informer.get(ObjectKey(namespace, "b")) is None:
            await SystemClock().sleep(0.02)
    running.cancel()


async def test_a_version_from_long_ago_is_gone_and_nonsense_proves_nothing(admin: KubeClient, namespace: str) -> None:
    with pytest.raises(GoneError, match="since version 1 "):
        await anext(admin.watch(WIDGET, namespace=namespace, since="1"))
    with pytest.raises((InvalidError, StoreUnavailableError)):
        await anext(admin.watch(WIDGET, namespace=namespace, since="nonsense"))
    with pytest.raises(InvalidError):
        await admin.list(WIDGET, after="nonsense")


async def test_what_is_too_large_is_invalid_at_both_limits(admin: KubeClient, namespace: str) -> None:
    for megabytes in (2, 4):
        body = {**widget(namespace, "large"), "spec": {"text": "x" * (megabytes * 1024 * 1024)}}
        with pytest.raises(InvalidError, match=r"(?i)large"):
            await admin.create(WIDGET, body)


async def test_a_kind_or_a_namespace_that_is_not_there_is_told(admin: KubeClient, namespace: str) -> None:
    with pytest.raises(UnknownKindError):
        await admin.list(UNKNOWN)
    with pytest.raises(NotFoundError, match="no Namespace nowhere-at-all"):
        await admin.create(WIDGET, widget("nowhere-at-all", "a"))


async def test_the_server_says_that_it_is_ready_and_which_it_is(admin: KubeClient) -> None:
    await admin.check()
    assert (await admin.fetch("/version", dict[str, Any]))["major"] == "1"


async def test_many_calls_at_once_share_a_bounded_pool(admin: KubeClient, namespace: str) -> None:
    await asyncio.gather(*(make(admin, namespace, f"w{number}") for number in range(150)))
    assert len((await admin.list(NARROW, namespace=namespace)).items) == 150


# --- kinds by name, and the store -------------------------------------------------------------------------------------


async def test_kinds_are_found_by_name_and_a_new_one_without_a_restart(admin: KubeClient) -> None:
    discovery = Discovery(admin)
    found = await discovery.find("v1", "ConfigMap")
    assert (found.plural, found.namespaced, found.status) == ("configmaps", True, False)
    node = await discovery.find("v1", "Node")
    assert (node.plural, node.namespaced, node.status) == ("nodes", False, True)
    group, plural = f"{unique('late')}.dev", "arrivals"
    for version in (f"{group}/v1", "v1", "test.lapse.dev/v1"):
        with pytest.raises(UnknownKindError):
            await discovery.find(version, "Arrival")
    await admin.create(CRD, definition(group, plural))
    arrival = await patient_find(discovery, f"{group}/v1", "Arrival")
    assert (arrival.plural, arrival.namespaced, arrival.status) == (plural, False, False)
    await admin.delete(CRD, ObjectKey(None, f"{plural}.{group}"))


async def patient_find(discovery: Discovery, api_version: str, kind: str) -> Kind[Any]:
    async with asyncio.timeout(20):
        while True:
            try:
                return await discovery.find(api_version, kind)
            except UnknownKindError:
                await SystemClock().sleep(0.1)


CRD = untyped("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)


def definition(group: str, plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": "arrival", "kind": "Arrival"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


async def test_registered_kinds_win_over_what_the_server_says(admin: KubeClient) -> None:
    store = KubernetesStore(admin, kinds=[NARROW])
    assert await store.resolve(NARROW.api_version, NARROW.kind) is NARROW
    assert (await store.resolve("test.lapse.dev/v1", "ClusterWidget")).namespaced is False


async def test_nothing_can_be_written_together_with_a_deletion(admin: KubeClient, namespace: str) -> None:
    store = KubernetesStore(admin)
    made = await store.create(WIDGET, widget(namespace, "a"))
    assert store.database is None
    with pytest.raises(NoDatabaseError):
        await store.delete(WIDGET, made.metadata.key, also=lambda cursor: None)
    assert (await store.get(WIDGET, made.metadata.key)).metadata.uid == made.metadata.uid


async def test_a_status_under_a_uid_is_written_in_the_middle_of_other_writers(
    admin: KubeClient, namespace: str
) -> None:
    store = KubernetesStore(admin)
    made = (await store.create(WIDGET, widget(namespace, "a"))).metadata
    await asyncio.gather(
        *(store.patch_status(WIDGET, made.key, {f"f{number}": number}, uid=made.uid) for number in range(8))
    )
    assert (await store.get(WIDGET, made.key)).body["status"] == {f"f{number}": number for number in range(8)}
    with pytest.raises(ConflictError, match="its uid is"):
        await store.patch_status(WIDGET, made.key, {"x": 1}, uid="another")
