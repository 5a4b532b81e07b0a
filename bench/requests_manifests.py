"""Does packing manifests grow with their number and no faster? 1 000 against 10 000, and the way back.

``python -m bench.requests_manifests [--quick]`` prints one line of JSON: the best of several rounds in seconds, the
ratio of the times, and whether ten times the input stayed within twelve times the time. The sizes take turns in every
round, so a busy moment of the machine hits both alike.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lapse.kube.resources import ObjectMeta, OwnerReference
from lapse.objects.packing.chunks import ChunkInfo, ChunkSpec, ManifestCheckpointContentChunk, PackedChunk, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT: Final = 12.0
_CHECKPOINT: Final = "mcp-0123456789abcdef"
_OWNER: Final = OwnerReference(api_version="v1", kind="ManifestCheckpoint", name=_CHECKPOINT, uid="owner")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    few: int = 1_000
    rounds: int = 7


QUICK: Final = Plan(few=200, rounds=2)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, best of all rounds; ``many`` is ten times ``few``."""

    few: int
    many: int
    json_megabytes: float
    chunks: int
    pack_few: float
    pack_many: float
    unpack_few: float
    unpack_many: float

    @property
    def ratio(self) -> float:
        """How many times as long ten times the input takes to pack."""
        return self.pack_many / self.pack_few


def run(plan: Plan) -> Figures:
    """Pack and unpack both sizes in turn."""
    few, many = manifests(plan.few), manifests(10 * plan.few)
    packed = pack(few), pack(many)
    seconds: list[list[float]] = [[], [], [], []]
    for _ in range(plan.rounds):
        for times, act in zip(
            seconds,
            (
                lambda: pack(few),
                lambda: pack(many),
                lambda: _unpack(packed[0]),
                lambda: _unpack(packed[1]),
            ),
            strict=True,
        ):
            times.append(_seconds(act))
    assert _unpack(packed[1]) == many
    return Figures(
        len(few),
        len(many),
        round(len(json.dumps(many)) / 1e6, 1),
        len(packed[1]),
        *(min(times) for times in seconds),
    )


def manifests(count: int) -> list[dict[str, Any]]:
    """Return deployments as a namespace has them: much in common, and digests that no compressor can shorten."""
    return [_deployment(number) for number in range(count)]


def _deployment(number: int) -> dict[str, Any]:
    name, digest = f"service-{number:06}", hashlib.sha256(str(number).encode()).hexdigest()
    container = {
        "name": "main",
        "image": f"example.org/shop/{name}@sha256:{digest}",
        "env": [{"name": f"SETTING_{one}", "value": f"{digest[one : one + 12]}"} for one in range(12)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "shop", "uid": digest[:36], "resourceVersion": str(number)},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 3, "observedGeneration": number % 7},
    }


def _unpack(packed: Sequence[PackedChunk]) -> list[dict[str, Any]]:
    chunks = [
        ManifestCheckpointContentChunk(
            metadata=ObjectMeta(name=f"{_CHECKPOINT}-{one.index}", owner_references=(_OWNER,)),
            spec=ChunkSpec(
                checkpoint_name=_CHECKPOINT,
                index=one.index,
                data=one.data,
                objects_count=one.objects_count,
                checksum=one.checksum,
            ),
        )
        for one in packed
    ]
    expected = [
        ChunkInfo(
            name=f"{_CHECKPOINT}-{one.index}",
            index=one.index,
            objects_count=one.objects_count,
            size_bytes=one.size_bytes,
            checksum=one.checksum,
        )
        for one in packed
    ]
    return unpack(_CHECKPOINT, chunks, owner=_OWNER.uid, expected=expected)


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    """Print the figures; the exit status says whether the limit was kept."""
    figures = run(QUICK if "--quick" in sys.argv[1:] else Plan())
    kept = figures.ratio <= LIMIT
    rounded = {name: round(value, 6) for name, value in asdict(figures).items()}
    print(
        json.dumps(
            {"bench": "requests_manifests", **rounded, "ratio": round(figures.ratio, 2), "limit": LIMIT, "kept": kept}
        )
    )
    sys.exit(not kept)


if __name__ == "__main__":
    main()
