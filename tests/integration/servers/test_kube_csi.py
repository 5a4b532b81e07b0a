"""Volumes and snapshots are real: the stock sidecars make, restore and remove them, and files tell that it is so.

What a content object (VolumeSnapshotContent) needs when nobody ever makes a VolumeSnapshot for it is held here, one
test for each rule; `tests/servers/README.md` has the list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.identity import uuid
from tests.servers import KubectlError, KubeServer, kube_server, wait_until
from tests.servers.kube.csi import CLASS, DRIVER
from tests.servers.kube.server import COMPONENTS, CSI_COMPONENTS
from tests.servers.ports import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SNAPSHOTS = "snapshot.storage.k8s.io/v1"
BEING_DELETED = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
BEING_CREATED = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
BOUND_PROTECTION = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
Json = dict[str, Any]


def create(server: KubeServer, manifest: Json) -> Json:
    made: Json = json.loads(server.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(manifest)))
    return made


def get(server: KubeServer, *what: str) -> Json | None:
    text = server.kubectl("get", *what, "--ignore-not-found", "-o", "json")
    return json.loads(text) if text else None


def claim(name: str, namespace: str, *, snapshot: str | None = None) -> Json:
    spec: Json = {
        "storageClassName": CLASS,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
    }
    if snapshot is not None:
        spec["dataSource"] = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def content(
    source: Json,
    *,
    name: str | None = None,
    reference: Json | None = None,
    policy: str = "Delete",
    **metadata: object,
) -> Json:
    """A content object for a snapshot of which no VolumeSnapshot needs to exist."""
    name = name or f"content-{uuid()}"
    nobody = {"name": name, "namespace": "nowhere", "uid": uuid()}
    return {
        "apiVersion": SNAPSHOTS,
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, **metadata},
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": policy,
            "volumeSnapshotClassName": CLASS,
            "source": source,
            "volumeSnapshotRef": reference or nobody,
        },
    }


def until(server: KubeServer, what: str, path: str, value: str, *, namespace: str = "default") -> None:
    """Wait until a field of an object has that value."""
    server.kubectl("wait", what, "-n", namespace, f"--for=jsonpath={{{path}}}={value}", "--timeout=50s")


def ready(server: KubeServer, manifest: Json) -> str:
    """Make a content object; returns the handle of the snapshot when the driver has made it."""
    name = create(server, manifest)["metadata"]["name"]
    until(server, f"volumesnapshotcontent/{name}", ".status.readyToUse", "true")
    found = get(server, "volumesnapshotcontent", name)
    assert found is not None
    return str(found["status"]["snapshotHandle"])


def gone(server: KubeServer, name: str) -> bool:
    return get(server, "volumesnapshotcontent", name) is None


@pytest.fixture
def namespace(shared_kube: KubeServer) -> str:
    name = f"csi-{uuid()}"
    shared_kube.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def volume(shared_kube: KubeServer, namespace: str) -> Json:
    """The source of a snapshot: a volume of the claim `data`, with the file `greeting` in it."""
    create(shared_kube, claim("data", namespace))
    until(shared_kube, "pvc/data", ".status.phase", "Bound", namespace=namespace)
    folder = shared_kube.claim_folder("data", namespace=namespace)
    (folder / "greeting").write_text("moin\n", encoding="ascii")
    return {"volumeHandle": folder.name}


# --- volumes ----------------------------------------------------------------------------------------------------------


def test_a_claim_gets_a_volume_whose_folder_comes_and_goes_with_it(shared_kube: KubeServer, namespace: str) -> None:
    create(shared_kube, claim("data", namespace))
    until(shared_kube, "pvc/data", ".status.phase", "Bound", namespace=namespace)
    folder = shared_kube.claim_folder("data", namespace=namespace)
    assert folder.is_dir()
    assert folder.name in shared_kube.storage.volumes()
    shared_kube.kubectl("delete", "pvc", "data", "-n", namespace)
    wait_until(lambda: folder.name not in shared_kube.storage.volumes(), seconds=50, what="the end of the volume")


def test_the_storage_class_names_the_snapshot_class(shared_kube: KubeServer) -> None:
    found = get(shared_kube, "storageclass", CLASS)
    assert found is not None
    chosen = found["metadata"]["annotations"]["storage.deckhouse.io/volumesnapshotclass"]
    snapshots = get(shared_kube, "volumesnapshotclass", chosen)
    assert snapshots is not None
    assert (snapshots["driver"], snapshots["deletionPolicy"]) == (found["provisioner"], "Delete")


def test_a_claim_that_is_not_bound_has_no_folder_and_says_so(shared_kube: KubeServer, namespace: str) -> None:
    waiting = claim("waiting", namespace)
    waiting["spec"]["storageClassName"] = "there-is-none"
    create(shared_kube, waiting)
    with pytest.raises(ValueError, match="waiting has no volume yet"):
        shared_kube.claim_folder("waiting", namespace=namespace)


# --- snapshots without a VolumeSnapshot -------------------------------------------------------------------------------


def test_a_content_made_directly_becomes_ready_and_goes_with_its_snapshot(
    shared_kube: KubeServer, volume: Json
) -> None:
    manifest = content(volume, annotations={BEING_DELETED: "yes"})
    name = manifest["metadata"]["name"]
    handle = ready(shared_kube, manifest)
    assert handle in shared_kube.storage.snapshots()
    made = get(shared_kube, "volumesnapshotcontent", name)
    assert made is not None
    assert made["metadata"]["finalizers"] == [BOUND_PROTECTION]
    assert made["metadata"]["annotations"][BEING_DELETED] == "yes"
    shared_kube.kubectl("delete", "volumesnapshotcontent", name, "--timeout=50s")
    assert handle not in shared_kube.storage.snapshots()


def test_without_the_annotation_a_deleted_content_is_kept_until_it_gets_it(
    shared_kube: KubeServer, volume: Json
) -> None:
    kept, other = content(volume), content(volume, annotations={BEING_DELETED: "yes"})
    name = kept["metadata"]["name"]
    handle = ready(shared_kube, kept)
    ready(shared_kube, other)
    shared_kube.kubectl("delete", "volumesnapshotcontent", name, "--wait=false")
    # Deleted later and gone already: the snapshotter has seen the first one as well, and leaves it alone.
    shared_kube.kubectl("delete", "volumesnapshotcontent", other["metadata"]["name"], "--timeout=50s")
    stuck = get(shared_kube, "volumesnapshotcontent", name)
    assert stuck is not None
    assert "deletionTimestamp" in stuck["metadata"]
    assert stuck["metadata"]["finalizers"] == [BOUND_PROTECTION]
    assert handle in shared_kube.storage.snapshots()
    shared_kube.kubectl("annotate", "volumesnapshotcontent", name, f"{BEING_DELETED}=yes")
    wait_until(lambda: gone(shared_kube, name), seconds=50, what="the end of the content")
    assert handle not in shared_kube.storage.snapshots()


def test_garbage_collection_of_a_content_removes_the_snapshot(shared_kube: KubeServer, volume: Json) -> None:
    api_version = "test.lapse.dev/v1"
    owner = create(
        shared_kube,
        {"apiVersion": api_version, "kind": "ClusterWidget", "metadata": {"name": f"owner-{uuid()}"}},
    )["metadata"]
    reference = {"apiVersion": api_version, "kind": "ClusterWidget", "name": owner["name"], "uid": owner["uid"]}
    manifest = content(volume, annotations={BEING_DELETED: "yes"}, ownerReferences=[{**reference, "controller": True}])
    handle = ready(shared_kube, manifest)
    shared_kube.kubectl("delete", "clusterwidget", owner["name"])
    wait_until(lambda: gone(shared_kube, manifest["metadata"]["name"]), seconds=50, what="the end of the content")
    assert handle not in shared_kube.storage.snapshots()


def test_a_content_deleted_while_its_snapshot_is_made_leaves_none_behind(shared_kube: KubeServer, volume: Json) -> None:
    # The finalizer from the beginning: the snapshot-controller adds it too late for a content that goes at once.
    manifest = content(volume, annotations={BEING_DELETED: "yes"}, finalizers=[BOUND_PROTECTION])
    name = manifest["metadata"]["name"]
    folder = shared_kube.storage.volume(volume["volumeHandle"])
    (folder / "bulk").write_bytes(b"\0" * 200_000_000)  # takes the driver a second or more to pack
    create(shared_kube, manifest)
    until(
        shared_kube,
        f"volumesnapshotcontent/{name}",
        ".metadata.annotations." + BEING_CREATED.replace(".", r"\."),
        "yes",
    )
    shared_kube.kubectl("delete", "volumesnapshotcontent", name, "--wait=false")
    (folder / "bulk").unlink()
    wait_until(lambda: gone_when_touched(shared_kube, name), seconds=50, what="the end of the content")
    assert shared_kube.storage.snapshots(of=volume["volumeHandle"]) == set()


def gone_when_touched(server: KubeServer, name: str) -> bool:
    """Change something about a content: the snapshotter may have missed that it was deleted, and looks again now."""
    with contextlib.suppress(KubectlError):
        server.kubectl("annotate", "volumesnapshotcontent", name, "--overwrite", f"tests/touched={uuid()}")
    return gone(server, name)


def test_a_content_without_the_uid_of_a_snapshot_ends_in_an_error(shared_kube: KubeServer, volume: Json) -> None:
    manifest = content(volume, reference={"name": "nobody", "namespace": "nowhere"})
    name = create(shared_kube, manifest)["metadata"]["name"]
    until(shared_kube, f"volumesnapshotcontent/{name}", ".status.readyToUse", "false")
    found = get(shared_kube, "volumesnapshotcontent", name)
    assert found is not None
    assert "not bound to a snapshot" in found["status"]["error"]["message"]


def test_two_contents_that_name_one_uid_share_one_snapshot(shared_kube: KubeServer, volume: Json) -> None:
    reference = {"name": "nobody", "namespace": "nowhere", "uid": uuid()}
    first, second = (
        content(volume, reference=reference, annotations={BEING_DELETED: "yes"}),
        content(volume, reference=reference, annotations={BEING_DELETED: "yes"}),
    )
    handle = ready(shared_kube, first)
    assert ready(shared_kube, second) == handle
    shared_kube.kubectl("delete", "volumesnapshotcontent", first["metadata"]["name"], "--timeout=50s")
    assert handle not in shared_kube.storage.snapshots()
    shared_kube.kubectl("delete", "volumesnapshotcontent", second["metadata"]["name"], "--timeout=50s")


# --- restores ---------------------------------------------------------------------------------------------------------


def snapshot_of(name: str, namespace: str, *, content_name: str) -> Json:
    return {
        "apiVersion": SNAPSHOTS,
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"volumeSnapshotClassName": CLASS, "source": {"volumeSnapshotContentName": content_name}},
    }


def test_a_snapshot_is_restored_through_a_second_content_that_names_its_handle(
    shared_kube: KubeServer, namespace: str, volume: Json
) -> None:
    captured = content(volume, annotations={BEING_DELETED: "yes"})
    handle = ready(shared_kube, captured)
    (shared_kube.storage.volume(volume["volumeHandle"]) / "greeting").write_text("changed since\n", encoding="ascii")

    # What a provisioner does: another content for the snapshot, which a VolumeSnapshot may take; it removes nothing.
    bridge = content(
        {"snapshotHandle": handle},
        reference={"name": "restore", "namespace": namespace},
        policy="Retain",
    )
    create(shared_kube, bridge)
    create(shared_kube, snapshot_of("restore", namespace, content_name=bridge["metadata"]["name"]))
    until(shared_kube, "volumesnapshot/restore", ".status.readyToUse", "true", namespace=namespace)
    create(shared_kube, claim("restored", namespace, snapshot="restore"))
    until(shared_kube, "pvc/restored", ".status.phase", "Bound", namespace=namespace)
    folder = shared_kube.claim_folder("restored", namespace=namespace)
    assert (folder / "greeting").read_text(encoding="ascii") == "moin\n"

    shared_kube.kubectl("delete", "volumesnapshot", "restore", "-n", namespace, "--timeout=50s")
    shared_kube.kubectl("delete", "volumesnapshotcontent", bridge["metadata"]["name"], "--timeout=50s")
    assert handle in shared_kube.storage.snapshots()
    shared_kube.kubectl("delete", "volumesnapshotcontent", captured["metadata"]["name"], "--timeout=50s")
    assert handle not in shared_kube.storage.snapshots()
    assert (folder / "greeting").read_text(encoding="ascii") == "moin\n"


def test_a_content_with_a_volume_as_its_source_is_refused_to_a_volume_snapshot(
    shared_kube: KubeServer, namespace: str, volume: Json
) -> None:
    captured = content(volume, annotations={BEING_DELETED: "yes"})
    ready(shared_kube, captured)
    create(shared_kube, snapshot_of("direct", namespace, content_name=captured["metadata"]["name"]))
    until(shared_kube, "volumesnapshot/direct", ".status.readyToUse", "false", namespace=namespace)
    found = get(shared_kube, "volumesnapshot", "direct", "-n", namespace)
    assert found is not None
    assert "dynamically provisioned while expecting a pre-provisioned" in found["status"]["error"]["message"]


# --- the processes ----------------------------------------------------------------------------------------------------

private = pytest.mark.server("kube", private=True)
unhurried = pytest.mark.timeout(300)  # each start takes five seconds, or a minute on cores that others keep busy


@pytest.fixture(scope="module")
def own_kube() -> Iterator[KubeServer]:
    """One for the tests that hurt it and heal it again."""
    with kube_server(csi=True) as server:
        yield server


@private
@unhurried
def test_the_whole_stack_comes_back_after_a_kill_with_its_volumes(own_kube: KubeServer) -> None:
    create(own_kube, claim("kept", "default"))
    until(own_kube, "pvc/kept", ".status.phase", "Bound")
    folder = own_kube.claim_folder("kept", namespace="default")
    (folder / "greeting").write_text("moin\n", encoding="ascii")
    own_kube.kill()
    assert not any(own_kube.component(name).is_running() for name in (*COMPONENTS, *CSI_COMPONENTS))
    own_kube.start()
    assert own_kube.is_running()
    assert (folder / "greeting").read_text(encoding="ascii") == "moin\n"
    handle = ready(own_kube, content({"volumeHandle": folder.name}))
    assert handle in own_kube.storage.snapshots()


@private
@unhurried
def test_a_snapshot_asked_for_while_the_driver_is_down_is_made_when_it_is_back(own_kube: KubeServer) -> None:
    create(own_kube, claim("waiting", "default"))
    until(own_kube, "pvc/waiting", ".status.phase", "Bound")
    source = {"volumeHandle": own_kube.claim_folder("waiting", namespace="default").name}
    driver = own_kube.component("hostpathplugin")
    driver.kill()
    manifest = content(source)
    create(own_kube, manifest)
    driver.start()
    for name in ("csi-provisioner", "csi-snapshotter"):
        own_kube.component(name).restart()
    until(own_kube, f"volumesnapshotcontent/{manifest['metadata']['name']}", ".status.readyToUse", "true")


@private
@unhurried
def test_nothing_of_the_stack_listens_beyond_loopback(own_kube: KubeServer) -> None:
    found = [listening(own_kube.component(name).pid) for name in CSI_COMPONENTS]
    assert {address for address, _ in set.union(*found)} == {"0100007F"}  # 127.0.0.1 as /proc writes it
    assert [len(addresses) for addresses in found] == [0, 1, 1, 1]


# Starts a control plane with its storage, tells its folder and processes, and waits.
HARNESS = """
import signal
from tests.servers import kube_server
from tests.servers.kube.server import COMPONENTS, CSI_COMPONENTS
with kube_server(crds=(), csi=True) as server:
    print(server.folder, *(server.component(name).pid for name in (*COMPONENTS, *CSI_COMPONENTS)), flush=True)
    signal.pause()
"""


@private
@unhurried
def test_the_whole_stack_and_its_volumes_go_when_the_run_is_killed() -> None:
    command = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        assert len(pids) == 7
        run.kill()
    traces = [Path(folder), *(Path("/proc") / pid for pid in pids)]
    wait_until(lambda: not any(trace.exists() for trace in traces), what="the end of all components")


def test_a_control_plane_without_a_driver_has_no_storage_and_says_how_to_have_it(shared_kube: KubeServer) -> None:
    without = dataclasses.replace(shared_kube, storage_folder=None)
    with pytest.raises(RuntimeError, match=r"no CSI driver: start it with kube_server\(csi=True\)"):
        without.storage.snapshots()
