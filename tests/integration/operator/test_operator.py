"""``lapse operator`` on a real control plane with a real CSI driver: what is asked for is done, and lapses."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime
from typing import TYPE_CHECKING

import httpx2

from lapse.kube.controller.lease import LEASE
from lapse.kube.resources import ObjectKey, untyped
from lapse.objects.packing.chunks import as_captured, capture_order
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
)
from lapse.requests.api.upstream import CONFIG_MAP, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.controllers.manifests import read_checkpoint
from tests.integration.operator.steps import (
    CLOCK,
    HOLD,
    ask_for_capture,
    bound_claim,
    found,
    let_go,
    until,
    until_final,
    until_gone,
)
from tests.servers import Relay
from tests.servers.lapse_server import ENDED_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.objects.kubernetes import KubernetesStore
    from tests.integration.operator.conftest import Launch, Operator
    from tests.servers import KubeServer

SECRET = untyped("v1", "Secret", "secrets")


def outcomes(operator: Operator, uid: str) -> list[str]:
    """What the journal, which is the log, says about an object."""
    events = [json.loads(line) for line in operator.log if line.startswith("{")]
    return [event["outcome"] for event in events if event["event"] == "journal" and event["uid"] == uid]


async def test_a_captured_volume_is_kept_while_held_and_goes_with_its_snapshot_when_it_lapses(
    shared_kube: KubeServer, store: KubernetesStore, namespace: str, launch: Launch
) -> None:
    operator = await asyncio.to_thread(launch)
    claim, folder = await bound_claim(store, shared_kube, namespace)
    key = await ask_for_capture(store, claim, held=True)

    request = await until_final(store, VOLUME_CAPTURE_REQUEST, key)
    artifact = ObjectKey(None, request.status.artifact_ref.name)
    content = await store.get(VOLUME_SNAPSHOT_CONTENT, artifact)
    assert content.status is not None
    assert content.status.ready_to_use
    snapshots = shared_kube.storage.snapshots(of=folder.name)
    assert len(snapshots) == 1
    keeper = ObjectKey(None, keeper_name("vcr", request.metadata.uid))
    keeper_uid = (await store.get(OBJECT_KEEPER, keeper)).metadata.uid
    for kind, place in ((VOLUME_CAPTURE_REQUEST, key), (OBJECT_KEEPER, keeper)):
        whole = await store.get(untyped(kind.api_version, kind.kind, kind.plural, namespaced=kind.namespaced), place)
        assert "finalizers" not in whole.body["metadata"]

    async def held() -> bool:
        return "held" in outcomes(operator, request.metadata.uid)

    await until(held)
    assert await found(store, VOLUME_CAPTURE_REQUEST, key) is not None
    await let_go(store, VOLUME_CAPTURE_REQUEST, key)
    await until_gone(store, VOLUME_CAPTURE_REQUEST, key)
    await until_gone(store, OBJECT_KEEPER, keeper)
    await until_gone(store, VOLUME_SNAPSHOT_CONTENT, artifact)
    assert shared_kube.storage.snapshots(of=folder.name) == set()
    assert (folder / "greeting").read_text(encoding="ascii") == "moin\n"
    assert operator.stop()[0] == 0
    told = outcomes(operator, request.metadata.uid)
    assert (told[0], told[-2:], told.count("ended")) == ("held", ["intent", "ended"], 1)
    assert outcomes(operator, keeper_uid)[-2:] == ["intent", "ended"]


async def test_captured_manifests_are_read_back_as_they_were(
    store: KubernetesStore, namespace: str, launch: Launch
) -> None:
    await asyncio.to_thread(launch)
    for number in range(40):
        name = {"name": f"settings-{number}", "namespace": namespace}
        await store.create(CONFIG_MAP, {"metadata": name, "data": {"text": f"line {number}\n" * number}})
        await store.create(SECRET, {"metadata": {**name, "name": f"secret-{number}"}, "stringData": {"a": "b"}})
    targets = [
        {"apiVersion": "v1", "kind": kind, "name": f"{name}-{number}"}
        for number in range(40)
        for kind, name in (("Secret", "secret"), ("ConfigMap", "settings"))
    ]
    body = {
        "metadata": {"name": "settings", "namespace": namespace, "annotations": {HOLD: "true"}},
        "spec": {"targets": targets},
    }
    key = (await store.create(MANIFEST_CAPTURE_REQUEST, body)).metadata.key

    request = await until_final(store, MANIFEST_CAPTURE_REQUEST, key)
    name = request.status.checkpoint_name
    live = [await store.get(SECRET, ObjectKey(namespace, f"secret-{number}")) for number in range(40)]
    maps = untyped(CONFIG_MAP.api_version, CONFIG_MAP.kind, CONFIG_MAP.plural)
    live += [await store.get(maps, ObjectKey(namespace, f"settings-{number}")) for number in range(40)]
    assert await read_checkpoint(store, name) == sorted((as_captured(one.body) for one in live), key=capture_order)
    await let_go(store, MANIFEST_CAPTURE_REQUEST, key)
    await until_gone(store, MANIFEST_CAPTURE_REQUEST, key)
    await until_gone(store, MANIFEST_CHECKPOINT, ObjectKey(None, name))


async def test_when_the_leader_is_killed_another_operator_takes_over_within_the_lease(
    shared_kube: KubeServer, store: KubernetesStore, namespace: str, launch: Launch, lease_namespace: str
) -> None:
    pair = [await asyncio.to_thread(launch), await asyncio.to_thread(launch)]

    async def leaders() -> list[Operator]:
        return [operator for operator in pair if operator.process.poll() is None and operator.leads]

    (leader,) = await until(leaders)
    claim, _folder = await bound_claim(store, shared_kube, namespace)
    before = await store.get(LEASE, ObjectKey(lease_namespace, "lapse-operator"))

    leader.stop(signal.SIGKILL)
    killed_ns = CLOCK.monotonic_ns()
    key = await ask_for_capture(store, claim, held=True)
    (next_one,) = await until(leaders)
    waited = (CLOCK.monotonic_ns() - killed_ns) / 1e9
    assert next_one is not leader
    # The record may have been written up to a quarter of the lease before the end, and retries are a second apart.
    assert 15 * 3 / 4 - 1 <= waited <= 15 + 5
    await until_final(store, VOLUME_CAPTURE_REQUEST, key)
    after = await store.get(LEASE, ObjectKey(lease_namespace, "lapse-operator"))
    assert after.spec.lease_transitions == (before.spec.lease_transitions or 0) + 1
    assert after.spec.holder_identity != before.spec.holder_identity
    await let_go(store, VOLUME_CAPTURE_REQUEST, key)
    await until_gone(store, VOLUME_CAPTURE_REQUEST, key)


def moment(operator: Operator, event: str) -> datetime:
    """When it logged this for the first time."""
    logged = operator.event(event)
    assert logged is not None
    return datetime.fromisoformat(logged["timestamp"])


async def test_a_leader_behind_a_silent_connection_steps_down_before_the_next_one_leads(
    shared_kube: KubeServer, launch: Launch, tmp_path: Path
) -> None:
    with Relay(shared_kube.port) as relay:
        behind = tmp_path / "behind-a-relay"
        text = shared_kube.kubeconfig.read_text(encoding="utf-8")
        behind.write_text(text.replace(f":{shared_kube.port}", f":{relay.port}"), encoding="utf-8")
        silenced = await asyncio.to_thread(launch, behind)

        async def leads() -> bool:
            return silenced.leads

        await until(leads)
        other = await asyncio.to_thread(launch)
        relay.silence()

        async def taken_over() -> bool:
            return other.leads

        await until(taken_over)
        assert not silenced.leads
        assert moment(silenced, "stepped_down") < moment(other, "leading")
        relay.speak()


async def test_an_operator_that_is_told_to_stop_hands_over_at_once(
    store: KubernetesStore, launch: Launch, lease_namespace: str
) -> None:
    operator = await asyncio.to_thread(launch)

    async def leads() -> bool:
        return operator.leads

    await until(leads)
    ready = httpx2.get(f"{operator.probes}/readyz", trust_env=False)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "checks": {"cluster": "ok"}})
    code, took = await asyncio.to_thread(operator.stop)
    assert code == 0
    assert took < ENDED_SECONDS
    assert operator.event("journal_is_the_log") is not None
    assert (await store.get(LEASE, ObjectKey(lease_namespace, "lapse-operator"))).spec.holder_identity == ""
