"""Archives of directories, packed and unpacked whole or not at all.

An archive is written under a temporary name, synced, and renamed; a directory is unpacked under a temporary name beside
its destination and renamed. So after a crash or on a full disk there is either the whole thing or nothing of that name,
and leftovers are recognised by their names and removed. An archive is unpacked only if its checksum is the one that was
noted when it was written.

Captured: directories, files, links and pipes, with their modes, owners, times (to the nanosecond) and extended
attributes, which ACLs and file capabilities are. Attributes stand in PAX headers, ``SCHILY.xattr.NAME``, as GNU tar,
star and bsdtar write and read them; their values are bytes, so what is no UTF-8 becomes surrogates and back, and the
header says so (``hdrcharset=BINARY``, by `tarfile`). Long runs of zeros come back as holes, so a sparse file takes no
more room than before.

Not captured: sockets and devices; `Archive.left_out` names them. What this user may not set when it comes back (owners,
some attributes) is left out, and attributes are named. What changes while it is being captured is captured or not; a
file that shrinks meanwhile is a failure, as its archive would be broken. What cannot be read is a failure as well,
never a gap.

Links are captured as links, wherever they point, and nothing is ever read or written through one: below the directory
that was named, everything is opened by its name within an open directory, so that a link that takes the place of a file
or a directory in the meantime is a failure, and a member that would leave the directory is refused.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, cast

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _typeshed import StrOrBytesPath

_PART: Final = ".part"
_BLOCK: Final = 1024 * 1024
_HOLE: Final = 64 * 1024
"""As many zeros in a row become a hole."""
_ZEROS: Final = bytes(_HOLE)
_LEVEL: Final = 6
_TIME: Final = "mtime"
_NS: Final = 1_000_000_000
_REPLACED: Final = "it was replaced by something else while it was being read"
_SHOWN: Final = 40
"""Characters of a name that its temporary name shows: a name may have 255 bytes, and a character up to four."""

_ATTRIBUTE: Final = "SCHILY.xattr."
_NO_ATTRIBUTES: Final = frozenset({errno.ENOTSUP, errno.ENOSYS})
"""Of a file system that knows none."""


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
    """Remove a directory, if it is there: first its name, at once, then its content piece by piece.

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

    def fill(part: Path) -> None:
        if not source.is_dir():
            raise ArchiveError(action=action, problem=f"there is no directory {source}")
        with _opened(source, os.O_DIRECTORY) as descriptor:
            _copy_folder(descriptor, part, stop)

    _make(directory, fill, action=action, arrived=arrived)


def _copy_folder(source: int, target: Path, stop: Stop) -> None:
    for name in sorted(os.listdir(source)):
        _go_on_unless(stop)
        found, to = os.stat(name, dir_fd=source, follow_symlinks=False), target / name
        if stat.S_ISDIR(found.st_mode):
            to.mkdir(mode=0o700)
            with _opened_in(source, name, found) as folder:
                _copy_folder(folder, to, stop)
        elif stat.S_ISREG(found.st_mode):
            with _opened_in(source, name, found) as descriptor, to.open("xb") as file:
                with os.fdopen(os.dup(descriptor), "rb") as content:
                    shutil.copyfileobj(content, file, _BLOCK)
                file.flush()
                _copy_stat(descriptor, to)
        elif stat.S_ISLNK(found.st_mode):
            to.symlink_to(os.readlink(name, dir_fd=source))
            os.utime(to, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)
        elif stat.S_ISFIFO(found.st_mode):
            os.mkfifo(to)
            to.chmod(stat.S_IMODE(found.st_mode))
            os.utime(to, ns=(found.st_atime_ns, found.st_mtime_ns))
    _copy_stat(source, target)


def _copy_stat(source: int, target: Path) -> None:
    """Copy times, mode and extended attributes of what is open; a descriptor serves as well as a path."""
    shutil.copystat(cast("str", source), target)


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
        _opened(directory, os.O_DIRECTORY) as top,
    ):
        _add_opened(tar, top, ".")
        for folder, name, path in _entries(top):
            with suppress(FileNotFoundError):  # it went away meanwhile
                added = _add(tar, folder, name, path)
                if added is None:
                    left_out.append(path)
                else:
                    size += added
    return hashed.hexdigest(), size, tuple(left_out)


def _entries(top: int) -> Iterator[tuple[int, str, str]]:
    """Yield everything below an open directory, in order: the directory that it is in, its name, its path from the top.

    What cannot be listed is an error, not an empty place.
    """

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files, descriptor in os.fwalk(".", dir_fd=top, onerror=give_up):
        folders.sort()
        for name in sorted([*folders, *files]):
            yield descriptor, name, PurePosixPath(folder, name).as_posix()


def _below(directory: Path) -> Iterator[Path]:
    """Yield everything in a directory, in order; what cannot be listed is an error, not an empty place."""

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(directory, onerror=give_up):
        folders.sort()
        yield from (directory / folder / name for name in sorted([*folders, *files]))


def _add(tar: tarfile.TarFile, folder: int, name: str, path: str) -> int | None:
    """Add one thing to an archive; return how many bytes it brought, None if it is a kind that is left out."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        with _opened_in(folder, name, found) as descriptor:
            return _add_opened(tar, descriptor, path)
    if not stat.S_ISLNK(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        return None
    info = tar.tarinfo(path)
    info.type = tarfile.SYMTYPE if stat.S_ISLNK(found.st_mode) else tarfile.FIFOTYPE
    info.linkname = os.readlink(name, dir_fd=folder) if info.issym() else ""
    info.mode, info.uid, info.gid, info.mtime = found.st_mode, found.st_uid, found.st_gid, found.st_mtime
    # Neither can be opened; this is the name within the open directory, and it is not followed.
    attributes = attributes_of(Path(f"/proc/self/fd/{folder}/{name}"))
    info.pax_headers = {_TIME: _seconds(found.st_mtime_ns), **attributes}
    tar.addfile(info)
    return 0


def _add_opened(tar: tarfile.TarFile, descriptor: int, path: str) -> int:
    info = _info(tar, descriptor, path)
    if not info.islnk():  # another name of a file has that file's attributes
        info.pax_headers = {**info.pax_headers, **attributes_of(descriptor)}
    if not info.isreg():
        tar.addfile(info)
        return 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        tar.addfile(info, file)
    return info.size


class _Descriptor:
    """What `tarfile` wants of a file, for anything that is open."""

    name = ""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def _info(tar: tarfile.TarFile, descriptor: int, path: str) -> tarfile.TarInfo:
    """Describe what is open, not what has its name by now."""
    info = tar.gettarinfo(arcname=path, fileobj=cast("IO[bytes]", _Descriptor(descriptor)))
    info.pax_headers = {_TIME: _seconds(os.fstat(descriptor).st_mtime_ns)}
    return info


@contextmanager
def _opened(path: str | Path, flags: int = 0, *, folder: int | None = None) -> Iterator[int]:
    # Not blocking: a pipe that takes the place of a file would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_in(folder: int, name: str, found: os.stat_result) -> Iterator[int]:
    """Open a file or a directory by its name in an open directory; what was found there must still be there."""
    try:
        with _opened(name, os.O_NOFOLLOW, folder=folder) as descriptor:
            _check_same(found, descriptor, name)
            yield descriptor
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ESTALE, _REPLACED, name) from error


def _check_same(found: os.stat_result, descriptor: int, name: str) -> None:
    if not os.path.samestat(found, os.fstat(descriptor)):
        raise OSError(errno.ESTALE, _REPLACED, name)


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


def attributes_of(target: int | Path) -> dict[str, str]:
    """Return the PAX headers for the attributes of an open file, or of a path, which is not followed.

    One that cannot be read is an error, not a gap; one that goes away meanwhile is left out.
    """
    follow = isinstance(target, int)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return {}
        raise
    found = {}
    for name in names:
        try:
            value = os.getxattr(target, name, follow_symlinks=follow)
        except OSError as error:
            if error.errno == errno.ENODATA:
                continue
            raise
        found[_ATTRIBUTE + _encoded(name)] = value.decode("utf-8", "surrogateescape")
    return found


def set_attributes(path: StrOrBytesPath, headers: Mapping[str, str]) -> list[str]:
    """Set what the headers say on a path, which is not followed; return what this system did not let us set."""
    refused = []
    for header, text in headers.items():
        if not header.startswith(_ATTRIBUTE):
            continue
        name = _decoded(header.removeprefix(_ATTRIBUTE))
        try:
            os.setxattr(path, name, text.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        except OSError as error:
            refused.append(f"{name} ({error.strerror})")
    return refused


def _encoded(name: str) -> str:
    return name.replace("%", "%25").replace("=", "%3D")  # as GNU tar: an equals sign would end the name


def _decoded(name: str) -> str:
    return name.replace("%3D", "=").replace("%25", "%")
