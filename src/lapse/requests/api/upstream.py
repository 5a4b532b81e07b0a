"""Kubernetes' own kinds, as far as requests look at them.

Every field is optional and may be null, whatever the upstream schema demands: a cache must not stumble over
one odd object. Nothing is validated here; on Kubernetes the API server has done that, and the embedded store holds what
the local executor puts into it.
"""

from __future__ import annotations

from typing import Any, Final

from lapse.kube.resources import Condition, Document, Kind, ObjectMeta, Struct
from lapse.requests.api.kinds import OUR_KINDS

Quantity = int | float | str
"""An amount as Kubernetes writes it: 1Gi, 500m or a plain number."""


class ObjectReference(Struct, frozen=True):
    """Names another object; what is not said is not known."""

    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class Resources(Struct, frozen=True):
    """How much is asked for and how much is the most."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class DataSourceRef(Struct, frozen=True):
    """What a new volume is filled from."""

    api_group: str | None = None
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class ClaimSpec(Struct, frozen=True):
    """What a claim asks for, and the volume that it got."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    access_modes: tuple[str, ...] | None = None
    resources: Resources | None = None
    data_source: DataSourceRef | None = None
    data_source_ref: DataSourceRef | None = None


class ClaimStatus(Struct, frozen=True):
    """Pending, Bound or Lost."""

    phase: str | None = None
    capacity: dict[str, Quantity] | None = None
    conditions: tuple[Condition, ...] | None = None


class PersistentVolumeClaim(Struct, frozen=True):
    """A wish for a volume, in a namespace."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus | None = None


class CSIVolume(Struct, frozen=True):
    """How a CSI driver knows a volume."""

    driver: str | None = None
    volume_handle: str | None = None
    volume_attributes: dict[str, str] | None = None


class VolumeSpec(Struct, frozen=True):
    """A volume: where it is, whose it is, and what happens when nobody wants it any more."""

    csi: CSIVolume | None = None
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str | None = None
    storage_class_name: str | None = None
    capacity: dict[str, Quantity] | None = None
    access_modes: tuple[str, ...] | None = None
    volume_mode: str | None = None


class VolumeStatus(Struct, frozen=True):
    """Available, Bound, Released or Failed."""

    phase: str | None = None
    message: str | None = None


class PersistentVolume(Struct, frozen=True):
    """A volume of the cluster."""

    metadata: ObjectMeta
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus | None = None


class StorageClass(Struct, frozen=True):
    """Who makes volumes, and how."""

    metadata: ObjectMeta
    provisioner: str | None = None
    parameters: dict[str, str] | None = None
    reclaim_policy: str | None = None
    volume_binding_mode: str | None = None

    @property
    def binds_late(self) -> bool:
        """Whether no volume is made before a pod needs it."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


class VolumeSnapshotClass(Struct, frozen=True):
    """Who makes snapshots, and whether they stay when their object goes."""

    metadata: ObjectMeta
    driver: str | None = None
    deletion_policy: str | None = None
    parameters: dict[str, str] | None = None


class SnapshotSource(Struct, frozen=True):
    """A volume that is to be captured, or a snapshot that exists already."""

    volume_handle: str | None = None
    snapshot_handle: str | None = None


class SnapshotContentSpec(Struct, frozen=True):
    """What is to be captured, by whom."""

    driver: str | None = None
    deletion_policy: str | None = None
    volume_snapshot_class_name: str | None = None
    source: SnapshotSource = SnapshotSource()
    volume_snapshot_ref: ObjectReference = ObjectReference()
    source_volume_mode: str | None = None


class SnapshotError(Struct, frozen=True):
    """What the driver said when it failed."""

    message: str | None = None
    time: str | None = None


class SnapshotContentStatus(Struct, frozen=True):
    """What became of it. ``creation_time`` is in nanoseconds since 1970."""

    ready_to_use: bool | None = None
    snapshot_handle: str | None = None
    restore_size: int | None = None
    creation_time: int | None = None
    error: SnapshotError | None = None


class VolumeSnapshotContent(Struct, frozen=True):
    """A snapshot of a volume."""

    metadata: ObjectMeta
    spec: SnapshotContentSpec = SnapshotContentSpec()
    status: SnapshotContentStatus | None = None


class SnapshotOrigin(Struct, frozen=True):
    """A content that exists already, or a claim that is to be captured."""

    volume_snapshot_content_name: str | None = None
    persistent_volume_claim_name: str | None = None


class SnapshotSpec(Struct, frozen=True):
    """The content that a snapshot stands for."""

    source: SnapshotOrigin = SnapshotOrigin()
    volume_snapshot_class_name: str | None = None


class SnapshotStatus(Struct, frozen=True):
    """The content that it got, and whether a volume can be made of it."""

    bound_volume_snapshot_content_name: str | None = None
    ready_to_use: bool | None = None
    error: SnapshotError | None = None


class VolumeSnapshot(Struct, frozen=True):
    """A snapshot as people see it, in a namespace; the stock provisioner makes volumes from these only."""

    metadata: ObjectMeta
    spec: SnapshotSpec = SnapshotSpec()
    status: SnapshotStatus | None = None


class PodClaim(Struct, frozen=True):
    """A claim that a pod names."""

    claim_name: str | None = None


class PodVolume(Struct, frozen=True):
    """A volume of a pod. An ephemeral one has a claim of its own, named after pod and volume."""

    name: str | None = None
    persistent_volume_claim: PodClaim | None = None
    ephemeral: dict[str, Any] | None = None


class PodSpec(Struct, frozen=True):
    """What a pod uses."""

    volumes: tuple[PodVolume, ...] | None = None


class PodStatus(Struct, frozen=True):
    """Pending, Running, Succeeded, Failed or Unknown."""

    phase: str | None = None


class Pod(Struct, frozen=True):
    """A user of claims."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus | None = None

    @property
    def claims(self) -> frozenset[str]:
        """The names of all claims that it uses, in its namespace."""
        names = set()
        for volume in self.spec.volumes or ():
            if volume.persistent_volume_claim is not None and volume.persistent_volume_claim.claim_name:
                names.add(volume.persistent_volume_claim.claim_name)
            if volume.ephemeral is not None:
                names.add(f"{self.metadata.name}-{volume.name}")
        return frozenset(names)


PERSISTENT_VOLUME_CLAIM: Final = Kind(
    "v1", "PersistentVolumeClaim", "persistentvolumeclaims", PersistentVolumeClaim, short="pvc"
)
PERSISTENT_VOLUME: Final = Kind(
    "v1", "PersistentVolume", "persistentvolumes", PersistentVolume, namespaced=False, short="pv", word="volume"
)
STORAGE_CLASS: Final = Kind(
    "storage.k8s.io/v1",
    "StorageClass",
    "storageclasses",
    StorageClass,
    namespaced=False,
    status=False,
    short="sc",
)
VOLUME_SNAPSHOT_CLASS: Final = Kind(
    "snapshot.storage.k8s.io/v1",
    "VolumeSnapshotClass",
    "volumesnapshotclasses",
    VolumeSnapshotClass,
    namespaced=False,
    status=False,
    short="vsclass",
)
VOLUME_SNAPSHOT_CONTENT: Final = Kind(
    "snapshot.storage.k8s.io/v1",
    "VolumeSnapshotContent",
    "volumesnapshotcontents",
    VolumeSnapshotContent,
    namespaced=False,
    short="vsc",
    word="snapshot",
)
VOLUME_SNAPSHOT: Final = Kind(
    "snapshot.storage.k8s.io/v1", "VolumeSnapshot", "volumesnapshots", VolumeSnapshot, short="vs"
)
POD: Final = Kind("v1", "Pod", "pods", Pod, short="po")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps", Document, status=False, short="cm")

UPSTREAM_KINDS: Final[tuple[Kind[Any], ...]] = (
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
    VOLUME_SNAPSHOT,
    POD,
    CONFIG_MAP,
)
ALL_KINDS: Final[tuple[Kind[Any], ...]] = (*OUR_KINDS, *UPSTREAM_KINDS)
"""What an embedded store must know for the controllers to run on it."""
