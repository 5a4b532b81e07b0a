"""The data version of a SQLite file: a number that changes with every commit of any process.

A look at shared memory: no page is read and nobody is kept waiting. Belongs to one thread.

Not guaranteed: that the number goes up, or means anything to another connection. After a failure, or when the file is
opened again, it may differ although nothing was written; it is never the same although something was.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import apsw

from lapse.db.sqlite.file import explain, open_reader

if TYPE_CHECKING:
    from lapse.db.sqlite.file import SQLiteFile


class DataVersion:
    """See the module. The file is opened when it is first asked for."""

    def __init__(self, file: SQLiteFile) -> None:
        """Open nothing yet. The file must have been opened for writing before."""
        self._file = file
        self._db: apsw.Connection | None = None
        self._openings = count()
        self._opening = 0

    def read(self) -> tuple[int, int]:
        """Return the number, with that of the connection which it is of; raises `lapse.db.errors.DatabaseError`."""
        if self._db is None:
            self._db, self._opening = open_reader(self._file), next(self._openings)
        try:
            ((number,),) = self._db.execute("PRAGMA data_version").fetchall()
        except apsw.Error as error:
            self.close()
            raise explain(error, self._file) from error
        return self._opening, int(str(number))

    def close(self) -> None:
        """Close the connection; the next `read` opens another. Idempotent."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(apsw.Error):
                db.close(force=True)
