"""Starts the components on loopback, in the order in which they need each other.

Guarantees: RBAC is on; the definitions (CRDs) are there before the controller-manager starts, because its garbage
collector looks for new kinds only every 30 seconds; when `kube_server` has started, the default ServiceAccount is
there, and what a deleted owner leaves goes within a second or two. A kill loses nothing that was acknowledged: etcd
leaves the disk to the kernel, which outlives it. Not there: pods that run, and any controller that `components` does
not name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.errors import ServerFailedError
from tests.servers.kube.components import apiserver, controller_manager, etcd
from tests.servers.kube.csi import Stack, classes
from tests.servers.kube.server import KubeControl, KubectlError, KubeServer, run_kubectl
from tests.servers.kube.site import Site
from tests.servers.ports import reserved_port
from tests.servers.programs import find, find_csi
from tests.servers.progress import Tell, tell_stderr
from tests.servers.server import Server, log_tail, private_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.servers.kube.site import Tokens
    from tests.servers.programs import Program

TEST_CRDS = Path(__file__).with_name("crds")
PROJECT_CRDS = Path(__file__).parents[3] / "deploy" / "crds"
ESTABLISHED_SECONDS = 30


def all_crds() -> list[Path]:
    """The definitions that the shared server has: the project's own, and two kinds for tests."""
    return [*sorted(PROJECT_CRDS.glob("*.yaml")), *sorted(TEST_CRDS.glob("*.yaml"))]


@contextlib.contextmanager
def kube_server(
    *,
    crds: Path | Iterable[Path] | None = None,
    csi: bool = False,
    apiserver_flags: Sequence[str] = (),
    manager_flags: Sequence[str] = (),
    tell: Tell = tell_stderr,
) -> Iterator[KubeServer]:
    """A control plane of its own until the block ends. `crds`: a folder or files, by default what `all_crds` gives.

    With `csi` there are a CSI driver and its sidecars as well, the definitions of snapshots, and the classes `hp`.
    """
    program = find("kube", tell)
    csi_program = find_csi(tell) if csi else None
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        api, manager, store, store_peer = (stack.enter_context(reserved_port()) for _ in range(4))
        site = Site(
            program=program,
            folder=stack.enter_context(private_folder("kube")),
            api_port=api,
            manager_port=manager,
            etcd_port=store,
            etcd_peer_port=store_peer,
        )
        tokens = site.prepare(tell)
        components = {"etcd": stack.enter_context(running(etcd(site)))}
        launch = apiserver(site, token=tokens.admin, flags=apiserver_flags)
        components["apiserver"] = stack.enter_context(running(launch))
        beside = None if csi_program is None else _csi(site, csi_program, stack)
        _define(site, _files(crds), components["apiserver"].log, beside)
        launch = controller_manager(site, token=tokens.admin, flags=manager_flags)
        components["controller-manager"] = stack.enter_context(running(launch))
        if beside is not None:
            for launch in beside.launches():
                components[launch.program.name] = stack.enter_context(running(launch))
        server = _server(site, components, tokens, start_seconds=time.monotonic() - begun)
        yield server if beside is None else dataclasses.replace(server, storage_folder=beside.state)


def _csi(site: Site, program: Program, stack: contextlib.ExitStack) -> Stack:
    return Stack(site, program, [stack.enter_context(reserved_port()) for _ in range(3)])


def _server(site: Site, components: dict[str, Server], tokens: Tokens, *, start_seconds: float) -> KubeServer:
    api = components["apiserver"]
    assert api.control is not None
    return KubeServer(
        name=site.program.name,
        version=site.program.version,
        source=site.program.source,
        host=api.host,
        port=api.port,
        url=api.url,
        pid=api.pid,
        folder=api.folder,
        log=api.log,
        start_seconds=round(start_seconds, 3),
        ca_file=api.ca_file,
        control=KubeControl(api.control.launch, api.control.process, components),
        programs=site.program.path,
        etcd_url=components["etcd"].url,
        admin_token=tokens.admin,
        user_token=tokens.user,
    )


def _files(crds: Path | Iterable[Path] | None) -> list[Path]:
    if crds is None:
        return all_crds()
    if isinstance(crds, Path):
        return sorted(crds.glob("*.yaml")) if crds.is_dir() else [crds]
    return list(crds)


def _define(site: Site, files: list[Path], log: Path, beside: Stack | None) -> None:
    """Create the definitions and wait until they are served; then create the classes, which need them."""
    files = [*files, *(beside.definitions if beside is not None else ())]
    if not files:
        return
    named = [word for file in files for word in ("-f", str(file))]
    waiting = ("wait", "--for=condition=Established", f"--timeout={ESTABLISHED_SECONDS}s", *named)
    try:
        run_kubectl(site.program.path, site.kubeconfig, "create", "--validate=false", *named)
        run_kubectl(site.program.path, site.kubeconfig, *waiting)
        if beside is not None:
            run_kubectl(site.program.path, site.kubeconfig, "create", "--validate=false", "-f", "-", stdin=classes())
    except KubectlError as error:
        raise ServerFailedError(f"the definitions were not taken: {error} {log_tail(log)}") from error
