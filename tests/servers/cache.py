"""The folder where fetched programs are kept, so that the second run needs no network.

One folder per package, version and platform. It appears by rename, complete or not at all; a file lock lets one process
fetch while others wait for it. `LAPSE_SERVERS_CACHE` names another place. Nothing is ever removed from it but the rests
of a fetch that was cut short: deleting the folder by hand is safe whenever no server runs from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from tests.servers.process import check_interrupted
from tests.servers.progress import Watch, megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.progress import Tell

TELL_EVERY_SECONDS = 5
TELL_WAITING_EVERY_SECONDS = 30


class Package(Protocol):
    """Something that can be fetched into a folder."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """Which one is wanted; None when that is what the registry has."""

    @property
    def origin(self) -> str:
        """From where, for people: `PyPI`, `Maven`, `Debian`."""

    @property
    def size(self) -> int:
        """About how many bytes are transferred, for people."""

    def fill(self, folder: Path, work: Path, watch: Watch) -> str:
        """Fetch into `folder`, with `work` for what need not stay; returns the version. Raises `FetchError`."""


def cache_root() -> Path:
    """The folder of all fetched programs."""
    named = os.environ.get("LAPSE_SERVERS_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lapse-test-servers"


def _platform() -> str:
    """Tells apart the machines that may share a home folder."""
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
        return f"{release['ID']}{release.get('VERSION_ID', '')}-{platform.machine()}"
    return f"{platform.system().lower()}-{platform.machine()}"


def _folder_name(package: Package, version: str) -> str:
    plain = re.sub(r"[^\w.+-]", "_", version)
    return f"{package.name}-{plain}-{_platform()}"


def cached(package: Package) -> Path | None:
    """The folder of a package that was fetched before."""
    if package.version is not None:
        folder = cache_root() / _folder_name(package, package.version)
        return folder if folder.is_dir() else None
    found = cache_root().glob(f"{package.name}-[0-9]*-{_platform()}")
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


@contextlib.contextmanager
def _locked(path: Path, *, tell: Tell, what: str) -> Iterator[None]:
    with path.open("w") as lock:
        told: float | None = None
        while not _try_lock(lock):
            now = time.monotonic()
            if told is None or now - told >= TELL_WAITING_EVERY_SECONDS:
                told = now
                tell(f"{what}: waiting for another run that fetches it")
            check_interrupted()
            time.sleep(0.05)
        yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a temporary file that was renamed while we looked
            total += 0 if path.is_symlink() else path.lstat().st_size
    return total


class _Heartbeat:
    """Tells every few seconds how far a fetch has come, judged by what has reached the disk."""

    def __init__(self, package: Package, folder: Path, tell: Tell) -> None:
        self._package, self._folder, self._tell = package, folder, tell
        self.started = self._told = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_SECONDS:
            self._told = now
            so_far = megabytes(_size(self._folder))
            self._tell(f"{self._package.name}: {so_far} on disk after {now - self.started:.0f} s")


def fetched(package: Package, tell: Tell) -> Path:
    """The folder of a package, fetched now unless it was before. Raises `FetchError`."""
    found = cached(package)
    if found is not None:
        return found
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    what = f"{package.name} {package.version or ''}".strip()
    with _locked(root / f"{package.name}.lock", tell=tell, what=what):
        found = cached(package)
        return found if found is not None else _fetch(package, root, what=what, tell=tell)


def _fetch(package: Package, root: Path, *, what: str, tell: Tell) -> Path:
    scratch = root / f".{package.name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed: we hold the lock, so nobody uses it
    folder, work = scratch / "folder", scratch / "work"
    folder.mkdir(parents=True)
    work.mkdir()
    tell(f"{what}: fetching from {package.origin}, about {megabytes(package.size)}, into {root}")
    heartbeat = _Heartbeat(package, scratch, tell)
    try:
        version = package.fill(folder, work, Watch(tell, heartbeat))
        target = root / _folder_name(package, version)
        folder.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.monotonic() - heartbeat.started
    tell(f"{package.name} {version}: fetched, {megabytes(_size(target))} in {seconds:.1f} s")
    return target
