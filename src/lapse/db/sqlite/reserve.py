"""Disk space in reserve, for the one thing that makes room on a full disk: deleting.

In write-ahead logging a deletion is written to the log, and a log that cannot grow must be moved into the database
first, which may have to grow for that. On a full disk neither is possible, so a database whose records have all expired
would stay full for ever. A file of this size beside the database is given up then, and made again when there is room.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapse.db.sqlite.file import SQLiteFile

_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""What the automatic checkpoint (1000 pages) leaves in a log can make a database grow by so much."""


class Reserve:
    """The reserve of one database; processes that share the database share it."""

    def __init__(self, file: SQLiteFile) -> None:
        """Touch nothing yet."""
        self._owner_pid = os.getpid()
        self._path = None if file.vfs is not None else Path(f"{file.path}-reserve")

    def keep(self) -> None:
        """Have the reserve, if there is room for it."""
        if self._path is None or self._path.exists():
            return
        with suppress(OSError):
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                _allocate(handle)
            except OSError:
                self.spend()
            finally:
                os.close(handle)

    def spend(self) -> None:
        """Give the space back to the disk: when it is full, and when the database is closed. Not in a forked child."""
        if self._path is not None and self._owner_pid == os.getpid():
            self._path.unlink(missing_ok=True)


def _allocate(handle: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, _BYTES)
    else:
        for _ in range(_BYTES // 65_536):
            os.write(handle, bytes(65_536))
