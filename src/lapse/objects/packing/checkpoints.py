"""Checkpoints of manifests: what is written of packed objects, and how they are read back with proof.

A checkpoint names its chunks in its status, which is written once, after all of them: a checkpoint that is Ready is
complete. A chunk is owned by the checkpoint, beside whoever else owns it, so that a new owner of the checkpoint keeps
its chunks as well. Which kinds these are is given, because they belong to the domain that defines them.

Not guaranteed: that what was captured at once shows one moment of the store.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from lapse.core.timestamps import to_timestamp
from lapse.kube.crd.rules import Count
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import (
    READY,
    Conditions,
    ConditionStatus,
    ObjectKey,
    OwnerReference,
    Struct,
    ready_condition,
)
from lapse.objects.packing.chunks import ChunkInfo, ManifestsUnreadableError, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.packing.chunks import PackedChunk
    from lapse.objects.port import Reader

_READS_AT_ONCE: Final = 16
S = TypeVar("S")
T = TypeVar("T")


class CheckpointKinds(NamedTuple):
    """The kinds of checkpoints and of their chunks."""

    checkpoint: Kind[Any]
    chunk: Kind[Any]


class CheckpointStatus(Struct, frozen=True):
    """Which chunks make up the checkpoint."""

    chunks: tuple[ChunkInfo, ...] = ()
    total_objects: Count | None = None
    total_size_bytes: Count | None = None
    conditions: Conditions = ()


def chunk_name(checkpoint: str, index: int) -> str:
    """Name one chunk of a checkpoint."""
    return f"{checkpoint}-{index}"


def chunk_document(
    kinds: CheckpointKinds, checkpoint: ObjectMeta, packed: PackedChunk, *owners: OwnerReference
) -> Json:
    """Return a chunk as it is to be created: owned by ``owners``, and by its checkpoint."""
    own = OwnerReference(
        api_version=kinds.checkpoint.api_version, kind=kinds.checkpoint.kind, name=checkpoint.name, uid=checkpoint.uid
    )
    return {
        "metadata": {
            "name": chunk_name(checkpoint.name, packed.index),
            "ownerReferences": [msgspec.to_builtins(owner) for owner in (*owners, own)],
        },
        "spec": {
            "checkpointName": checkpoint.name,
            "index": packed.index,
            "data": packed.data,
            "objectsCount": packed.objects_count,
            "checksum": packed.checksum,
        },
    }


def complete_status(checkpoint: str, packed: Sequence[PackedChunk], *, reason: str, now: int) -> Json:
    """Return the status of a checkpoint all of whose chunks are there."""
    total = sum(chunk.objects_count for chunk in packed)
    ready = {
        "type": READY,
        "status": ConditionStatus.TRUE,
        "reason": reason,
        "message": f"objects: {total}, chunks: {len(packed)}",
        "lastTransitionTime": to_timestamp(now),
    }
    return {
        "chunks": [
            {
                "name": chunk_name(checkpoint, chunk.index),
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


def is_complete(status: CheckpointStatus | None) -> bool:
    """Whether a checkpoint with this status is Ready."""
    ready = None if status is None else ready_condition(status.conditions)
    return ready is not None and ready.status == ConditionStatus.TRUE


async def read_checkpoint(reader: Reader, kinds: CheckpointKinds, name: str) -> list[Json]:
    """Return the manifests of a checkpoint in the order of their capture, proven to be what was captured.

    Raises `NotFoundError` when there is no such checkpoint, and `ManifestsUnreadableError` when it is not complete or
    anything about it or its chunks is not as it was written; then nothing is returned.
    """
    checkpoint = await reader.get(kinds.checkpoint, ObjectKey(None, name))
    status: CheckpointStatus | None = checkpoint.status
    if status is None or not is_complete(status):
        problem = "it is not Ready, so its capture has not ended or has failed"
        raise ManifestsUnreadableError(checkpoint=name, problem=problem)
    reading = partial(_chunk_or_none, reader, kinds.chunk)
    found = await some_at_once(reading, [info.name for info in status.chunks])
    chunks = [chunk for chunk in found if chunk is not None]
    objects = await asyncio.to_thread(unpack, name, chunks, owner=checkpoint.metadata.uid, expected=status.chunks)
    if wrong := _wrong_totals(status, len(objects)):
        raise ManifestsUnreadableError(checkpoint=name, problem=wrong)
    return objects


async def _chunk_or_none(reader: Reader, kind: Kind[Any], name: str) -> Any:  # noqa: ANN401 - as the kind says
    try:
        return await reader.get(kind, ObjectKey(None, name))
    except NotFoundError:
        return None  # `unpack` says which one is missing


async def some_at_once(
    act: Callable[[S], Coroutine[Any, Any, T]], items: Sequence[S], *, most: int = _READS_AT_ONCE
) -> list[T]:
    """Act on all items, a few at a time; return the results in order, or raise the first error of that order."""
    places = asyncio.Semaphore(most)

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
