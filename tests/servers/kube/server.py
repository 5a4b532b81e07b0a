"""A running control plane: where it is, who may enter, and what a test may do to it and to its parts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tests.servers.kube.storage import Storage
from tests.servers.server import Control, Server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# In the order in which they are started.
COMPONENTS = ("etcd", "apiserver", "controller-manager")
CSI_COMPONENTS = ("hostpathplugin", "csi-provisioner", "csi-snapshotter", "snapshot-controller")
USER = "plain-user"
USER_GROUP = "plain-users"
KUBECTL_SECONDS = 100


@dataclass(frozen=True)
class KubeControl(Control):
    """The hold on the API server, as on any other server, and on each component."""

    components: Mapping[str, Server]


@dataclass(eq=False, kw_only=True)
class KubeServer(Server):
    """A control plane. `url`, `pid` and `log` are the API server's; `kubeconfig` is the administrator's."""

    programs: Path
    etcd_url: str
    admin_token: str = field(repr=False)
    user_token: str = field(repr=False)
    user: str = USER
    user_group: str = USER_GROUP
    storage_folder: Path | None = None
    PATHS: ClassVar[tuple[str, ...]] = (*Server.PATHS, "programs", "storage_folder")

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator, who presents a client certificate and may do everything."""
        return self.folder / "kubeconfig"

    @property
    def user_kubeconfig(self) -> Path:
        """Of a user who presents a token and may do nothing, until a binding for `user` or `user_group` says so."""
        return self.folder / "user.kubeconfig"

    @property
    def client_certificate_file(self) -> Path:
        """Of the administrator."""
        return self.folder / "pki" / "admin.crt"

    @property
    def client_key_file(self) -> Path:
        """Of the administrator."""
        return self.folder / "pki" / "admin.key"

    def kubectl(self, *arguments: str, stdin: str = "", user: bool = False) -> str:
        """What kubectl writes, as administrator or as the plain user. Raises `KubectlError` with its complaint."""
        config = self.user_kubeconfig if user else self.kubeconfig
        return run_kubectl(self.programs, config, *arguments, stdin=stdin)

    @property
    def storage(self) -> Storage:
        """The volumes and snapshots that are really there, when it was started with a CSI driver."""
        if self.storage_folder is None:
            raise RuntimeError("this control plane has no CSI driver: start it with kube_server(csi=True)")
        return Storage(self.storage_folder)

    def claim_folder(self, name: str, *, namespace: str) -> Path:
        """The folder with the files of a claim's volume. The claim must be bound."""
        handle = "jsonpath={.spec.csi.volumeHandle}"
        volume = self.kubectl("get", "pvc", name, "-n", namespace, "-o", "jsonpath={.spec.volumeName}")
        if not volume:
            raise ValueError(f"the claim {namespace}/{name} has no volume yet: wait until it is Bound")
        return self.storage.volume(self.kubectl("get", "pv", volume, "-o", handle))

    def component(self, name: str) -> Server:
        """One of `COMPONENTS` or `CSI_COMPONENTS`, to be killed, stopped, paused and started on its own."""
        components = self._components()
        if name not in components:
            raise ValueError(f"there is no component {name!r}, but {', '.join(components)}")
        return components[name]

    def _components(self) -> Mapping[str, Server]:
        control = self._held()
        assert isinstance(control, KubeControl)
        return control.components

    def kill(self) -> None:
        for component in reversed([*self._components().values()]):
            component.kill()

    def stop(self) -> None:
        for component in reversed([*self._components().values()]):
            component.stop()

    def start(self) -> None:
        components = self._components()
        for component in components.values():
            component.start()
        self.pid = components["apiserver"].pid
        self.start_seconds = round(sum(component.start_seconds for component in components.values()), 3)

    def pause(self) -> None:
        for component in self._components().values():
            component.pause()

    def resume(self) -> None:
        for component in self._components().values():
            component.resume()

    def is_running(self) -> bool:
        """Whether all its processes are there."""
        return all(component.is_running() for component in self._components().values())


class KubectlError(Exception):
    """kubectl ended with an error; the message is what it wrote."""


def run_kubectl(programs: Path, kubeconfig: Path, *arguments: str, stdin: str = "") -> str:
    """Run kubectl with nothing of the caller's own settings. Raises `KubectlError`."""
    home = kubeconfig.parent  # its caches go with the server
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home), "KUBECACHEDIR": str(home / "kubectl-cache")}
    done = subprocess.run(
        [programs / "kubectl", *arguments],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=KUBECTL_SECONDS,
    )
    if done.returncode != 0:
        raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
