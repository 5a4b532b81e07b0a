"""One SQLite database for its users: shared commits, lent readers, statements on many rows, and one place to close.

The tables' meaning is the caller's business; several modules may keep tables in one database so that they can be
written in one transaction. Reads run where they are called, as they take microseconds; writes are awaited.

`write_rows` puts many rows into one statement: the thread that runs a statement lets the other threads of the process
go on meanwhile, and then waits for its turn, so a hundred rows in one statement hold up a busy process less than a
hundred statements.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from lapse.db.sqlite.file import Schema, SQLiteFile, explain, open_reader, open_writer
from lapse.db.sqlite.group_commit import GroupCommit
from lapse.db.sqlite.readers import Readers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lapse.db.errors import DatabaseError
    from lapse.db.sqlite.group_commit import Operation, Ticket

T = TypeVar("T")

_AT_ONCE: Final = 128
"""Far below what SQLite takes, and more than anybody writes often."""


class Database:
    """An open database, safe to share between threads and event loops. Errors go through ``translate``."""

    def __init__(
        self, file: SQLiteFile, schema: Schema, *, translate: Callable[[DatabaseError], Exception] = lambda error: error
    ) -> None:
        """Open or create the file, so that what is wrong with it is known now."""
        self.file = file
        self._translate = translate
        self._readers = Readers(lambda: open_reader(file))
        self._commit = GroupCommit(
            lambda: open_writer(file, schema), explain=lambda error: explain(error, file), translate=translate
        )
        self._commit.connect()

    def write(self, operation: Operation[T]) -> Ticket[T]:
        """Run ``operation`` in a shared transaction; await the answer, which is durable when it comes."""
        return self._commit.submit(operation)

    def write_and_wait(self, operation: Operation[T]) -> T:
        """Do the same from a thread without an event loop."""
        return self._commit.run(operation)

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement on the newest commit and return its rows."""
        return self.read_together(lambda cursor: cursor.execute(sql, values).fetchall())

    def read_together(self, look: Callable[[apsw.Cursor], T]) -> T:
        """Run several statements; wrap them in BEGIN and COMMIT to see one moment."""
        cursor = None
        try:
            cursor = self._readers.take()
            found = look(cursor)
        except apsw.Error as error:
            if cursor is not None:
                self._readers.discard(cursor)
            raise self._translate(explain(error, self.file)) from error
        except BaseException:
            if cursor is not None:
                self._readers.discard(cursor)
            raise
        self._readers.give(cursor)
        return found

    def close(self) -> None:
        """Finish the writes at hand and close all connections. Idempotent."""
        self._commit.close()
        self._readers.close()


def write_rows(cursor: apsw.Cursor, sql: str, rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement that has ``VALUES :rows`` on these rows of values; return how many rows it changed."""
    changed = 0
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        cursor.execute(_for_rows(sql, len(some), len(some[0])), tuple(chain.from_iterable(some)))
        changed += cursor.connection.changes()
    return changed


@lru_cache(maxsize=4 * _AT_ONCE)
def _for_rows(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.replace(":rows", ", ".join([row] * rows))
