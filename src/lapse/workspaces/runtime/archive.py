"""The archives of workspaces: a folder for each, numbered files in it, each named by its checksum.

An archive gets its name only after it was written, synced, read back from its disk and found whole. So whatever has a
name can be trusted to have been right, and the checksum in it tells whether it still is. The newest one counts: a crash
between the removal of a volume and the note in the database loses nothing, because the file tells what the row does
not.

An archive stays until a newer one has replaced it, also after it was restored: a restored volume is worth as much as
its archive only when it is archived again.

Everything here blocks; call it in a thread. Not guaranteed: order between two callers for one workspace.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.files.archive import (
    ArchiveError,
    Stop,
    pack,
    remove,
    remove_leftovers,
    sync,
    sync_tree,
    unpack,
    verify,
)
from lapse.workspaces.errors import InvalidWorkspaceError
from lapse.workspaces.model import WorkspaceId, is_id
from lapse.workspaces.runtime.port import ArchiveFailedError, ArchiveMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_TOLD: Final = 5
_log = get_logger("lapse.workspaces.runtime.archive")
_KEY: Final = re.compile(r"(?P<workspace>[-0-9a-f]{36})/(?P<number>[0-9]{6,12})-(?P<sha256>[0-9a-f]{64})\.tar\.gz")


def _never() -> bool:
    return False


class ArchiveKey(NamedTuple):
    """What an archive is called: in the order of their numbers, the last is the newest."""

    workspace: WorkspaceId
    number: int
    sha256: str

    @property
    def file(self) -> str:
        """The name within the workspace's folder."""
        return f"{self.number:06d}-{self.sha256}.tar.gz"

    def __str__(self) -> str:
        return f"{self.workspace}/{self.file}"


def parse_key(text: str, workspace: WorkspaceId) -> ArchiveKey:
    """Read a key as it stands in a row; raises `InvalidWorkspaceError` unless it is one of this workspace."""
    found = _KEY.fullmatch(text)
    if found is None or found["workspace"] != workspace or not is_id(workspace):
        raise InvalidWorkspaceError(field="archive_key", given=repr(text[:40]), expected="the key of its own archive")
    return ArchiveKey(workspace, int(found["number"]), found["sha256"])


class Archives:
    """All archives below one folder."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self._folder = folder

    def keep(self, workspace: WorkspaceId, volume: Path, *, stop: Stop = _never) -> ArchiveKey:
        """Write a new archive of a volume and verify it; raises `ArchiveFailedError` and leaves all as it was."""
        folder = self._of(workspace)
        newest = self.newest(workspace)
        unnamed = folder / f".{owner_token()}.part"  # what a crash leaves of it is a leftover like any other
        try:
            written = pack(volume, unnamed, stop=stop)
            if written.left_out:
                _log.warning("archive_without", workspace=workspace, **_counted(written.left_out))
            verify(written.path, written.sha256, unpacked_bytes=written.unpacked_bytes, stop=stop)
            key = ArchiveKey(workspace, newest.number + 1 if newest else 1, written.sha256)
            unnamed.replace(folder / key.file)
            sync(folder)
            sync(self._folder)
        except (ArchiveError, OSError) as error:
            raise _failed(workspace, error) from error
        finally:
            unnamed.unlink(missing_ok=True)
        return key

    def newest(self, workspace: WorkspaceId) -> ArchiveKey | None:
        """Return the key of the newest archive."""
        return max(self._keys(workspace), key=lambda key: key.number, default=None)

    def size_of(self, workspace: WorkspaceId) -> int | None:
        """Return the bytes of the newest archive; None where there is none here, or it cannot be looked at."""
        try:
            newest = self.newest(workspace)
            return None if newest is None else (self._of(workspace) / newest.file).stat().st_size
        except (ArchiveFailedError, OSError):
            return None

    def restore(
        self, workspace: WorkspaceId, volume: Path, *, expected: str | None = None, stop: Stop = _never
    ) -> ArchiveKey:
        """Unpack the newest archive, which is the ``expected`` one or newer, after its checksum was compared.

        Nothing of the volume can be seen before all of it is there and on its disk. The archive stays.
        """
        key = self.newest(workspace)
        wanted = parse_key(expected, workspace) if expected is not None else None
        if key is None or (wanted is not None and key.number < wanted.number):
            raise ArchiveMissingError(workspace=workspace, archive=expected or "(any)")
        if wanted is not None and key.number == wanted.number and key != wanted:
            raise ArchiveMissingError(workspace=workspace, archive=expected)
        try:
            arrived = partial(sync_tree, mark=stop)
            refused = unpack(self._of(workspace) / key.file, key.sha256, volume, arrived=arrived, stop=stop)
        except ArchiveError as error:
            raise _failed(workspace, error) from error
        if refused:
            _log.warning("restored_without", workspace=workspace, **_counted(refused))
        return key

    def check(self, key: ArchiveKey, *, stop: Stop = _never) -> None:
        """Raise `ArchiveFailedError` unless an archive can still be trusted."""
        try:
            verify(self._of(key.workspace) / key.file, key.sha256, stop=stop)
        except ArchiveError as error:
            raise _failed(key.workspace, error) from error

    def prune(self, workspace: WorkspaceId) -> None:
        """Remove all but the newest."""
        newest = self.newest(workspace)
        for key in self._keys(workspace):
            if key != newest:
                (self._of(workspace) / key.file).unlink(missing_ok=True)

    def discard(self, key: ArchiveKey) -> None:
        """Remove an archive that was written for nothing. Its volume must be there."""
        (self._of(key.workspace) / key.file).unlink(missing_ok=True)

    def forget(self, workspace: WorkspaceId) -> None:
        """Remove all archives of a workspace."""
        try:
            remove(self._of(workspace))
        except ArchiveError as error:
            raise _failed(workspace, error) from error

    def remove_leftovers(self) -> None:
        """Remove what interrupted writes left. Nobody may be writing."""
        remove_leftovers(self._folder)
        for folder in self._folder.iterdir():
            remove_leftovers(folder)

    def _of(self, workspace: WorkspaceId) -> Path:
        if not is_id(workspace):  # it becomes a path
            raise InvalidWorkspaceError(field="id", given=repr(workspace[:40]), expected="a uuid")
        return self._folder / workspace

    def _keys(self, workspace: WorkspaceId) -> Iterator[ArchiveKey]:
        folder = self._of(workspace)
        try:
            names = [path.name for path in folder.iterdir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise ArchiveFailedError(workspace=workspace, problem=f"{error.strerror} ({folder})") from error
        for name in names:
            found = _KEY.fullmatch(f"{workspace}/{name}")
            if found is not None:
                yield ArchiveKey(workspace, int(found["number"]), found["sha256"])


def _counted(left_out: Sequence[str]) -> dict[str, Any]:
    """Return what a log line tells of what is missing: sockets and devices, or attributes that may not be set."""
    return {"count": len(left_out), "first": list(left_out[:_TOLD])}


def _failed(workspace: WorkspaceId, error: Exception) -> ArchiveFailedError:
    return ArchiveFailedError(workspace=workspace, problem=str(error).removesuffix("."))
