"""Programs built from Go modules, into the same cache as everything that is fetched.

One build per list of modules, flags and Go: whichever of them changes, it is another folder in the cache. Go checks
each module against `go.sum`. Its own caches are used where they are, so that a second build takes seconds; they are not
ours to remove. Not guaranteed: the same bytes on every machine, since the Go that is installed compiles them.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.errors import FetchError
from tests.servers.packages import run_tool
from tests.servers.progress import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.progress import Tell

MODULES = Path(__file__).with_name("modules")
TELL_EVERY_SECONDS = 5
KUBERNETES = "1.35.4"
CSI_HOSTPATH, CSI_PROVISIONER, CSI_SNAPSHOTTER = "1.7.2", "5.1.0", "8.6.0"
# What a build of Kubernetes' own scripts would write into the programs; clients ask the server for it.
KUBERNETES_VERSION_FLAGS = (
    f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}",
    *(f"-X k8s.io/component-base/version.git{part}" for part in ("Major=1", "Minor=35")),
    f"-X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES}",
)
NO_GO = (
    "no go on PATH: install Go 1.21 or newer from https://go.dev/dl, which fetches by itself the newer Go that a "
    "module asks for; then `python -m tests.servers --fetch {name}` builds it once, in minutes on two cores"
)


@dataclass(frozen=True)
class ModuleFiles:
    """Files of a module that are wanted beside the programs: its path, and which files in it."""

    module: str
    pattern: str
    folder: str  # where they go, beside the programs


@dataclass(frozen=True)
class GoModule:
    """A folder with `go.mod` and `go.sum`, and the programs to build in it."""

    folder: Path
    packages: tuple[str, ...]
    linker: tuple[str, ...] = ()
    output: str = ""  # the name of the only program, where the last word of its package is none to keep
    files: tuple[ModuleFiles, ...] = ()
    tags: tuple[str, ...] = ()  # what chooses among the files of a package

    @property
    def chosen(self) -> tuple[str, ...]:
        """The tags as a flag, for building and for listing what is built."""
        return ("-tags", ",".join(self.tags)) if self.tags else ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Small programs that do not depend on the folder in which they were built."""
        return (*self.chosen, "-trimpath", "-ldflags", " ".join(("-s", "-w", *self.linker)))


@dataclass(frozen=True)
class GoBuild:
    """Several modules, built into one folder."""

    name: str
    release: str
    modules: tuple[GoModule, ...]
    size: int
    origin: str = "Go modules"

    @property
    def recipe(self) -> str:
        """The release, and a digest of all that the build is made from but Go itself."""
        digest = hashlib.sha256()
        for module in self.modules:
            for name in ("go.mod", "go.sum"):
                digest.update((module.folder / name).read_bytes())
            digest.update(repr((module.packages, module.flags, module.output, *module.files)).encode())
        return f"{self.release}-{digest.hexdigest()[:12]}"

    @property
    def version(self) -> str:
        """Which build is wanted; without a Go there is none to name."""
        go = find_go()
        return f"{self.recipe}-{'nogo' if go is None else go.version}"

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        """Download the modules and build them, telling how far it has come."""
        go = find_go()
        if go is None:
            raise FetchError(NO_GO.format(name=self.name))
        for module in self.modules:
            tell = functools.partial(_tell_named, watch.tell, f"{self.name}, {module.folder.name}")
            packages = _download(go, module, work=work, tell=tell)
            _build(go, module, folder=folder, work=work, tell=tell, packages=packages)
            for files in module.files:
                _copy(go, module, files, folder=folder, work=work)
        return self.version


@dataclass(frozen=True)
class Go:
    """The Go of this machine. A newer one that a module asks for is no part of it: that follows from the module."""

    path: Path
    version: str  # such as `go1.26.0`


def find_go() -> Go | None:
    """The first on PATH, when it starts."""
    found = shutil.which("go")
    return None if found is None else _ask_version(Path(found))


@functools.cache
def _ask_version(path: Path) -> Go | None:
    try:
        done = subprocess.run([path, "version"], capture_output=True, text=True, check=True, timeout=60, cwd="/")
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bgo\d[\w.]*", done.stdout)
    return None if match is None else Go(path, match[0])


def _tell_named(tell: Tell, what: str, line: str) -> None:
    tell(f"{what}: {line}")


def _run(go: Go, arguments: list[str], *, module: GoModule, work: Path, watch: Watch) -> str:
    env = {
        "CGO_ENABLED": "0",
        "GOWORK": "off",
        "GOTMPDIR": str(work),  # goes with the scratch folder, also when the build is killed
    }
    return run_tool([go.path, "-C", str(module.folder), *arguments], cwd=work, watch=watch, env=env, politely=True)


def _download(go: Go, module: GoModule, *, work: Path, tell: Tell) -> int:
    """Get the modules that the packages need, and no others; returns the number of packages to compile."""

    def progress(lines: list[str]) -> str:
        return f"{sum(map(_is_download, lines))} modules downloaded"

    watch = Watch(tell, _Ticker(tell, work / "output.log", progress))
    arguments = ["list", *module.chosen, "-deps", *module.packages]
    lines = _run(go, arguments, module=module, work=work, watch=watch).splitlines()
    downloads = sum(map(_is_download, lines))
    tell(f"{downloads} modules were missing, {len(lines) - downloads} packages to build")
    return len(lines) - downloads


def _is_download(line: str) -> bool:
    return line.startswith("go: ")


def _build(go: Go, module: GoModule, *, folder: Path, work: Path, tell: Tell, packages: int) -> None:
    def progress(lines: list[str]) -> str:
        last = f", last {lines[-1]}" if lines else ""
        return f"{len(lines)} of {packages} packages compiled, less what is in the cache of Go{last}"

    watch = Watch(tell, _Ticker(tell, work / "output.log", progress))
    arguments = ["build", "-v", *module.flags, "-o", f"{folder}/{module.output}", *module.packages]
    _run(go, arguments, module=module, work=work, watch=watch)


def _copy(go: Go, module: GoModule, files: ModuleFiles, *, folder: Path, work: Path) -> None:
    where = ["list", "-m", "-f", "{{.Dir}}", files.module]
    found = sorted(
        Path(_run(go, where, module=module, work=work, watch=Watch(lambda _: None)).strip()).glob(files.pattern)
    )
    if not found:
        raise FetchError(f"{files.module} has no {files.pattern}")
    target = folder / files.folder
    target.mkdir(exist_ok=True)
    for file in found:
        shutil.copyfile(file, target / file.name)  # not its mode: Go's cache is read-only


class _Ticker:
    """Tells every few seconds what a tool's output says of its progress: programs reach the disk only at the end."""

    def __init__(self, tell: Tell, log: Path, progress: Callable[[list[str]], str]) -> None:
        self._tell, self._log, self._progress = tell, log, progress
        self._begun = self._told = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_SECONDS:
            self._told = now
            lines = self._log.read_text(errors="replace").splitlines()
            self._tell(f"{self._progress(lines)}, {now - self._begun:.0f} s")


SNAPSHOTTER = "github.com/kubernetes-csi/external-snapshotter"
# Apart from the control plane, so that another sidecar does not build that again.
KUBE_CSI = GoBuild(
    "kube-csi",
    CSI_SNAPSHOTTER,
    (
        GoModule(
            MODULES / "hostpath",
            ("github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin",),
            (f"-X main.version=v{CSI_HOSTPATH}",),
        ),
        GoModule(
            MODULES / "provisioner",
            ("github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner",),
            (f"-X main.version=v{CSI_PROVISIONER}",),
        ),
        GoModule(
            MODULES / "snapshotter",
            tuple(f"{SNAPSHOTTER}/v8/cmd/{name}" for name in ("csi-snapshotter", "snapshot-controller")),
            (f"-X main.version=v{CSI_SNAPSHOTTER}",),
            files=(ModuleFiles(f"{SNAPSHOTTER}/client/v8", "config/crd/snapshot.storage.k8s.io_*.yaml", "crds"),),
        ),
    ),
    size=130_000_000,
)
KUBE = GoBuild(
    "kube",
    KUBERNETES,
    (
        GoModule(MODULES / "etcd", ("go.etcd.io/etcd/server/v3",), output="etcd"),
        GoModule(
            MODULES / "control-plane",
            tuple(f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kubectl")),
            KUBERNETES_VERSION_FLAGS,
        ),
    ),
    size=150_000_000,
)
