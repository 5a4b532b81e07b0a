"""Directories into archives and back: whole or not at all.

An archive is written under a temporary name, synced, and renamed; a directory is unpacked under a temporary name beside
its destination and renamed. So after a crash or on a full disk there is either the whole thing or nothing of that name,
and leftovers are recognised by their names and removed. An archive is unpacked only if its checksum is the one that was
noted when it was written.

Captured are directories, files, links and pipes, with their modes, owners, times (to the nanosecond) and extended
attributes, which ACLs and file capabilities are. Not captured: sockets and devices; `Archive.left_out` names them. What
this user may not set when it comes back (owners, some attributes) is left out, and attributes are named. What
changes while it is being captured is captured or not; a file that shrinks meanwhile is a failure, as its archive would
be broken. What cannot be read is a failure as well, never a gap. Links are captured as links, wherever they point, and
nothing is ever written through one: a member that would leave the directory is refused. Long runs of zeros come back as
holes, so a sparse file takes no more room than before.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, cast

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.files.attributes import attributes_of, set_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import StrOrBytesPath

_PART: Final = ".part"
_BLOCK: Final = 1024 * 1024
_HOLE: Final = 64 * 1024
"""As many zeros in a row become a hole."""
_ZEROS: Final = bytes(_HOLE)
_LEVEL: Final = 6
_TIME: Final = "mtime"
_NS: Final = 1_000_000_000
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
    left_out: tuple[str, ...] = ()
    """Names of what cannot be captured."""


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


class _Asking:
    """A file that asks before each read whether to go on: also within a large member, which is one step for a tar."""

    def __init__(self, file: IO[bytes], stop: Stop) -> None:
        self._file, self._stop = file, stop

    def read(self, size: int = -1) -> bytes:
        _go_on_unless(self._stop)
        return self._file.read(size)


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
            digest, size, left_out = _write(directory, file, stop)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        sync(target.parent)
    except (OSError, tarfile.TarError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise ArchiveError(action=action, problem=_why(error)) from error
    return Archive(target, digest, size, left_out)


def unpack(
    archive: Path, sha256: str, directory: Path, *, arrived: Callable[[Path], None], stop: Stop = lambda: False
) -> list[str]:
    """Unpack into ``directory``, which must not exist or be empty; raises `ArchiveError` and leaves it as it was.

    ``arrived`` is called with the complete directory, still under its temporary name, before it gets its own. Returns
    which attributes of what this user may not set.
    """
    action = f"restoring {archive.name} into {directory}"
    refused: list[str] = []

    def fill(part: Path) -> None:
        if _checksum(archive, stop) != sha256:
            raise ArchiveError(action=action, problem="the archive is damaged: its checksum is not the one noted")
        with _Unpacking.open(archive, "r:gz") as tar:
            members = _until(stop, tar)
            tar.stop, tar.refused = stop, refused
            # The stock filters would take permissions away.
            tar.extractall(part, members, filter=_as_it_was, numeric_owner=True)  # noqa: S202 - ours, just verified

    _make(directory, fill, action=action, arrived=arrived)
    return refused


def verify(path: Path, sha256: str, *, unpacked_bytes: int | None = None, stop: Stop = lambda: False) -> None:
    """Read an archive back from its disk; raises `ArchiveError` unless all of it is there and can be unpacked."""
    action = f"verifying {path.name}"
    try:
        _forget_cached(path)
        if _checksum(path, stop) != sha256:
            raise ArchiveError(action=action, problem="its checksum is not that of what was written")
        with path.open("rb") as file, gzip.open(cast("IO[bytes]", _Asking(file, stop))) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                size = sum(member.size for member in tar if member.isreg())
            while packed.read(_BLOCK):  # a tar's end is not that of the file, where the last of its sums stands
                pass
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise ArchiveError(action=action, problem=_why(error)) from error
    if unpacked_bytes is not None and size != unpacked_bytes:
        problem = f"it holds {size} bytes, expected {unpacked_bytes}"
        raise ArchiveError(action=action, problem=problem)


def remove(directory: Path, *, mark: Callable[[], object] = lambda: None) -> None:
    """Remove a directory, if it is there: at once for whoever looks for its name, then piece by piece.

    What is left of a removal that was interrupted is a leftover like any other. ``mark`` is called again and again
    while pieces go; it does not stop the removal.
    """
    part = _part_of(directory)
    try:
        directory.rename(part)
        sync(directory.parent)
        _remove_tree(part, mark)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArchiveError(action=f"removing {directory}", problem=_why(error)) from error


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
        sync(directory.parent)
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
        if part.is_dir() and not part.is_symlink():
            with suppress(OSError):
                _remove_tree(part)
        else:
            part.unlink(missing_ok=True)


def sync_tree(directory: Path, *, mark: Callable[[], object] = lambda: None) -> None:
    """Bring everything below a directory to its disk, so that even a power cut finds it there.

    ``mark`` is called for each thing.
    """
    for path in (directory, *_below(directory)):
        mark()
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            sync(path)


def _remove_tree(directory: Path, mark: Callable[[], object] = lambda: None) -> None:
    try:
        for _, _, files, opened in os.fwalk(directory, topdown=False):
            for name in files:
                os.unlink(name, dir_fd=opened)
                mark()
        shutil.rmtree(directory)
    except PermissionError:
        # Folders that forbid even their owner to write; the rest of the errors would be the same again.
        for folder, folders, _ in os.walk(directory):
            for path in (Path(folder), *(Path(folder, name) for name in folders)):
                if not path.is_symlink():
                    path.chmod(stat.S_IRWXU)
        shutil.rmtree(directory)


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


def _write(directory: Path, file: IO[bytes], stop: Stop) -> tuple[str, int, tuple[str, ...]]:
    hashed = _Hashed(file, stop)
    size, left_out = 0, []
    with (
        gzip.GzipFile("", "wb", _LEVEL, cast("IO[bytes]", hashed), mtime=0) as packed,
        tarfile.open(mode="w|", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, directory, ".")
        for path in _below(directory):
            name = path.relative_to(directory).as_posix()
            with suppress(FileNotFoundError):  # it went away meanwhile
                if _is_captured(path):
                    size += _add(tar, path, name)
                else:
                    left_out.append(name)
    return hashed.hexdigest(), size, tuple(left_out)


def _below(directory: Path) -> Iterator[Path]:
    """Yield everything in a directory, in order; what cannot be listed is an error, not an empty place."""

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(directory, onerror=give_up):
        folders.sort()
        yield from (directory / folder / name for name in sorted([*folders, *files]))


def _is_captured(path: Path) -> bool:
    mode = path.lstat().st_mode
    return not (stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> int:
    """Add one thing to an archive; return how many bytes it brought."""
    info = tar.gettarinfo(path, name)
    info.pax_headers = {_TIME: _seconds(path.lstat().st_mtime_ns)}
    if not info.isreg():
        if not info.islnk():  # another name of a file has that file's attributes
            info.pax_headers |= attributes_of(path)
        tar.addfile(info)
        return 0
    with path.open("rb") as file:
        info.pax_headers |= attributes_of(file.fileno())
        tar.addfile(info, file)
    return info.size


def _seconds(nanoseconds: int) -> str:
    """Write a time as PAX headers have it: exactly, which a float cannot."""
    whole, part = divmod(nanoseconds, _NS)
    if whole < 0 and part:  # the fraction counts towards the past there
        return f"-{-whole - 1}.{_NS - part:09d}"
    return f"{whole}.{part:09d}"


def _nanoseconds(text: str) -> int | None:
    """Read such a time; None: it is written otherwise, as older archives have it."""
    found = re.fullmatch(r"(-?)([0-9]+)\.([0-9]{9})", text)
    if found is None:
        return None
    size = int(found[2]) * _NS + int(found[3])
    return -size if found[1] else size


class _Unpacking(tarfile.TarFile):
    """Writes holes where there are only zeros, sets attributes and exact times, and can be stopped within a file."""

    stop: Stop = staticmethod(lambda: False)
    refused: list[str]

    def chown(self, tarinfo: tarfile.TarInfo, targetpath: StrOrBytesPath, numeric_owner: bool) -> None:  # noqa: FBT001 - the library's
        # Attributes after the owner, whose change takes file capabilities away; before the mode, which may forbid it.
        super().chown(tarinfo, targetpath, numeric_owner)
        if not tarinfo.islnk():
            self.refused += [f"{tarinfo.name}: {one}" for one in set_attributes(targetpath, tarinfo.pax_headers)]

    def utime(self, tarinfo: tarfile.TarInfo, targetpath: StrOrBytesPath) -> None:
        moment = _nanoseconds(tarinfo.pax_headers.get(_TIME, ""))
        if moment is None:
            super().utime(tarinfo, targetpath)
            return
        try:
            os.utime(targetpath, ns=(moment, moment))
        except OSError as error:
            raise tarfile.ExtractError("could not change modification time") from error

    def makefile(self, tarinfo: tarfile.TarInfo, targetpath: StrOrBytesPath) -> None:
        source = cast("IO[bytes]", self.fileobj)
        source.seek(tarinfo.offset_data)
        with open(targetpath, "xb") as target:  # noqa: PTH123 - it may be bytes
            _copy_sparsely(source, target, size=tarinfo.size, stop=self.stop)


def _copy_sparsely(source: IO[bytes], target: IO[bytes], *, size: int, stop: Stop) -> None:
    left = size
    while left:
        _go_on_unless(stop)
        block = source.read(min(left, _HOLE))
        if not block:
            raise tarfile.ReadError("unexpected end of data")
        left -= len(block)
        if block == _ZEROS[: len(block)]:
            target.seek(len(block), os.SEEK_CUR)
        else:
            target.write(block)
    target.truncate(size)


def _as_it_was(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    if member.ischr() or member.isblk():
        raise tarfile.SpecialFileError(member)
    inside = [member.name, member.linkname] if member.islnk() else [member.name]
    if any(not _stays_inside(Path(path), name) for name in inside):
        raise tarfile.OutsideDestinationError(member, member.name)
    return member


def _stays_inside(directory: Path, name: str) -> bool:
    """Whether a name is below the directory, and reached through folders only: a link may point anywhere."""
    if name.startswith("/") or ".." in name.split("/"):
        return False
    folders = PurePosixPath(name).parents
    return not any((directory / folder).is_symlink() for folder in folders)


def _checksum(path: Path, stop: Stop = lambda: False) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            _go_on_unless(stop)
            digest.update(block)
    return digest.hexdigest()


def _forget_cached(path: Path) -> None:
    """Have the next read come from the disk, where the system can be asked for that."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to its disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return str(error) or type(error).__name__
