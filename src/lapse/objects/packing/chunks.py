"""Manifests as chunks: how captured objects are packed, and how they are read back with proof.

A chunk is base64(gzip(JSON array)). The same objects give the same bytes: objects are sorted by apiVersion, kind,
namespace and name, the keys of every JSON object are sorted, and the gzip header is ours, with no time and no system in
it. (The standard library's header differs between Python versions; what remains is the deflate library itself: zlib
gives the same bytes everywhere, a replacement such as zlib-ng may choose others, equally valid.)

Guarantees. No chunk has more than `MAX_GZIP_BYTES` of gzip, so that base64 fits the schema, or more than
`MAX_JSON_BYTES` of JSON, so that a reader knows where a decompression bomb begins. A chunk is closed only when the next
object really does not fit. Every object is compressed at most three times, so packing is linear in the input. What
`unpack` returns is what was packed, in that order, complete; otherwise it raises and says which chunk is wrong and how.

Not guaranteed: that equal objects of different reads are equal bytes; a manifest is captured as it was read, with
resourceVersion and status. Only ``metadata.managedFields`` is left out (`as_captured`): it tells who wrote which field,
is often larger than the rest, and an API server refuses it in an object to be created.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from lapse.core.errors import LapseError
from lapse.kube.crd.rules import Count, Name
from lapse.kube.resources import ObjectMeta, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lapse.kube.resources import Json

MAX_GZIP_BYTES: Final = 786_432
"""Four characters of base64 for three bytes: 1 048 576 characters."""
MAX_JSON_BYTES: Final = 64 * 1024 * 1024
MAX_CHUNK_CHARACTERS: Final = 1_048_576
"""The most base64 text that one chunk holds."""
Checksum = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]

_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no name, no time, no hint about the level, unknown system."""
_LEVEL: Final = 6
_RAW_DEFLATE: Final = -zlib.MAX_WBITS
_GZIP: Final = 16 + zlib.MAX_WBITS
_ENDING: Final = 16
"""At least what the closing bracket (3), the end of the stream (5) and the gzip trailer (8) need after a flush."""

_encoder: Final = msgspec.json.Encoder(order="deterministic")
_manifests: Final = msgspec.json.Decoder(list[dict[str, Any]])

T = TypeVar("T")


class ChunkInfo(Struct, frozen=True):
    """What one chunk must hold to be the one that was written."""

    name: Name
    index: Count
    objects_count: Count
    size_bytes: Count
    checksum: Checksum


class ChunkSpec(Struct, frozen=True):
    """A part of a checkpoint: base64 of gzip of a JSON array; ``checksum`` is the sha256 of the gzip bytes, in hex."""

    checkpoint_name: Name
    index: Count
    data: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_CHUNK_CHARACTERS})]
    objects_count: Count
    checksum: Checksum


class ManifestCheckpointContentChunk(Struct, frozen=True):
    """Holds a part of a checkpoint. It never changes, so it has no status."""

    metadata: ObjectMeta
    spec: ChunkSpec


class ObjectTooLargeError(LapseError):
    """{object} cannot be captured: alone it makes {size} bytes of {what}, and a chunk holds at most {limit}.

    Capture the other objects without it.
    """


class ManifestsUnreadableError(LapseError):
    """The manifests of checkpoint {checkpoint} cannot be trusted: {problem}. Nothing of it was used."""

    status = 409


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """One part of a capture, ready to be stored."""

    index: int
    data: str
    objects_count: int
    size_bytes: int
    """Of the gzip, not of its base64 text and not of the JSON in it."""
    checksum: str
    """Hex sha256 of the gzip bytes."""


# --- what is captured -------------------------------------------------------------------------------------------------


def as_captured(manifest: Json) -> Json:
    """Return the manifest as it was read, without ``metadata.managedFields``."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return manifest
    return {**manifest, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


def capture_order(manifest: Json) -> tuple[str, str, str, str]:
    """Return what objects are sorted by: apiVersion, kind, namespace, name; no namespace comes first."""
    metadata = manifest.get("metadata") or {}
    return (
        manifest.get("apiVersion") or "",
        manifest.get("kind") or "",
        metadata.get("namespace") or "",
        metadata.get("name") or "",
    )


# --- packing ----------------------------------------------------------------------------------------------------------


def pack(objects: Iterable[Json], *, level: int = _LEVEL, as_given: bool = False) -> list[PackedChunk]:
    """Pack objects in the order of `capture_order`, in as many chunks as it takes; no objects are one chunk ``[]``.

    ``level`` is that of the compression, and with ``as_given`` the order is that of the objects: what is kept for days
    only is packed quickly.

    Raises `ObjectTooLargeError` for an object that has no room even in a chunk of its own.
    """
    done: list[PackedChunk] = []
    chunk = _OpenChunk(level)
    for manifest in objects if as_given else sorted(objects, key=capture_order):
        text = _encoder.encode(manifest)
        if chunk.take(text):
            continue
        if chunk.count:
            done.append(chunk.close(len(done)))
            chunk = _OpenChunk(level)
            if chunk.take(text):
                continue
        done.append(_sole(len(done), manifest, text, level))
        chunk = _OpenChunk(level)
    if chunk.count or not done:
        done.append(chunk.close(len(done)))
    return done


class _OpenChunk:
    """A chunk that still takes objects, without ever compressing again what it has taken.

    How much a compressor will still write is unknown until it is flushed, and a flush after every object would cost a
    third of the compression. So objects are taken unflushed as long as the worst case fits. Once it does not, the next
    object is tried on a copy of the compressor, which is then flushed: the size is known exactly, and the copy either
    takes the compressor's place or is thrown away. Compressing a growing prefix anew for each object, the obvious way,
    is quadratic; a limit on uncompressed size alone would leave chunks nine tenths empty.
    """

    def __init__(self, level: int) -> None:
        self.count = 0
        self._deflate = _compressor(level)
        self._parts = [_HEADER]
        self._written = len(_HEADER)
        """Bytes in all parts."""
        self._flushed = len(_HEADER)
        """Bytes in the parts up to the last flush: an exact size."""
        self._since = 0
        """Bytes of JSON taken since then."""
        self._json_size = 0
        self._crc = 0

    def take(self, text: bytes) -> bool:
        """Add one encoded object; False, and nothing changed, when it does not fit."""
        piece = (b"," if self.count else b"[") + text
        if self._json_size + len(piece) + 1 > MAX_JSON_BYTES:
            return False
        if self._flushed + _worst_case(self._since + len(piece)) + _ENDING <= MAX_GZIP_BYTES:
            self._write(self._deflate.compress(piece))
            self._since += len(piece)
        elif not self._take_exactly(piece):
            return False
        self.count += 1
        self._json_size += len(piece)
        self._crc = zlib.crc32(piece, self._crc)
        return True

    def _take_exactly(self, piece: bytes) -> bool:
        trial = self._deflate.copy()
        written = trial.compress(piece) + trial.flush(zlib.Z_SYNC_FLUSH)
        if self._written + len(written) + _ENDING > MAX_GZIP_BYTES:
            return False
        self._deflate = trial
        self._write(written)
        self._flushed, self._since = self._written, 0
        return True

    def _write(self, written: bytes) -> None:
        self._parts.append(written)
        self._written += len(written)

    def close(self, index: int) -> PackedChunk:
        """End the array, and with it the chunk."""
        piece = b"]" if self.count else b"[]"
        written = self._deflate.compress(piece) + self._deflate.flush(zlib.Z_FINISH)
        trailer = _trailer(zlib.crc32(piece, self._crc), self._json_size + len(piece))
        return _packed(index, b"".join((*self._parts, written, trailer)), self.count)


def _worst_case(size: int) -> int:
    """Return more than deflate ever makes of so many bytes: nine bits for each, which is its fixed code."""
    return size + size // 8 + 64


def _compressor(level: int) -> zlib._Compress:
    return zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY)


def _sole(index: int, manifest: Json, text: bytes, level: int) -> PackedChunk:
    """Give an object that fills a chunk one of its own: without a flush it may still fit, by a few bytes."""
    array = b"[" + text + b"]"
    if len(array) > MAX_JSON_BYTES:
        raise ObjectTooLargeError(object=_name(manifest), size=len(array), what="JSON", limit=MAX_JSON_BYTES)
    deflate = _compressor(level)
    gzip = b"".join(
        (_HEADER, deflate.compress(array), deflate.flush(zlib.Z_FINISH), _trailer(zlib.crc32(array), len(array)))
    )
    if len(gzip) > MAX_GZIP_BYTES:
        raise ObjectTooLargeError(object=_name(manifest), size=len(gzip), what="gzip", limit=MAX_GZIP_BYTES)
    return _packed(index, gzip, 1)


def _trailer(crc: int, size: int) -> bytes:
    return crc.to_bytes(4, "little") + size.to_bytes(4, "little")


def _packed(index: int, gzip: bytes, count: int) -> PackedChunk:
    return PackedChunk(
        index=index,
        data=base64.b64encode(gzip).decode("ascii"),
        objects_count=count,
        size_bytes=len(gzip),
        checksum=hashlib.sha256(gzip).hexdigest(),
    )


def _name(manifest: Json) -> str:
    api_version, kind, namespace, name = capture_order(manifest)
    return f"{kind} {f'{namespace}/' if namespace else ''}{name} ({api_version})"


# --- reading back -----------------------------------------------------------------------------------------------------


def unpack(
    checkpoint: str, chunks: Iterable[ManifestCheckpointContentChunk], *, owner: str, expected: Sequence[ChunkInfo]
) -> list[Json]:
    """Return the objects of all chunks in the order of their capture, whatever order the chunks come in.

    ``owner`` is the uid of the checkpoint, ``expected`` what its status says of its chunks. Raises
    `ManifestsUnreadableError` unless the chunks are exactly those: indexes from 0 without a gap and each once, of this
    checkpoint and owned by it, with the bytes and the number of objects that were written.
    """
    try:
        infos = _by_index((info.index, info) for info in expected)
        found = _by_index((chunk.spec.index, chunk) for chunk in chunks)
        _demand_all(infos, found)
        objects: list[Json] = []
        for index, info in sorted(infos.items()):
            with _blaming(f"chunk {index}"):
                _demand_identity(found[index], info, checkpoint=checkpoint, owner=owner)
                objects += _contents(found[index], info)
    except _Problem as problem:
        raise ManifestsUnreadableError(checkpoint=checkpoint, problem=problem) from problem.__cause__
    return objects


class _Problem(Exception):  # noqa: N818 - not an error that anybody sees
    """What is wrong with the chunks."""


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    try:
        yield
    except _Problem as problem:
        raise _Problem(f"{what}: {problem}") from problem.__cause__


def _by_index(items: Iterable[tuple[int, T]]) -> dict[int, T]:
    found: dict[int, T] = {}
    for index, item in items:
        if index in found:
            raise _Problem(f"chunk {index} is there twice")
        found[index] = item
    return found


def _demand_all(infos: dict[int, ChunkInfo], found: dict[int, ManifestCheckpointContentChunk]) -> None:
    if not infos:
        raise _Problem("it names no chunks, and even a capture of nothing has one")
    if gaps := set(range(len(infos))) - infos.keys():
        raise _Problem(f"it names {len(infos)} chunks, but no chunk {min(gaps)}")
    if missing := infos.keys() - found.keys():
        raise _Problem(f"chunk {min(missing)} of {len(infos)} is missing")
    if surplus := found.keys() - infos.keys():
        raise _Problem(f"chunk {min(surplus)} is not one of its {len(infos)} chunks")


def _demand_identity(chunk: ManifestCheckpointContentChunk, info: ChunkInfo, *, checkpoint: str, owner: str) -> None:
    if chunk.metadata.name != info.name:
        raise _Problem(f"its name is {chunk.metadata.name}, expected {info.name}")
    if chunk.spec.checkpoint_name != checkpoint:
        raise _Problem(f"it belongs to checkpoint {chunk.spec.checkpoint_name}")
    if owner not in {reference.uid for reference in chunk.metadata.owner_references}:
        raise _Problem(f"it is not owned by this checkpoint (uid {owner})")
    if chunk.spec.checksum != info.checksum:
        raise _Problem(f"its checksum is {chunk.spec.checksum}, expected {info.checksum}")
    if chunk.spec.objects_count != info.objects_count:
        raise _Problem(f"it claims {chunk.spec.objects_count} objects, expected {info.objects_count}")


def _contents(chunk: ManifestCheckpointContentChunk, info: ChunkInfo) -> list[Json]:
    try:
        gzip = base64.b64decode(chunk.spec.data, validate=True)
    except ValueError as error:
        raise _Problem("its data is not base64") from error
    if len(gzip) != info.size_bytes:
        raise _Problem(f"its data has {len(gzip)} bytes, expected {info.size_bytes}")
    if (checksum := hashlib.sha256(gzip).hexdigest()) != info.checksum:
        raise _Problem(f"the sha256 of its data is {checksum}, expected {info.checksum}")
    try:
        objects = _manifests.decode(_decompress(gzip))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Problem("its data is not a JSON array of objects") from error
    if len(objects) != info.objects_count:
        raise _Problem(f"it holds {len(objects)} objects, expected {info.objects_count}")
    return objects


def _decompress(gzip: bytes) -> bytes:
    """Return the one gzip stream, and nothing of it beyond `MAX_JSON_BYTES`: a thousandth may be stored."""
    inflate = zlib.decompressobj(_GZIP)
    try:
        found = inflate.decompress(gzip, MAX_JSON_BYTES + 1)
    except zlib.error as error:
        raise _Problem("its data is not gzip") from error
    if len(found) > MAX_JSON_BYTES:
        raise _Problem(f"its data is more than {MAX_JSON_BYTES} bytes of JSON, which no capture writes")
    if not inflate.eof:
        raise _Problem("its gzip data ends too early")
    if inflate.unused_data:
        raise _Problem(f"{len(inflate.unused_data)} bytes follow its gzip data")
    return found
