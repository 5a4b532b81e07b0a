"""The state database, ``lapse.db`` in the state folder: tokens and key material, shared by all processes of a machine.

The folder must be this user's (or root's), and no other user may write there: a file of somebody else's would decide
who may call.

Reads and writes are single statements of microseconds, so they run where they are called, on the event loop too.
Every read sees what any process has committed before, so a token that was just made or revoked counts from the next
request on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import apsw

from lapse.core.errors import LapseError
from lapse.core.identity import secret_bytes
from lapse.db.errors import DatabaseError
from lapse.db.sqlite.file import Schema, SQLiteFile, explain, open_writer
from lapse.db.statements import load_statements
from lapse.files.ownership import StateFolderError, distrust

FILE_NAME: Final = "lapse.db"
_SQL: Final = load_statements("lapse.web.auth", "state.sql")
_SCHEMA: Final = Schema(application_id=0x4C505354, scripts=[_SQL["schema_1"], _SQL["schema_2"]])  # "LPST"


class StateError(LapseError):
    """The state database {path} cannot be used: {problem}. Set state_dir to a folder that this user may write."""


def check_folder(folder: Path) -> None:
    """Raise `StateFolderError` unless this user alone (and root) decides what is in a folder."""
    problem = distrust(folder.stat())
    if problem is not None:
        raise StateFolderError(path=folder, problem=f"it {problem}; run chmod 700 on a folder of your own")


class StateDatabase:
    """An open state database. Belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        """Open it, and make the folder and the file, for this user only, when they are not there."""
        self._file = SQLiteFile(folder / FILE_NAME)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_folder(folder)
            self._db = open_writer(self._file, _SCHEMA)
        except OSError as error:
            raise StateError(path=self._file.path, problem=error.strerror or "the folder cannot be made") from error
        except DatabaseError as error:
            raise StateError(path=self._file.path, problem=error.problem) from error

    def rows(self, statement: str, *values: str | bytes | int) -> list[tuple[Any, ...]]:
        """Run a named statement of ``state.sql``; it is committed when this returns."""
        try:
            return list(self._db.execute(_SQL[statement], values))
        except apsw.Error as error:
            raise StateError(path=self._file.path, problem=explain(error, self._file).problem) from error

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Enter a block in which no other process writes; what was written in it counts when it ends well."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise StateError(path=self._file.path, problem=explain(error, self._file).problem) from error
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def secret(self, name: str) -> bytes:
        """Return the key material of this name, drawn when it is first asked for."""
        found = self.rows("find_secret", name)
        if not found:
            self.rows("add_secret", name, secret_bytes())
            found = self.rows("find_secret", name)
        secret: bytes = found[0][0]
        return secret

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    def __enter__(self) -> Self:
        """Enter a block that closes the database at its end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()
