"""Named SQL: statements stand in a ``.sql`` file, each under a line ``-- name: what_it_does``, with comments on why.

SQL in a file of its own can be read in one go, tried in a shell and coloured by an editor; Python asks for it by name.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def load_statements(package: str, file_name: str) -> dict[str, str]:
    """Return the statements of a file by name, without the comments on lines of their own."""
    _, *parts = _NAME.split((files(package) / file_name).read_text("utf-8"))
    return {name: _COMMENT.sub("", sql).strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}
