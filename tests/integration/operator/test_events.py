"""What people see with kubectl, on a control plane of its own: here the number of calls is counted.

Nobody else's operator may write to it, so it is not the shared one; the operators of these tests still take turns.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.timestamps import to_timestamp
from lapse.kube.events.event import EVENT, events_about
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.addresses import keeper_name
from lapse.requests.api.conditions import is_final
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from tests.integration.operator.deployed import NAMESPACE, account_kubeconfig, apply_base
from tests.integration.operator.steps import (
    CLOCK,
    ask_for_capture,
    bound_claim,
    let_go,
    until,
    until_final,
    until_gone,
)
from tests.servers import kube_server
from tests.servers.kube.csi import CLASS
from tests.servers.lapse_server import ENDED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lapse.objects.kubernetes import KubernetesStore
    from tests.integration.operator.conftest import Operator
    from tests.servers import KubeServer

    Launch = Callable[..., Operator]

pytestmark = pytest.mark.server("kube", private=True)
HOLD = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "the auditors want to see it"}
MANY = 2_000


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server(csi=True) as server:
        server.kubectl("create", "namespace", NAMESPACE)
        yield server


@pytest.fixture
def lease_namespace() -> str:
    return NAMESPACE


@pytest.fixture
def namespace(kube: KubeServer, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^a-z]+", "-", request.node.name)[:50].strip("-")
    kube.kubectl("create", "namespace", name)
    return name


async def told(store: KubernetesStore, namespace: str, uid: str) -> list[str]:
    """The reasons of the Events about an object, in the order in which they happened."""
    events = await events_about(store.client, namespace, uid)
    return [str(event.reason) for event in sorted(events, key=lambda one: one.event_time or "")]


async def until_told(store: KubernetesStore, namespace: str, uid: str, reason: str) -> list[str]:
    async def found() -> list[str] | None:
        reasons = await told(store, namespace, uid)
        return reasons if reason in reasons else None

    return await until(found)


async def aggregates(store: KubernetesStore, namespace: str, kind: str) -> list[str]:
    """What was told about deletions on a namespace or on the Lease."""
    page = await store.list(EVENT, namespace=namespace)
    found = [one for one in page.items if one.regarding is not None and one.regarding.kind == kind]
    return [str(one.note) for one in found if one.reason == "TimeToLiveExpired"]


def counted(notes: list[str]) -> int:
    """How many deletions some notes tell of."""
    return sum(int(re.findall(r": (\d+) \(", note)[0]) for note in notes)


async def event_calls(store: KubernetesStore) -> int:
    """How often the API server was asked to write an Event in the newer form; only we do that here."""
    text = (await store.client._transport.call("GET", "/metrics", accept="text/plain")).content.decode()
    found = 0
    for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if (named["group"], named["resource"]) == ("events.k8s.io", "events") and named["verb"] in {"POST", "PATCH"}:
            found += round(float(value))
    return found


async def test_kubectl_describe_shows_what_was_made_how_it_ended_and_that_it_is_held(
    kube: KubeServer, store: KubernetesStore, namespace: str, launch: Launch
) -> None:
    await asyncio.to_thread(launch)
    claim, _folder = await bound_claim(store, kube, namespace)
    key = await ask_for_capture(store, claim, held=False)
    await store.patch(VOLUME_CAPTURE_REQUEST, key, {"metadata": {"annotations": HOLD}})

    request = await until_final(store, VOLUME_CAPTURE_REQUEST, key)
    uid = request.metadata.uid
    reasons = await until_told(store, namespace, uid, "HeldFromDeletion")
    assert reasons == ["KeeperCreated", "SnapshotCreated", "Completed", "HeldFromDeletion"]
    shown = kube.kubectl("describe", "vcr", key.name, "-n", namespace)
    for line in (
        rf"Normal +KeeperCreated +\S+ +lapse.dev/operator +made the keeper {keeper_name('vcr', uid)}",
        rf"Normal +SnapshotCreated +\S+ +lapse.dev/operator +made the snapshot {request.status.artifact_ref.name}",
        r"Normal +Completed +\S+ +lapse.dev/operator +\S+",
        r"Normal +HeldFromDeletion +\S+ +lapse.dev/operator +.*held \(the auditors want to see it\)",
    ):
        assert re.search(line, shown), shown

    await let_go(store, VOLUME_CAPTURE_REQUEST, key)
    await until_gone(store, VOLUME_CAPTURE_REQUEST, key)

    async def lapsed() -> list[str]:
        return await aggregates(store, namespace, "Namespace")

    assert await until(lapsed) == [f"requests deleted because their TTL was over: 1 (vcr/{namespace}/{key.name})"]
    assert await told(store, namespace, uid) == reasons
    await until_gone(store, OBJECT_KEEPER, ObjectKey(None, keeper_name("vcr", uid)))

    async def keeper_lapsed() -> bool:
        notes = await aggregates(store, NAMESPACE, "Lease")
        return any(keeper_name("vcr", uid) in note for note in notes)

    await until(keeper_lapsed)
    assert "keepers deleted because their TTL was over" in kube.kubectl(
        "describe", "lease", "lapse-operator", "-n", NAMESPACE
    )


async def restore(store: KubernetesStore, namespace: str, *, source: str, storage: str) -> ObjectKey:
    """Ask for a restore into the claim `again`."""
    spec = {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage}},
    }
    body = {
        "metadata": {"name": "back", "namespace": namespace, "annotations": HOLD},
        "spec": {
            "sourceRef": {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": source},
            "pvcTemplate": {"metadata": {"name": "again"}, "spec": spec},
        },
    }
    return (await store.create(VOLUME_RESTORE_REQUEST, body)).metadata.key


async def test_a_provisioning_that_the_driver_refuses_ends_the_restore_with_the_words_of_the_driver(
    kube: KubeServer, store: KubernetesStore, namespace: str, launch: Launch
) -> None:
    await asyncio.to_thread(launch)
    claim, _folder = await bound_claim(store, kube, namespace)
    capture = await ask_for_capture(store, claim, held=True)
    source = (await until_final(store, VOLUME_CAPTURE_REQUEST, capture)).status.artifact_ref.name
    # More than the driver has for one volume.
    key = await restore(store, namespace, source=source, storage="3Ti")

    async def ended() -> Any:  # noqa: ANN401 - a condition
        request = await store.get(VOLUME_RESTORE_REQUEST, key)
        final = request.status is not None and is_final(request.status.conditions)
        return ready_condition(request.status.conditions) if final and request.status is not None else None

    condition = await until(ended)
    assert (condition.status, condition.reason) == ("False", "RestoreFailed")
    assert "code = OutOfRange desc = Requested capacity" in condition.message
    refused = (await store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(namespace, "again"))).metadata
    words = condition.message.removesuffix(f"; the claim {namespace}/again is left: delete it, and ask again")
    assert words != condition.message
    assert words in [(one.note or "").rstrip(".") for one in await events_about(store.client, namespace, refused.uid)]
    request = await store.get(VOLUME_RESTORE_REQUEST, key)
    await until_told(store, namespace, request.metadata.uid, "RestoreFailed")
    shown = kube.kubectl("describe", "vrr", key.name, "-n", namespace)
    assert re.search(r"Warning +RestoreFailed +\S+ +lapse.dev/operator +.*code = OutOfRange", shown), shown
    for kind, place in ((VOLUME_CAPTURE_REQUEST, capture), (VOLUME_RESTORE_REQUEST, key)):
        await let_go(store, kind, place)


async def test_without_the_right_to_write_events_the_work_goes_on(
    kube: KubeServer, store: KubernetesStore, namespace: str, launch: Launch, tmp_path: Path
) -> None:
    apply_base(kube)
    operator = await asyncio.to_thread(launch, account_kubeconfig(kube, tmp_path, kube.url))
    role = json.loads(kube.kubectl("get", "clusterrole", "lapse", "-o", "json"))
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["events"]]
    kube.kubectl("replace", "-f", "-", stdin=json.dumps(role))
    claim, _folder = await bound_claim(store, kube, namespace)
    for _round in range(3):
        capture = await ask_for_capture(store, claim, held=False)
        await until_gone(store, VOLUME_CAPTURE_REQUEST, capture)

    def dropped_events() -> float:
        return operator.metric('lapse_errors_total{domain="requests",kind="event"}')

    async def dropped() -> bool:
        return dropped_events() >= 3

    await until(dropped)
    assert operator.event("events_dropped") is not None
    assert dropped_events() <= 3 * 4 + 2, "of each capture what was made and its outcome, and what lapsed"
    assert operator.metric('lapse_errors_total{domain="requests",kind="reconcile"}') == 0
    assert [one for one in (await store.list(EVENT, namespace=namespace)).items if _is_ours(one)] == []
    code, took = await asyncio.to_thread(operator.stop)
    assert (code, took < ENDED_SECONDS) == (0, True)


def _is_ours(event: Any) -> bool:  # noqa: ANN401 - an Event
    return bool(event.reporting_controller == "lapse.dev/operator")


async def finished_requests(store: KubernetesStore, namespace: str, count: int) -> None:
    completed = to_timestamp(CLOCK.wall_ns())
    ready = {"type": "Ready", "status": "True", "reason": "Completed", "lastTransitionTime": completed}
    turn = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with turn:
            body = {
                "metadata": {
                    "name": f"done-{number}",
                    "namespace": namespace,
                    "annotations": {"storage.deckhouse.io/ttl": "2s"},
                },
                "spec": {"targets": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt"}]},
            }
            meta = (await store.create(MANIFEST_CAPTURE_REQUEST, body)).metadata
            await store.patch_status(
                MANIFEST_CAPTURE_REQUEST, meta.key, {"conditions": [ready], "completionTimestamp": completed}
            )

    await asyncio.gather(*map(one, range(count)))


@pytest.mark.timeout(300)
async def test_thousands_of_deletions_make_a_handful_of_events(
    store: KubernetesStore, namespace: str, launch: Launch
) -> None:
    await finished_requests(store, namespace, MANY)
    before = await event_calls(store)
    operator = await asyncio.to_thread(launch)

    async def none_left() -> bool:
        return not (await store.list(MANIFEST_CAPTURE_REQUEST, namespace=namespace, limit=1)).items

    await until(none_left, seconds=180)

    async def all_told() -> bool:
        return counted(await aggregates(store, namespace, "Namespace")) == MANY

    code, _took = await asyncio.to_thread(operator.stop)  # what is still counted is told at the end
    assert code == 0
    await until(all_told)
    assert await event_calls(store) - before <= 5
