"""Holds on a real API server, with the rights of `deploy/base`: on owners, dependants and requests that are gone.

Beside each object that is held there is one that is not, and goes: so it is known that something acted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lapse.domains import object_kinds
from lapse.requests.api.upstream import CONFIG_MAP as map_kind  # noqa: N811 - beside the document of that name
from lapse.requests.api.upstream import POD, STORAGE_CLASS, VOLUME_SNAPSHOT_CLASS
from tests.integration.operator.deployed import ACCOUNT, NAMESPACE, apply_base
from tests.integration.operator.own import log_events
from tests.integration.operator.test_retention import (
    LONG_AGO,
    MADE_AT,
    OFTEN,
    apply,
    give,
    make_policy,
    operating,
    passed_again,
    status,
)
from tests.servers import kube_server
from tests.servers.lapse_server import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.operator.conftest import Operator
    from tests.servers import KubeServer

pytestmark = [pytest.mark.server("kube", private=True), pytest.mark.timeout(300)]
Json = dict[str, Any]
HELD = {"lapse.dev/hold": "true"}
OLD = {MADE_AT: LONG_AGO}
BY_FIELD = {"maxAge": "1h", "ageFrom": f"metadata.annotations['{MADE_AT}']"}
KEEPER = {"apiVersion": "deckhouse.io/v1alpha1", "kind": "ObjectKeeper"}
CONTENT = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent"}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap"}
CLUSTER_WIDE = {kind.kind for kind in object_kinds() if not kind.namespaced}


NOT_HELD = (STORAGE_CLASS, VOLUME_SNAPSHOT_CLASS, POD, map_kind)
"""Known to Lapse and not its own: configuration, and what people name in hold_kinds."""
_TARGET = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "none", "uid": "none"}
_SOURCE = {"apiVersion": CONTENT["apiVersion"], "kind": CONTENT["kind"], "name": "none"}
_MAPS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "none"}]
_HANDLE = {"driver": "no.driver", "volumeHandle": "none"}
_SIZE = {"storage": "1Mi"}
_RUN = {"startTime": "2030-01-01T00:00:00Z", "status": "success"}
SPECS: dict[str, Json] = {
    "VolumeCaptureRequest": {"mode": "Snapshot", "target": _TARGET},
    "VolumeRestoreRequest": {"sourceRef": _SOURCE, "pvcTemplate": {"metadata": {"name": "none"}}},
    "ManifestCaptureRequest": {"targets": _MAPS},
    "ManifestCheckpoint": {},
    "ManifestCheckpointContentChunk": {
        "checkpointName": "none",
        "index": 0,
        "data": "",
        "objectsCount": 0,
        "checksum": "0" * 64,
    },
    "ObjectKeeper": {"mode": "TTL", "ttl": "9999h"},
    "CaptureSchedule": {
        "schedule": "0 3 * * *",
        "suspend": True,
        "keep": {"last": 1},
        "template": {"manifestCapture": {"targets": _MAPS}},
    },
    "ChaosExperimentHistory": {
        "experimentRef": {"name": "kill", "namespace": "shop", "uid": "u"},
        "execution": _RUN,
    },
    "RetentionPolicy": {"selector": {**CONFIG_MAP, "labels": {"app": "none"}}, "maxAge": "1h", "dryRun": True},
    "PersistentVolumeClaim": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": _SIZE}},
    "PersistentVolume": {"capacity": _SIZE, "accessModes": ["ReadWriteOnce"], "csi": _HANDLE},
    "VolumeSnapshotContent": {
        "driver": "no.driver",
        "deletionPolicy": "Retain",
        "source": {"snapshotHandle": "none"},
        "volumeSnapshotRef": {"name": "none", "namespace": "default"},
    },
    "VolumeSnapshot": {"source": {"persistentVolumeClaimName": "none"}},
}
"""A body of every kind of Lapse and of its artifacts."""


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeServer]:
    with kube_server(csi=True) as server:
        apply_base(server)
        server.kubectl("create", "namespace", "chaos-system")
        give(server, "policies-on-keepers", "objectkeepers.deckhouse.io")
        give(server, "policies-on-contents", "volumesnapshotcontents.snapshot.storage.k8s.io")
        give(server, "policies-on-maps", "configmaps")
        server.kubectl("create", "clusterrole", "holds-of-maps", "--verb=get,list,watch", "--resource=configmaps")
        account = f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
        server.kubectl("create", "clusterrolebinding", "holds-of-maps", "--clusterrole=holds-of-maps", account)
        yield server


@pytest.fixture
def operator(kube: KubeServer, tmp_path: Path) -> Iterator[Operator]:
    flags = (*OFTEN, "--history-ttl=720h", "--hold-kinds=v1/ConfigMap", "--keeper-mode=FollowObject")
    with operating(kube, tmp_path, *flags) as running:
        yield running


def make(
    kube: KubeServer,
    of: Json,
    name: str,
    *,
    owners: tuple[Json, ...] = (),
    label: str = "",
    **fields: Any,  # noqa: ANN401 - any fields
) -> Json:
    """Make an object, and return it."""
    annotations = fields.pop("annotations", {})
    namespaced = {} if of["kind"] in CLUSTER_WIDE else {"namespace": "default"}
    references = [{**kind_of(one), "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]} for one in owners]
    labels = {"app": label} if label else {}
    meta = {"name": name, **namespaced, "annotations": annotations, "labels": labels, "ownerReferences": references}
    apply(kube, {**of, "metadata": meta, **fields})
    found: Json = json.loads(kube.kubectl("get", of["kind"], name, *place(namespaced), "-o", "json"))
    return found


def kind_of(obj: Json) -> Json:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"]}


def place(metadata: Json) -> tuple[str, ...]:
    return ("-n", metadata["namespace"]) if "namespace" in metadata else ()


def there(kube: KubeServer, obj: Json) -> bool:
    meta = obj["metadata"]
    found = kube.kubectl("get", obj["kind"], meta["name"], *place(meta), "--ignore-not-found", "-o", "json")
    if not found:
        return False
    now = json.loads(found)["metadata"]
    return now["uid"] == meta["uid"] and "deletionTimestamp" not in now


def release(kube: KubeServer, held: Json) -> None:
    meta = held["metadata"]
    kube.kubectl("annotate", held["kind"], meta["name"], *place(meta), "lapse.dev/hold-")


def make_keeper(kube: KubeServer, name: str, *, ttl: str = "9999h", **how: Any) -> Json:  # noqa: ANN401 - see `make`
    return make(kube, KEEPER, name, spec=how.pop("spec", {"mode": "TTL", "ttl": ttl}), **how)


def make_content(kube: KubeServer, name: str, owner: Json, **how: Any) -> Json:  # noqa: ANN401 - see `make`
    ref = {"name": name, "namespace": "default"}
    spec = {"driver": "no.driver", "deletionPolicy": "Retain", "source": {"snapshotHandle": name}}
    return make(kube, CONTENT, name, owners=(owner,), spec={**spec, "volumeSnapshotRef": ref}, **how)


@pytest.mark.usefixtures("operator")
def test_a_policy_on_keepers_takes_no_held_snapshot_along(kube: KubeServer) -> None:
    keepers = [make_keeper(kube, f"p1-{name}", label="p1", annotations=OLD) for name in ("held", "free")]
    held = make_content(kube, "p1-held", keepers[0], annotations=HELD)
    free = make_content(kube, "p1-free", keepers[1])
    make_policy(kube, "p1", selector={**KEEPER, "labels": {"app": "p1"}}, **BY_FIELD)
    until(lambda: not there(kube, keepers[1]))
    until(lambda: not there(kube, free))
    passed_again(kube, "p1")
    assert there(kube, keepers[0])
    assert there(kube, held)
    assert status(kube, "p1")["kept"] == {"held": 1}
    kube.kubectl("delete", "retentionpolicy", "p1")


@pytest.mark.usefixtures("operator")
def test_a_policy_on_snapshots_leaves_that_of_a_held_keeper(kube: KubeServer) -> None:
    held = make_content(kube, "p2-held", make_keeper(kube, "p2-held", annotations=HELD), label="p2", annotations=OLD)
    free = make_content(kube, "p2-free", make_keeper(kube, "p2-free"), label="p2", annotations=OLD)
    make_policy(kube, "p2", selector={**CONTENT, "labels": {"app": "p2"}}, **BY_FIELD)
    until(lambda: not there(kube, free))
    passed_again(kube, "p2")
    assert there(kube, held)
    kube.kubectl("delete", "retentionpolicy", "p2")


@pytest.mark.usefixtures("operator")
def test_a_held_config_map_keeps_its_keeper_where_hold_kinds_names_its_kind(kube: KubeServer) -> None:
    first = make_keeper(kube, "k-held", ttl="5s")
    held = make(kube, CONFIG_MAP, "k-held", owners=(first,), annotations=HELD)
    second = make_keeper(kube, "k-free", ttl="5s")
    free = make(kube, CONFIG_MAP, "k-free", owners=(second,))
    until(lambda: not there(kube, second))
    until(lambda: not there(kube, free))
    assert there(kube, first)
    assert there(kube, held)
    release(kube, held)
    until(lambda: not there(kube, first), seconds=20)


@pytest.mark.usefixtures("operator")
def test_whatever_is_held_of_any_kind_of_lapse_keeps_its_keeper(kube: KubeServer) -> None:
    kinds = {kind.kind: kind for kind in object_kinds() if kind not in NOT_HELD}
    assert kinds.keys() == SPECS.keys(), "a kind without a body here is a kind whose holds nobody has tried"
    kept = []
    for name, kind in kinds.items():
        keeper = make_keeper(kube, f"all-{kind.plural}", ttl="15s")
        of = {"apiVersion": kind.api_version, "kind": name}
        kept += [keeper, make(kube, of, "all", owners=(keeper,), annotations=HELD, spec=SPECS[name])]
    last = make_keeper(kube, "all-free", ttl="15s")
    free = make(kube, kind_of(kept[1]), "all-free", owners=(last,), spec=SPECS[kept[1]["kind"]])
    until(lambda: not there(kube, last))
    until(lambda: not there(kube, free))
    assert [one["metadata"]["name"] for one in kept if not there(kube, one)] == []
    for held in kept[1::2]:
        release(kube, held)
    until(lambda: not any(there(kube, keeper) for keeper in kept[::2]), seconds=20)


@pytest.mark.usefixtures("operator")
def test_a_held_request_that_kubectl_deletes_leaves_what_its_keeper_owns(kube: KubeServer) -> None:
    target = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "none", "uid": "none"}
    request = {"apiVersion": "storage.deckhouse.io/v1alpha1", "kind": "VolumeCaptureRequest"}
    spec = {"mode": "Snapshot", "target": target}
    made = {name: make(kube, request, f"r-{name}", spec=spec) for name in ("held", "free")}
    kube.kubectl("annotate", "vcr", "r-held", *(f"{name}={value}" for name, value in HELD.items()))
    keepers, contents = {}, {}
    for name, one in made.items():
        ref = {**request, "namespace": "default", "name": f"r-{name}", "uid": one["metadata"]["uid"]}
        keepers[name] = make_keeper(kube, f"r-{name}", spec={"mode": "FollowObject", "followObjectRef": ref})
        contents[name] = make_content(kube, f"r-{name}", keepers[name])

    def passed_on() -> bool:
        found = json.loads(kube.kubectl("get", "objectkeeper", "r-held", "-o", "json"))["metadata"]
        return bool(found.get("annotations", {}).get("lapse.dev/hold-passed-on"))

    until(passed_on)
    kube.kubectl("delete", "vcr", "r-held", "r-free")
    until(lambda: not there(kube, contents["free"]))
    assert there(kube, keepers["held"])
    assert there(kube, contents["held"])


def test_what_has_an_owner_that_the_operator_may_not_read_is_kept_and_told(
    kube: KubeServer, operator: Operator
) -> None:
    account = make(kube, {"apiVersion": "v1", "kind": "ServiceAccount"}, "owner")
    owned = make(kube, CONFIG_MAP, "d-owned", owners=(account,), label="d", annotations=OLD)
    free = make(kube, CONFIG_MAP, "d-free", label="d", annotations=OLD)
    make_policy(kube, "d", selector={**CONFIG_MAP, "labels": {"app": "d"}}, **BY_FIELD)
    until(lambda: not there(kube, free))
    passed_again(kube, "d")
    assert there(kube, owned)
    assert "serviceaccounts" in status(kube, "d")["conditions"][0]["message"]
    assert log_events(operator, "hold_unknown")
    kube.kubectl("delete", "retentionpolicy", "d")
