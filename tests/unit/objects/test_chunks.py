"""Packing and reading back: what a chunk may be, what it costs, and everything that makes a checkpoint unreadable."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.kube.resources import ObjectMeta, OwnerReference
from lapse.objects.packing import chunks as subject
from lapse.objects.packing.chunks import (
    MAX_CHUNK_CHARACTERS,
    MAX_GZIP_BYTES,
    ChunkInfo,
    ChunkSpec,
    ManifestCheckpointContentChunk,
    ManifestsUnreadableError,
    ObjectTooLargeError,
    PackedChunk,
    as_captured,
    capture_order,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lapse.kube.resources import Json

CHECKPOINT = "mcp-0123456789abcdef"
OWNER = "9f0c6a5e-checkpoint"


def config_map(name: str, data: str = "", **metadata: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "data": {"value": data},
    }


def noise(size: int, seed: int = 1) -> str:
    """Text of which gzip makes about three quarters."""
    return base64.b64encode(hashlib.shake_128(str(seed).encode()).digest(size * 3 // 4)).decode()


def bytes_of(chunk: PackedChunk) -> bytes:
    return base64.b64decode(chunk.data, validate=True)


def objects_in(chunk: PackedChunk) -> list[Any]:
    found = json.loads(gzip.decompress(bytes_of(chunk)))
    assert isinstance(found, list)
    return found


def stored(packed: Sequence[PackedChunk]) -> tuple[list[ManifestCheckpointContentChunk], list[ChunkInfo]]:
    """The chunks as objects, and what the checkpoint says of them."""
    chunks = [
        ManifestCheckpointContentChunk(
            metadata=ObjectMeta(
                name=f"{CHECKPOINT}-{one.index}",
                owner_references=(
                    OwnerReference(
                        api_version="deckhouse.io/v1alpha1", kind="ObjectKeeper", name="k", uid="k", controller=True
                    ),
                    OwnerReference(api_version="v1", kind="ManifestCheckpoint", name=CHECKPOINT, uid=OWNER),
                ),
            ),
            spec=ChunkSpec(
                checkpoint_name=CHECKPOINT,
                index=one.index,
                data=one.data,
                objects_count=one.objects_count,
                checksum=one.checksum,
            ),
        )
        for one in packed
    ]
    infos = [
        ChunkInfo(
            name=f"{CHECKPOINT}-{one.index}",
            index=one.index,
            objects_count=one.objects_count,
            size_bytes=one.size_bytes,
            checksum=one.checksum,
        )
        for one in packed
    ]
    return chunks, infos


def read_back(chunks: Iterable[ManifestCheckpointContentChunk], infos: Sequence[ChunkInfo]) -> list[Json]:
    return unpack(CHECKPOINT, chunks, owner=OWNER, expected=infos)


def three_chunks() -> tuple[list[ManifestCheckpointContentChunk], list[ChunkInfo]]:
    packed = pack([config_map(f"large-{number}", noise(700_000, number)) for number in range(3)])
    assert len(packed) == 3
    return stored(packed)


def one_chunk(gzipped: bytes, count: int) -> tuple[list[ManifestCheckpointContentChunk], list[ChunkInfo]]:
    """A chunk that vouches for whatever bytes it holds."""
    checksum = hashlib.sha256(gzipped).hexdigest()
    return stored([PackedChunk(0, base64.b64encode(gzipped).decode(), count, len(gzipped), checksum)])


# --- packing ----------------------------------------------------------------------------------------------------------


def test_no_objects_are_one_chunk_with_an_empty_array() -> None:
    (chunk,) = pack([])
    assert gzip.decompress(bytes_of(chunk)) == b"[]"
    assert (chunk.index, chunk.objects_count) == (0, 0)
    assert read_back(*stored([chunk])) == []


def test_a_chunk_is_gzip_of_a_json_array_with_its_size_and_checksum() -> None:
    (chunk,) = pack([config_map("b"), config_map("a", "äöü 日本 🌍")])
    assert objects_in(chunk) == [config_map("a", "äöü 日本 🌍"), config_map("b")]
    assert chunk.objects_count == 2
    assert chunk.size_bytes == len(bytes_of(chunk))
    assert chunk.checksum == hashlib.sha256(bytes_of(chunk)).hexdigest()


def test_the_gzip_header_names_no_time_and_no_system() -> None:
    (chunk,) = pack([config_map("a")])
    header = bytes_of(chunk)[:10]
    assert header[4:8] == bytes(4), "a time would make equal input different bytes"
    assert header[9] == 255, "Python versions differ in the system they name"


def test_equal_objects_are_equal_bytes_whatever_their_order_and_that_of_their_keys() -> None:
    objects = [config_map(f"map-{number}", noise(5_000, number)) for number in range(300)]
    turned = [dict(reversed(one.items())) for one in reversed(objects)]
    assert len(pack(objects)) > 1
    assert pack(turned) == pack(objects)


def test_bytes_are_the_same_today_as_when_this_was_written() -> None:
    # Another deflate library may choose other bytes; then a capture interrupted on one and resumed on the other fails.
    if "zlib-ng" in zlib.ZLIB_RUNTIME_VERSION:
        pytest.skip("this Python compresses with zlib-ng")
    (chunk,) = pack([config_map("a", "hello " * 20)])
    assert chunk.checksum == "8510f845d45b165f83120d90a5ce51310f3327dde0da142d328ad34a2f199f92"


def test_objects_are_sorted_by_version_kind_namespace_and_name() -> None:
    def make(api_version: str, kind: str, namespace: str | None, name: str) -> Json:
        place = {} if namespace is None else {"namespace": namespace}
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **place}}

    expected = [
        make("apps/v1", "Deployment", "z", "z"),
        make("v1", "ConfigMap", "a", "b"),
        make("v1", "ConfigMap", "b", "a"),
        make("v1", "PersistentVolume", None, "a"),
        make("v1", "PersistentVolume", None, "b"),
        make("v1", "Secret", "a", "a"),
    ]
    assert objects_in(pack(expected[::-1])[0]) == expected
    assert objects_in(pack(expected[3:] + expected[:3])[0]) == expected


def test_no_chunk_exceeds_the_cap_and_none_is_closed_while_the_next_object_fits() -> None:
    objects = [config_map(f"map-{number:04}", noise(9_000, number)) for number in range(400)]
    packed = pack(objects)
    assert len(packed) > 2
    assert [chunk.index for chunk in packed] == list(range(len(packed)))
    for chunk in packed:
        assert chunk.size_bytes <= MAX_GZIP_BYTES
        assert len(chunk.data) <= MAX_CHUNK_CHARACTERS
    for chunk in packed[:-1]:
        assert chunk.size_bytes > MAX_GZIP_BYTES - 9_000
    assert [one for chunk in packed for one in objects_in(chunk)] == objects


def test_large_objects_share_a_chunk_when_their_compressed_size_allows_it() -> None:
    packed = pack([config_map(f"map-{number}", "0123456789" * 100_000) for number in range(20)])
    assert [chunk.objects_count for chunk in packed] == [20]


def test_a_chunk_is_about_as_small_as_one_that_was_never_flushed() -> None:
    objects = [config_map(f"map-{number:05}", noise(40, number), uid=f"{number:032x}") for number in range(20_000)]
    packed = pack(objects)
    at_once = len(zlib.compress(msgspec.json.encode(objects), 6))
    assert sum(chunk.size_bytes for chunk in packed) < 1.03 * at_once


def test_an_object_that_fills_a_chunk_to_the_last_byte_is_taken_and_one_byte_more_is_refused() -> None:
    def size_alone(data: str) -> int:
        text = b"[" + msgspec.json.encode(config_map("a", data), order="deterministic") + b"]"
        return len(gzip.compress(text, 6, mtime=0))

    text = noise(1_100_000)
    low, high = 0, len(text)
    while high - low > 1:  # the longest data that still fits
        middle = (low + high) // 2
        low, high = (middle, high) if size_alone(text[:middle]) <= MAX_GZIP_BYTES else (low, middle)
    (chunk,) = pack([config_map("a", text[:low])])
    assert MAX_GZIP_BYTES - 2 <= chunk.size_bytes <= MAX_GZIP_BYTES
    with pytest.raises(ObjectTooLargeError):
        pack([config_map("a", text[:high])])


def test_an_object_too_large_for_any_chunk_is_named() -> None:
    objects = [config_map("small"), config_map("huge", noise(2_000_000)), config_map("tiny")]
    with pytest.raises(ObjectTooLargeError, match=r"^ConfigMap shop/huge \(v1\) cannot be captured.* 786432\."):
        pack(objects)


def test_an_object_of_too_much_json_is_refused_however_well_it_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_JSON_BYTES", 100_000)
    assert len(pack([config_map("a", "x" * 90_000), config_map("b", "x" * 90_000)])) == 2
    with pytest.raises(ObjectTooLargeError, match="huge"):
        pack([config_map("huge", "x" * 100_000)])


def test_managed_fields_are_left_out_and_everything_else_stays() -> None:
    manifest = config_map("a", "b", resourceVersion="7", managedFields=[{"manager": "kubectl"}], labels={"x": "y"})
    original = json.dumps(manifest)
    assert as_captured(manifest) == config_map("a", "b", resourceVersion="7", labels={"x": "y"})
    assert json.dumps(manifest) == original, "caches share objects"
    assert as_captured({"kind": "Odd", "metadata": None}) == {"kind": "Odd", "metadata": None}


# --- cost -------------------------------------------------------------------------------------------------------------


class Meter:
    """Stands in front of zlib and counts what is given to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compressed = 0
        self.copies = 0
        real = zlib.compressobj
        monkeypatch.setattr(zlib, "compressobj", lambda *args: Metered(self, real(*args)))


@dataclass
class Metered:
    """A compressor that tells a meter."""

    meter: Meter
    deflate: zlib._Compress

    def compress(self, data: bytes) -> bytes:
        self.meter.compressed += len(data)
        return self.deflate.compress(data)

    def flush(self, mode: int = zlib.Z_FINISH) -> bytes:
        return self.deflate.flush(mode)

    def copy(self) -> Metered:
        self.meter.copies += 1
        return Metered(self.meter, self.deflate.copy())


def manifests(count: int) -> list[Json]:
    """Objects such as a namespace has, each with something of its own."""
    return [
        config_map(f"map-{number:05}", noise(800, number), uid=f"{number:032x}", resourceVersion=str(number))
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_packing_ten_thousand_objects_compresses_each_about_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(monkeypatch)
    objects = manifests(count)
    size = len(msgspec.json.encode(objects))
    packed = pack(objects)
    assert len(packed) > count // 1_500
    assert size <= meter.compressed < 1.01 * size
    assert meter.copies < count / 50


def test_objects_of_half_a_chunk_are_compressed_at_most_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(monkeypatch)
    objects = [config_map(f"map-{number}", noise(600_000, number)) for number in range(20)]
    assert len(pack(objects)) == 20
    assert meter.compressed <= 3 * len(msgspec.json.encode(objects))


# --- reading back -----------------------------------------------------------------------------------------------------


def test_objects_come_back_in_captured_order_whatever_the_order_of_the_chunks() -> None:
    chunks, infos = three_chunks()
    expected = read_back(chunks, infos)
    assert [one["metadata"]["name"] for one in expected] == ["large-0", "large-1", "large-2"]
    assert read_back(reversed(chunks), infos) == expected
    assert read_back([chunks[1], chunks[2], chunks[0]], infos[::-1]) == expected


def test_a_missing_index_is_named() -> None:
    chunks, infos = three_chunks()
    with pytest.raises(ManifestsUnreadableError, match=f"{CHECKPOINT} cannot be trusted: chunk 1 of 3 is missing"):
        read_back([chunks[0], chunks[2]], infos)


def test_a_checkpoint_that_skips_an_index_is_refused() -> None:
    chunks, infos = three_chunks()
    with pytest.raises(ManifestsUnreadableError, match="names 2 chunks, but no chunk 1"):
        read_back([chunks[0], chunks[2]], [infos[0], infos[2]])


def test_a_checkpoint_that_names_no_chunks_is_refused() -> None:
    with pytest.raises(ManifestsUnreadableError, match="names no chunks"):
        read_back([], [])


def test_a_doubled_index_is_named() -> None:
    chunks, infos = three_chunks()
    with pytest.raises(ManifestsUnreadableError, match="chunk 2 is there twice"):
        read_back([*chunks, chunks[2]], infos)
    with pytest.raises(ManifestsUnreadableError, match="chunk 0 is there twice"):
        read_back(chunks, [infos[0], *infos])


def test_a_chunk_beyond_the_expected_ones_is_refused() -> None:
    chunks, infos = three_chunks()
    with pytest.raises(ManifestsUnreadableError, match="chunk 2 is not one of its 2 chunks"):
        read_back(chunks, infos[:2])


def test_a_wrong_checksum_is_found_in_the_data_in_the_chunk_and_in_the_checkpoint() -> None:
    chunks, infos = three_chunks()
    flipped = bytearray(base64.b64decode(chunks[1].spec.data))
    flipped[1_000] ^= 1
    damaged = replaced(chunks[1], data=base64.b64encode(flipped).decode())
    with pytest.raises(ManifestsUnreadableError, match="chunk 1: the sha256 of its data is"):
        read_back([chunks[0], damaged, chunks[2]], infos)
    with pytest.raises(ManifestsUnreadableError, match="chunk 1: its checksum is"):
        read_back([chunks[0], replaced(chunks[1], checksum="0" * 64), chunks[2]], infos)
    with pytest.raises(ManifestsUnreadableError, match="chunk 1: its checksum is"):
        read_back(chunks, [infos[0], msgspec.structs.replace(infos[1], checksum="0" * 64), infos[2]])


def test_two_chunks_that_changed_places_are_refused() -> None:
    chunks, infos = three_chunks()
    swapped = [replaced(chunks[0], index=1), replaced(chunks[1], index=0), chunks[2]]
    with pytest.raises(ManifestsUnreadableError, match=f"chunk 0: its name is {CHECKPOINT}-1"):
        read_back(swapped, infos)


def test_a_chunk_of_another_checkpoint_or_another_owner_is_refused() -> None:
    chunks, infos = stored(pack([config_map("a")]))
    with pytest.raises(ManifestsUnreadableError, match="chunk 0: it belongs to checkpoint mcp-other"):
        read_back([replaced(chunks[0], checkpoint_name="mcp-other")], infos)
    with pytest.raises(ManifestsUnreadableError, match="chunk 0: it is not owned by this checkpoint"):
        unpack(CHECKPOINT, chunks, owner="another-uid", expected=infos)


def test_wrong_counts_and_sizes_are_refused() -> None:
    chunks, infos = stored(pack([config_map("a")]))
    with pytest.raises(ManifestsUnreadableError, match="claims 2 objects, expected 1"):
        read_back([replaced(chunks[0], objects_count=2)], infos)
    with pytest.raises(ManifestsUnreadableError, match=r"its data has \d+ bytes, expected 7"):
        read_back(chunks, [msgspec.structs.replace(infos[0], size_bytes=7)])
    with pytest.raises(ManifestsUnreadableError, match="holds 1 objects, expected 2"):
        read_back(*one_chunk(gzip.compress(b"[{}]", mtime=0), count=2))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no gzip at all", "not gzip"),
        (gzip.compress(b"[]", mtime=0)[:-3], "ends too early"),
        (gzip.compress(b"[]", mtime=0) + b"more", "4 bytes follow"),
        (gzip.compress(b"[]", mtime=0) + gzip.compress(b"[]", mtime=0), "bytes follow"),
        (gzip.compress(b"{}", mtime=0), "not a JSON array of objects"),
        (gzip.compress(b"[1]", mtime=0), "not a JSON array of objects"),
        (gzip.compress(b"[{", mtime=0), "not a JSON array of objects"),
        (gzip.compress(b'[{"a":"\xff"}]', mtime=0), "not a JSON array of objects"),
    ],
)
def test_content_that_no_capture_writes_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ManifestsUnreadableError, match=f"chunk 0: .*{problem}"):
        read_back(*one_chunk(content, count=0))


def test_text_that_is_not_base64_is_refused() -> None:
    chunks, infos = stored(pack([]))
    with pytest.raises(ManifestsUnreadableError, match="not base64"):
        read_back([replaced(chunks[0], data="never mind!")], infos)


def test_a_decompression_bomb_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_JSON_BYTES", 100_000)
    with pytest.raises(ManifestsUnreadableError, match="more than 100000 bytes of JSON"):
        read_back(*one_chunk(gzip.compress(b"[" + b" " * 1_000_000 + b"]", mtime=0), count=0))


def replaced(chunk: ManifestCheckpointContentChunk, **changes: object) -> ManifestCheckpointContentChunk:
    return msgspec.structs.replace(chunk, spec=msgspec.structs.replace(chunk.spec, **changes))


# --- any JSON ---------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.text("abc-.", max_size=4)
MANIFESTS = st.builds(
    lambda fields, api_version, kind, metadata: {
        **fields,
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
    },
    st.dictionaries(st.text(max_size=8), VALUES, max_size=4),
    NAMES,
    NAMES,
    st.fixed_dictionaries({}, optional={"name": NAMES, "namespace": NAMES | st.none(), "labels": VALUES}),
)


@settings(deadline=None)
@given(st.lists(MANIFESTS, max_size=30), st.integers(100, 3_000), st.data())
def test_whatever_is_packed_comes_back(objects: list[Json], cap: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "MAX_GZIP_BYTES", cap)  # many chunks of few objects
        try:
            packed = pack(objects)
        except ObjectTooLargeError:
            assert any(len(pack_alone(one)) > cap for one in objects)
            return
        assert all(chunk.size_bytes <= cap for chunk in packed)
        chunks, infos = stored(packed)
        fetched = data.draw(st.permutations(chunks))
        assert read_back(fetched, infos) == sorted(objects, key=capture_order)


def pack_alone(manifest: Json) -> bytes:
    return gzip.compress(b"[" + msgspec.json.encode(manifest, order="deterministic") + b"]", 6, mtime=0)
