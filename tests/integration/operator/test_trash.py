"""The trash on a real control plane: its own garbage collection, versions and rights."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.app.trash import trashed_objects
from lapse.core.clock import SystemClock, UnixNs
from lapse.core.duration import Duration
from lapse.core.identity import uuid
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.domain import deletion_by_person
from lapse.engine.executor import Executor
from lapse.engine.journal.log import LogJournal
from lapse.engine.journal.port import Outcome
from lapse.engine.running.metrics import Metrics
from lapse.engine.trash import NotInTrashError, PlaceTakenError, TrashBin
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.history.records import record
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Document, ObjectKey
from lapse.objects.holds.cluster import ListedDependants, listed_holds
from lapse.objects.packing.chunks import pack
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.objects.trash.rules import MADE_FOR, TrashContents, TrashWay, is_in_trash
from lapse.requests.addresses import checkpoint_name, keeper_name
from lapse.requests.api.kinds import MANIFEST_CAPTURE_REQUEST, MANIFEST_CHECKPOINT, MANIFEST_CHUNK, OBJECT_KEEPER
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.controllers.caches import WATCHED
from lapse.requests.controllers.manifests import read_checkpoint
from lapse.requests.controllers.ownership import owned_by
from lapse.requests.trash import trash_of
from tests.servers.lapse_server import lapse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Kind
    from lapse.objects.kubernetes import KubernetesStore
    from tests.servers import KubeServer

pytestmark = pytest.mark.timeout(300)
WEEK = Duration.parse("7d")
FAR = "2199-01-01T00:00:00Z"


class Scene:
    """A cluster, and somebody who ends things on it."""

    def __init__(self, store: KubernetesStore, namespace: str) -> None:
        self.store, self.namespace, self.clock = store, namespace, SystemClock()

    def dependants(self) -> ListedDependants:
        return ListedDependants(self.store, WATCHED, clock=self.clock)

    @property
    def trash(self) -> TrashBin:
        dependants = self.dependants()
        holds = listed_holds(self.store, dependants)
        return TrashBin(
            trashed_objects(self.store, holds=holds, dependants=dependants, journal=LogJournal(), clock=self.clock)
        )

    async def end(self, kind: Kind[Any], *objects: Any) -> list[Outcome]:  # noqa: ANN401 - objects of the kind
        dependants = self.dependants()
        trash = trash_of(self.store, WEEK, dependants=dependants, clock=self.clock)
        target = ObjectTarget(self.store, listed_holds(self.store, dependants), trash=trash)
        executor = Executor(target, LogJournal(), clock=self.clock, metrics=Metrics("test"), actor="ann")
        actions = [
            deletion_by_person(
                domain="test",
                address=kind.address(one.metadata.key),
                uid=one.metadata.uid,
                version=one.metadata.resource_version,
                handle=ObjectHandle.of(kind, one),
                hold=None,
                actor="ann",
                now=UnixNs(self.clock.wall_ns()),
            )
            for one in objects
        ]
        return [result.outcome for result in await executor.execute(actions)]

    async def undo(self, address: str) -> Any:  # noqa: ANN401 - what came back
        found = self.trash
        return await found.bring_back(await found.find(address), by="ann")

    async def config_map(self, name: str, data: str = "x", **metadata: Any) -> Document:  # noqa: ANN401
        body = {"metadata": {"name": name, "namespace": self.namespace, **metadata}, "data": {"value": data}}
        return await self.store.create(CONFIG_MAP, body)

    async def is_gone(self, kind: Kind[Any], key: ObjectKey) -> bool:
        try:
            await self.store.get(kind, key)
        except NotFoundError:
            return True
        return False


@pytest.fixture
async def scene(shared_kube: KubeServer, store: KubernetesStore) -> AsyncIterator[Scene]:
    namespace = f"trash-{uuid()[:8]}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    shared_kube.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    yield Scene(store, namespace)
    shared_kube.kubectl("delete", "namespace", namespace, "--wait=false")


async def test_the_cluster_collects_the_bytes_of_what_is_emptied_and_the_page_stays(scene: Scene) -> None:
    maps = [await scene.config_map(f"m{number}") for number in range(4)]
    await scene.end(CONFIG_MAP, *maps)
    first, *others = [str(CONFIG_MAP.address(one.metadata.key)) for one in maps]
    page = ObjectKey(None, (await scene.trash.find(first)).id.split("/")[1])
    keeper = await scene.store.get(OBJECT_KEEPER, page)
    done = await asyncio.gather(*[scene.trash.empty(by="ann", address=one) for one in others[:2]])
    assert [result.outcome for found in done for _, result in found] == [Outcome.ENDED] * 2
    for gone in others[:2]:
        with pytest.raises(NotInTrashError):
            await scene.undo(gone)
    assert (await scene.store.get(OBJECT_KEEPER, page)).metadata.uid == keeper.metadata.uid
    for _ in range(300):
        if await scene.is_gone(MANIFEST_CHECKPOINT, page) and await scene.is_gone(
            MANIFEST_CHUNK, ObjectKey(None, f"{page.name}-0")
        ):
            break
        await scene.clock.sleep(0.1)
    else:
        raise AssertionError("what was emptied is still there")
    for kept in (first, others[2]):
        await scene.undo(kept)


async def test_records_come_back_byte_for_byte_under_a_new_uid_and_held(scene: Scene) -> None:
    made = []
    for number in range(20):
        ref = ExperimentRef(name="kill", namespace="shop", uid="u")
        execution = Execution(start_time=f"2030-01-01T00:00:{number:02}Z", status="success", message="é\n" * number)
        body = record(HistorySpec(experiment_ref=ref, execution=execution), namespace=scene.namespace)
        made.append(await scene.store.create(CHAOS_EXPERIMENT_HISTORY, body))
    assert set(await scene.end(CHAOS_EXPERIMENT_HISTORY, *made)) == {Outcome.ENDED}
    for one in made[::7]:
        back = await scene.undo(str(CHAOS_EXPERIMENT_HISTORY.address(one.metadata.key)))
        again = await scene.store.get(CHAOS_EXPERIMENT_HISTORY, one.metadata.key)
        assert again.metadata.uid == back.uid != one.metadata.uid
        assert (again.spec, again.metadata.labels) == (one.spec, one.metadata.labels)
        assert again.metadata.annotations["lapse.dev/hold"] == "true"
    left = [entry for entry in (await scene.trash.page(limit=1000)).items if f"/{scene.namespace}/" in entry.address]
    assert len(left) == 20 - len(made[::7])


async def test_one_that_changed_meanwhile_is_neither_ended_nor_in_the_trash(scene: Scene) -> None:
    same, changed = await scene.config_map("same"), await scene.config_map("changed")
    await scene.store.patch(CONFIG_MAP, changed.metadata.key, {"data": {"value": "y"}})
    assert await scene.end(CONFIG_MAP, same, changed) == [Outcome.ENDED, Outcome.CHANGED]
    with pytest.raises(NotInTrashError):
        await scene.trash.find(f"ConfigMap/{scene.namespace}/changed")
    await scene.undo(f"ConfigMap/{scene.namespace}/same")
    other = await scene.store.get(CONFIG_MAP, same.metadata.key)
    assert other.body["data"] == same.body["data"]


async def test_a_place_that_is_taken_stays_as_it_is(scene: Scene) -> None:
    first = await scene.config_map("one", "first")
    assert await scene.end(CONFIG_MAP, first) == [Outcome.ENDED]
    await scene.config_map("one", "second")
    with pytest.raises(PlaceTakenError):
        await scene.undo(f"ConfigMap/{scene.namespace}/one")
    assert (await scene.store.get(CONFIG_MAP, first.metadata.key)).body["data"] == {"value": "second"}


async def test_an_object_comes_back_without_owners_that_are_gone_and_so_it_stays(scene: Scene) -> None:
    owner = await scene.config_map("owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    owned = await scene.config_map("owned", ownerReferences=[reference])
    assert await scene.end(CONFIG_MAP, owned) == [Outcome.ENDED]
    assert await scene.end(CONFIG_MAP, owner) == [Outcome.ENDED]
    await scene.undo(f"ConfigMap/{scene.namespace}/owned")
    again = await scene.store.get(CONFIG_MAP, owned.metadata.key)
    assert again.metadata.owner_references == ()


async def test_an_artifact_survives_its_keeper_under_the_garbage_collection_of_the_cluster(scene: Scene) -> None:
    keeper = await scene.store.create(
        OBJECT_KEEPER, {"metadata": {"name": f"ret-{uuid()}"}, "spec": {"mode": "TTL", "ttl": "1h"}}
    )
    trash = trash_of(scene.store, WEEK, dependants=scene.dependants(), clock=scene.clock)
    assert trash is not None
    # A checkpoint with a chunk, as a capture makes it, but of a keeper that lives.
    page = await trash.write_page(TrashContents(TrashWay.PACKED, "test", []), pack([{"kind": "ConfigMap"}]))
    name = page.keeper.name
    owners = [msgspec.to_builtins(owned_by(keeper))]
    checkpoint = await scene.store.patch(
        MANIFEST_CHECKPOINT, ObjectKey(None, name), {"metadata": {"ownerReferences": owners}}
    )
    manifests = await read_checkpoint(scene.store, name)
    assert await scene.end(OBJECT_KEEPER, keeper) == [Outcome.ENDED]

    async def is_alone() -> bool:
        found = await scene.store.get(MANIFEST_CHECKPOINT, checkpoint.metadata.key)
        return [one.name for one in found.metadata.owner_references] == [f"trash-{keeper.metadata.uid}"]

    for _ in range(300):
        if await is_alone():
            break
        await scene.clock.sleep(0.1)
    assert await is_alone(), "garbage collection has dropped the dead owner, and nothing else"
    found = await scene.store.get(MANIFEST_CHECKPOINT, checkpoint.metadata.key)
    assert is_in_trash("ManifestCheckpoint", found.metadata)
    assert await read_checkpoint(scene.store, name) == manifests
    back = await scene.undo(f"checkpoint/{name}")
    again = await scene.store.get(MANIFEST_CHECKPOINT, checkpoint.metadata.key)
    assert [(one.uid, one.controller) for one in again.metadata.owner_references] == [(back.uid, True)]
    assert await read_checkpoint(scene.store, name) == manifests
    # Ending the artifact itself gives it to the trash; emptying that takes it away for good.
    assert await scene.end(MANIFEST_CHECKPOINT, again) == [Outcome.ENDED]
    assert await read_checkpoint(scene.store, name) == manifests
    entry = await scene.trash.find(f"checkpoint/{name}")
    ((_, result),) = await scene.trash.empty(by="ann", address=entry.address)
    assert result.outcome is Outcome.ENDED
    for _ in range(300):
        if await scene.is_gone(MANIFEST_CHECKPOINT, checkpoint.metadata.key):
            return
        await scene.clock.sleep(0.1)
    raise AssertionError("it is still there")


async def captured(scene: Scene) -> tuple[Any, Any, Any]:
    """A finished capture of manifests, as a controller leaves it, with its keeper and its checkpoint."""
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}
    request = await scene.store.create(
        MANIFEST_CAPTURE_REQUEST,
        {"metadata": {"name": "done", "namespace": scene.namespace}, "spec": {"targets": [target]}},
    )
    meta, kind = request.metadata, MANIFEST_CAPTURE_REQUEST
    ref = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "namespace": meta.namespace,
        "name": "done",
        "uid": meta.uid,
    }
    spec = {"mode": "FollowObjectWithTTL", "ttl": "720h", "followObjectRef": ref}
    name = {"metadata": {"name": keeper_name(kind.short, meta.uid)}}
    keeper = await scene.store.create(OBJECT_KEEPER, {**name, "spec": spec})
    named = {"name": checkpoint_name(meta.uid), "ownerReferences": [msgspec.to_builtins(owned_by(keeper))]}
    made = {"sourceNamespace": scene.namespace, "manifestCaptureRequestRef": ref}
    checkpoint = await scene.store.create(MANIFEST_CHECKPOINT, {"metadata": named, "spec": made})
    # Completed in the far future: operators of other tests leave it alone.
    condition = {"type": "Ready", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": FAR}
    status = {"conditions": [condition], "completionTimestamp": FAR, "checkpointName": named["name"]}
    return await scene.store.patch_status(kind, meta.key, status), keeper, checkpoint


async def test_people_undo_hold_and_ask_on_a_cluster_as_elsewhere(
    scene: Scene, shared_kube: KubeServer, lease_namespace: str, tmp_path: Path
) -> None:
    request, keeper, checkpoint = await captured(scene)
    kind, artifact = MANIFEST_CAPTURE_REQUEST, f"checkpoint/{checkpoint.metadata.name}"
    address = str(kind.address(request.metadata.key))

    async def say(*line: str) -> str:
        flags = (f"--kube-config={shared_kube.kubeconfig}", f"--lease-namespace={lease_namespace}")
        done = await asyncio.to_thread(lapse, *line, *flags, state_dir=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout + done.stderr

    async def marks(of: Any = keeper) -> dict[str, str]:  # noqa: ANN401 - a keeper
        found = (await scene.store.get(OBJECT_KEEPER, of.metadata.key)).metadata.annotations
        return {name: text for name, text in found.items() if name.startswith("lapse.dev/hold")}

    assert await scene.end(kind, request) == [Outcome.ENDED]
    assert "undo" in await say("why", address), "from the trash, where the journal is the log"
    assert keeper.metadata.name in await say("undo", address)
    assert (await marks())["lapse.dev/hold"] == "true"
    await say("release", address)
    assert await marks() == {}
    await say("hold", address, "--reason", "audit")
    assert "audit" in await say("why", artifact)
    await say("release", address)

    assert await scene.end(OBJECT_KEEPER, await scene.store.get(OBJECT_KEEPER, keeper.metadata.key)) == [Outcome.ENDED]
    for _ in range(300):
        found = await scene.store.get(MANIFEST_CHECKPOINT, checkpoint.metadata.key)
        if is_in_trash("ManifestCheckpoint", found.metadata):
            break
        await scene.clock.sleep(0.1)
    told = json.loads(await say("why", artifact, "-o", "json"))
    assert (told["verdict"], told["trash"]["uid"]) == ("gone", keeper.metadata.uid)
    assert told["undo"].startswith(f"lapse undo {artifact}, until ")
    await say("hold", address, "--reason", "audit")
    (back,) = json.loads(await say("undo", artifact, "-o", "json"))["items"]
    fresh = await scene.store.get(OBJECT_KEEPER, ObjectKey(None, back["address"].partition("/")[2]))
    assert fresh.metadata.annotations[MADE_FOR] == scene.namespace
    assert (back["hold"]["reason"], back["deadline"]) == ("audit", told_end(fresh))
    assert (await marks(fresh))["lapse.dev/hold-reason"] == "audit"
    await say("release", address)
    assert await marks(fresh) == {}


def told_end(keeper: Any) -> str:  # noqa: ANN401 - a keeper
    created = from_timestamp(keeper.metadata.creation_timestamp) or 0
    return to_timestamp(created + (WEEK.nanoseconds or 0))
