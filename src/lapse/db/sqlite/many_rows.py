"""One statement for many rows.

Whoever runs a statement lets the other threads of the process go on meanwhile, and then waits for its turn. So a
hundred rows in one statement hold up a busy process less than a hundred statements.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

_AT_ONCE: Final = 128
"""Far below what SQLite takes, and more than anybody writes often."""


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
