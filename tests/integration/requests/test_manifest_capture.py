"""Manifest capture on the real embedded store: outcomes, owners, crashes between any two calls, reading back."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.kube.controller.controller import DependencyMissingError
from lapse.kube.errors import ForbiddenError, NotFoundError, StoreUnavailableError
from lapse.kube.resources import Kind, ObjectKey, ready_condition, untyped
from lapse.objects.embedded import open_embedded
from lapse.objects.packing import chunks
from lapse.objects.packing.checkpoints import chunk_name
from lapse.objects.packing.chunks import ManifestsUnreadableError, pack
from lapse.requests.addresses import checkpoint_name, keeper_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    ManifestCaptureRequest,
)
from lapse.requests.api.upstream import ALL_KINDS, CONFIG_MAP, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from lapse.requests.controllers.caches import Caches
from lapse.requests.controllers.manifests import ManifestCapture, read_checkpoint
from lapse.requests.lifecycle.policy import RequestPolicy
from lapse.requests.schedules.runs import Runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from lapse.kube.controller.controller import ReconcileResult
    from lapse.kube.resources import Json
    from lapse.objects.embedded import EmbeddedStore

KEY = ObjectKey("shop", "nightly")
LARGE = 650_000
SMALL = 2_600
MADE: tuple[Kind[Any], ...] = (OBJECT_KEEPER, MANIFEST_CHECKPOINT, MANIFEST_CHUNK)


class CrashError(Exception):
    """The process ends here."""


@dataclass
class Wire:
    """Passes every call to the store, unless a test says what happens instead, before or after it."""

    store: EmbeddedStore
    calls: list[str] = field(default_factory=list)
    crash_after: int | str | None = None
    """The call that is made and never answered: its number, or what it does first."""
    before: Callable[[str], None] = lambda _call: None
    after: Callable[[str, Any], Any] = lambda _call, answer: answer

    def __getattr__(self, method: str) -> Any:  # noqa: ANN401 - stands for any method
        real = getattr(self.store, method)
        if method not in {"get", "create", "patch", "patch_status", "resolve"}:
            return real

        async def call(kind: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the method has it
            this = f"{method} {getattr(kind, 'kind', kind)}"
            self.calls.append(this)
            crash = self.crash_after in {len(self.calls), this}
            self.before(this)
            try:
                answer = await real(kind, *args, **kwargs)
            finally:
                if crash:
                    raise CrashError
            return self.after(this, answer)

        return call


@dataclass
class World:
    """A store, its clock and a way to reconcile with a new process each time."""

    store: EmbeddedStore
    clock: VirtualClock

    def controller(self, wire: Wire | None = None) -> ManifestCapture:
        wire = wire or Wire(self.store)
        caches = Caches(wire, clock=self.clock)
        runs = Runs(caches, manifests=True)
        return ManifestCapture(
            store=wire, direct=wire, caches=caches, policy=RequestPolicy(), clock=self.clock, runs=runs
        )

    async def reconcile(self, wire: Wire | None = None) -> ReconcileResult:
        return await self.controller(wire).reconcile(KEY)

    async def request(self, *targets: tuple[Kind[Any], str]) -> ManifestCaptureRequest:
        """Ask for a capture."""
        listed = [{"apiVersion": kind.api_version, "kind": kind.kind, "name": name} for kind, name in targets]
        metadata = {"namespace": KEY.namespace, "name": KEY.name}
        return await self.store.create(MANIFEST_CAPTURE_REQUEST, {"metadata": metadata, "spec": {"targets": listed}})

    async def config_map(self, name: str, value: str = "") -> None:
        await self.store.create(CONFIG_MAP, {"metadata": {"namespace": "shop", "name": name}, "data": {"value": value}})

    async def three_large(self, size: int = LARGE) -> ManifestCaptureRequest:
        """A request whose capture takes three chunks."""
        for number in range(3):
            await self.config_map(f"large-{number}", noise(size, number))
        return await self.request(*((CONFIG_MAP, f"large-{number}") for number in range(3)))

    async def found(self) -> ManifestCaptureRequest:
        return await self.store.get(MANIFEST_CAPTURE_REQUEST, KEY)

    async def outcome(self) -> tuple[str, str]:
        """The reason and the message that the request ended with."""
        request = await self.found()
        assert request.status is not None
        ready = ready_condition(request.status.conditions)
        assert ready is not None
        assert request.status.completion_timestamp
        assert ready.status == ("True" if ready.reason == ConditionReason.COMPLETED else "False")
        return ready.reason, ready.message

    async def names(self, kind: Kind[Any]) -> list[str]:
        return [obj.metadata.name for obj in (await self.store.list(kind)).items]

    async def made(self) -> list[str]:
        """The names of everything that the controller made."""
        return [name for kind in MADE for name in await self.names(kind)]

    async def versions(self) -> dict[str, str]:
        kinds: tuple[Kind[Any], ...] = (MANIFEST_CAPTURE_REQUEST, *MADE)
        objects = [obj for kind in kinds for obj in (await self.store.list(kind)).items]
        return {obj.metadata.name: obj.metadata.resource_version for obj in objects}


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[World]:
    clock = VirtualClock()
    store = open_embedded(path, kinds=ALL_KINDS, clock=clock, synchronous=Synchronous.NORMAL)
    try:
        yield World(store, clock)
    finally:
        await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path / "objects.db") as found:
        yield found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks for three objects of the size `SMALL`: for tests that capture many times."""
    monkeypatch.setattr(chunks, "MAX_GZIP_BYTES", SMALL)


def noise(size: int, seed: int) -> str:
    return base64.b64encode(hashlib.shake_128(str(seed).encode()).digest(size * 3 // 4)).decode()


def values(manifests: list[Json]) -> list[str]:
    return [manifest["data"]["value"] for manifest in manifests]


# --- what is captured -------------------------------------------------------------------------------------------------


async def test_manifests_are_captured_whole_and_come_back_in_order(world: World) -> None:
    await world.config_map("b", "second")
    await world.config_map("a", "first")
    claim = {"metadata": {"namespace": "shop", "name": "data"}, "spec": {"volumeName": "pv-1", "fieldWeDoNotKnow": [1]}}
    await world.store.create(PERSISTENT_VOLUME_CLAIM, claim)
    await world.store.create(PERSISTENT_VOLUME, {"metadata": {"name": "pv-1"}, "spec": {"local": {"path": "/x"}}})
    request = await world.request(
        (PERSISTENT_VOLUME, "pv-1"), (CONFIG_MAP, "b"), (PERSISTENT_VOLUME_CLAIM, "data"), (CONFIG_MAP, "a")
    )
    await world.reconcile()
    name = checkpoint_name(request.metadata.uid)
    assert await world.outcome() == (
        ConditionReason.COMPLETED,
        f"the ManifestCheckpoint {name} is complete (objects: 4, chunks: 1)",
    )
    status = (await world.found()).status
    assert status is not None
    assert status.checkpoint_name == name
    manifests = await read_checkpoint(world.store, name)
    assert [(one["kind"], one["metadata"]["name"]) for one in manifests] == [
        ("ConfigMap", "a"),
        ("ConfigMap", "b"),
        ("PersistentVolume", "pv-1"),
        ("PersistentVolumeClaim", "data"),
    ]
    assert manifests[3]["spec"] == claim["spec"], "a field that our own type does not have"
    assert manifests[2]["spec"] == {"local": {"path": "/x"}}
    assert manifests[0]["metadata"]["uid"]


async def test_a_target_that_is_named_twice_is_captured_once(world: World) -> None:
    await world.config_map("a")
    request = await world.request((CONFIG_MAP, "a"), (CONFIG_MAP, "a"))
    await world.reconcile()
    assert len(await read_checkpoint(world.store, checkpoint_name(request.metadata.uid))) == 1


async def test_the_checkpoint_says_what_its_chunks_are(world: World) -> None:
    request = await world.three_large()
    await world.reconcile()
    name = checkpoint_name(request.metadata.uid)
    checkpoint = await world.store.get(MANIFEST_CHECKPOINT, ObjectKey(None, name))
    status = checkpoint.status
    assert status is not None
    assert status.total_objects == 3
    assert [info.name for info in status.chunks] == [chunk_name(name, index) for index in range(3)]
    assert status.total_size_bytes == sum(info.size_bytes for info in status.chunks)
    for info in status.chunks:
        chunk = await world.store.get(MANIFEST_CHUNK, ObjectKey(None, info.name))
        assert hashlib.sha256(base64.b64decode(chunk.spec.data)).hexdigest() == info.checksum == chunk.spec.checksum
    ready = ready_condition(status.conditions)
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", ConditionReason.COMPLETED)


# --- owners -----------------------------------------------------------------------------------------------------------


async def test_the_keeper_is_the_only_controller_owner_and_the_request_owns_nothing(world: World) -> None:
    request = await world.three_large()
    await world.reconcile()
    keeper = await world.store.get(OBJECT_KEEPER, ObjectKey(None, keeper_name("mcr", request.metadata.uid)))
    artifacts = [obj for kind in MADE[1:] for obj in (await world.store.list(kind)).items]
    assert len(artifacts) == 4
    for artifact in artifacts:
        assert [owner.uid for owner in artifact.metadata.owner_references if owner.controller] == [keeper.metadata.uid]
        assert request.metadata.uid not in {owner.uid for owner in artifact.metadata.owner_references}


async def test_a_checkpoint_that_somebody_takes_over_keeps_its_chunks_when_the_keeper_goes(world: World) -> None:
    request = await world.three_large()
    await world.reconcile()
    name = checkpoint_name(request.metadata.uid)
    await world.config_map("new-owner")
    owner = await world.store.get(CONFIG_MAP, ObjectKey("shop", "new-owner"))
    heir = {"apiVersion": "v1", "kind": "ConfigMap", "name": "new-owner", "uid": owner.metadata.uid}
    checkpoint = await world.store.get(MANIFEST_CHECKPOINT, ObjectKey(None, name))
    keeper = checkpoint.metadata.owner_references[0]
    kept = {"apiVersion": keeper.api_version, "kind": keeper.kind, "name": keeper.name, "uid": keeper.uid}
    changes = {"metadata": {"ownerReferences": [{**kept, "controller": True}, heir]}}
    await world.store.patch(MANIFEST_CHECKPOINT, checkpoint.metadata.key, changes)
    seen = (await world.store.list(MANIFEST_CHECKPOINT)).resource_version

    await world.store.delete(OBJECT_KEEPER, ObjectKey(None, keeper.name))
    async with asyncio.timeout(10):
        async for event in world.store.watch(MANIFEST_CHECKPOINT, since=seen):
            if event.object is not None and len(event.object.metadata.owner_references) == 1:
                break  # garbage collection has looked at it
    assert values(await read_checkpoint(world.store, name)) == [noise(LARGE, number) for number in range(3)]

    seen = (await world.store.list(MANIFEST_CHUNK)).resource_version
    await world.store.delete(CONFIG_MAP, ObjectKey("shop", "new-owner"))
    await until_deleted(world, 3, since=seen)
    assert await world.made() == []


async def test_everything_goes_with_the_keeper(world: World) -> None:
    request = await world.three_large()
    await world.reconcile()
    seen = (await world.store.list(MANIFEST_CHUNK)).resource_version
    await world.store.delete(OBJECT_KEEPER, ObjectKey(None, keeper_name("mcr", request.metadata.uid)))
    await until_deleted(world, 3, since=seen)
    assert await world.made() == []


async def until_deleted(world: World, count: int, *, since: str) -> None:
    async with asyncio.timeout(10):
        async for event in world.store.watch(MANIFEST_CHUNK, since=since):
            count -= event.type == "DELETED"
            if not count:
                return


async def test_a_keeper_without_uid_means_come_back_in_a_second_and_no_artifact(world: World) -> None:
    await world.config_map("a")
    await world.request((CONFIG_MAP, "a"))

    def without_uid(call: str, answer: Any) -> Any:  # noqa: ANN401 - any object
        if call != "get ObjectKeeper":
            return answer
        bare = {"name": answer.metadata.name}
        return OBJECT_KEEPER.convert({**OBJECT_KEEPER.body(answer), "metadata": bare})

    result = await world.reconcile(Wire(world.store, after=without_uid))
    assert result.requeue_after == 1.0
    assert await world.names(MANIFEST_CHECKPOINT) == []
    await world.reconcile()
    assert (await world.outcome())[0] == ConditionReason.COMPLETED


# --- outcomes that are not a capture ----------------------------------------------------------------------------------


async def test_a_missing_target_ends_the_request_before_anything_is_made(world: World) -> None:
    await world.config_map("a")
    await world.request((CONFIG_MAP, "a"), (CONFIG_MAP, "missing"))
    await world.reconcile()
    assert await world.outcome() == (ConditionReason.NOT_FOUND, "there is no ConfigMap shop/missing (v1) to capture")
    assert await world.made() == []


async def test_an_unknown_kind_is_an_unsupported_target(world: World) -> None:
    await world.request((untyped("example.org/v1", "Unicorn", "unicorns"), "bella"))
    await world.reconcile()
    reason, message = await world.outcome()
    assert reason == ConditionReason.UNSUPPORTED_TARGET_KIND
    assert "Unicorn bella (example.org/v1)" in message


async def test_a_target_that_we_may_not_read_is_rbac_denied(world: World) -> None:
    await world.config_map("a")
    await world.request((CONFIG_MAP, "a"))

    def forbid(call: str) -> None:
        if call == "get ConfigMap":
            raise ForbiddenError(problem="configmaps is forbidden")

    await world.reconcile(Wire(world.store, before=forbid))
    assert await world.outcome() == (
        ConditionReason.RBAC_DENIED,
        "cannot read ConfigMap a (v1): The store does not allow it: configmaps is forbidden.",
    )


async def test_an_object_that_fits_no_chunk_is_named_in_the_outcome(world: World) -> None:
    await world.config_map("huge", noise(1_400_000, 1))
    await world.request((CONFIG_MAP, "huge"))
    await world.reconcile()
    reason, message = await world.outcome()
    assert reason == ConditionReason.FAILED
    assert message.startswith("ConfigMap shop/huge (v1) cannot be captured")
    assert await world.made() == []


async def test_a_store_that_does_not_answer_is_no_outcome(world: World, small_chunks: None) -> None:
    request = await world.three_large(SMALL)

    def silent_from(number: int) -> Wire:
        def before(_call: str) -> None:
            if len(wire.calls) >= number:
                raise StoreUnavailableError(problem="no answer")

        wire = Wire(world.store, before=before)
        return wire

    failures = 0
    while True:
        try:
            await world.reconcile(silent_from(failures + 1))
            break
        except StoreUnavailableError:
            failures += 1
            status = (await world.found()).status
            assert status is None or not status.conditions
    assert failures > 10
    assert (await world.outcome())[0] == ConditionReason.COMPLETED
    assert len(await read_checkpoint(world.store, checkpoint_name(request.metadata.uid))) == 3


async def test_a_final_request_is_not_touched_by_a_thousand_reconciles(world: World) -> None:
    await world.config_map("a")
    await world.request((CONFIG_MAP, "a"))
    await world.reconcile()
    before = await world.versions()
    await world.store.delete(CONFIG_MAP, ObjectKey("shop", "a"))
    controller = world.controller()
    for _ in range(1_000):
        world.clock.advance(1)
        assert (await controller.reconcile(KEY)).requeue_after is None
    assert await world.versions() == before


async def test_a_request_that_is_gone_is_nothing_to_do(world: World) -> None:
    assert (await world.reconcile()).requeue_after is None
    assert await world.made() == []


@pytest.mark.parametrize("missing", ["store", "direct", "caches", "policy", "clock", "runs"])
async def test_a_controller_without_a_dependency_is_not_built(world: World, missing: str) -> None:
    caches = Caches(world.store, clock=world.clock)
    given: dict[str, Any] = {
        "store": world.store,
        "direct": world.store,
        "caches": caches,
        "policy": RequestPolicy(),
        "clock": world.clock,
        "runs": Runs(caches, manifests=True),
    }
    with pytest.raises(DependencyMissingError, match=f"ManifestCapture cannot work without {missing}"):
        ManifestCapture(**{**given, missing: None})


# --- crashes ----------------------------------------------------------------------------------------------------------


async def test_a_crash_after_any_call_and_a_restart_end_in_the_same_state(tmp_path: Path, small_chunks: None) -> None:
    number = 0
    while True:
        number += 1
        async with opened(tmp_path / f"{number}.db") as world:
            request = await world.three_large(SMALL)
            wire = Wire(world.store, crash_after=number)
            crashed = False
            try:
                await world.reconcile(wire)
            except CrashError:
                crashed = True
            world.clock.advance(5)
            await world.reconcile()
            name = checkpoint_name(request.metadata.uid)
            assert (await world.outcome())[0] == ConditionReason.COMPLETED, wire.calls
            assert await world.made() == [
                keeper_name("mcr", request.metadata.uid),
                name,
                *(chunk_name(name, index) for index in range(3)),
            ]
            assert values(await read_checkpoint(world.store, name)) == [noise(SMALL, one) for one in range(3)]
            if not crashed:
                break
    assert number > 15, wire.calls


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("create ObjectKeeper", ConditionReason.COMPLETED),
        ("create ManifestCheckpoint", ConditionReason.COMPLETED),
        ("create ManifestCheckpointContentChunk", ConditionReason.FAILED),
        ("patch_status ManifestCheckpoint", ConditionReason.COMPLETED),
    ],
)
async def test_what_was_written_before_a_crash_decides_when_a_target_changes_before_the_restart(
    world: World, last: str, reason: ConditionReason
) -> None:
    await world.config_map("a", "before")
    request = await world.request((CONFIG_MAP, "a"))
    with pytest.raises(CrashError):
        await world.reconcile(Wire(world.store, crash_after=last))
    written = await world.names(MANIFEST_CHUNK)
    await world.store.patch(CONFIG_MAP, ObjectKey("shop", "a"), {"data": {"value": "after"}})
    await world.reconcile()
    assert (await world.outcome())[0] == reason
    name = checkpoint_name(request.metadata.uid)
    if reason is ConditionReason.COMPLETED:
        expected = "before" if written else "after"
        assert values(await read_checkpoint(world.store, name)) == [expected]
    else:
        assert "make a new request" in (await world.outcome())[1]
        with pytest.raises(ManifestsUnreadableError, match="not Ready"):
            await read_checkpoint(world.store, name)


async def test_a_complete_checkpoint_ends_the_request_although_its_targets_are_gone(world: World) -> None:
    await world.config_map("a", "kept")
    request = await world.request((CONFIG_MAP, "a"))
    with pytest.raises(CrashError):
        await world.reconcile(Wire(world.store, crash_after="patch_status ManifestCheckpoint"))
    await world.store.delete(CONFIG_MAP, ObjectKey("shop", "a"))
    await world.reconcile()
    assert (await world.outcome())[0] == ConditionReason.COMPLETED
    assert values(await read_checkpoint(world.store, checkpoint_name(request.metadata.uid))) == ["kept"]


async def test_a_label_on_the_checkpoint_in_the_middle_of_a_capture_does_no_harm(world: World) -> None:
    await world.config_map("a")
    await world.request((CONFIG_MAP, "a"))
    wire = Wire(world.store)
    meddling: list[asyncio.Task[Any]] = []

    def label(call: str, answer: Any) -> Any:  # noqa: ANN401 - any object
        if call == "create ManifestCheckpoint":
            changes = {"metadata": {"labels": {"seen": "yes"}}}
            patch = world.store.patch(MANIFEST_CHECKPOINT, answer.metadata.key, changes)
            meddling.append(asyncio.create_task(patch))
        return answer

    wire.after = label
    await world.reconcile(wire)
    await asyncio.gather(*meddling)
    assert meddling
    assert (await world.outcome())[0] == ConditionReason.COMPLETED


# --- what is there already --------------------------------------------------------------------------------------------


async def test_a_checkpoint_that_is_gone_is_not_made_again(world: World) -> None:
    await world.config_map("a")
    request = await world.request((CONFIG_MAP, "a"))
    with pytest.raises(CrashError):  # when the checkpoint has been recorded in the request
        await world.reconcile(Wire(world.store, crash_after="patch_status ManifestCaptureRequest"))
    name = checkpoint_name(request.metadata.uid)
    await world.store.delete(MANIFEST_CHECKPOINT, ObjectKey(None, name))
    await world.reconcile()
    assert await world.outcome() == (
        ConditionReason.NOT_FOUND,
        f"the ManifestCheckpoint {name} is gone; it is not made again",
    )
    assert await world.names(MANIFEST_CHECKPOINT) == []


@pytest.mark.parametrize("ready", [False, True])
async def test_a_checkpoint_of_another_owner_is_not_used(world: World, ready: bool) -> None:  # noqa: FBT001 - a case
    await world.config_map("a")
    request = await world.request((CONFIG_MAP, "a"))
    key = ObjectKey(None, checkpoint_name(request.metadata.uid))
    await world.store.create(MANIFEST_CHECKPOINT, {"metadata": {"name": key.name}})
    if ready:
        conditions = [{"type": "Ready", "status": "True", "reason": "Completed"}]
        await world.store.patch_status(MANIFEST_CHECKPOINT, key, {"conditions": conditions})
    await world.reconcile()
    reason, message = await world.outcome()
    assert reason == ConditionReason.INTERNAL_ERROR
    assert "not owned by the keeper of this request" in message
    assert await world.names(MANIFEST_CHUNK) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, "it belongs to another checkpoint"),  # the same in all but its owner
        ({"checkpointName": "mcp-other"}, "it belongs to another checkpoint"),
        ({"index": 7}, "its index is 7 and not 0"),
        ({"data": pack([])[0].data, "checksum": pack([])[0].checksum}, "with other content"),
    ],
)
async def test_another_chunk_under_the_name_is_final_and_stays(world: World, change: Json, problem: str) -> None:
    await world.config_map("a")
    request = await world.request((CONFIG_MAP, "a"))
    name = checkpoint_name(request.metadata.uid)
    planted = chunk_name(name, 0)
    with pytest.raises(CrashError):
        await world.reconcile(Wire(world.store, crash_after="create ManifestCheckpointContentChunk"))
    body = MANIFEST_CHUNK.body(await world.store.get(MANIFEST_CHUNK, ObjectKey(None, planted)))
    await world.store.delete(MANIFEST_CHUNK, ObjectKey(None, planted))
    owners = body["metadata"]["ownerReferences"] if change else []
    await world.store.create(
        MANIFEST_CHUNK,
        {"metadata": {"name": planted, "ownerReferences": owners}, "spec": {**body["spec"], **change}},
    )
    before = (await world.store.get(MANIFEST_CHUNK, ObjectKey(None, planted))).metadata
    await world.reconcile()
    reason, message = await world.outcome()
    assert reason == ConditionReason.FAILED
    assert f"the chunk {planted} is there already, but {problem}" in message
    assert (await world.store.get(MANIFEST_CHUNK, ObjectKey(None, planted))).metadata == before


# --- reading back -----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_that_does_not_exist_is_not_found(world: World) -> None:
    with pytest.raises(NotFoundError, match="mcp-none"):
        await read_checkpoint(world.store, "mcp-none")


async def test_a_checkpoint_that_is_not_ready_is_not_read(world: World) -> None:
    await world.store.create(MANIFEST_CHECKPOINT, {"metadata": {"name": "mcp-empty"}})
    with pytest.raises(ManifestsUnreadableError, match="mcp-empty cannot be trusted: it is not Ready"):
        await read_checkpoint(world.store, "mcp-empty")


async def test_a_missing_chunk_is_named(world: World) -> None:
    name = checkpoint_name((await world.three_large()).metadata.uid)
    await world.reconcile()
    await world.store.delete(MANIFEST_CHUNK, ObjectKey(None, chunk_name(name, 1)))
    with pytest.raises(ManifestsUnreadableError, match="chunk 1 of 3 is missing"):
        await read_checkpoint(world.store, name)


async def test_a_chunk_that_somebody_replaced_is_found_out(world: World) -> None:
    name = checkpoint_name((await world.three_large()).metadata.uid)
    await world.reconcile()
    key = ObjectKey(None, chunk_name(name, 2))
    body = MANIFEST_CHUNK.body(await world.store.get(MANIFEST_CHUNK, key))
    await world.store.delete(MANIFEST_CHUNK, key)
    metadata = {"name": key.name, "ownerReferences": body["metadata"]["ownerReferences"]}
    forged = pack([{"kind": "ConfigMap", "data": {"value": "forged"}}])[0]
    spec = {**body["spec"], "data": forged.data}
    await world.store.create(MANIFEST_CHUNK, {"metadata": metadata, "spec": spec})
    with pytest.raises(ManifestsUnreadableError, match="chunk 2: its data has"):
        await read_checkpoint(world.store, name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"totalObjects": 4}, "claims 4 objects"),
        ({"totalSizeBytes": 1}, "claims 1 bytes"),
        ({"chunks": []}, "names no"),
    ],
)
async def test_a_checkpoint_whose_totals_are_wrong_is_not_trusted(world: World, change: Json, problem: str) -> None:
    name = checkpoint_name((await world.three_large()).metadata.uid)
    await world.reconcile()
    await world.store.patch_status(MANIFEST_CHECKPOINT, ObjectKey(None, name), change)
    with pytest.raises(ManifestsUnreadableError, match=problem):
        await read_checkpoint(world.store, name)
