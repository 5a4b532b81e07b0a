"""Manifest capture: copies of the manifests of some objects, kept in a checkpoint and its chunks.

The steps, in this order: read the targets straight from the store, sort and pack them
(`lapse.objects.packing.chunks`), make the keeper, the checkpoint, record the checkpoint in the request, make the
chunks, write the checkpoint's status once (the list of chunks, and Ready), end the request. Each step is one write
under a name that follows from the request's uid, so a reconcile that was interrupted anywhere is repeated and finds
what is there.

What was written decides. A checkpoint that is Ready is complete: the request ends as completed, and no target is read
again. A chunk that is there with the same checkpoint, index and content is the one we would write. Any other chunk of
that name ends the request, of any writer. The consequence: when a capture is interrupted between its first chunk
and the checkpoint's status, *and* a target changes before the restart, the request ends as Failed. Going on would mix
two moments in one checkpoint, and replacing the chunk would break the rule that artifacts are made once. The remedy is
a new request; what the failed one left cannot be read (it is not Ready) and goes with its keeper.

Owners. The keeper is the controller owner of the checkpoint and of every chunk. A chunk has the checkpoint as a second,
plain owner: a new owner of a checkpoint keeps its chunks as well.

Not guaranteed: that all targets show the same moment. They are read one by one, as any client would.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from lapse.kube.controller.controller import require
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, InvalidError, NotFoundError, UnknownKindError
from lapse.kube.resources import Document, ObjectKey
from lapse.objects.packing import checkpoints
from lapse.objects.packing.checkpoints import (
    chunk_document,
    chunk_name,
    complete_status,
    is_complete,
    some_at_once,
)
from lapse.objects.packing.chunks import ObjectTooLargeError, as_captured, pack
from lapse.requests.addresses import checkpoint_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    CHECKPOINT_KINDS,
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    ManifestCaptureRequest,
    ObjectRef,
)
from lapse.requests.controllers.base import RequestController, Wait
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import UID_BARRIER_SECONDS, ensure_keeper, is_kept_by, keeper_key, owned_by
from lapse.requests.lifecycle.events import EventReason, made

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from lapse.kube.resources import Json, Kind
    from lapse.objects.packing.chunks import ManifestCheckpointContentChunk, PackedChunk
    from lapse.objects.port import Reader
    from lapse.requests.api.kinds import (
        CaptureSchedule,
        ManifestCheckpoint,
        ObjectKeeper,
    )
    from lapse.requests.schedules.runs import Runs


S = TypeVar("S")
T = TypeVar("T")


class ManifestCapture(RequestController[ManifestCaptureRequest]):
    """Reconciles ManifestCaptureRequests."""

    kind: ClassVar[Kind[Any]] = MANIFEST_CAPTURE_REQUEST

    def __init__(self, *, runs: Runs, **dependencies: Any) -> None:  # noqa: ANN401 - those of the base class
        """Take what the base takes, and who knows runs of schedules."""
        super().__init__(**dependencies)
        require(self, runs=runs)
        self._runs = runs

    async def advance(self, request: ManifestCaptureRequest) -> End | Wait:
        """See `RequestController`; one call does all of it, as there is nobody to wait for."""
        name = checkpoint_name(request.metadata.uid)
        found = await self._caches.read(MANIFEST_CHECKPOINT, ObjectKey(None, name))
        if found is None and request.status is not None and request.status.checkpoint_name:
            return End(ConditionReason.NOT_FOUND, f"the ManifestCheckpoint {name} is gone; it is not made again")
        if found is not None and is_complete(found.status):
            keeper = await self._caches.find(OBJECT_KEEPER, keeper_key(self.kind, request))
            return _completion(found) if is_kept_by(keeper, found.metadata) else _foreign(name)
        schedule = await self._runs.schedule_of(self.kind, request)
        if schedule is None and not await self.has_begun(request):
            self._policy.demand_artifact_ttl(request.spec.artifact_ttl)
        objects = await self._collect(request)
        if isinstance(objects, End):
            return objects
        try:
            packed = await asyncio.to_thread(pack, objects)
        except ObjectTooLargeError as error:
            return End(ConditionReason.FAILED, str(error))
        return await self._write(request, name, packed, schedule=schedule)

    async def has_begun(self, request: ManifestCaptureRequest) -> bool:
        """See `RequestController`."""
        return request.status is not None and bool(request.status.checkpoint_name)

    async def _collect(self, request: ManifestCaptureRequest) -> list[Json] | End:
        """Read every target once, whole: a kind that we know in part is read as if we did not know it."""
        targets = list(dict.fromkeys(request.spec.targets))
        kinds: dict[tuple[str, str], Kind[Document]] = {}
        for target in targets:
            if (target.api_version, target.kind) in kinds:
                continue
            try:
                known = await self._direct.resolve(target.api_version, target.kind)
            except UnknownKindError as error:
                return End(ConditionReason.UNSUPPORTED_TARGET_KIND, f"cannot capture {_named(target)}: {error}")
            kinds[target.api_version, target.kind] = replace(known, type=Document)
        namespace = request.metadata.namespace

        def read(target: ObjectRef) -> Coroutine[Any, Any, Json | End]:
            return self._manifest(kinds[target.api_version, target.kind], namespace, target)

        objects: list[Json] = []
        for manifest in await some_at_once(read, targets):
            if isinstance(manifest, End):
                return manifest
            objects.append(manifest)
        return objects

    async def _manifest(self, kind: Kind[Document], namespace: str | None, target: ObjectRef) -> Json | End:
        key = ObjectKey(namespace if kind.namespaced else None, target.name)
        try:
            found = await self._direct.get(kind, key)
        except NotFoundError:
            return End(ConditionReason.NOT_FOUND, f"there is no {target.kind} {key} ({target.api_version}) to capture")
        except ForbiddenError as error:
            return End(ConditionReason.RBAC_DENIED, f"cannot read {_named(target)}: {error}")
        except InvalidError as error:
            return End(ConditionReason.FAILED, f"cannot read {_named(target)}: {error}")
        return as_captured(kind.body(found))

    async def _write(
        self,
        request: ManifestCaptureRequest,
        name: str,
        packed: Sequence[PackedChunk],
        *,
        schedule: CaptureSchedule | None,
    ) -> End | Wait:
        keeper = await ensure_keeper(
            self._store, self.kind, request, policy=self._policy, recorder=self._recorder, schedule=schedule
        )
        if keeper is None:
            return Wait(UID_BARRIER_SECONDS)
        checkpoint = await self._checkpoint(request, name, keeper)
        if not is_kept_by(keeper, checkpoint.metadata):
            return _foreign(name)
        if request.status is None or not request.status.checkpoint_name:
            await self.record(request, checkpointName=name)
        for one in packed:
            if refusal := await self._chunk(checkpoint, keeper, one):
                return refusal
        # No version here: the status is ours alone, and somebody's new label on the checkpoint must not send us back to
        # the targets, which may have changed since the chunks were written.
        status = complete_status(name, packed, reason=ConditionReason.COMPLETED, now=self._clock.wall_ns())
        complete = await self._store.patch_status(
            MANIFEST_CHECKPOINT, checkpoint.metadata.key, status, uid=checkpoint.metadata.uid
        )
        return _completion(complete)

    async def _checkpoint(self, request: ManifestCaptureRequest, name: str, keeper: ObjectKeeper) -> ManifestCheckpoint:
        source = {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "name": request.metadata.name,
            "namespace": request.metadata.namespace,
            "uid": request.metadata.uid,
        }
        wanted: Json = {
            "metadata": {"name": name, "ownerReferences": [msgspec.to_builtins(owned_by(keeper))]},
            "spec": {"sourceNamespace": request.metadata.namespace, "manifestCaptureRequestRef": source},
        }
        try:
            created = await self._store.create(MANIFEST_CHECKPOINT, wanted)
        except AlreadyExistsError:
            return await self._store.get(MANIFEST_CHECKPOINT, ObjectKey(None, name))
        self._recorder.record(made(self.kind, request.metadata, EventReason.CHECKPOINT_CREATED, name))
        return created

    async def _chunk(self, checkpoint: ManifestCheckpoint, keeper: ObjectKeeper, packed: PackedChunk) -> End | None:
        """Store a chunk, unless the very same is there; return the end of the request when another one is."""
        name = chunk_name(checkpoint.metadata.name, packed.index)
        wanted = chunk_document(CHECKPOINT_KINDS, checkpoint.metadata, packed, owned_by(keeper))
        try:
            await self._store.create(MANIFEST_CHUNK, wanted)
        except AlreadyExistsError:
            found = await self._store.get(MANIFEST_CHUNK, ObjectKey(None, name))
            if problem := _difference(found, checkpoint, packed):
                return End(
                    ConditionReason.FAILED, f"the chunk {name} is there already, but {problem}; make a new request"
                )
        return None


async def read_checkpoint(reader: Reader, name: str) -> list[Json]:
    """Return the manifests of a checkpoint; see `lapse.objects.packing.checkpoints.read_checkpoint`."""
    return await checkpoints.read_checkpoint(reader, CHECKPOINT_KINDS, name)


def _difference(
    found: ManifestCheckpointContentChunk, checkpoint: ManifestCheckpoint, packed: PackedChunk
) -> str | None:
    """Say how a chunk differs from the one that we would write."""
    spec = found.spec
    if spec.checkpoint_name != checkpoint.metadata.name or checkpoint.metadata.uid not in {
        owner.uid for owner in found.metadata.owner_references
    }:
        return "it belongs to another checkpoint"
    if spec.index != packed.index:
        return f"its index is {spec.index} and not {packed.index}"
    if (spec.checksum, spec.data, spec.objects_count) != (packed.checksum, packed.data, packed.objects_count):
        return "with other content: an earlier attempt was interrupted and the objects have changed since"
    return None


def _completion(checkpoint: ManifestCheckpoint) -> End:
    name, status = checkpoint.metadata.name, checkpoint.status
    total, chunks = (status.total_objects, len(status.chunks)) if status is not None else (None, 0)
    message = f"the ManifestCheckpoint {name} is complete (objects: {total}, chunks: {chunks})"
    return End(ConditionReason.COMPLETED, message, {"checkpointName": name})


def _foreign(name: str) -> End:
    message = f"the ManifestCheckpoint {name} is there already, and not owned by the keeper of this request"
    return End(ConditionReason.INTERNAL_ERROR, message)


def _named(target: ObjectRef) -> str:
    return f"{target.kind} {target.name} ({target.api_version})"
