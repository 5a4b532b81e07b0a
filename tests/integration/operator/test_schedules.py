"""Captures by schedule on a real control plane, by an operator that has exactly the rights of `deploy/base`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.identity import uuid
from lapse.core.timestamps import to_timestamp
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.api.kinds import CAPTURE_SCHEDULE, OBJECT_KEEPER, SCHEDULE, SCHEDULED_AT, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.own import Own, own_cluster
from tests.integration.operator.steps import CLOCK, bound_claim, found, until, until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lapse.objects.kubernetes import KubernetesStore

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(400)]
POLICY = ("--request-ttl=2s", "--keeper-ttl=3s", "--trash-ttl=never")
EVERY_MINUTE = "* * * * *"


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        yield own


@pytest.fixture
async def store(own: Own) -> AsyncIterator[KubernetesStore]:
    store = own.store()
    yield store
    await store.close()


@pytest.fixture
def namespace(own: Own) -> str:
    name = f"schedules-{uuid()}"
    own.kube.kubectl("create", "namespace", name)
    return name


async def schedule(store: KubernetesStore, namespace: str, template: dict[str, Any]) -> Any:  # noqa: ANN401 - a schedule
    spec = {"schedule": EVERY_MINUTE, "template": template, "keep": {"last": 1}}
    return await store.create(CAPTURE_SCHEDULE, {"metadata": {"name": "nightly", "namespace": namespace}, "spec": spec})


async def keepers(store: KubernetesStore, uid: str) -> dict[str, str]:
    """The names of the keepers of runs by the times of these."""
    items = (await store.list(OBJECT_KEEPER, labels={SCHEDULE: uid})).items
    return {one.metadata.annotations[SCHEDULED_AT]: one.metadata.name for one in items}


async def test_volumes_are_captured_by_the_minute_and_newer_ones_push_older_ones_out(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    operator = await asyncio.to_thread(own.operator, *POLICY)
    await bound_claim(store, own.kube, namespace, "data")
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data"}
    made = await schedule(store, namespace, {"volumeCapture": {"mode": "Snapshot", "target": target}})
    key, uid = made.metadata.key, made.metadata.uid

    async def kept(count: int) -> bool:
        status = (await store.get(CAPTURE_SCHEDULE, key)).status
        return status is not None and status.kept == count

    async def one_is_kept() -> bool:
        return await kept(1)

    await until(one_is_kept, seconds=150)
    ((first, name),) = (await keepers(store, uid)).items()
    content = next(
        one
        for one in (await store.list(VOLUME_SNAPSHOT_CONTENT)).items
        if one.metadata.controller is not None and one.metadata.controller.name == name
    )
    assert content.status is not None
    assert content.status.ready_to_use

    async def pushed_out() -> bool:
        return first not in await keepers(store, uid)

    await until(pushed_out, seconds=150)
    await until_gone(store, VOLUME_SNAPSHOT_CONTENT, content.metadata.key)
    later = await keepers(store, uid)
    assert later
    assert min(later) > first
    assert "superseded" in "\n".join(operator.log)

    await asyncio.to_thread(
        own.kube.kubectl,
        "-n",
        namespace,
        "patch",
        "csched",
        "nightly",
        "--type=merge",
        "-p",
        '{"spec":{"suspend":true}}',
    )

    async def suspended() -> bool:
        status = (await store.get(CAPTURE_SCHEDULE, key)).status
        ready = None if status is None else ready_condition(status.conditions)
        return ready is not None and ready.reason == "Suspended"

    await until(suspended)
    listed = await asyncio.to_thread(own.kube.kubectl, "-n", namespace, "get", "csched")
    assert "Suspended" in listed
    await asyncio.to_thread(own.kube.kubectl, "-n", namespace, "delete", "csched", "nightly")

    async def all_gone() -> bool:
        return not await keepers(store, uid)

    await until(all_gone)


async def test_manifests_are_not_captured_by_an_operator_that_was_not_told_who_judges(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *POLICY)
    targets = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]
    made = await schedule(store, namespace, {"manifestCapture": {"targets": targets}})

    async def refused() -> bool:
        status = (await store.get(CAPTURE_SCHEDULE, made.metadata.key)).status
        ready = None if status is None else ready_condition(status.conditions)
        return ready is not None and (ready.status, ready.reason) == ("False", "NotAllowed")

    await until(refused)


async def test_a_request_that_only_says_that_it_is_a_run_is_refused(
    own: Own, store: KubernetesStore, namespace: str
) -> None:
    await asyncio.to_thread(own.operator, *POLICY)
    claim, _ = await bound_claim(store, own.kube, namespace, "data")
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "uid": claim.metadata.uid}
    metadata = {
        "name": "forged",
        "namespace": namespace,
        "labels": {SCHEDULE: "nightly"},
        "annotations": {SCHEDULED_AT: to_timestamp(CLOCK.wall_ns()), "lapse.dev/hold": "true"},
    }
    spec = {"mode": "Snapshot", "target": target, "artifactTTL": "never"}
    await store.create(VOLUME_CAPTURE_REQUEST, {"metadata": metadata, "spec": spec})

    async def refused() -> bool:
        request = await found(store, VOLUME_CAPTURE_REQUEST, ObjectKey(namespace, "forged"))
        ready = None if request is None or request.status is None else ready_condition(request.status.conditions)
        return ready is not None and ready.reason == "Incompatible" and "there is no such schedule" in ready.message

    await until(refused)
