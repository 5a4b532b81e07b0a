"""File layers for SQLite that misbehave on demand: slow, full, failing, or cut from power.

They have no shared memory, so a database on them is opened with ``locking_mode=EXCLUSIVE``, by one connection.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import apsw

from lapse.db.sqlite.file import SQLiteFile, Synchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_numbers = count(1)


def nothing(*_: object) -> None:
    """Do what a healthy disk does: nothing more."""


@dataclass
class Disk:
    """What happens before SQLite's own file layer is asked. A hook that raises makes the call fail."""

    name: str
    on_write: Callable[[str, int, bytes], None] = nothing
    on_truncate: Callable[[str, int], None] = nothing
    on_sync: Callable[[str], None] = nothing
    on_delete: Callable[[str], None] = nothing
    layer: Any = field(default=None, repr=False)

    def file(
        self, path: Path, synchronous: Synchronous = Synchronous.FULL, pragmas: dict[str, str] | None = None
    ) -> SQLiteFile:
        """Describe a database on this disk."""
        everything = {"locking_mode": "EXCLUSIVE"} | (pragmas or {})
        return SQLiteFile(path, synchronous=synchronous, busy_ms=200, vfs=self.name, pragmas=everything)


class _Layer(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _File:  # noqa: N802 - the name is SQLite's
        return _File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802, FBT001 - the same
        self._disk.on_delete(filename)
        super().xDelete(filename, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802, ANN401 - the same
        self._disk.on_write(self._path, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - the same
        self._disk.on_truncate(self._path, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - the same
        self._disk.on_sync(self._path)
        super().xSync(flags)


@contextmanager
def disk() -> Iterator[Disk]:
    """Give a disk whose hooks can be set at any time."""
    made = Disk(f"test-disk-{next(_numbers)}")
    made.layer = _Layer(made)
    try:
        yield made
    finally:
        made.layer.unregister()
