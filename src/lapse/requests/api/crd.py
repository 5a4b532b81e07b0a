"""The CustomResourceDefinitions of requests and what they make, and what ``kubectl get`` shows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.kube.crd.definition import AGE, column, definition
from lapse.kube.resources import READY
from lapse.requests.api.kinds import EXPIRES_AT, RULES

if TYPE_CHECKING:
    from lapse.kube.resources import Json, Kind


def _annotation(name: str) -> str:
    return ".metadata.annotations." + name.replace(".", r"\.")


_READY: Final = (
    column("Ready", f".status.conditions[?(@.type=='{READY}')].status"),
    column("Reason", f".status.conditions[?(@.type=='{READY}')].reason"),
)
# As text: kubectl prints a date as the time since, and has no words for one that is still to come.
_EXPIRES: Final = column("Expires", _annotation(EXPIRES_AT))
_COLUMNS: Final[dict[str, tuple[Json, ...]]] = {
    "VolumeCaptureRequest": (
        column("Mode", ".spec.mode"),
        column("Target", ".spec.target.name"),
        *_READY,
        _EXPIRES,
        AGE,
    ),
    "VolumeRestoreRequest": (
        column("Source", ".spec.sourceRef.name"),
        column("Claim", ".spec.pvcTemplate.metadata.name"),
        *_READY,
        _EXPIRES,
        AGE,
    ),
    "ManifestCaptureRequest": (column("Checkpoint", ".status.checkpointName"), *_READY, _EXPIRES, AGE),
    "ManifestCheckpoint": (
        column("Objects", ".status.totalObjects", "integer"),
        column("Bytes", ".status.totalSizeBytes", "integer"),
        *_READY,
        AGE,
    ),
    "ManifestCheckpointContentChunk": (
        column("Checkpoint", ".spec.checkpointName"),
        column("Index", ".spec.index", "integer"),
        column("Objects", ".spec.objectsCount", "integer"),
        AGE,
    ),
    "ObjectKeeper": (
        column("Mode", ".spec.mode"),
        column("Follows", ".spec.followObjectRef.name"),
        column("TTL", ".spec.ttl"),
        column("Phase", ".status.phase"),
        column("Expires", ".status.expiresAt"),
        AGE,
    ),
}


def crd(kind: Kind[Any]) -> Json:
    """Return the definition of a kind of ours."""
    return definition(kind, rules=RULES[kind.kind], columns=_COLUMNS[kind.kind])
