"""Manifest capture: copies of the manifests of some objects, kept in a checkpoint and its chunks.

The steps, in this order: read the targets straight from the store, sort and pack them
(`lapse.requests.controllers.chunks`), make the keeper, the checkpoint, record the checkpoint in the request, make the
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
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from lapse.core.timestamps import to_timestamp
from lapse.kube.controller.controller import require
from lapse.kube.errors import AlreadyExistsError, ForbiddenError, InvalidError, NotFoundError, UnknownKindError
from lapse.kube.resources import READY, ConditionStatus, Document, ObjectKey, OwnerReference, ready_condition
from lapse.requests.addresses import checkpoint_name, chunk_name
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    MANIFEST_CAPTURE_REQUEST,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    ManifestCaptureRequest,
    ObjectRef,
)
from lapse.requests.controllers.base import RequestController, Wait
from lapse.requests.controllers.chunks import ManifestsUnreadableError, ObjectTooLargeError, as_captured, pack, unpack
from lapse.requests.controllers.finalise import End
from lapse.requests.controllers.ownership import UID_BARRIER_SECONDS, ensure_keeper, is_kept_by, keeper_key, owned_by
from lapse.requests.lifecycle.events import EventReason, made

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lapse.kube.resources import Json, Kind
    from lapse.objects.port import Reader
    from lapse.requests.api.kinds import (
        CaptureSchedule,
        CheckpointStatus,
        ManifestCheckpoint,
        ManifestCheckpointContentChunk,
        ObjectKeeper,
    )
    from lapse.requests.controllers.chunks import PackedChunk
    from lapse.requests.schedules.runs import Runs

_READS_AT_ONCE: Final = 16

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
        if found is not None and _is_ready(found):
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
        for manifest in await _some_at_once(read, targets):
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
        complete = await self._store.patch_status(
            MANIFEST_CHECKPOINT, checkpoint.metadata.key, self._status(name, packed), uid=checkpoint.metadata.uid
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
        owners = [msgspec.to_builtins(owner) for owner in (owned_by(keeper), _plain_owner(checkpoint))]
        spec = {
            "checkpointName": checkpoint.metadata.name,
            "index": packed.index,
            "data": packed.data,
            "objectsCount": packed.objects_count,
            "checksum": packed.checksum,
        }
        wanted: Json = {"metadata": {"name": name, "ownerReferences": owners}, "spec": spec}
        try:
            await self._store.create(MANIFEST_CHUNK, wanted)
        except AlreadyExistsError:
            found = await self._store.get(MANIFEST_CHUNK, ObjectKey(None, name))
            if problem := _difference(found, checkpoint, packed):
                return End(
                    ConditionReason.FAILED, f"the chunk {name} is there already, but {problem}; make a new request"
                )
        return None

    def _status(self, name: str, packed: Sequence[PackedChunk]) -> Json:
        total = sum(chunk.objects_count for chunk in packed)
        ready = {
            "type": READY,
            "status": ConditionStatus.TRUE,
            "reason": ConditionReason.COMPLETED,
            "message": f"objects: {total}, chunks: {len(packed)}",
            "lastTransitionTime": to_timestamp(self._clock.wall_ns()),
        }
        return {
            "chunks": [
                {
                    "name": chunk_name(name, chunk.index),
                    "index": chunk.index,
                    "objectsCount": chunk.objects_count,
                    "sizeBytes": chunk.size_bytes,
                    "checksum": chunk.checksum,
                }
                for chunk in packed
            ],
            "totalObjects": total,
            "totalSizeBytes": sum(chunk.size_bytes for chunk in packed),
            "conditions": [ready],
        }


async def read_checkpoint(reader: Reader, name: str) -> list[Json]:
    """Return the manifests of a checkpoint in the order of their capture, proven to be what was captured.

    Raises `NotFoundError` when there is no such checkpoint, and `ManifestsUnreadableError` when it is not complete or
    anything about it or its chunks is not as it was written; then nothing is returned.
    """
    checkpoint = await reader.get(MANIFEST_CHECKPOINT, ObjectKey(None, name))
    status = checkpoint.status
    if status is None or not _is_ready(checkpoint):
        problem = "it is not Ready, so its capture has not ended or has failed"
        raise ManifestsUnreadableError(checkpoint=name, problem=problem)
    found = await _some_at_once(partial(_chunk_or_none, reader), [info.name for info in status.chunks])
    chunks = [chunk for chunk in found if chunk is not None]
    objects = await asyncio.to_thread(unpack, name, chunks, owner=checkpoint.metadata.uid, expected=status.chunks)
    if wrong := _wrong_totals(status, len(objects)):
        raise ManifestsUnreadableError(checkpoint=name, problem=wrong)
    return objects


async def _chunk_or_none(reader: Reader, name: str) -> ManifestCheckpointContentChunk | None:
    try:
        return await reader.get(MANIFEST_CHUNK, ObjectKey(None, name))
    except NotFoundError:
        return None  # `unpack` says which one is missing


async def _some_at_once(act: Callable[[S], Coroutine[Any, Any, T]], items: Sequence[S]) -> list[T]:
    """Act on all items, a few at a time; return the results in order, or raise the first error of that order."""
    places = asyncio.Semaphore(_READS_AT_ONCE)

    async def one(item: S) -> T:
        async with places:
            return await act(item)

    done: list[T] = []
    for result in await asyncio.gather(*map(one, items), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


def _wrong_totals(status: CheckpointStatus, objects: int) -> str | None:
    size = sum(info.size_bytes for info in status.chunks)
    if status.total_objects != objects:
        return f"it claims {status.total_objects} objects, but its chunks hold {objects}"
    if status.total_size_bytes != size:
        return f"it claims {status.total_size_bytes} bytes, but its chunks have {size}"
    return None


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


def _is_ready(checkpoint: ManifestCheckpoint) -> bool:
    ready = ready_condition(checkpoint.status.conditions) if checkpoint.status is not None else None
    return ready is not None and ready.status == ConditionStatus.TRUE


def _completion(checkpoint: ManifestCheckpoint) -> End:
    name, status = checkpoint.metadata.name, checkpoint.status
    total, chunks = (status.total_objects, len(status.chunks)) if status is not None else (None, 0)
    message = f"the ManifestCheckpoint {name} is complete (objects: {total}, chunks: {chunks})"
    return End(ConditionReason.COMPLETED, message, {"checkpointName": name})


def _foreign(name: str) -> End:
    message = f"the ManifestCheckpoint {name} is there already, and not owned by the keeper of this request"
    return End(ConditionReason.INTERNAL_ERROR, message)


def _plain_owner(checkpoint: ManifestCheckpoint) -> OwnerReference:
    meta = checkpoint.metadata
    return OwnerReference(
        api_version=MANIFEST_CHECKPOINT.api_version, kind=MANIFEST_CHECKPOINT.kind, name=meta.name, uid=meta.uid
    )


def _named(target: ObjectRef) -> str:
    return f"{target.kind} {target.name} ({target.api_version})"
