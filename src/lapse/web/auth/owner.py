"""The owner's token: a file of the state folder that only the user of ``lapse up`` can read.

``lapse up`` makes it, and the commands of the same user find it without being told. It may do everything. A file that
others can read or write, a link, or a token that was revoked or is of another database is replaced, not trusted.

Guarantees: the file has mode 0600 from its first moment and is never written through a link. Of several processes that
begin at once one makes it, and the others read it: the database's lock is held meanwhile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from lapse.core.errors import LapseError
from lapse.web.api.errors import TokenInvalidError
from lapse.web.auth.state import StateDatabase
from lapse.web.auth.tokens import TokenStore
from lapse.web.server.security import Principal

FILE_NAME: Final = "owner-token"
_LONGEST: Final = 200


class OwnerTokenError(LapseError):
    """The owner's token {path} cannot be used: {problem}. Set state_dir to a folder that this user may write."""


def owner_of(folder: Path, state: StateDatabase, tokens: TokenStore) -> tuple[str, str]:
    """Return id and text of the owner's token of a state folder; make it if need be."""
    path = folder / FILE_NAME
    try:
        with state.exclusively():
            text = _read(path)
            found = None if text is None else _holder(text, tokens)
            if text is not None and found is not None:
                return found.token_id, text
            path.unlink(missing_ok=True)
            made = tokens.create_owner()
            _write(path, made[1])
            return made
    except OSError as error:
        raise OwnerTokenError(path=path, problem=error.strerror or "unknown reason") from error


def _holder(text: str, tokens: TokenStore) -> Principal | None:
    try:
        return tokens.principal(text)
    except TokenInvalidError:
        return None


def _read(path: Path) -> str | None:
    """Return what is in the file; None where there is none that this user alone can read and write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not private or found.st_uid != os.geteuid():
            return None
        return file.read(_LONGEST).decode("ascii", "replace").strip()


def _write(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
