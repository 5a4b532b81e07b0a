from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.requests.api.upstream import (
    ALL_KINDS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    UPSTREAM_KINDS,
    VOLUME_SNAPSHOT_CONTENT,
)

if TYPE_CHECKING:
    from lapse.kube.resources import Kind


def test_a_claim_as_a_server_writes_it_is_read() -> None:
    claim = PERSISTENT_VOLUME_CLAIM.decode(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": "default", "managedFields": [{"manager": "kubectl"}]},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "5", "other": 7}},
                    "dataSource": None,
                    "volumeName": "pv-1",
                },
                "status": {
                    "phase": "Bound",
                    "capacity": {"storage": "5Gi"},
                    "conditions": [
                        {"type": "Resizing", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
                    ],
                },
            }
        ).encode()
    )
    assert claim.spec.volume_name == "pv-1"
    assert claim.spec.resources is not None
    assert claim.spec.resources.requests == {"storage": "5", "other": 7}
    assert claim.status is not None
    assert claim.status.phase == "Bound"


@pytest.mark.parametrize("kind", UPSTREAM_KINDS, ids=lambda kind: kind.kind)
def test_an_object_with_nothing_but_a_name_is_read(kind: Kind[Any]) -> None:
    assert kind.convert({"metadata": {"name": "one", "creationTimestamp": None}}).metadata.name == "one"


@pytest.mark.parametrize(
    ("kind", "part", "names"),
    [
        (PERSISTENT_VOLUME_CLAIM, "spec", ["volumeName", "accessModes", "resources", "dataSourceRef"]),
        (PERSISTENT_VOLUME_CLAIM, "status", ["phase", "capacity", "conditions"]),
        (PERSISTENT_VOLUME, "spec", ["csi", "claimRef", "capacity", "accessModes", "volumeMode"]),
        (VOLUME_SNAPSHOT_CONTENT, "spec", ["driver", "deletionPolicy", "volumeSnapshotClassName"]),
        (VOLUME_SNAPSHOT_CONTENT, "status", ["readyToUse", "snapshotHandle", "restoreSize", "error"]),
        (POD, "spec", ["volumes"]),
    ],
)
def test_null_is_read_as_absent(kind: Kind[Any], part: str, names: list[str]) -> None:
    metadata = {"name": "one"}
    assert kind.convert({"metadata": metadata, part: dict.fromkeys(names)}) == kind.convert(
        {"metadata": metadata, part: {}}
    )


def test_a_pod_uses_the_claims_that_it_names_and_those_made_for_it() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-claim"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "settings", "configMap": {"name": "settings"}},
    ]
    assert POD.convert({"metadata": {"name": "web"}, "spec": {"volumes": volumes}}).claims == {
        "data-claim",
        "web-scratch",
    }
    assert POD.convert({"metadata": {"name": "web"}, "spec": {"volumes": None}}).claims == frozenset()


def test_the_error_of_a_snapshot_is_read() -> None:
    content = VOLUME_SNAPSHOT_CONTENT.convert(
        {
            "metadata": {"name": "one"},
            "spec": {"driver": "d", "source": {"volumeHandle": "h"}},
            "status": {"readyToUse": False, "error": {"message": "no space", "time": "2030-01-31T12:00:00Z"}},
        }
    )
    assert content.status is not None
    assert content.status.error is not None
    assert content.status.error.message == "no space"


def test_the_scope_and_the_write_path_of_status_are_upstreams() -> None:
    assert {kind.kind for kind in ALL_KINDS if not kind.status} == {
        *("StorageClass", "VolumeSnapshotClass", "ConfigMap", "ManifestCheckpointContentChunk"),
    }
    assert {kind.kind for kind in UPSTREAM_KINDS if kind.namespaced} == {
        *("PersistentVolumeClaim", "VolumeSnapshot", "Pod", "ConfigMap"),
    }
    assert not PERSISTENT_VOLUME.namespaced
    assert STORAGE_CLASS.group == "storage.k8s.io"
