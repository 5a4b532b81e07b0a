"""The CSI stack beside a control plane: a driver that keeps volumes in folders, and the stock sidecars that use it.

The hostpath driver, external-provisioner, csi-snapshotter and snapshot-controller as on any cluster, but as processes
on this machine, which talk to the driver through a socket in the server's folder. Provisioning, snapshots and restores
are real; without a kubelet no volume is ever mounted, so a test reads and writes the files where the driver keeps them
(see `storage`). The provisioner and the snapshotter do not outlive their driver: with the next call after its end they
end as well, and here nobody but the test starts them again.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.servers.ports import LOOPBACK
from tests.servers.programs import Program
from tests.servers.server import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.servers.kube.site import Site

DRIVER = "hostpath.csi.k8s.io"
CLASS = "hp"
# The default of five calls a second spares a cluster with others in it.
HURRIED = ("--kube-api-qps=200", "--kube-api-burst=400")


@dataclass(frozen=True)
class Stack:
    """The programs of one CSI stack, and where it works. Needs a port for each of the three that have no socket."""

    site: Site
    program: Program
    ports: Sequence[int]

    @property
    def state(self) -> Path:
        return self.site.folder / "volumes"

    @property
    def definitions(self) -> list[Path]:
        """Those of snapshots, as the snapshotter brings them."""
        return sorted((self.program.path / "crds").glob("*.yaml"))

    def launches(self) -> list[Launch]:
        """How to start each, in the order in which they need each other."""
        driver_socket = self.site.folder / "csi.sock"
        own = (f"--csi-address={driver_socket}", *HURRIED, "--extra-create-metadata")
        # It would name the node on which a volume is, and there are none.
        nowhere = ("--enable-topology=false", "--feature-gates=Topology=false")
        where = (f"--endpoint=unix://{driver_socket}", f"--statedir={self.state}", "--nodeid=none", "--v=4")
        return [
            self._launch("hostpathplugin", *where, nowhere[0], answers=lambda: _accepts(driver_socket)),
            self._sidecar("csi-provisioner", self.ports[0], *own, nowhere[1]),
            self._sidecar("csi-snapshotter", self.ports[1], *own),
            self._sidecar("snapshot-controller", self.ports[2], *HURRIED),
        ]

    def _sidecar(self, name: str, port: int, *flags: str) -> Launch:
        shared = (f"--kubeconfig={self.site.kubeconfig}", f"--http-endpoint={LOOPBACK}:{port}", "--v=4")
        return self._launch(name, *shared, *flags, answers=lambda: _serves(port), port=port)

    def _launch(self, name: str, *flags: str, answers: Callable[[], bool], port: int = 0) -> Launch:
        path = self.program.path / name
        return Launch(
            program=Program(name, self.program.version, self.program.source, path),
            folder=self.site.folder,
            port=port,
            url=f"http://{LOOPBACK}:{port}" if port else "",
            argv=[path, *flags],
            answers=answers,
            log_name=f"{name}.log",
        )


def classes() -> str:
    """The driver, and the classes by which claims and snapshots ask for it."""
    driver = {"attachRequired": False, "podInfoOnMount": False, "volumeLifecycleModes": ["Persistent"]}
    annotations = {"storage.deckhouse.io/volumesnapshotclass": CLASS}
    kinds = [
        _manifest("storage.k8s.io/v1", "CSIDriver", DRIVER, spec=driver),
        _manifest(
            *("storage.k8s.io/v1", "StorageClass", CLASS, annotations),
            provisioner=DRIVER,
            reclaimPolicy="Delete",
            volumeBindingMode="Immediate",
        ),
        _manifest("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", CLASS, driver=DRIVER, deletionPolicy="Delete"),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds})


def _manifest(
    api_version: str, kind: str, name: str, annotations: dict[str, str] | None = None, **rest: object
) -> dict[str, object]:
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(str(path))
    return True


def _serves(port: int) -> bool:
    """Whether a sidecar has found its driver: it serves its metrics only then."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    except http.client.HTTPException:
        return False
    finally:
        connection.close()
