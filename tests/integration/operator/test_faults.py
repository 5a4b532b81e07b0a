"""An operator on a cluster that fails: it comes through, and nothing is deleted that was not due.

One control plane and one operator for all of them: each fault is over, and what it left behind settled, before the next
one begins. `scene` says what happens meanwhile, and what must be so in the end.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from lapse.core.identity import uuid
from lapse.kube.errors import NotFoundError, ObjectError
from lapse.kube.resources import ObjectKey, ready_condition
from lapse.requests.addresses import keeper_name
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    OBJECT_KEEPER,
    VOLUME_CAPTURE_REQUEST,
    VOLUME_RESTORE_REQUEST,
)
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CONTENT
from tests.integration.operator.audit import AuditedObject
from tests.integration.operator.deployed import USER
from tests.integration.operator.own import Own, log_events, own_cluster
from tests.integration.operator.scene import POLICY, Scene
from tests.integration.operator.steps import CLOCK, HOLD, found, let_go, until, until_ended
from tests.servers.api_proxy import ApiProxy, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from lapse.kube.resources import Kind
    from tests.integration.operator.conftest import Operator
    from tests.servers import Server

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
CRDS = Path(__file__).parents[3] / "deploy" / "crds"
MOST_ATTEMPTS = 12
"""At one thing while a fault lasts: waits that double from 0.1 s make it three minutes until one more is due."""


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with own_cluster() as own:
        yield own


@pytest.fixture
def operator(own: Own) -> Iterator[Operator]:
    operator = own.operator(*POLICY)
    begins = len(operator.log)
    yield operator
    print("".join(operator.log[begins:][-100:]))  # noqa: T201 - shown beside a failure
    assert operator.process.poll() is None


@pytest.fixture
async def scene(own: Own, operator: Operator) -> AsyncIterator[Scene]:
    store = own.store()
    scene = Scene(own, store)
    await scene.prepare()
    yield scene
    await store.close()


@asynccontextmanager
async def meanwhile(do: Callable[[], Awaitable[None]], *, every: float) -> AsyncIterator[None]:
    """Do something all the time, with so much rest in between; the last time is waited for."""
    over = asyncio.Event()

    async def again() -> None:
        while not over.is_set():
            await do()
            await CLOCK.sleep(every)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        over.set()
        await task


# --- the API server goes away -----------------------------------------------------------------------------------------


def apiserver(scene: Scene) -> Server:
    return scene.own.kube.component("apiserver")


async def test_the_api_server_is_restarted(scene: Scene) -> None:
    await scene.act()
    await asyncio.to_thread(apiserver(scene).restart)
    await scene.converge()


async def test_the_api_server_is_killed_and_what_happened_since_is_compacted_away(
    scene: Scene, operator: Operator
) -> None:
    relisted = len(log_events(operator, "watch_expired"))
    await scene.ask()
    await asyncio.to_thread(apiserver(scene).kill)
    scene.own.relay.cut(refuse=True)
    await asyncio.to_thread(apiserver(scene).start)
    # Held, and deleted by a person: of this event the operator never hears. Its keeper has its hold, and keeps what it
    # owns until that is released.
    await scene.store.delete(VOLUME_CAPTURE_REQUEST, scene.goes.metadata.key)
    compact(scene.own.kube.etcd_url)
    scene.own.relay.accept()
    await scene._all_is_done()
    key = ObjectKey(None, keeper_name("vcr", scene.goes.metadata.uid))
    assert HOLD in (await scene.store.get(OBJECT_KEEPER, key)).metadata.annotations

    async def released_and_gone() -> bool:
        with suppress(NotFoundError):
            await let_go(scene.store, OBJECT_KEEPER, key)
        return await found(scene.store, OBJECT_KEEPER, key) is None

    await until(released_and_gone)
    await scene.converge()
    assert len(log_events(operator, "watch_expired")) > relisted


def compact(url: str) -> None:
    """Make etcd forget all that is not the present."""
    seen = httpx2.post(f"{url}/v3/kv/range", json={"key": "AA=="}, trust_env=False).json()["header"]
    done = httpx2.post(f"{url}/v3/kv/compaction", json={"revision": seen["revision"]}, trust_env=False)
    assert done.status_code == 200, done.text


# --- the way there is bad ---------------------------------------------------------------------------------------------


async def test_every_connection_is_cut_every_second(scene: Scene) -> None:
    async def cut() -> None:
        await asyncio.to_thread(scene.own.relay.cut)

    async with meanwhile(cut, every=1):
        await CLOCK.sleep(5)  # no watch has lasted, and waits have grown
        await scene.act()
        await scene.converge()


REFUSALS = (
    Refusal(429, "TooManyRequests", retry_after=1),
    Refusal(500, "InternalError"),
    Refusal(503),
    Refusal(403),  # a load balancer's, which says nothing about rights
    Refusal(404),  # nor about what there is
    Refusal(504, "Timeout", after=True),
    Refusal(502, after=True),
)


async def test_every_fourth_request_is_refused_or_its_answer_lost(scene: Scene) -> None:
    relay = scene.own.relay
    with ApiProxy(scene.own.kube) as proxy:
        relay.lead_to(proxy.port)
        relay.cut()
        proxy.refuse(4, REFUSALS)

        async def each_twice() -> bool:
            return all(proxy.refused[refusal.code] > 1 for refusal in REFUSALS)

        try:
            await scene.act()
            await until(each_twice)
            proxy.refuse(0)  # a step that takes four requests would never get through otherwise
            await scene.converge()
        finally:
            relay.lead_to(scene.own.kube.port)
            relay.cut()


# --- what is there changes --------------------------------------------------------------------------------------------


async def test_rights_are_taken_away_and_given_back(scene: Scene) -> None:
    own = scene.own
    await asyncio.to_thread(own.deny)
    mark = own.audit.mark()
    own.relay.cut()  # a watch that was allowed goes on for ever
    await scene.act()
    await CLOCK.sleep(6)
    refused = own.audit.counts(mark, user=USER)
    await asyncio.to_thread(own.allow)
    await scene.converge()
    assert max(refused.values()) <= MOST_ATTEMPTS, refused.most_common(5)
    assert refused["watch", AuditedObject(VOLUME_CAPTURE_REQUEST.plural, "")] > 1


async def test_a_kind_is_removed_and_put_back(scene: Scene) -> None:
    own, name = scene.own, f"{VOLUME_RESTORE_REQUEST.plural}.{VOLUME_RESTORE_REQUEST.group}"
    await asyncio.to_thread(own.kube.kubectl, "delete", "crd", name)
    mark = own.audit.mark()
    await scene.act()
    await scene.converge()  # what is left of the kinds is worked on as if nothing had happened
    await CLOCK.sleep(3)
    asked = own.audit.counts(mark, user=USER)
    missing = {asking: count for asking, count in asked.items() if asking[1].resource == VOLUME_RESTORE_REQUEST.plural}
    assert 1 < max(missing.values()) <= MOST_ATTEMPTS, missing

    await asyncio.to_thread(own.kube.kubectl, "create", "-f", str(CRDS / f"{VOLUME_RESTORE_REQUEST.plural}.yaml"))
    await asyncio.to_thread(own.kube.kubectl, "wait", "crd", name, "--for=condition=Established", "--timeout=50s")
    source = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "name": "nowhere"}
    template = {"metadata": {"name": "back"}, "spec": {}}
    body = {
        "metadata": {"name": "back", "namespace": scene.namespace, "annotations": {HOLD: "true"}},
        "spec": {"sourceRef": source, "pvcTemplate": template},
    }
    key = (await scene.store.create(VOLUME_RESTORE_REQUEST, body)).metadata.key
    request = await until_ended(scene.store, VOLUME_RESTORE_REQUEST, key)
    condition = ready_condition(request.status.conditions)
    assert condition is not None
    assert condition.reason == "NotFound"


async def test_somebody_else_writes_to_everything_all_the_time(scene: Scene) -> None:
    mark = scene.own.audit.mark()

    async def disturb(kind: Kind[Any], key: ObjectKey) -> None:
        with suppress(ObjectError):
            await scene.store.patch(kind, key, {"metadata": {"annotations": {"tests/storm": uuid()}}})

    async def disturb_keepers() -> None:
        for one in (await scene.store.list(OBJECT_KEEPER)).items:
            await disturb(OBJECT_KEEPER, one.metadata.key)

    disturbed: list[Callable[[], Awaitable[None]]] = [
        partial(disturb, VOLUME_CAPTURE_REQUEST, scene.goes.metadata.key),
        partial(disturb, VOLUME_CAPTURE_REQUEST, scene.new),
        partial(disturb, MANIFEST_CAPTURE_REQUEST, scene.manifests),
        partial(disturb, VOLUME_SNAPSHOT_CONTENT, ObjectKey(None, scene.stays.status.artifact_ref.name)),
        disturb_keepers,
    ]
    async with AsyncExitStack() as storm:
        for disturbance in disturbed:
            await storm.enter_async_context(meanwhile(disturbance, every=0.02))
        await scene.act()
        await scene.converge()
    conflicts = [call for call in scene.own.audit.calls(mark) if call.user == USER and call.code == 409]
    assert conflicts
