"""The kinds of Lapse: requests, checkpoints with their chunks, and keepers, with their schemas, rules and annotations.

Required, and so in the schema, is what has no default. The bounds in ``Meta(extra_json_schema=...)`` are for the schema
only: a reader of an object takes what is stored, because one odd object must not stop a cache. For the same reason
modes and phases are text with an enum beside it. The rules that no schema can say are functions, one for each kind.

An object has no status before its controller wrote one, and a status may have any of its fields. The spec of every kind
is immutable, as a request is one operation, and another operation is another request; but for schedules, which people
edit.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, field

from lapse.kube.crd.definition import AGE, column, definition
from lapse.kube.crd.rules import (
    IMMUTABLE_SPEC,
    MAX_TTL_CHARACTERS,
    ApiVersion,
    Count,
    KindName,
    Name,
    Namespace,
    Rule,
    Time,
    Uid,
    is_duration,
)
from lapse.kube.crd.validation import validator
from lapse.kube.resources import READY, Conditions, Kind, ObjectMeta, Struct
from lapse.objects.packing.checkpoints import CheckpointKinds, CheckpointStatus
from lapse.objects.packing.chunks import ManifestCheckpointContentChunk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lapse.kube.resources import Json

_IMMUTABLE_OPTIONAL_SPEC: Final = Rule(
    (),
    "has(self.spec) == has(oldSelf.spec) && (!has(self.spec) || self.spec == oldSelf.spec)",
    lambda new, old: new.get("spec") == old.get("spec"),
    "spec is immutable",
    about_changes=True,
)


MAX_SCHEDULE_NAME: Final = 52
"""A label holds 63 characters; 52 is what a CronJob may have, which people know."""
_CRON_FIELD: Final = "[0-9A-Za-z*/,#-]+"
_ZONE_PART: Final = "[A-Za-z0-9_+-]+"


def _needs(name: str, mode_without: str) -> tuple[Rule, Rule]:
    """Demand a field of a keeper in all modes but one, and forbid it in that one."""
    return (
        Rule(
            ("spec",),
            f"self.mode == '{mode_without}' || has(self.{name})",
            lambda spec, _old: spec["mode"] == mode_without or spec.get(name) is not None,
            f"{name} is required in all modes but {mode_without}",
        ),
        Rule(
            ("spec",),
            f"self.mode != '{mode_without}' || !has(self.{name})",
            lambda spec, _old: spec["mode"] != mode_without or spec.get(name) is None,
            f"{name} is not allowed in mode {mode_without}",
        ),
    )


def _forbidden(at: tuple[str, ...], cel: str, holds: Callable[[Any], bool], message: str) -> Rule:
    return Rule(at, cel, lambda value, _old: holds(value), message)


_TEMPLATE: Final = ("spec", "template")
_ONE_CAPTURE: Final = _forbidden(
    _TEMPLATE,
    "has(self.volumeCapture) != has(self.manifestCapture)",
    lambda template: (template.get("volumeCapture") is None) != (template.get("manifestCapture") is None),
    "must have exactly one of volumeCapture and manifestCapture",
)
_NO_DETACH: Final = _forbidden(
    (*_TEMPLATE, "volumeCapture"),
    "self.mode != 'Detach'",
    lambda capture: capture["mode"] != CaptureMode.DETACH,
    "must have the mode Snapshot: a schedule that detaches would delete the claim at its first run",
)
_NO_TTL: Final = tuple(
    _forbidden(
        (*_TEMPLATE, capture),
        "!has(self.artifactTTL)",
        lambda capture: capture.get("artifactTTL") is None,
        "must have no artifactTTL: spec.keep says what stays",
    )
    for capture in ("volumeCapture", "manifestCapture")
)
_KEEPS_SOMETHING: Final = _forbidden(
    ("spec", "keep"),
    " || ".join(f"(has(self.{tier}) && self.{tier} > 0)" for tier in ("last", "hourly", "daily", "weekly", "monthly")),
    lambda keep: any((keep.get(tier) or 0) > 0 for tier in ("last", "hourly", "daily", "weekly", "monthly")),
    "must keep something: one of last, hourly, daily, weekly and monthly must be above zero",
)
_SHORT_NAME: Final = _forbidden(
    (),
    f"self.metadata.name.size() <= {MAX_SCHEDULE_NAME}",
    lambda document: len(document["metadata"]["name"]) <= MAX_SCHEDULE_NAME,
    f"metadata.name must have at most {MAX_SCHEDULE_NAME} characters: the names of its requests are made from it",
)
_FIVE_FIELDS: Final = _forbidden(
    ("spec", "schedule"),
    f"self.matches(r'^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$')",
    lambda text: re.fullmatch(f"{_CRON_FIELD}( {_CRON_FIELD}){{4}}", text) is not None,
    "must be five fields with one space between two, such as 0 3 * * *",
)
_ZONE_NAME: Final = _forbidden(
    ("spec", "timeZone"),
    f"self.matches(r'^{_ZONE_PART}(/{_ZONE_PART})*$')",
    lambda text: re.fullmatch(f"{_ZONE_PART}(/{_ZONE_PART})*", text) is not None,
    "must be the name of a time zone, such as Europe/Berlin",
)


RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "VolumeCaptureRequest": (IMMUTABLE_SPEC, *is_duration("spec", "artifactTTL")),
    "VolumeRestoreRequest": (IMMUTABLE_SPEC,),
    "ManifestCaptureRequest": (IMMUTABLE_SPEC, *is_duration("spec", "artifactTTL")),
    "ManifestCheckpoint": (_IMMUTABLE_OPTIONAL_SPEC,),
    "ManifestCheckpointContentChunk": (IMMUTABLE_SPEC,),
    "ObjectKeeper": (
        IMMUTABLE_SPEC,
        *_needs("ttl", "FollowObject"),
        *_needs("followObjectRef", "TTL"),
        *is_duration("spec", "ttl"),
    ),
    "CaptureSchedule": (
        _SHORT_NAME,
        _FIVE_FIELDS,
        _ZONE_NAME,
        _ONE_CAPTURE,
        _NO_DETACH,
        *_NO_TTL,
        _KEEPS_SOMETHING,
        *is_duration("spec", "startingDeadline"),
    ),
}
"""By the name of the kind."""


TTL: Final = "storage.deckhouse.io/ttl"
"""On a finished request: how long it stays. Decides in mode annotation, only informs in mode scanner."""
EXPIRES_AT: Final = "storage.deckhouse.io/expires-at"
"""On a finished request, for people who read lists: when it will go. Nothing is decided by it."""
SNAPSHOT_NUDGE: Final = "storage.deckhouse.io/deletion-overlooked"
"""On a VolumeSnapshotContent that should be gone: when its snapshotter was last made to look at it."""
SNAPSHOT_CLASS: Final = "storage.deckhouse.io/volumesnapshotclass"
"""On a StorageClass: which VolumeSnapshotClass captures its volumes."""
SCHEDULE: Final = "lapse.dev/schedule"
"""A label: on a request, the name of the schedule whose run it is; on a keeper, the uid of that."""
SCHEDULED_AT: Final = "lapse.dev/scheduled-at"
"""On a run of a schedule, and on its keeper: the time for which it was made."""
RUN: Final = "lapse.dev/run"
"""On the keeper of a run: the address of the request, which lapses long before."""
RESTORED_FROM: Final = "lapse.dev/restored-from"
"""On a claim that an executor of ours made: the uid of the restore request that it is for."""
RESTORE: Final = "lapse.dev/restore"
"""The label of everything that is made for a restore: the uid of its request."""
RESTORE_TO: Final = "lapse.dev/restore-to"
"""On a VolumeSnapshotContent or a PersistentVolume: the namespaces, beside its own, that may restore from it."""
BEFORE_RESTORE: Final = "lapse.dev/before-restore"
"""On a PersistentVolume that a restore is adopting: whose it was, should the restore fail."""
SOURCE_CLASS: Final = "lapse.dev/source-class"
"""On a captured VolumeSnapshotContent, as the next three: the StorageClass of the volume."""
SOURCE_SIZE: Final = "lapse.dev/source-size"
SOURCE_ACCESS_MODES: Final = "lapse.dev/source-access-modes"
SOURCE_VOLUME_MODE: Final = "lapse.dev/source-volume-mode"


STORAGE: Final = "storage.deckhouse.io/v1alpha1"
STATE_SNAPSHOTTER: Final = "state-snapshotter.deckhouse.io/v1alpha1"
DECKHOUSE: Final = "deckhouse.io/v1alpha1"
LAPSE: Final = "lapse.dev/v1alpha1"

AccessMode = Annotated[
    str, Meta(extra_json_schema={"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]})
]
TTLText = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_TTL_CHARACTERS})]
Quantity = Annotated[
    int | str,
    Meta(extra_json_schema={"pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][0-9]+)?$"}),
]


class ObjectRef(Struct, frozen=True):
    """Names another object; without ``uid``, any object with that name."""

    api_version: ApiVersion
    kind: KindName
    name: Name
    uid: Uid | None = None
    namespace: Namespace | None = None


_WITH_UID: Final = Meta(extra_json_schema={"required": ["apiVersion", "kind", "name", "uid"]})
_LOCAL: Final = Meta(extra_json_schema={"without": ["namespace"]})  # in the request's own namespace, or in none
_BY_NAME: Final = Meta(extra_json_schema={"without": ["namespace", "uid"]})


# --- volume capture ---------------------------------------------------------------------------------------------------


class CaptureMode(StrEnum):
    """What is done to the volume."""

    SNAPSHOT = "Snapshot"
    DETACH = "Detach"


class CaptureSpec(Struct, frozen=True):
    """What is to be captured, and how: ``target`` is a claim in the request's namespace, and only that of this uid.

    ``artifactTTL`` says how long what is made is kept after the request is gone; None leaves that to the operator.
    """

    mode: Annotated[str, Meta(extra_json_schema={"enum": [*CaptureMode]})]
    target: Annotated[ObjectRef, _WITH_UID, _LOCAL]
    artifact_ttl: TTLText | None = field(default=None, name="artifactTTL")


class CaptureStatus(Struct, frozen=True):
    """The outcome of a capture; ``artifact_ref`` is the snapshot, or the volume that was detached."""

    completion_timestamp: Time | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    artifact_ref: ObjectRef | None = None


class VolumeCaptureRequest(Struct, frozen=True):
    """Asks once for a snapshot of a volume, or for its detachment from its claim."""

    metadata: ObjectMeta
    spec: CaptureSpec
    status: CaptureStatus | None = None


# --- volume restore ---------------------------------------------------------------------------------------------------


class TemplateResources(Struct, frozen=True):
    """How much storage the claim asks for, at least and at most."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class TemplateMeta(Struct, frozen=True):
    """The name of the claim that is to be made, in the request's namespace."""

    name: Name
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class TemplateSpec(Struct, frozen=True):
    """What the claim asks for."""

    storage_class_name: Name | None = None
    volume_mode: Annotated[str, Meta(extra_json_schema={"enum": ["Block", "Filesystem"]})] | None = None
    access_modes: Annotated[tuple[AccessMode, ...], Meta(extra_json_schema={"maxItems": 4})] | None = None
    resources: TemplateResources | None = None


class ClaimTemplate(Struct, frozen=True):
    """The claim that the executor makes."""

    metadata: TemplateMeta
    spec: TemplateSpec = TemplateSpec()


class RestoreSpec(Struct, frozen=True):
    """What is to be restored into which claim; the source is a VolumeSnapshotContent or a PersistentVolume."""

    source_ref: Annotated[ObjectRef, _LOCAL]
    pvc_template: ClaimTemplate


class RestoreStatus(Struct, frozen=True):
    """The outcome of a restore; ``pvc_ref`` is the claim that holds the data, or will.

    ``progress`` tells people what it waits for while it is not final. Nothing is decided by it.
    """

    completion_timestamp: Time | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    pvc_ref: ObjectRef | None = None
    progress: str | None = None


class VolumeRestoreRequest(Struct, frozen=True):
    """Asks once for a new claim that holds the data of a snapshot or of a detached volume."""

    metadata: ObjectMeta
    spec: RestoreSpec
    status: RestoreStatus | None = None


# --- manifest capture -------------------------------------------------------------------------------------------------


class ManifestCaptureSpec(Struct, frozen=True):
    """Whose manifests are to be captured, all in the request's namespace; ``artifactTTL`` as for a volume."""

    targets: Annotated[tuple[Annotated[ObjectRef, _BY_NAME], ...], Meta(extra_json_schema={"minItems": 1})]
    artifact_ttl: TTLText | None = field(default=None, name="artifactTTL")


class ManifestCaptureStatus(Struct, frozen=True):
    """The outcome of a manifest capture."""

    checkpoint_name: Name | None = None
    completion_timestamp: Time | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None


class ManifestCaptureRequest(Struct, frozen=True):
    """Asks once for a copy of the manifests of some objects of a namespace."""

    metadata: ObjectMeta
    spec: ManifestCaptureSpec
    status: ManifestCaptureStatus | None = None


class CheckpointSpec(Struct, frozen=True):
    """Where the manifests came from, to be known after the request is gone."""

    source_namespace: Namespace | None = None
    manifest_capture_request_ref: ObjectRef | None = None


class ManifestCheckpoint(Struct, frozen=True):
    """The manifests of one capture. Ready like a request, but an artifact: it has no TTL."""

    metadata: ObjectMeta
    spec: CheckpointSpec = CheckpointSpec()
    status: CheckpointStatus | None = None


class MetadataOnly(Struct, frozen=True):
    """Any object, of which only the metadata matters."""

    metadata: ObjectMeta


# --- keeper -----------------------------------------------------------------------------------------------------------


class KeeperMode(StrEnum):
    """How long a keeper lives: as long as what it follows, as long as its TTL, or for its TTL after the followed."""

    FOLLOW_OBJECT = "FollowObject"
    TTL = "TTL"
    FOLLOW_OBJECT_WITH_TTL = "FollowObjectWithTTL"


class KeeperPhase(StrEnum):
    """What a keeper does now."""

    PENDING = "Pending"
    TRACKING = "Tracking"
    EXPIRING = "Expiring"


class KeeperSpec(Struct, frozen=True):
    """How long the keeper lives: ``ttl`` and ``follow_object_ref`` are for the modes that are named after them."""

    mode: Annotated[str, Meta(extra_json_schema={"enum": [*KeeperMode]})]
    follow_object_ref: Annotated[ObjectRef, _WITH_UID] | None = None
    ttl: TTLText | None = None


class KeeperStatus(Struct, frozen=True):
    """Since when the followed object is lost and until when the keeper stays."""

    phase: Annotated[str, Meta(extra_json_schema={"enum": [*KeeperPhase]})] | None = None
    conditions: Conditions = ()
    lost_at: Time | None = None
    expires_at: Time | None = None


class ObjectKeeper(Struct, frozen=True):
    """The ownership anchor: artifacts live as long as the keeper that owns them."""

    metadata: ObjectMeta
    spec: KeeperSpec
    status: KeeperStatus | None = None


# --- schedules --------------------------------------------------------------------------------------------------------

TierCount = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1000})]


class VolumeTemplate(Struct, frozen=True):
    """A volume capture at each run: ``target`` is a claim by its name; whose uid it has then is looked up."""

    mode: Annotated[str, Meta(extra_json_schema={"enum": [*CaptureMode]})]
    target: Annotated[ObjectRef, _LOCAL]
    artifact_ttl: TTLText | None = field(default=None, name="artifactTTL")


class CaptureTemplate(Struct, frozen=True):
    """What each run asks for: exactly one of a volume capture and a manifest capture."""

    volume_capture: VolumeTemplate | None = None
    manifest_capture: ManifestCaptureSpec | None = None


class KeepSpec(Struct, frozen=True):
    """Which artifacts stay: the ``last`` runs, and the newest of so many hours, days, weeks and months with a run."""

    last: TierCount | None = None
    hourly: TierCount | None = None
    daily: TierCount | None = None
    weekly: TierCount | None = None
    monthly: TierCount | None = None


class ScheduleSpec(Struct, frozen=True):
    """When captures are made, and which artifacts stay. All of it may be changed at any time.

    A run that is later than ``starting_deadline`` is not made up. UTC where there is no ``time_zone``.
    """

    schedule: Annotated[str, Meta(extra_json_schema={"minLength": 9, "maxLength": 100})]
    template: CaptureTemplate
    keep: KeepSpec
    time_zone: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 64})] | None = None
    suspend: bool | None = None
    starting_deadline: TTLText | None = None


class ScheduleStatus(Struct, frozen=True):
    """What became of the runs: ``active`` are requests that are not final, ``kept`` are artifacts that are ready.

    ``last_schedule_time`` and ``last_successful_time`` are the times for which runs were made. No run is made for a
    time before ``not_before``: when it was made, resumed, or given another schedule, which ``observed_schedule`` tells.
    """

    last_schedule_time: Time | None = None
    next_schedule_time: Time | None = None
    last_successful_time: Time | None = None
    active: Count | None = None
    kept: Count | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    observed_schedule: str | None = None
    not_before: Time | None = None


class CaptureSchedule(Struct, frozen=True):
    """Makes captures again and again, and lets their artifacts go when newer ones take their places."""

    metadata: ObjectMeta
    spec: ScheduleSpec
    status: ScheduleStatus | None = None


VOLUME_CAPTURE_REQUEST: Final = Kind(
    STORAGE,
    "VolumeCaptureRequest",
    "volumecapturerequests",
    VolumeCaptureRequest,
    short="vcr",
    word="vcr",
    validate=validator(VolumeCaptureRequest, RULES["VolumeCaptureRequest"]),
)
VOLUME_RESTORE_REQUEST: Final = Kind(
    STORAGE,
    "VolumeRestoreRequest",
    "volumerestorerequests",
    VolumeRestoreRequest,
    short="vrr",
    word="vrr",
    validate=validator(VolumeRestoreRequest, RULES["VolumeRestoreRequest"]),
)
MANIFEST_CAPTURE_REQUEST: Final = Kind(
    STATE_SNAPSHOTTER,
    "ManifestCaptureRequest",
    "manifestcapturerequests",
    ManifestCaptureRequest,
    short="mcr",
    word="mcr",
    validate=validator(ManifestCaptureRequest, RULES["ManifestCaptureRequest"]),
)
MANIFEST_CHECKPOINT: Final = Kind(
    STATE_SNAPSHOTTER,
    "ManifestCheckpoint",
    "manifestcheckpoints",
    ManifestCheckpoint,
    namespaced=False,
    short="mcp",
    word="checkpoint",
    validate=validator(ManifestCheckpoint, RULES["ManifestCheckpoint"]),
)
MANIFEST_CHUNK: Final = Kind(
    STATE_SNAPSHOTTER,
    "ManifestCheckpointContentChunk",
    "manifestcheckpointcontentchunks",
    ManifestCheckpointContentChunk,
    namespaced=False,
    status=False,
    short="mcpchunk",
    validate=validator(ManifestCheckpointContentChunk, RULES["ManifestCheckpointContentChunk"]),
)
CHUNK_METADATA: Final = Kind(
    MANIFEST_CHUNK.api_version,
    MANIFEST_CHUNK.kind,
    MANIFEST_CHUNK.plural,
    MetadataOnly,
    namespaced=False,
    status=False,
    short=MANIFEST_CHUNK.short,
)
"""Chunks without their data: a cache of all of them must stay small."""
OBJECT_KEEPER: Final = Kind(
    DECKHOUSE,
    "ObjectKeeper",
    "objectkeepers",
    ObjectKeeper,
    namespaced=False,
    word="keeper",
    follows=("spec", "followObjectRef"),
    validate=validator(ObjectKeeper, RULES["ObjectKeeper"]),
)

CAPTURE_SCHEDULE: Final = Kind(
    LAPSE,
    "CaptureSchedule",
    "captureschedules",
    CaptureSchedule,
    short="csched",
    word="csched",
    validate=validator(CaptureSchedule, RULES["CaptureSchedule"]),
)

CHECKPOINT_KINDS: Final = CheckpointKinds(MANIFEST_CHECKPOINT, MANIFEST_CHUNK)
REQUEST_KINDS: Final[tuple[Kind[Any], ...]] = (VOLUME_CAPTURE_REQUEST, VOLUME_RESTORE_REQUEST, MANIFEST_CAPTURE_REQUEST)
"""The kinds that a TTL after completion applies to."""
OUR_KINDS: Final[tuple[Kind[Any], ...]] = (
    *REQUEST_KINDS,
    MANIFEST_CHECKPOINT,
    MANIFEST_CHUNK,
    OBJECT_KEEPER,
    CAPTURE_SCHEDULE,
)


# --- definitions ------------------------------------------------------------------------------------------------------


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
        column("Progress", ".status.progress"),
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
    "CaptureSchedule": (
        column("Schedule", ".spec.schedule"),
        column("Zone", ".spec.timeZone"),
        column("Suspend", ".spec.suspend", "boolean"),
        *_READY,
        column("Active", ".status.active", "integer"),
        column("Kept", ".status.kept", "integer"),
        column("Last", ".status.lastScheduleTime", "date"),
        column("Next", ".status.nextScheduleTime"),
        AGE,
    ),
}


def definitions() -> list[Json]:
    """Return the CustomResourceDefinitions of these kinds, with what ``kubectl get`` shows of them."""
    return [definition(kind, rules=RULES[kind.kind], columns=_COLUMNS[kind.kind]) for kind in OUR_KINDS]
