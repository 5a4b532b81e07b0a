"""Named SQL: statements stand in a ``.sql`` file, each under a line ``-- name: what_it_does``, with comments on why.

SQL in a file of its own can be read in one go, tried in a shell and coloured by an editor; Python asks for it by name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROWS_AT_ONCE: Final = 128
"""Far below what SQLite takes, and more than anybody writes often."""
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_statements(package: str, file_name: str) -> dict[str, str]:
    """Return the statements of a file by name, without the comments on lines of their own."""
    _, *parts = _NAME.split((files(package) / file_name).read_text("utf-8"))
    return {name: _COMMENT.sub("", sql).strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def write_rows(cursor: apsw.Cursor, sql: str, rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement with ``VALUES :rows`` on so many rows of values; return how many rows it changed.

    Many at once, and not one after the other: whoever runs a statement lets the other threads of the process go on
    meanwhile, and then waits for its own turn, which costs more than the statement.
    """
    changed = 0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        cursor.execute(_for_rows(sql, len(some), len(some[0])), tuple(chain.from_iterable(some)))
        changed += cursor.connection.changes()
    return changed


@lru_cache(maxsize=4 * _ROWS_AT_ONCE)
def _for_rows(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.replace(":rows", ", ".join([row] * rows))
