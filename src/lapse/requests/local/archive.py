"""Directories into archives and back: whole or not at all.

An archive is written under a temporary name, synced, and renamed; a directory is unpacked under a temporary name beside
its destination and renamed. So after a crash or on a full disk there is either the whole thing or nothing of that name,
and leftovers are recognised by their names and removed. An archive is unpacked only if its checksum is the one that was
noted when it was written.

Captured are directories, files, links and pipes, with their modes and times. Not captured: sockets. What changes while
it is being captured is captured or not; a file that shrinks meanwhile is a failure, as its archive would be broken.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, cast

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PART: Final = ".part"
_BLOCK: Final = 1024 * 1024
_LEVEL: Final = 6
_SHOWN: Final = 40
"""Characters of a name that its temporary name shows: a name may have 255 bytes, and a character up to four."""


class ArchiveError(LapseError):
    """{action} failed: {problem}."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A finished archive."""

    path: Path
    sha256: str
    """Of the file."""
    unpacked_bytes: int


Stop = Callable[[], bool]
"""Asked again and again during long work; True gives it up."""


class _Hashed:
    """A file that knows the checksum of what was written to it."""

    def __init__(self, file: IO[bytes], stop: Stop) -> None:
        self._file, self._stop = file, stop
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        _go_on_unless(self._stop)
        self._digest.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def pack(directory: Path, target: Path, *, stop: Stop = lambda: False) -> Archive:
    """Write all of ``directory`` into ``target``; raises `ArchiveError` and leaves nothing behind when it cannot."""
    action = f"capturing {directory}"
    if not directory.is_dir():
        raise ArchiveError(action=action, problem="there is no such directory")
    part = _part_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            digest, size = _write(directory, file, stop)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        _sync_folder(target.parent)
    except (OSError, tarfile.TarError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise ArchiveError(action=action, problem=_why(error)) from error
    return Archive(target, digest, size)


def unpack(
    archive: Path, sha256: str, directory: Path, *, arrived: Callable[[Path], None], stop: Stop = lambda: False
) -> None:
    """Unpack into ``directory``, which must not exist or be empty; raises `ArchiveError` and leaves it as it was.

    ``arrived`` is called with the complete directory, still under its temporary name, before it gets its own.
    """
    action = f"restoring {archive.name} into {directory}"

    def fill(part: Path) -> None:
        if _checksum(archive) != sha256:
            raise ArchiveError(action=action, problem="the archive is damaged: its checksum is not the one noted")
        with tarfile.open(archive, "r:gz") as tar:
            members = _until(stop, tar)
            # The stock filters would take permissions away.
            tar.extractall(part, members, filter=_as_it_was, numeric_owner=True)  # noqa: S202 - ours, just verified

    _make(directory, fill, action=action, arrived=arrived)


def _make(directory: Path, fill: Callable[[Path], None], *, action: str, arrived: Callable[[Path], None]) -> None:
    """Fill a directory under a temporary name, then give it its own."""
    part = _part_of(directory)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ArchiveError(action=action, problem="it exists and is not an empty directory")
        directory.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir(mode=0o700)
        fill(part)
        arrived(part)
        part.replace(directory)
        _sync_folder(directory.parent)
    except (OSError, tarfile.TarError, EOFError, shutil.Error) as error:
        raise ArchiveError(action=action, problem=_why(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def copy(source: Path, directory: Path, *, arrived: Callable[[Path], None], stop: Stop = lambda: False) -> None:
    """Copy a directory into another one, under the same rules as `unpack`."""
    action = f"restoring {source} into {directory}"

    def one(from_: str, to: str) -> str:
        _go_on_unless(stop)
        mode = os.lstat(from_).st_mode
        if stat.S_ISFIFO(mode):
            os.mkfifo(to)
            shutil.copystat(from_, to)
        elif not stat.S_ISSOCK(mode):
            shutil.copy2(from_, to, follow_symlinks=False)
        return to

    def fill(part: Path) -> None:
        if not source.is_dir():
            raise ArchiveError(action=action, problem=f"there is no directory {source}")
        shutil.copytree(source, part, symlinks=True, copy_function=one, dirs_exist_ok=True)

    _make(directory, fill, action=action, arrived=arrived)


def remove_leftovers(folder: Path) -> None:
    """Remove what interrupted writes of earlier runs left. Nobody may be writing there."""
    for part in _parts(folder):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _parts(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob(f".*{_PART}")) if folder.is_dir() else iter(())


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name[:_SHOWN]}.{owner_token()}{_PART}")


def _go_on_unless(stop: Stop) -> None:
    if stop():
        raise InterruptedError(errno.EINTR, "it was interrupted")


def _until(stop: Stop, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        _go_on_unless(stop)
        yield member


def _write(directory: Path, file: IO[bytes], stop: Stop) -> tuple[str, int]:
    hashed = _Hashed(file, stop)
    size = 0
    with (
        gzip.GzipFile("", "wb", _LEVEL, cast("IO[bytes]", hashed), mtime=0) as packed,
        tarfile.open(mode="w|", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.add(directory, arcname=".", recursive=False)
        for path in _below(directory):
            with suppress(FileNotFoundError):  # it went away meanwhile
                size += _add(tar, path, path.relative_to(directory).as_posix())
    return hashed.hexdigest(), size


def _below(directory: Path) -> Iterator[Path]:
    """Yield everything in a directory, in order; what cannot be listed is an error, not an empty place."""

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(directory, onerror=give_up):
        folders.sort()
        yield from (directory / folder / name for name in sorted([*folders, *files]))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> int:
    """Add one thing to an archive; return how many bytes it brought."""
    if path.is_socket():
        return 0
    info = tar.gettarinfo(path, name)
    if not info.isreg():
        tar.addfile(info)
        return 0
    with path.open("rb") as file:
        tar.addfile(info, file)
    return info.size


def _as_it_was(member: tarfile.TarInfo, _path: str) -> tarfile.TarInfo:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise tarfile.OutsideDestinationError(member, member.name)
    return member


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return str(error) or type(error).__name__
